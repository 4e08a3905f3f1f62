"""Compiler process for C++ programs, which `migraphx/compiler.hpp` starts and sends requests to."""
