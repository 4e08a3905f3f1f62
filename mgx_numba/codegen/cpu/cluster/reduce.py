"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

The layout (`layout.py`) determines the kernel: how the operands are walked (`walk.py`), which values each pass along a
row computes (`stages.py`), and the strategy. Each strategy has a module that prints it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...arguments import Arguments
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...problems.cluster import ReductionProblem
from ...statements import kernel_text
from ..kernel import cpu_kernel
from ..loops import claim
from .columns import column_lines
from .names import Names, names_of
from .reduction_layout import ReduceLayout, reduce_layout
from .row_loops import row_lines
from .row_pipeline import pipeline_lines
from .vectors import Strategy
from .whole_rows import whole_row_lines

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
