"""MMA of AMD matrix cores in interpreted kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from mgx_numba.codegen.gpu.matrix_tiles import TILES, MatrixTile
from mgx_numba.core.types import numpy_dtype

from .asynchronous import added_products, kept_by_tf32
from .lanes import KernelFault, Lanes

__all__ = ["MATRIX_NAMES", "WAVES"]


def _multiplied(tile: MatrixTile, who: Lanes, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the accumulators after the product of the fragments of each wave: [accumulators, threads]."""
    for own, dtype in ((a, tile.a), (b, tile.b)):
        if own.dtype != numpy_dtype(dtype) or len(own) != tile.held:
            raise KernelFault(
                f"multiplies {(len(own),)} of {own.dtype}; expected ({tile.held},) of {numpy_dtype(dtype)}"
            )
    c, a, b = (np.broadcast_to(x, (len(x), who.count)) for x in (c, a, b))
    sums_at = _layout(tile)[1]
    found = np.zeros((who.count, tile.sums), numpy_dtype(tile.accumulator))
    for first in np.flatnonzero(who.active_mask()[:: tile.lanes]) * tile.lanes:
        wave = slice(first, first + tile.lanes)
        sums = np.empty((tile.side, tile.side), numpy_dtype(tile.accumulator))
        sums[sums_at] = c[:, wave].T
        operands = [_operand(tile, own[:, wave].T) for own in (a, b)]
        found[wave] = added_products(sums, *operands)[sums_at]
    return found.T


def _operand(tile: MatrixTile, parts: np.ndarray) -> np.ndarray:
    """Return the operand [side, depth] of which each lane of a wave holds a row of ``parts``."""
    places = _layout(tile)[0]
    whole = np.zeros((tile.side, tile.depth), parts.dtype)
    whole[places] = parts
    if parts.size > whole.size and whole[places].tobytes() != parts.tobytes():
        raise KernelFault("lanes that hold the same elements of an operand do not agree about them")
    return kept_by_tf32(whole) if tile.rounds else whole


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


MATRIX_NAMES: dict[str, Callable[..., np.ndarray]] = {tile.name: functools.partial(_multiplied, tile) for tile in TILES}
"""Functions that all lanes of a wave call together, after the threads."""
WAVES = {"shuffle_halves": 64, **{tile.name: tile.lanes for tile in TILES}}
"""Lanes that call a function together, where they are not a warp."""
