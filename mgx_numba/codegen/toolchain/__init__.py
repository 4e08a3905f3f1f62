"""Compilation of a kernel's text to LLVM IR, common to all back ends. Numba types and lowers the functions it calls."""
