"""Memory for kernels, in huge pages where it fills them.

Kernels that wait for weights read them up to a fifth faster from there, and products by Strassen's method, whose sums
have to stay in the L2 cache, do not depend on which pages a process was given. What an allocator hands out again keeps
its small pages, so large blocks are asked of the system.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from math import prod

import numpy as np

__all__ = ["aligned_array", "aligned_bytes", "memory_owner"]

ALIGNMENT = 64  # bytes of a cache line
HUGE_PAGE = 2 << 20  # of x86-64, and of ARM with pages of 4 KiB


def aligned_bytes(size: int) -> np.ndarray:
    """``size`` zeros that start on a cache line; many of them on a huge page.

    Raises:
        MemoryError: the system has not so many.
    """
    huge = size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    try:
        raw = _huge_pages(size) if huge else np.zeros(size + ALIGNMENT, np.uint8)
    except (MemoryError, OSError, OverflowError, ValueError) as error:  # the last two of what cannot be counted
        raise MemoryError(f"{size} bytes for a kernel") from error
    start = -raw.ctypes.data % (HUGE_PAGE if huge else ALIGNMENT)
    return raw[start : start + size]


def aligned_array(lens: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of zeros, or of None, in memory as of `aligned_bytes`: a large one is written to for the first time in a
    quarter of what small pages take. One of objects is anywhere."""
    if dtype.hasobject:
        return np.empty(lens, dtype)
    return aligned_bytes(prod(lens) * dtype.itemsize).view(dtype).reshape(lens)


def memory_owner(array: np.ndarray) -> np.ndarray:
    """The array that an array is a view of, itself if of none: while that lives no other one is in its memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _huge_pages(size: int) -> np.ndarray:
    """Zeros in which ``size`` bytes from the first multiple of a huge page on lie in huge pages, but for their end."""
    pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(pages, np.uint8)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE, -raw.ctypes.data % HUGE_PAGE, size - size % HUGE_PAGE)
    return raw
