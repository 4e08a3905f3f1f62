"""Which reductions of few long rows are made in several launches, so that all threads have work."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph.module import Module
from ...cluster_pieces import Division, reduction_depth, split_cluster
from ...problems.cluster import Tensor
from ..machine import machine
from .vectors import Vectors, vectors_of

__all__ = ["division_of"]

FEWEST_ROWS = 16
MOST_PARTS = 32
FOLDED = 1024
LEAST_STEPS = 16
"""Steps of the columns that several steps at a time are made to, so that little is left to combine."""
LONG_RUN = 4096
FEW_VECTORS = 2


def division_of(
    module: Module, axes: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor], threads: int
) -> Division | None:
    """How a cluster should be divided, if it should.

    For a cluster that reads its operands once this depends on lengths and strides only, so that results do not depend
    on the number of threads.
    """
    vectors = vectors_of(module, axes, inputs, outputs)
    walk, keep_lens = vectors.walk, vectors.walk.keep_space.lens
    elements, kept = prod(walk.full), prod(keep_lens)
    rows = kept if walk.row_mode else kept // keep_lens[-1] * -(-keep_lens[-1] // vectors.longest_chunk)
    depth, here = reduction_depth(module), machine()
    repeated = max(depth.values()) > 1 or any(vectors.stages.full_results)
    few = rows >= threads or elements < here.repeated_elements
    if repeated and (few or not _has_full_rest(module, axes, walk.full)):
        return None
    fold = 1 if repeated or elements < here.reduced_part_elements else _fold(vectors)
    parts = 1
    if rows < FEWEST_ROWS and (fold == 1 or rows == 1):
        least = max(here.reduced_part_elements, here.reduced_share * kept * fold)
        parts = min(-(-MOST_PARTS // rows), elements // least)
    columns = 1 if walk.row_mode else keep_lens[-1]
    strides = walk.tensors[walk.lead].strides
    order = tuple(sorted(range(len(strides)), key=lambda a: -strides[a]))
    return Division(max(1, parts), fold, columns, order) if max(parts, fold) > 1 else None


def _fold(vectors: Vectors) -> int:
    """Steps of columns that fill vectors together: their number is a divisor of a column's length."""
    walk = vectors.walk
    if walk.row_mode or not walk.reduce_space.rank or not all(walk.is_full[: len(walk.inputs)]):
        return 1
    cols, length = walk.keep_space.lens[-1], walk.reduce_space.lens[-1]
    full = [k for k, is_full in enumerate(walk.is_full) if is_full]
    follow = all(row[-1] == cols for row in walk.reduce_space.strides)
    long_runs = walk.past_caches and walk.keep_space.rank == 1
    few, folded = (LONG_RUN // 4, LONG_RUN) if long_runs else (FEW_VECTORS * vectors.lanes, FOLDED)
    if not follow or any(walk.keep_space.strides[k][-1] != 1 for k in full) or cols > few:
        return 1
    return next((k for k in range(min(length // LEAST_STEPS, folded // cols), 0, -1) if length % k == 0), 1)


def _has_full_rest(module: Module, axes: Sequence[int], full: Sequence[int]) -> bool:
    """Whether something of the full lengths is left to walk over after the first reductions."""
    rest = split_cluster(module, axes, 1)[2]
    return rest is None or any(v.shape.lens == full for v in (*rest.takes, *rest.gives))
