"""Memory for kernels, in huge pages where a block fills one.

Kernels that are bound by reading weights run up to a fifth faster from huge pages. Strassen products, whose sums must
stay in the L2 cache, no longer depend on the pages that a process was given. Memory that an allocator reuses keeps its
small pages, so large blocks are requested from the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from math import prod

import numpy as np

ALIGNMENT = 64  # bytes of a cache line
HUGE_PAGE = 2 << 20  # on x86-64, and on ARM with pages of 4 KiB


def aligned_bytes(size: int) -> np.ndarray:
    """Return ``size`` zero bytes that start on a cache line; a large block starts on a huge page.

    Raises:
        MemoryError: the system has not enough memory.
    """
    huge = size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    try:
        raw = _huge_pages(size) if huge else np.zeros(size + ALIGNMENT, np.uint8)
    except (MemoryError, OSError, OverflowError, ValueError) as error:  # the last two for sizes beyond the C type
        raise MemoryError(f"{size} bytes for a kernel") from error
    start = -raw.ctypes.data % (HUGE_PAGE if huge else ALIGNMENT)
    return raw[start : start + size]


def aligned_array(lens: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array of zeros in memory as of `aligned_bytes`; an array of objects holds None, in any memory.

    The first write to a large array takes a quarter of the time that small pages take.
    """
    if dtype.hasobject:
        return np.empty(lens, dtype)
    return aligned_bytes(prod(lens) * dtype.itemsize).view(dtype).reshape(lens)


def memory_owner(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view; while the owner lives, no other array uses its memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def never_free(value: object) -> None:
    """Keep an object until the process ends: a daemon thread in compiled code runs on while the interpreter exits."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def leave_memory(array: np.ndarray) -> None:
    """Let the pages of an array over a read-only map of a file leave the memory; the next access reads them again."""
    base: object = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(base, np.uint8)
    if whole.flags.writeable:
        return
    low, high = (end - whole.ctypes.data for end in np.lib.array_utils.byte_bounds(array))
    first = -(-low // mmap.PAGESIZE) * mmap.PAGESIZE
    if first < high:
        base.madvise(mmap.MADV_DONTNEED, first, high - first)


def _huge_pages(size: int) -> np.ndarray:
    """Return zero bytes of which ``size``, from the first multiple of a huge page, are in huge pages, except for their
    end."""
    pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(pages, np.uint8)
    with contextlib.suppress(OSError):  # a system kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE, -raw.ctypes.data % HUGE_PAGE, size - size % HUGE_PAGE)
    return raw
