"""Parameters in a file (``options={"memory": "file"}``): only packed weights stay in memory.

The pages of a large parameter become private pages of a file without a name, at the same address and with the same
content. The compiler reads the file by a map of its own. The parameter can be read and written as before: the system
reads a page when it is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile

import numpy as np
import torch

from ..codegen.files import default_folder, make_folder
from .exchange import host_array
from .logs import warn_once

LEAST_BYTES = 1 << 20
"""Least size (bytes) of a parameter that is moved to a file."""
_MAP_PRIVATE, _MAP_FIXED = 2, 16
"""Flags of mmap(2) on Linux, on every processor that PyTorch supports."""


def parked(tensor: torch.Tensor) -> torch.Tensor | np.ndarray:
    """Move a large parameter to a file; return an array over the file, or the tensor if it stays where it is."""
    bytes_ = tensor.numel() * tensor.element_size()
    local = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_shared() and not tensor.is_pinned()
    if bytes_ < LEAST_BYTES or not local or sys.platform != "linux" or tensor.is_inference():
        return tensor
    try:
        return _moved(tensor.data_ptr(), host_array(tensor))
    except OSError as error:
        warn_once("parameters stay in memory, since they cannot be moved to a file: %s", error)
        return tensor


def _moved(address: int, content: np.ndarray) -> np.ndarray:
    """Write an array's pages to a file, map the whole pages at their address, and return an array over the file."""
    first = -address % mmap.PAGESIZE
    pages = (content.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    folder = default_folder()
    make_folder(folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(mmap.PAGESIZE - first) if first else b"")  # the first whole page begins a page of the file
        file.write(content.reshape(-1).view(np.uint8).data)
        file.flush()
        start = mmap.PAGESIZE if first else 0
        _map_at(address + first, pages, file.fileno(), start)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(data, np.uint8, content.nbytes, start - first)
    return flat.view(content.dtype).reshape(content.shape)


def _map_at(address: int, size: int, file: int, offset: int) -> None:
    """Replace pages of memory by private pages of a file.

    Raises:
        OSError: the system refuses.
    """
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if call(address, size, protection, _MAP_PRIVATE | _MAP_FIXED, file, offset) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
