"""Products of 8-bit integers by ``vpmaddubsw``: exact, although the instruction adds two products in 16 bits.

Two products of an unsigned byte fit 16 bits if the sum of their two weights is at most 128 in magnitude. Where it is
larger, the second weight is reduced until it fits. What is taken away, the residual, is multiplied in a further step.

A panel ends with its residuals: int32 ``starts[taps + 1]``, the number of the first residual of each tap; then for each
residual its tap and the number of its word of k in the tap, the same where taps along a row are one run of taps, and
the words of all columns of the panel. There is room for `_most_residuals`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...problems.element_types import ElementTypes
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import RESIDUAL_PLACES, residual_tile, tile_for
from .solver import UnsuitedWeights

PAIR_LIMIT = 128
"""Largest magnitude of the sum of two weights: 255 times as much fits an int16."""
ROOM = 8
"""A panel has room for residuals of one word of k in this many. A residual takes as long as 1.2 words, and a word of
four k 0.77 of the time of two words of two k (Zen 3)."""


def tile_with_residuals(types: ElementTypes) -> RegisterTile:
    """Return the tile of `residual_tile`, or the plain tile of the types, for which solvers refuse the types."""
    return residual_tile(types) or tile_for(types)


def residual_tile_refused(types: ElementTypes) -> str | None:
    """Return why products of these types need no residuals; None if a tile is declared."""
    return None if residual_tile(types) else "the CPU adds four products at once, or none of bytes"


def residual_rows(tile: RegisterTile, taps: int, depth: int) -> int:
    """Return the rows of a panel that hold its residuals, 0 for a tile without residuals."""
    if not tile.packing.residuals:
        return 0
    return -(-(taps + 1 + _most_residuals(taps * depth) * (tile.columns + RESIDUAL_PLACES)) // tile.columns)


def _most_residuals(words: int) -> int:
    return words // ROOM + 1


def split_weights(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return int8 weights ``[..., k, n]`` whose pairs along k fit 16 bits, and their residuals, None if there are
    none."""
    first, second = weights[..., 0:-1:2, :], weights[..., 1::2, :]
    sums = first.astype(np.int16) + second
    if not sums.size or max(sums.max(), -int(sums.min())) <= PAIR_LIMIT:
        return weights, None
    excess = (sums - sums.clip(-PAIR_LIMIT, PAIR_LIMIT)).astype(np.int8)
    fitting, residuals = weights.copy(), np.zeros_like(weights)
    fitting[..., 1::2, :] -= excess
    residuals[..., 1::2, :] = excess
    return fitting, residuals


def pack_residuals(tile: RegisterTile, taps: Sequence[np.ndarray | None], out: np.ndarray, run: int = 1) -> None:
    """Write the residuals of one matrix into ``out[panel, row, column]``, the last rows of its panels.

    Args:
        taps: for each tap the residuals as words ``[depth, n]``; None: it has none.
        run: taps along a row.

    Raises:
        UnsuitedWeights: there are more than a panel has room for.
    """
    panels, columns = out.shape[0], tile.columns
    depth = next((len(words) for words in taps if words is not None), 0)
    words = np.zeros((panels, len(taps), depth, columns), np.int32)
    for tap, own in enumerate(taps):
        if own is not None:
            wide = np.zeros((depth, panels * columns), np.int32)
            wide[:, : own.shape[1]] = own
            words[:, tap] = wide.reshape(depth, panels, columns).swapaxes(0, 1)
    used = words.any(-1)
    counts = used.sum((1, 2))
    if counts.max(initial=0) > _most_residuals(len(taps) * depth):
        raise UnsuitedWeights("many pairs of weights do not fit 16 bits")
    places = np.nonzero(used)
    panel, tap_of, word = places
    flat = out.reshape(panels, -1)
    flat[:, 1 : len(taps) + 1] = used.sum(2).cumsum(1)
    number = np.arange(len(panel)) - (counts.cumsum() - counts)[panel]
    place = len(taps) + 1 + number * (columns + RESIDUAL_PLACES)
    for k, value in enumerate((tap_of, word, tap_of // run, tap_of % run * depth + word)):
        flat[panel, place + k] = value
    flat[panel[:, None], (place + RESIDUAL_PLACES)[:, None] + np.arange(columns)] = words[places]
