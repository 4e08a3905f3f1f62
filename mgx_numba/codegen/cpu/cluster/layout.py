"""The layout of a reduction cluster's kernel: everything that its text and its arguments depend on, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from ....graph.instruction import Instruction
from ....graph.module import Module
from ...problems.cluster import Tensor
from .. import host
from ..loops import lanes_for, task_elements
from .cached import CACHE_BYTES, CHEAP, cached_values
from .maxima import maxima_without_nan
from .stages import Stages, stages_of
from .variance import with_one_pass_variances
from .walk import SHORTEST_PIPELINE, Walk, walk_of

__all__ = ["ReduceLayout", "Strategy", "reduce_layout"]

LONG_ROW = 32
"""Vectors of a row from which each step takes two of them."""
WIDER_COLUMNS = 8
LIGHT = 6
"""Instructions of a cluster with one stage of which each step may take ``WIDER_COLUMNS`` vectors."""
FEWEST_CHUNKS = 16
"""Vectors that columns have at least, so that all threads have some."""
FEWEST_KEPT = 4
"""Vectors of columns from which their accumulators may be in memory."""
KEPT_BYTES = 16 << 10
"""Memory for the accumulators of a task's columns: half of a usual first-level cache."""
WHOLE_ROW = 8
"""Registers of the longest row that is held in them."""
PIPELINE_BYTES = 512 << 10
"""Rows of all stages of a pipeline together: half of a usual second-level cache."""


class Strategy(Enum):
    """How a reduction cluster is computed; each has a module of its name that prints it."""

    ROWS = "row after row, or vector after vector of columns, with all accumulators in registers"
    WHOLE_ROWS = "rows that registers hold"
    COLUMNS = "columns with accumulators in memory"
    ROW_PIPELINE = "several rows at a time, each in another stage"


@dataclass(frozen=True)
class ReduceLayout:
    """How the kernel of a reduction cluster walks its operands.

    Attributes:
        walk, stages: what is reduced and kept, and what is computed when.
        fast_math: whether functions may differ by 4 units in the last place.
        parts, fold: as for `reduce.reduce_launch`.
        strategy: how it is printed.
        lanes: of a vector.
        longest_chunk: most columns of a task.
        outer: lengths of the dimensions that rows are numbered by.
        loops: lengths of the loops of the reduction around that along the lanes if there is one.
        cols, chunk, chunks: elements along the lanes, of a task, and tasks for them (1 in row mode).
        rows, batch: number of rows, and those of a task.
        count: elements that are reduced to one.
        inner: for each operand, its element stride along the lanes.
        row_strides: for each operand, its element strides along ``outer``.
        loop_strides: for each operand, its element strides along ``loops``; none for those that are not full.
        cached: the values that are kept on the stack, with the stages that keep them.
    """

    walk: Walk
    stages: Stages
    fast_math: bool
    parts: int
    fold: int
    strategy: Strategy
    lanes: int
    longest_chunk: int
    outer: tuple[int, ...]
    loops: tuple[int, ...]
    cols: int
    chunk: int
    chunks: int
    rows: int
    batch: int
    count: int
    inner: tuple[int, ...]
    row_strides: tuple[tuple[int, ...], ...]
    loop_strides: tuple[tuple[int, ...], ...]
    cached: Mapping[Instruction, int]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return -(-self.rows // self.batch) * self.chunks * self.parts if prod(self.walk.full) else 0

    def same_for_rows(self, operand: int) -> bool:
        """Whether an operand is read again for each row."""
        return self.walk.row_mode and self.rows > 1 and not any(self.row_strides[operand])


def reduce_layout(
    module: Module,
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    fast_math: bool = False,
    parts: int = 1,
    fold: int = 1,
) -> ReduceLayout:
    """The layout of a cluster's kernel; arguments are those of `reduce.reduce_launch`.

    Raises:
        CompileError: no operand is full.
    """
    walk = walk_of(module, axes, inputs, outputs, fold)
    computed, maxima = _as_computed(module, walk.is_one_pass)
    stages = stages_of(computed, walk, maxima)
    strategy = _strategy_of_accumulators(walk, stages, parts)
    lanes = _lanes(walk, stages, strategy)
    longest_chunk = _longest_chunk(stages, strategy, lanes)
    reduce_lens, keep_lens = walk.reduce_lens, walk.keep_space.lens
    if walk.row_mode:
        outer, cols, loops = keep_lens, reduce_lens[-1], reduce_lens[:-1]
        chunk, chunks = cols, 1
    else:
        outer, cols, loops = keep_lens[:-1], keep_lens[-1], reduce_lens
        chunk = min(cols, longest_chunk)
        chunks = -(-cols // chunk)
    rows, count = prod(outer), prod(reduce_lens)
    work = count * (1 if walk.row_mode else chunk)
    batch = 1 if chunks * parts > 1 else max(1, min(rows, task_elements(prod(walk.full)) // max(work, 1)))
    inner, loop_strides = _strides(walk)
    cached = {} if strategy is Strategy.WHOLE_ROWS else cached_values(walk, stages, lanes)
    if strategy is Strategy.ROWS and _is_pipelined(walk, stages, lanes, inner, cached):
        strategy = Strategy.ROW_PIPELINE
    return ReduceLayout(
        walk=walk,
        stages=stages,
        fast_math=fast_math,
        parts=parts,
        fold=fold,
        strategy=strategy,
        lanes=lanes,
        longest_chunk=longest_chunk,
        outer=outer,
        loops=loops,
        cols=cols,
        chunk=chunk,
        chunks=chunks,
        rows=rows,
        batch=batch,
        count=count,
        inner=inner,
        row_strides=tuple(s[: len(outer)] for s in walk.keep_space.strides),
        loop_strides=loop_strides,
        cached=cached,
    )


def _as_computed(module: Module, one_pass: bool) -> tuple[Module, frozenset[Instruction]]:
    """The cluster as its kernel computes it, and the maxima that need not pass a NaN on."""
    computed = with_one_pass_variances(module) if one_pass else module
    return computed, frozenset(maxima_without_nan(computed))


def _strategy_of_accumulators(walk: Walk, stages: Stages, parts: int) -> Strategy:
    """Whether columns' accumulators are in memory, or rows in registers."""
    if _keeps_columns(walk, stages):
        return Strategy.COLUMNS
    return Strategy.WHOLE_ROWS if parts == 1 and _is_whole_row(walk, stages) else Strategy.ROWS


def _keeps_columns(walk: Walk, stages: Stages) -> bool:
    """Whether columns come from memory and are best read row by row, with all accumulators in memory.

    Otherwise a column's accumulators are in registers, and rows are read in short runs.
    """
    kept = walk.keep_space
    wide = kept.rank > 0 and kept.lens[-1] >= FEWEST_KEPT * lanes_for(len(stages.module))
    return not walk.row_mode and walk.past_caches and stages.count == 1 and wide and not any(stages.full_results)


def _is_whole_row(walk: Walk, stages: Stages) -> bool:
    """Whether registers hold a row, so that no stage reads or computes again what one before it had.

    Unless vectors fill lines, no part of such rows goes past the caches.
    """
    if not walk.row_mode or walk.reduce_space.rank != 1:
        return False
    cols, one = walk.reduce_lens[-1], host.lanes("float32")
    full = (i for i in stages.module if i.name != "@return" and i.shape.lens == walk.full)
    widest = max(i.shape.type.compute.size for i in full)
    held = cols <= host.MAX_LANES and cols * widest <= WHOLE_ROW * 4 * one
    return held and (not walk.streamed or cols <= 2 * one or cols & (cols - 1) == 0)


def _lanes(walk: Walk, stages: Stages, strategy: Strategy) -> int:
    """Long rows take more registers at a time: reductions are chains, which wait unless there are several.

    So do columns, where each step reads as much memory in one place, as long as all threads have some.
    """
    lanes = lanes_for(len(stages.module))
    if strategy is Strategy.COLUMNS:
        return lanes
    if strategy is Strategy.WHOLE_ROWS:
        return max(host.lanes("float32"), 1 << (walk.reduce_lens[-1] - 1).bit_length())
    if walk.row_mode:
        return 2 * lanes if walk.reduce_lens[-1] >= LONG_ROW * lanes else lanes
    wider = WIDER_COLUMNS if stages.count == 1 and len(stages.module) <= LIGHT else 2
    kept = walk.keep_space.lens
    if stages.count > 1 and walk.past_caches and _cached_columns(walk) >= 2 * wider * lanes:
        wider *= 2
    while wider > 1 and kept[-1] >= 2 * lanes and prod(kept) >= FEWEST_CHUNKS * lanes:
        lanes, wider = 2 * lanes, wider // 2
    return lanes


def _cached_columns(walk: Walk) -> int:
    """Columns of which all elements fit into what is kept on the stack."""
    return CACHE_BYTES // (prod(walk.reduce_space.lens) * walk.tensors[walk.lead].type.compute.size)


def _longest_chunk(stages: Stages, strategy: Strategy, lanes: int) -> int:
    """Most columns of a task."""
    if strategy is Strategy.COLUMNS:
        types = [stages.reduction(i).accumulator(i.inputs[0].shape.type) for i in stages.reductions]
        return KEPT_BYTES // sum(t.size for t in types)
    return max(4 * lanes_for(len(stages.module)), lanes)


def _strides(walk: Walk) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """For each operand: its stride along the lanes, and its strides along the loops of the reduction."""
    reduced = iter(walk.reduce_space.strides)
    strides = [next(reduced) or (1,) if is_full else () for is_full in walk.is_full]
    if walk.row_mode:
        return tuple(s[-1] if s else 0 for s in strides), tuple(s[:-1] for s in strides)
    return tuple(s[-1] for s in walk.keep_space.strides), tuple(strides)


def _is_pipelined(
    walk: Walk, stages: Stages, lanes: int, inner: Sequence[int], cached: Mapping[Instruction, int]
) -> bool:
    """Whether rows come from memory, take long to compute with, and are such that several fit the caches.

    What is kept of a row must be written one stage before it is read, results in the last stage.
    """
    last, cols = stages.count - 1, walk.reduce_lens[-1]
    row_bytes = sum(cols * t.type.size for t, stride in zip(walk.tensors, inner) if stride)
    return (
        walk.row_mode
        and walk.past_caches
        and last > 0
        and walk.reduce_space.rank <= 1
        and cols >= SHORTEST_PIPELINE * lanes
        and row_bytes * stages.count <= PIPELINE_BYTES
        and any(stages.cost(i.inputs[0]) > CHEAP for i in stages.reductions)
        and all(stage == last - 1 for stage in cached.values())
        and all(stages.store_stage(r) == last for r, full in zip(stages.results, stages.full_results) if full)
    )
