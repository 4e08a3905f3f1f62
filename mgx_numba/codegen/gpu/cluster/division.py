"""Which reductions of few long rows are made in two launches, so that all multiprocessors have work."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph.module import Module
from ...cluster_pieces import Division
from ...problems.cluster import Tensor
from .layout import row_layout
from .levels import levels_of

__all__ = ["division_of"]

ENOUGH_BLOCKS = 264
"""Blocks that give the multiprocessors of a large device work: two for each."""
LEAST_ELEMENTS = 1 << 16
"""Elements of a cluster from which on a second launch pays."""
LEAST_ROUNDS = 4
"""Times that a team takes all the vectors that it holds, in a part of a row."""


def division_of(
    module: Module, axes: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor], workers: int
) -> Division | None:
    """How a cluster should be divided, if it should: one that reads its operands once, and gives reductions alone."""
    layout = row_layout(axes, inputs, outputs)
    levels = levels_of(module, inputs, layout.full)
    results = any(not levels.row_value[r] for r in levels.results)
    if not layout.looped or levels.count > 1 or results or prod(layout.full) < LEAST_ELEMENTS:
        return None
    rounds = layout.items // (layout.team.size * layout.held)
    parts = min(-(-ENOUGH_BLOCKS // layout.blocks), rounds // LEAST_ROUNDS)
    if parts < 2:
        return None
    rank = len(layout.full)
    return Division(parts, 1, 1, tuple(range(rank)))
