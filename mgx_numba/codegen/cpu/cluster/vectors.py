"""Choose where a reduction cluster's accumulators are, the lanes of its vectors, and the columns of a task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod

from ....core.dim import Dim, Length, all_of, is_symbolic, known_in, known_same, less_equal, maximum, preferred
from ....dataclass import dataclass
from ....graph.module import Module
from ...lang.target import MAX_LANES
from ...problems.cluster import Tensor
from .. import host
from ..loops import lanes_for
from ..machine import machine
from .stages import Stages, stages_of
from .walk import Walk, walk_of

LONG_ROW = 32
"""Vectors of a row from which each step takes two vectors."""
WIDER_COLUMNS = 8
"""Vectors of columns in a step: longer runs of each row, for more registers. No figures kept."""
LIGHT = 6
"""Most instructions of a one-stage cluster whose steps may take ``WIDER_COLUMNS`` vectors."""
FEWEST_CHUNKS = 16
"""Least vectors of the columns, so that all threads have some."""
FEWEST_KEPT = 4
"""Vectors of columns from which their accumulators may be in memory."""
KEPT_SHARE = 3
"""The accumulators of a task's columns take one part in this many of the L1 cache."""
WHOLE_ROW = 8
"""Registers of the longest row that is held in registers."""


class Strategy(Enum):
    """How a reduction cluster is computed; each strategy has a module of its name that prints it."""

    ROWS = "row after row, or vector after vector of columns, with all accumulators in registers"
    WHOLE_ROWS = "rows that registers hold"
    COLUMNS = "columns with accumulators in memory"
    ROW_PIPELINE = "several rows at a time, each in another stage"


@dataclass(frozen=True)
class Vectors:
    """How a cluster is cut into vectors.

    Attributes:
        walk, stages: reduced and kept dimensions, and the stage of each value.
        strategy: by the place of the accumulators; ``ROWS`` may still become ``ROW_PIPELINE``.
        lanes: lanes of a vector.
        longest_chunk: most columns of a task.
    """

    walk: Walk
    stages: Stages
    strategy: Strategy
    lanes: int
    longest_chunk: int


def vectors_of(
    module: Module,
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parts: int = 1,
    fold: int = 1,
    again: tuple[int, ...] = (),
) -> Vectors:
    """Return the vectors of a cluster; arguments are those of the problem.

    Raises:
        CompileError: no operand is full.
        UnsupportedError: ``fold`` steps cannot become columns.
    """
    walk = walk_of(module, axes, inputs, outputs, fold, again)
    stages = stages_of(module, walk, again)
    strategy = _strategy_of_accumulators(walk, stages, parts)
    lanes = _lanes(walk, stages, strategy)
    return Vectors(walk, stages, strategy, lanes, _longest_chunk(walk, stages, strategy, lanes))


def _instructions(walk: Walk, stages: Stages) -> int:
    """Return the instructions of the body; an operand that is one value counts as two, since it fills a register."""
    return len(stages.module) + sum(all(known_in(s, 0) for s in t.strides) for t in walk.inputs)


def _strategy_of_accumulators(walk: Walk, stages: Stages, parts: int) -> Strategy:
    """Return the strategy: columns' accumulators in memory, whole rows in registers, or neither."""
    if _keeps_columns(walk, stages):
        return Strategy.COLUMNS
    return Strategy.WHOLE_ROWS if parts == 1 and _is_whole_row(walk, stages) else Strategy.ROWS


def _keeps_columns(walk: Walk, stages: Stages) -> bool:
    """Return whether columns come from memory and are best read row by row, with all accumulators in memory.

    Otherwise a column's accumulators are in registers, and rows are read in short runs.
    """
    kept, fewest = walk.keep_space, FEWEST_KEPT * lanes_for(_instructions(walk, stages))
    if walk.row_mode or not walk.past_caches or stages.count != 1 or any(stages.full_results):
        return False
    return kept.rank > 0 and preferred(less_equal(fewest, kept.lens[-1]))


def _is_whole_row(walk: Walk, stages: Stages) -> bool:
    """Return whether registers hold a row, so that no stage re-reads or recomputes values of an earlier stage.

    The text is specialised for each length, which therefore has to be known. Unless vectors fill cache lines, no part
    of such rows is streamed.
    """
    if not walk.row_mode or walk.reduce_space.rank != 1:
        return False
    cols, one = walk.reduce_lens[-1], host.lanes("float32")
    if isinstance(cols, Dim):
        return False
    full = (i for i in stages.module if i.name != "@return" and known_same(i.shape.lens, walk.full))
    widest = max(i.shape.type.compute.size for i in full)
    held = cols <= MAX_LANES and cols * widest <= WHOLE_ROW * 4 * one
    return held and (not walk.streamed or cols <= 2 * one or cols & (cols - 1) == 0)


def _lanes(walk: Walk, stages: Stages, strategy: Strategy) -> int:
    """Return the lanes of a vector: long rows take more registers, since reductions are chains whose latency several
    registers hide.

    So do columns, where each step reads as much memory in one place, as long as all threads have some. With more work
    than one reduction, that gains little, so rows and columns that may be short do not.
    """
    lanes = lanes_for(_instructions(walk, stages))
    if strategy is Strategy.COLUMNS:
        return lanes
    if strategy is Strategy.WHOLE_ROWS:
        return max(host.lanes("float32"), 1 << (walk.reduce_lens[-1] - 1).bit_length())  # type: ignore[operator]
    if walk.row_mode:
        is_long = less_equal(LONG_ROW * lanes, walk.reduce_lens[-1])
        if is_symbolic(is_long) and stages.count > 1:
            return lanes
        return 2 * lanes if preferred(is_long) else lanes
    wider = WIDER_COLUMNS if stages.count == 1 and _instructions(walk, stages) <= LIGHT else 2
    kept = walk.keep_space.lens
    if stages.count > 1 and walk.past_caches and preferred(less_equal(2 * wider * lanes, _cached_columns(walk))):
        wider *= 2

    def is_wide(lanes: int) -> Length:
        return all_of(less_equal(lanes, kept[-1]), less_equal(FEWEST_CHUNKS // 2 * lanes, prod(kept)))

    while wider > 1 and not is_symbolic(wide := is_wide(2 * lanes)) and wide:
        lanes, wider = 2 * lanes, wider // 2
    if wider > 1 and stages.count == 1 and is_symbolic(is_wide(2 * lanes)):  # one condition for all further doublings
        return lanes * wider if preferred(is_wide(lanes * wider)) else lanes
    return lanes


def _cached_columns(walk: Walk) -> Length:
    """Return the columns whose elements all fit the stack buffers."""
    return machine().l1_bytes // maximum(prod(walk.reduce_space.lens) * walk.tensors[walk.lead].type.compute.size, 1)


def _longest_chunk(walk: Walk, stages: Stages, strategy: Strategy, lanes: int) -> int:
    """Return the most columns of a task."""
    if strategy is Strategy.COLUMNS:
        types = [stages.reduction(i).accumulator(i.inputs[0].shape.type) for i in stages.reductions]
        return machine().l1_bytes // KEPT_SHARE // sum(t.size for t in types)
    return max(4 * lanes_for(_instructions(walk, stages)), lanes)
