"""Pack weights for the register tile: panels of columns, each panel contiguous in the order of the reduction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.dim import Length, SharedLength
from ....core.pages import aligned_bytes
from ....parallel import allowed_cpus, on_threads
from ..microkernels.register_tile import RegisterTile

SHARED_BYTES = 4 << 20
"""Bytes of packed weights from which several threads pack them: a millisecond of work; starting a thread takes a
twentieth."""


def aligned_zeros(lens: Sequence[int], dtype: str) -> np.ndarray:
    """Return zeros that start on a cache line; large arrays use huge pages as far as they fill them."""
    size = int(np.prod(lens, dtype=np.int64)) * np.dtype(dtype).itemsize
    return aligned_bytes(size).view(dtype).reshape(lens)


def panel_count(tile: RegisterTile, columns: Length) -> SharedLength:
    """Return the number of panels that hold ``columns`` columns."""
    return -(-columns // tile.columns)


def words_of(rows: np.ndarray, together: int, word: str) -> np.ndarray:
    """Return ``rows[..., k, n]`` as words ``[..., k / together, n]`` of successive k, C-contiguous.

    Columns in order are copied word by word, else one row of each word is copied at a time: a copy of the transposed
    elements takes up to seven times as long (8 MB of int8, Zen 4).
    """
    *outer, k, n = rows.shape
    if rows.strides[-2] == rows.itemsize and rows.size:
        return np.ascontiguousarray(rows.swapaxes(-1, -2).view(word).swapaxes(-1, -2))
    groups = rows.view(f"u{rows.itemsize}").reshape(*outer, k // together, together, n)
    out = np.empty((*outer, k // together, n, together), groups.dtype)
    for place in range(together):
        out[..., place] = groups[..., place, :]
    return out.view(word)[..., 0]


def without_repeats(matrices: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Return a view of ``matrices[..., k, n]`` without the outer axes of length 1 and those along which it repeats."""
    distinct = matrices[tuple(slice(1 if s == 0 else None) for s in strides[:-2])]
    return distinct.squeeze(tuple(axis for axis, n in enumerate(distinct.shape[:-2]) if n == 1))


def pack_panels(matrices: np.ndarray, out: np.ndarray, axes: int = 1) -> None:
    """Copy ``matrices[..., depth, columns]`` into ``out[..., panel, depth, columns of a panel]``.

    ``out`` must be zero where columns are missing. Both may have any strides; no other copy is made. Large weights are
    copied by one thread for each CPU.

    Args:
        matrices: the weights.
        out: the panels.
        axes: number of axes in the place of ``depth``, the same in both.
    """
    columns, most, count = matrices.shape[-1], out.shape[-1], out.shape[-2 - axes]
    threads = allowed_cpus() if out.nbytes >= SHARED_BYTES else 1
    # A row of a panel is copied as one element: NumPy takes 6 times as long for a row of 16 float32 (Zen 3).
    adjacent = matrices.dtype == out.dtype and matrices.strides[-1] == out.strides[-1] == out.itemsize
    whole = columns // most if adjacent and matrices.size else 0
    row = np.dtype((np.void, most * out.itemsize))

    def pack(part: tuple[tuple[int, ...], int, int]) -> None:
        outer, start, stop = part
        source, target = matrices[outer], out[outer]
        if stop <= whole:
            rows = source[..., start * most : stop * most].view(row)
            target[start:stop].view(row)[..., 0] = np.moveaxis(rows, -1, 0)
            return
        for panel in range(start, stop):
            first = panel * most
            width = min(most, columns - first)
            target[panel, ..., :width] = source[..., first : first + width]

    step = max(1, -(-whole // threads))
    starts = [*range(0, whole, step), *range(whole, count)]
    parts = [
        (outer, start, stop)
        for outer in np.ndindex(*matrices.shape[: -1 - axes])
        for start, stop in zip(starts, [*starts[1:], count])
    ]
    on_threads(pack, parts, threads)
