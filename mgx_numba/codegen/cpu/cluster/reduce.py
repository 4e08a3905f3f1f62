"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

The layout (`reduction_layout.py`) determines the kernel: how the operands are walked (`walk.py`), which values each
pass along a row computes (`stages.py`), and the strategy.

Columns of operands larger than the caches have accumulators in memory and are read row by row, in long runs. With
accumulators in registers, a task would read a short run of each row: another page of memory each time, of which
the hardware fetches more than is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....core.dim import known_in
from ....graph.instruction import Instruction
from ...arguments import Arguments
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...printer import VectorValue
from ...problems.cluster import ReductionProblem
from ...statements import for_tasks, indent, kernel_text, vector_loop
from ..kernel import cpu_kernel
from ..loops import claim
from .accumulators import initial_lines, initial_text
from .element import Element, cache_memory
from .means import mean_lines
from .prefetch import prefetches, soon_read, streamed_result
from .reduction_layout import Names, ReduceLayout, names_of, reduce_layout
from .row_pipeline import pipeline_lines
from .row_values import RowValues, all_stages, rows_at
from .vectors import Strategy


def each_row(layout: ReduceLayout, names: Names, row: Sequence[str]) -> list[str]:
    """Return lines that run ``row`` for the rows of each task, with pointers ``r_<operand>`` to them.

    In column mode its columns are ``first`` to ``last``.
    """
    places = [names.odometer.offset(k) + names.parts.offsets[k] for k in range(len(names.operands))]
    pointers = [f"r_{name} = offset(p_{name}, {place})" for name, place in zip(names.operands, places)]
    return for_tasks(names.odometer.each_row([*pointers, *row], chunk=names.parts.lines))


ROWS = 4
"""Rows of which each element is read before the accumulators are updated, so that accumulators are loaded less
often."""
AHEAD = 1 << 10
"""Prefetch distance (bytes): memory further ahead is too often on another page."""


def column_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``COLUMNS``."""
    stages, lanes = layout.stages, layout.lanes
    reserved = [
        f"kept{k} = local_{stages.reduction(i).accumulator(i.inputs[0].shape.type).dtype_name}"
        f"({layout.longest_chunk + lanes})"
        for k, i in enumerate(stages.reductions)
    ]

    def clear(left: str) -> list[str]:
        neutral = [initial_text(stages.reduction(i), i.inputs[0].shape.type, lanes) for i in stages.reductions]
        return [f"store(kept{k}, c - first, {value})" for k, value in enumerate(neutral)]

    def results(left: str) -> list[str]:
        rows = rows_at(layout, names, left)
        checked = mean_lines(layout, names, 0, rows_at(layout, names, left, "o"), left)
        for ins in stages.reductions:
            rows.value(ins)
        rows.store_results()
        return [*_load(layout, names), *checked, *rows.drain()]

    chunk = [*vector_loop(lanes, clear), *_walk(layout, names), *vector_loop(lanes, results)]
    return [*reserved, *each_row(layout, names, chunk)]


def _load(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that load the accumulators of a vector of columns."""
    accumulators = enumerate(names.accumulators.values())
    return [f"{name} = load(kept{k}, c - first, {layout.lanes})" for k, name in accumulators]


def _walk(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that add all rows of the columns ``first`` to ``last`` to their accumulators, several rows at a
    time."""
    bounds = names.parts.bounds
    last = len(bounds) - 1
    low, high = bounds[last]

    def pass_over(count: int) -> list[str]:
        pointers = [
            f"q{row or ''}_{name} = offset(r_{name}, {names.loop_offset(k, {last: f'(j{last} + {row})'}) or '0'})"
            for row in range(count)
            for k, name in enumerate(names.operands)
            if layout.walk.is_full[k]
        ]
        loop = vector_loop(layout.lanes, lambda left: _add_rows(layout, names, count, left))
        return [*pointers, *loop, f"j{last} += {count}"]

    walk = [
        f"j{last} = {low}",
        f"while j{last} + {ROWS} <= {high}:",
        *indent(pass_over(ROWS)),
        f"while j{last} < {high}:",
        *indent(pass_over(1)),
    ]
    for d in range(last - 1, -1, -1):
        walk = [f"for j{d} in range({', '.join(bounds[d])}):", *indent(walk)]
    return walk


def _add_rows(layout: ReduceLayout, names: Names, count: int, left: str) -> list[str]:
    """Return lines that add one vector of ``count`` rows, at pointers ``q``, ``q1``, ..., to the accumulators."""
    reductions = layout.stages.reductions
    combine = [layout.stages.reduction(ins).combine for ins in reductions]
    at = [f"q{row or ''}" for row in range(count)]
    values = rows_at(layout, names, left)
    element = Element(layout, names, values.value, 0, left)
    contributions = [element.contributions(reductions, pointers) for pointers in at]
    while len(contributions) > 1:
        half = len(contributions) // 2
        for k in range(len(reductions)):
            for row in range(half):
                pair = contributions[row][k], contributions[row + half][k]
                contributions[row][k] = element.buffer.emit(f"{combine[k]}({pair[0]}, {pair[1]})")
        contributions = contributions[:half]
    accumulators = list(names.accumulators.values())
    return [
        *values.drain(),
        *([] if left else _fetch(layout, at)),
        *_load(layout, names),
        *element.buffer.drain(),
        *(f"{name} = {combine[k]}({name}, {contributions[0][k]})" for k, name in enumerate(accumulators)),
        *(f"store(kept{k}, c - first, {name})" for k, name in enumerate(accumulators)),
    ]


def _fetch(layout: ReduceLayout, at: list[str]) -> list[str]:
    """Return lines that prefetch the data of rows a little past these pointers."""
    walk = layout.walk
    known = [k for k in range(len(walk.inputs)) if walk.is_full[k] and known_in(layout.inner[k], 1)]
    return [
        line
        for pointers in at
        for k in known
        for line in prefetches(layout, k, f"c + {AHEAD // walk.inputs[k].type.size}", pointers)
    ]


def row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``ROWS``."""
    row = _stages(layout, names, "") if layout.walk.row_mode else _vectors_of_columns(layout, names)
    return [*cache_memory(layout, names), *each_row(layout, names, row)]


def _vectors_of_columns(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that take the columns ``first`` to ``last`` through all stages, a vector at a time."""
    return [
        "c = first",
        f"while c + {layout.lanes} <= last:",
        *indent([*_stages(layout, names, ""), f"c += {layout.lanes}"]),
        "if c < last:",
        *indent(["left = last - c", *_stages(layout, names, "left")]),
    ]


def _stages(layout: ReduceLayout, names: Names, left: str) -> list[str]:
    """Return lines of all stages for one row, or for one vector of columns (its first ``left`` columns, if given)."""
    return all_stages(layout, names, lambda stage, rows: _stage(layout, names, stage, left, rows), left)


def _stage(layout: ReduceLayout, names: Names, stage: int, left: str, rows: RowValues) -> list[str]:
    """Return lines of the loops over the reduced axes in which one stage reduces and stores."""
    reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
    if not reductions and not stores:
        return []

    def element(left: str) -> list[str]:
        ahead = [] if left else soon_read(layout, names, stage)
        return [*ahead, *Element(layout, names, rows.value, stage, left).lines(reductions, stores)]

    start = initial_lines(names.accumulators, reductions, layout.lanes)
    if layout.walk.row_mode:
        streamed = streamed_result(layout, stage)
        inner = vector_loop(layout.lanes, element, *names.parts.bounds[-1], aligned=streamed and f"q_{streamed}")
    else:
        inner = [*element(left), f"place += {layout.lanes}"]
        start.append("place = 0")
    offsets = [(name, names.loop_offset(k)) for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
    inner = [*(f"q_{name} = offset(r_{name}, {at})" if at else f"q_{name} = r_{name}" for name, at in offsets), *inner]
    for d in range(len(layout.loops) - 1, -1, -1):
        inner = [f"for j{d} in range({', '.join(names.parts.bounds[d])}):", *indent(inner)]
    return [*start, *inner]


def whole_row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``WHOLE_ROWS``."""
    known: dict[Instruction, VectorValue] = {}
    left = str(layout.cols) if layout.cols < layout.lanes else ""

    def stage_lines(stage: int, rows: RowValues) -> list[str]:
        reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
        if not reductions and not stores:
            return []
        element = Element(layout, names, rows.value, stage, left, known=known)
        printed = element.whole_row_lines(reductions, stores)
        start = [f"q_{name} = r_{name}" for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
        ahead = soon_read(layout, names, 0)
        return [*start, "c = 0", *ahead, *printed] if stage == 0 else ["c = 0", *printed]

    return each_row(layout, names, all_stages(layout, names, stage_lines))


PRINTERS: dict[Strategy, Callable[[ReduceLayout, Names], list[str]]] = {
    Strategy.ROWS: row_lines,
    Strategy.WHOLE_ROWS: whole_row_lines,
    Strategy.COLUMNS: column_lines,
    Strategy.ROW_PIPELINE: pipeline_lines,
}


def reduce_launch(problem: ReductionProblem) -> Launch:
    """Return the launch that evaluates a cluster.

    Raises:
        CompileError: no operand is full.
        UnsupportedError: parts, or heads of rows, need another memory layout of the operands.
    """
    layout = reduce_layout(problem)
    arguments = Arguments()
    body = PRINTERS[layout.strategy](layout, names_of(layout, arguments))
    fence = ["stream_fence()"] if layout.walk.streamed else []
    traffic = sum(t.footprint for t in layout.walk.tensors)
    return Launch(
        kernel=cpu_kernel(layout.walk.name, kernel_text([*arguments.bind(), *body, *fence]), problem.origin),
        args=arguments.values,
        geometry=TaskRange(layout.tasks, claim(layout.tasks, traffic)),
        flops=scalar_flops(layout.stages.module) * prod(layout.walk.full),
        bytes=traffic,
    )
