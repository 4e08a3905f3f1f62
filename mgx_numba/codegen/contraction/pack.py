"""Weights as the register tile reads them: panels of columns, each panel contiguous in the order of the reduction."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import numpy as np

from ..cpu.tile_table import RegisterTile

__all__ = ["aligned_zeros", "pack_panels", "panel_count"]

ALIGNMENT = 64
HUGE_PAGE = 2 << 20


def aligned_zeros(lens: Sequence[int], dtype: str) -> np.ndarray:
    """Zeros that start on a cache line; many of them on a huge page, in huge pages as far as they fill them.

    Kernels that wait for weights read them up to a fifth faster from huge pages.
    """
    size = int(np.prod(lens, dtype=np.int64)) * np.dtype(dtype).itemsize
    huge = size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = HUGE_PAGE if huge else ALIGNMENT
    raw = _huge_pages(size) if huge else np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(lens)


def _huge_pages(size: int) -> np.ndarray:
    """Zeros in which ``size`` bytes from the first multiple of a huge page on lie in huge pages, but for their end."""
    pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(pages, np.uint8)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE, -raw.ctypes.data % HUGE_PAGE, size - size % HUGE_PAGE)
    return raw


def panel_count(tile: RegisterTile, columns: int) -> int:
    """Panels that hold ``columns`` columns."""
    return -(-columns // tile.columns)


def pack_panels(matrices: np.ndarray, out: np.ndarray) -> None:
    """Copy ``matrices[..., depth, columns]`` into ``out[..., panel, depth, columns of a panel]``.

    ``out`` must be zero where columns are missing. Both may have any strides; no other copy is made.
    """
    columns, most = matrices.shape[-1], out.shape[-1]
    for index in np.ndindex(*matrices.shape[:-2]):
        source, target = matrices[index], out[index]
        for panel in range(target.shape[0]):
            first = panel * most
            width = min(most, columns - first)
            target[panel, :, :width] = source[:, first : first + width]
