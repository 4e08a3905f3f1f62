"""From a kernel's text to LLVM IR: what every back end does alike. Numba types and writes what the text calls."""
