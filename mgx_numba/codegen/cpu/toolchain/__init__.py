"""Compile a kernel's text to machine code in memory: Numba's front end, LLVM, linker."""
