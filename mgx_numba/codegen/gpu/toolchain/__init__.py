"""From kernel text to PTX or an AMD code object, through Numba's front end and LLVM."""
