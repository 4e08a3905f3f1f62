"""A plan as a shared library for C and C++: data, machine code and a small run time in C, without Python."""
