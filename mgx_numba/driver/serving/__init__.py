"""The compiler's process of C++ programs: what `migraphx/compiler.hpp` starts and asks."""
