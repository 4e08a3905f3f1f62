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
    places, sums_at = _layout(tile)
    for number, dtype in ((1, tile.a), (2, tile.b)):
        whole = np.zeros((tile.side, tile.depth), numpy_dtype(dtype))
        for given in lanes:
            own = given[number]
            if own.dtype != whole.dtype or own.shape != (tile.held,):
                raise KernelFault(f"multiplies {own.shape} of {own.dtype}; expected ({tile.held},) of {whole.dtype}")
        parts = np.stack([given[number] for given in lanes])
        whole[places] = parts
        if parts.size > whole.size and whole[places].tobytes() != parts.tobytes():
            raise KernelFault("lanes that hold the same elements of an operand do not agree about them")
        operands.append(kept_by_tf32(whole) if tile.rounds else whole)
    sums = np.empty((tile.side, tile.side), numpy_dtype(tile.accumulator))
    sums[sums_at] = np.stack([given[0] for given in lanes])
    return list(added_products(sums, *operands)[sums_at])


_Index = tuple[np.ndarray, np.ndarray]


@functools.cache
def _layout(tile: MatrixTile) -> tuple[_Index, _Index]:
    """Return the rows and K positions of the lanes' fragments, and the rows and columns of their accumulators."""
    places = np.array([tile.place(lane) for lane in range(tile.lanes)])
    rows = np.array([[tile.row(lane, number) for number in range(tile.sums)] for lane in range(tile.lanes)])
    return (
        (places[:, :1], places[:, 1:] + np.arange(tile.held)),
        (rows, np.arange(tile.lanes)[:, None] % tile.side),
    )


MATRIX_NAMES: dict[str, Callable[[Sequence[tuple[Any, ...]]], list[Any]]] = {
    tile.name: functools.partial(_multiplied, tile) for tile in TILES
}
"""Functions that all lanes of a wave call together: each lane's result from all operands."""
WAVES = {"shuffle_halves": 64, **{tile.name: tile.lanes for tile in TILES}}
"""Lanes that call a function together, where they are not a warp."""
