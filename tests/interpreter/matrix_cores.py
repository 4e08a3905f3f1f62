"""MMA of AMD matrix cores in interpreted kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.matrix_tiles import TILES, MatrixTile
from mgx_numba.core.types import numpy_dtype

from .asynchronous import added_products, kept_by_tf32
from .memory import KernelFault

__all__ = ["MATRIX_NAMES", "WAVES"]


def _multiplied(tile: MatrixTile, lanes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return each lane's accumulators after the product of all lanes' fragments."""
    operands = []
    for number, dtype in ((1, tile.a), (2, tile.b)):
        whole = np.zeros((tile.side, tile.depth), numpy_dtype(dtype))
        for lane, given in enumerate(lanes):
            own, (row, first) = given[number], tile.place(lane)
            if own.dtype != whole.dtype or own.shape != (tile.held,):
                raise KernelFault(f"multiplies {own.shape} of {own.dtype}; expected ({tile.held},) of {whole.dtype}")
            part = whole[row, first : first + tile.held]
            if lane * tile.held >= whole.size and part.tobytes() != own.tobytes():
                raise KernelFault(f"lane {lane} has other elements of row {row} than the lane before that has it")
            part[:] = own
        operands.append(kept_by_tf32(whole) if tile.rounds else whole)
    rows = np.array([[tile.row(lane, number) for number in range(tile.sums)] for lane in range(tile.lanes)])
    columns = np.arange(tile.lanes)[:, None] % tile.side
    sums = np.empty((tile.side, tile.side), numpy_dtype(tile.accumulator))
    sums[rows, columns] = np.stack([given[0] for given in lanes])
    return list(added_products(sums, *operands)[rows, columns])


MATRIX_NAMES: dict[str, Callable[[Sequence[tuple[Any, ...]]], list[Any]]] = {
    tile.name: functools.partial(_multiplied, tile) for tile in TILES
}
"""Functions that all lanes of a wave call together: each lane's result from all operands."""
WAVES = {"shuffle_halves": 64, **{tile.name: tile.lanes for tile in TILES}}
"""Lanes that call a function together, where they are not a warp."""
