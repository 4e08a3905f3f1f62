"""The layout of a reduction cluster's kernel: all properties that its text and its arguments depend on, computed once;
and the names in the text: arguments, accumulators and stack buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....core.dim import (
    Length,
    all_of,
    ceil_div,
    is_symbolic,
    known_in,
    known_less_equal,
    less_equal,
    maximum,
    minimum,
    preferred,
)
from ....dataclass import dataclass
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ....ops.reduce_parts import largest_head
from ...arguments import Arguments
from ...problems.cluster import ReductionProblem
from ...statements import dtype_name, indent
from ..loops import Odometer, rows_of_task, task_elements, tasks_unless_empty
from ..machine import machine
from .bf16_split_results import check_parts
from .stages import CHEAP, Stages, cached_values, kept_in_result
from .vectors import Strategy, vectors_of
from .walk import SHORTEST_PIPELINE, Walk

PIPELINE_SHARE = 2
"""The rows that a pipeline works on at a time take at most ``1 / PIPELINE_SHARE`` of the L2 cache."""


@dataclass(frozen=True)
class ReduceLayout:
    """How the kernel of a reduction cluster walks its operands.

    Attributes:
        walk, stages: reduced and kept dimensions, and the stage of each value.
        fast_math: whether functions may differ by 4 units in the last place.
        parts, fold: as in the problem.
        cut: index of the reduction loop that is cut into parts; the loop along the lanes is the last.
        share: steps of loop ``cut`` in one part.
        strategy: the kind of loop nest that is printed.
        lanes: lanes of a vector.
        longest_chunk: most columns of a task.
        outer: lengths of the kept dimensions; rows are numbered in their row-major order.
        loops: lengths of the reduction loops around the loop along the lanes, if there are any.
        cols, chunk, chunks: elements along the lanes, elements of a task, and tasks for all elements (1 in row mode).
        rows, batch: number of rows, and rows of a task.
        count: number of elements of a reduction.
        inner: for each operand, its element stride along the lanes.
        row_strides: for each operand, its element strides along ``outer``.
        loop_strides: for each operand, its element strides along ``loops``; empty for operands that are not full.
        cached: values that are kept on the stack, with the stage that writes each.
        in_result: the value that the last stage but one keeps in the memory of a result, with the result's number.
    """

    walk: Walk
    stages: Stages
    fast_math: bool
    parts: int
    fold: int
    cut: int
    share: Length
    strategy: Strategy
    lanes: int
    longest_chunk: int
    outer: tuple[Length, ...]
    loops: tuple[Length, ...]
    cols: Length
    chunk: Length
    chunks: Length
    rows: Length
    batch: Length
    count: Length
    inner: tuple[Length, ...]
    row_strides: tuple[tuple[Length, ...], ...]
    loop_strides: tuple[tuple[Length, ...], ...]
    cached: Mapping[Instruction, int]
    in_result: Mapping[Instruction, int]

    @property
    def tasks(self) -> Length:
        """Return the number of tasks; 0 if a known length is 0.

        If only a symbolic length may be 0, there are rows without elements, whose results are stored.
        """
        known = [n for n in self.walk.full if not is_symbolic(n)]
        tasks: Length = tasks_unless_empty(ceil_div(self.rows, self.batch) * self.chunks * self.parts, known)
        return tasks

    def same_for_rows(self, operand: int) -> bool:
        """Return whether all of several rows read the same elements of an operand (row mode only)."""
        one = known_less_equal(self.rows, 1)
        return self.walk.row_mode and not one and all(known_in(s, 0) for s in self.row_strides[operand])


def reduce_layout(problem: ReductionProblem) -> ReduceLayout:
    """Return the layout of a cluster's kernel.

    Raises:
        CompileError: no operand is full.
        UnsupportedError: parts, heads of rows, or results in parts need another memory layout of the operands.
    """
    parts, fold = problem.parts, problem.fold
    vectors = vectors_of(problem.module, problem.axes, problem.inputs, problem.outputs, parts, fold, problem.again)
    walk, stages, strategy, lanes = vectors.walk, vectors.stages, vectors.strategy, vectors.lanes
    cut, share = _cut(problem, walk)
    _check_heads(walk, stages, lanes)
    reduce_lens, keep_lens = walk.reduce_lens, walk.keep_space.lens
    if walk.row_mode:
        outer, cols, loops = keep_lens, reduce_lens[-1], reduce_lens[:-1]
        chunk, chunks = cols, 1
    else:
        outer, cols, loops = keep_lens[:-1], keep_lens[-1], reduce_lens
        chunk = minimum(cols, vectors.longest_chunk)
        chunks = ceil_div(cols, maximum(chunk, 1))
    rows, count = prod(outer), prod(reduce_lens)
    work = count * (1 if walk.row_mode else chunk)
    batch = rows_of_task(rows, chunks * parts, work, task_elements(prod(walk.full)))
    inner, loop_strides = _strides(walk)
    check_parts(walk.name, [stages.full_results[k] and known_in(inner[len(walk.inputs) + k], 1) for k in walk.parts])
    cached = {} if strategy is Strategy.WHOLE_ROWS else cached_values(walk, stages, lanes)
    if strategy is Strategy.ROWS and _is_pipelined(walk, stages, lanes, inner, cached):
        strategy = Strategy.ROW_PIPELINE
    in_result = kept_in_result(walk, stages, cached, inner) if strategy is Strategy.ROWS else {}
    return ReduceLayout(
        walk=walk,
        stages=stages,
        fast_math=problem.fast_math,
        parts=parts,
        fold=fold,
        cut=cut,
        share=share,
        strategy=strategy,
        lanes=lanes,
        longest_chunk=vectors.longest_chunk,
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
        in_result=in_result,
    )


def _cut(problem: ReductionProblem, walk: Walk) -> tuple[int, Length]:
    """Return the loop that is cut into parts, and the steps of a part."""
    if problem.parts == 1:
        return 0, 0
    if problem.cut not in walk.reduce_space.axes:
        raise UnsupportedError(f"{walk.name}: axes {list(problem.cut)} are not walked as one, as parts need it")
    cut = walk.reduce_space.axes.index(problem.cut)
    folded = problem.fold if cut == walk.reduce_space.rank - 1 else 1
    if not known_in(problem.share % folded, 0):
        raise UnsupportedError(f"{walk.name}: parts of {problem.share} elements are no multiples of {folded} steps")
    return cut, problem.share // folded


def _check_heads(walk: Walk, stages: Stages, lanes: int) -> None:
    """Raise UnsupportedError unless rows begin with enough contiguous elements for their heads (`head_vectors`)."""
    for head in stages.heads:
        least = maximum(lanes, prod(walk.reduce_lens) // head.op.share)  # type: ignore[attr-defined]
        if not walk.row_mode or walk.reduce_lens[-1] < least:
            raise UnsupportedError(f"{walk.name}: rows do not begin with {least} elements side by side")


def _strides(walk: Walk) -> tuple[tuple[Length, ...], tuple[tuple[Length, ...], ...]]:
    """Return for each operand its stride along the lanes, and its strides along the loops of the reduction."""
    reduced = iter(walk.reduce_space.strides)
    strides = [next(reduced) or (1,) if is_full else () for is_full in walk.is_full]
    if walk.row_mode:
        return tuple(s[-1] if s else 0 for s in strides), tuple(s[:-1] for s in strides)
    return tuple(s[-1] for s in walk.keep_space.strides), tuple(strides)


def _is_pipelined(
    walk: Walk, stages: Stages, lanes: int, inner: Sequence[Length], cached: Mapping[Instruction, int]
) -> bool:
    """Return whether rows come from memory, take long to compute, and several of them fit the caches.

    Kept values of a row must be written one stage before they are read, results in the last stage.
    """
    last, cols = stages.count - 1, walk.reduce_lens[-1]
    row_bytes = sum(cols * t.type.size for t, stride in zip(walk.tensors, inner) if not known_in(stride, 0))
    fitting = less_equal(row_bytes * stages.count, machine().l2_bytes // PIPELINE_SHARE)
    return (
        walk.row_mode
        and walk.past_caches
        and last > 0
        and walk.reduce_space.rank <= 1
        and preferred(all_of(less_equal(SHORTEST_PIPELINE * lanes, cols), fitting))
        and any(stages.cost(i.inputs[0]) > CHEAP for i in stages.reductions)
        and all(stage == last - 1 for stage in cached.values())
        and all(stages.store_stage(r) == last for r, full in zip(stages.results, stages.full_results) if full)
    )


LEAST_VECTORS = 4
"""Least vectors in the head of a row: the mean of fewer may be far from the row's mean."""


def head_vectors(lanes: int, cols: Length, count: Length, share: int) -> Length:
    """Return the number of vectors in the head of a row, whose mean estimates the mean of the row.

    The head has about ``count / share`` of the row's ``count`` elements, and lies in the first ``cols``, which are
    contiguous.
    """
    return minimum(cols // lanes, maximum(LEAST_VECTORS, ceil_div(count, share * lanes)))


def head_lines(name: str, dtype: str, lanes: int, element: Sequence[str], value: str) -> list[str]:
    """Return lines that set ``name`` to the mean of ``heads`` vectors, where ``element`` computes each ``value`` at
    ``c``."""
    return [
        f"{name} = const_{dtype}(0, {lanes})",
        "for head in range(heads):",
        *indent([f"c = head * {lanes}", *element, f"{name} = add({name}, {value})"]),
        f"{name}_0 = div(reduce_add({name}), cast_{dtype}(heads * {lanes}))",
        f"{name}_1 = where(lt(abs({name}_0), {largest_head(dtype)!r}), {name}_0, const_{dtype}(0, 0))",
    ]


@dataclass(frozen=True)
class RowSplit:
    """The loops of a reduction, one of which covers only a part if there are several parts.

    Attributes:
        bounds: begin and end of each loop; in row mode the loop along the lanes is the last.
        lines: lines that set the bounds of the part, and ``block`` to the remaining task number.
        offsets: for each operand, the expression added to its offset for the part.
    """

    bounds: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    offsets: tuple[str, ...]


def row_split_of(layout: ReduceLayout, arguments: Arguments, loops: tuple[str, ...]) -> RowSplit:
    """Return the bounds of a layout's reduction loops, and declare the ``arguments`` that a part needs.

    ``loops`` are the names of the arguments with the lengths of the loops around the loop along the lanes.
    """
    walk, parts = layout.walk, layout.parts
    bounds = [("0", length) for length in loops] + [("0", "cols")] * walk.row_mode
    offsets = [""] * len(walk.tensors)
    if parts == 1:
        return RowSplit(tuple(bounds), (), tuple(offsets))
    d = layout.cut
    arguments.integer("share", layout.share)
    arguments.integer("parts", parts)
    lines = (
        "part = imod(block, parts)",
        "block = idiv(block, parts)",
        "low = part * share",
        f"high = imin({bounds[d][1]}, low + share)",
    )
    bounds[d] = ("low", "high")
    for k in range(len(walk.inputs), len(walk.tensors)):
        offsets[k] = f" + part * {arguments.integer(f'b{k}', layout.fold * prod(walk.tensors[k].lens))}"
    return RowSplit(tuple(bounds), lines, tuple(offsets))


@dataclass(frozen=True)
class Names:
    """The names of operands, strides and values in a kernel's text.

    ``p_<operand>`` is the start of an operand, ``r_<operand>`` its row, ``q_<operand>`` the place where the loop along
    the lanes reads it.

    Attributes:
        operands: ``x0``, ``x1``, ..., ``out0``, ``out1``, ....
        odometer: the position of a row in the kept dimensions.
        parts: the loops of the reduction, whose indices are ``j0``, ``j1``, ....
        steps: for each operand, the argument that is its stride along the lanes, unless that is 0 or 1.
        loop_strides: for each operand, the loops along which it moves, with the arguments that are its strides.
        accumulators, heads, caches: variables of each reduction, each mean known before the row, and each kept value.
    """

    operands: tuple[str, ...]
    odometer: Odometer
    parts: RowSplit
    steps: tuple[str, ...]
    loop_strides: tuple[tuple[tuple[int, str], ...], ...]
    accumulators: Mapping[Instruction, str]
    heads: Mapping[Instruction, str]
    caches: Mapping[Instruction, str]

    def next_row(self, k: int) -> str:
        """Return the argument with an operand's distance to the next row, or "" if it has none."""
        strides = self.odometer.strides[k]
        return strides[-1] if strides else ""

    def loop_offset(self, k: int, index: Mapping[int, str] | None = None) -> str:
        """Return the offset of an operand from its row inside the loops; ``index`` may replace a loop's index
        expression."""
        index = index or {}
        return " + ".join(f"{index.get(d, f'j{d}')} * {stride}" for d, stride in self.loop_strides[k])


def names_of(layout: ReduceLayout, arguments: Arguments) -> Names:
    """Return the names in a kernel's text, and declare its ``arguments``."""
    walk, stages = layout.walk, layout.stages
    operands = (*(f"x{k}" for k in range(len(walk.inputs))), *(f"out{k}" for k in range(len(walk.outputs))))
    for name, tensor in zip(operands, walk.tensors):
        arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
    for name in ("cols", "chunk", "chunks", "rows", "batch", "count"):
        arguments.integer(name, getattr(layout, name))
    if stages.heads:
        share = min(head.op.share for head in stages.heads)  # type: ignore[attr-defined]
        arguments.integer("heads", head_vectors(layout.lanes, layout.cols, layout.count, share))
    parts = row_split_of(layout, arguments, tuple(arguments.integer(f"m{d}", n) for d, n in enumerate(layout.loops)))
    odometer = Odometer(arguments, layout.outer, layout.row_strides)
    steps, loop_strides = [], []
    for k, stride in enumerate(layout.inner):
        steps.append(arguments.step(f"t{k}", stride))
        along = enumerate(layout.loop_strides[k])
        loop_strides.append(tuple((d, arguments.integer(f"a{k}_{d}", s)) for d, s in along if not known_in(s, 0)))
    return Names(
        operands=operands,
        odometer=odometer,
        parts=parts,
        steps=tuple(steps),
        loop_strides=tuple(loop_strides),
        accumulators={ins: f"acc{k}" for k, ins in enumerate(stages.reductions)},
        heads={ins: f"head{k}" for k, ins in enumerate(stages.heads)},
        caches={ins: f"cache{k}" for k, ins in enumerate(layout.cached)},
    )
