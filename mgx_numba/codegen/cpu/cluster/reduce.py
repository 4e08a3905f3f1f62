"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

What such a kernel does is in its layout (`layout.py`): how the operands are walked (`walk.py`), which values each walk
along a row computes (`stages.py`), and by which strategy. Each strategy has a module that prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....graph.module import Module
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ..arguments import Arguments
from ..kernel import cpu_kernel
from ..loops import claim, footprint
from ..statements import kernel_text
from .columns import column_lines
from .layout import ReduceLayout, reduce_layout
from .names import Names, names_of
from .row_pipeline import pipeline_lines
from .rows import row_lines
from .vectors import Strategy
from .whole_rows import whole_row_lines

__all__ = ["reduce_launch"]

PRINTERS: dict[Strategy, Callable[[ReduceLayout, Names], list[str]]] = {
    Strategy.ROWS: row_lines,
    Strategy.WHOLE_ROWS: whole_row_lines,
    Strategy.COLUMNS: column_lines,
    Strategy.ROW_PIPELINE: pipeline_lines,
}


def reduce_launch(
    module: Module,
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    fast_math: bool = False,
    origin: str = "",
    parts: int = 1,
    fold: int = 1,
) -> Launch:
    """One launch that evaluates a ``fused_reduce`` module.

    Args:
        module: parameters, pointwise operations, reductions over ``axes`` and ``multibroadcast`` of row values.
        axes: the reduced axes.
        inputs: tensors for the parameters; row parameters have length 1 on the reduced axes.
        outputs: tensors for the results.
        parts: rows are reduced in so many parts, each with results of its own, which follow one another in memory;
            only for modules whose results are reductions of what depends on none.
        fold: so many steps at a time count as columns of their own, see `split.Division`.

    Operands are named ``x0``, ``x1``, ... and ``out0``, ``out1``, ....
    """
    layout = reduce_layout(module, axes, inputs, outputs, fast_math, parts, fold)
    arguments = Arguments()
    body = PRINTERS[layout.strategy](layout, names_of(layout, arguments))
    fence = ["stream_fence()"] if layout.walk.streamed else []
    traffic = sum(footprint(t) for t in layout.walk.tensors)
    return Launch(
        kernel=cpu_kernel(layout.walk.name, kernel_text([*arguments.bind(), *body, *fence]), origin),
        args=arguments.values,
        geometry=TaskRange(layout.tasks, claim(layout.tasks, traffic)),
        flops=scalar_flops(layout.stages.module) * prod(layout.walk.full),
        bytes=traffic,
    )
