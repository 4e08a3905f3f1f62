"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

The layout (`layout.py`) determines the kernel: how the operands are walked (`walk.py`), which values each pass along a
row computes (`stages.py`), and the strategy. Each strategy has a module that prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ....graph.instruction import Instruction
from ...arguments import Arguments
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...printer import VectorValue
from ...problems.cluster import ReductionProblem
from ...statements import indent, kernel_text, vector_loop
from ..kernel import cpu_kernel
from ..loops import claim
from .accumulators import initial_lines
from .columns import column_lines, each_row
from .element import Element, cache_memory
from .names import Names, names_of
from .prefetch import soon_read, streamed_result
from .reduction_layout import ReduceLayout, reduce_layout
from .row_pipeline import pipeline_lines
from .row_values import RowValues, all_stages
from .vectors import Strategy


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
