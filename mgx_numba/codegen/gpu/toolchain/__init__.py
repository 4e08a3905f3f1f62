"""Compile kernel text to PTX or an AMD code object, with Numba's typing and LLVM."""
