"""Lower pooling and local response normalisation."""

from __future__ import annotations

from math import prod

from ....codegen.cpu.data.col2im import WIDEST_STRIDE, col2im_launch
from ....codegen.cpu.data.lrn import lrn_launch
from ....codegen.cpu.data.pooling import PoolingWindow, pooling_launch, windows
from ....core.dim import hint, known_in, less
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.col2im import Col2Im
from ....ops.pooling import Pooling, PoolingMode
from ...lowering.buffers import View
from ...lowering.launched import lrn_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

SEPARABLE = 16
"""Least number of taps for which a maximum over two axes is computed along one axis after the other."""


@lowering("pooling", accepts=keeps_inner_axis)
def lower_pooling(low: Lowering, ins: Instruction) -> None:
    """Append one kernel, or one for each axis of a maximum over large windows."""
    op = ins.operator(Pooling)
    if op.mode is PoolingMode.lpnorm and op.lp_order < 1:
        low.host(ins, f"kernels compute norms of order 1 and more, not {op.lp_order}")
        return
    if any(known_in(n, 0) for n in low.input(ins, 0).lens):  # clamping an index to an empty axis gives -1
        low.host(ins, "windows of an image without pixels")
        return
    x, out = low.input(ins, 0), low.output(ins)
    for n in x.lens[2:]:
        low.require(less(0, n))
    axes = windows(op, x.lens, out.lens)
    for window in axes[:-1] if _separable(op, axes) else []:
        x = _pool(low, ins, op, [window], x, None)
        axes = axes[1:]
    _pool(low, ins, op, axes, x, out)


def _separable(op: Pooling, axes: list[PoolingWindow]) -> bool:
    """Return whether the smaller number of taps outweighs further passes over memory."""
    return op.mode is PoolingMode.max and len(axes) > 1 and prod(hint(w.size) / w.stride for w in axes) > SEPARABLE


def _pool(low: Lowering, ins: Instruction, op: Pooling, axes: list[PoolingWindow], x: View, out: View | None) -> View:
    """Append one kernel and return its result; without ``out`` the result is new memory in the layout of ``x``."""
    if out is None:
        lens = list(x.lens)
        for window in axes:
            lens[window.axis] = window.count
        out = low.allocate(x.shape.with_lens(lens))
    fast_math = low.options.fast_math
    solution = low.solve(pooling_launch, op, axes, x.tensor, out.tensor, low.origin(ins), "pooling", fast_math)
    low.launch_all(solution, {"x": x, "out": out}, ins)
    return out


@lowering("col2im", accepts=keeps_inner_axis)
def lower_col2im(low: Lowering, ins: Instruction) -> None:
    """Append one kernel; a fallback step for narrow types."""
    op, x = ins.operator(Col2Im), low.input(ins, 0)
    if x.type.compute is not x.type or x.type is Type.bool_type or op.stride[-1] > WIDEST_STRIDE:
        low.host(ins, f"kernels add numbers of their own width, and some of them, not {x.shape}, or strides are wide")
        return
    out = low.output(ins)
    solution = low.solve(col2im_launch, op, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "out": out}, ins)


lowering("lrn", accepts=keeps_inner_axis)(lrn_rule(lrn_launch))
