"""From a kernel's text to typed LLVM IR: what every back end does alike, with Numba as the front end."""
