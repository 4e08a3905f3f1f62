"""Weights as the register tile reads them: panels of columns, each panel contiguous in the order of the reduction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..cpu.tile_table import RegisterTile

__all__ = ["aligned_zeros", "pack_panels", "panel_count"]

ALIGNMENT = 64


def aligned_zeros(lens: Sequence[int], dtype: str) -> np.ndarray:
    """Zeros that start on a cache line."""
    size = int(np.prod(lens, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(lens)


def panel_count(tile: RegisterTile, columns: int) -> int:
    """Panels that hold ``columns`` columns."""
    return -(-columns // tile.columns)


def pack_panels(tile: RegisterTile, matrices: np.ndarray, out: np.ndarray) -> None:
    """Copy ``matrices[..., depth, columns]`` into ``out[..., panel, depth, tile.columns]``.

    ``out`` must be zero where columns are missing. Both may have any strides; no other copy is made.
    """
    columns = matrices.shape[-1]
    for index in np.ndindex(*matrices.shape[:-2]):
        source, target = matrices[index], out[index]
        for panel in range(target.shape[0]):
            first = panel * tile.columns
            width = min(tile.columns, columns - first)
            target[panel, :, :width] = source[:, first : first + width]
