"""Call host kernels from Python, and share the layouts of the blocks that they read and write."""

from __future__ import annotations

import ctypes

# A kernel is ``void (int64_t *args, int64_t begin, int64_t end)``; a call releases the GIL.
NativeKernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def constants_of(prefix: str, layout: type) -> str:
    """Return the fields of a block's layout as constant definitions for a kernel's source text."""
    fields = {name: value for name, value in vars(layout).items() if name.isupper()}
    return "".join(f"{prefix}_{name} = {value}\n" for name, value in fields.items())
