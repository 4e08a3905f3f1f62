"""Pooling windows (MIGraphX ``pooling``) over tensors of any strides, in three forms.

Here lanes run along a kept dimension, the channels of NHWC memory: every tap is one vector load, and padding shortens
the range of taps. `pooling_sliding` does the same for small windows that overlap or are adjacent. In `pooling_rows`,
for NCHW memory, lanes run along the last pooled axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....ops.pooling import Pooling
from ...kernel import KernelSource
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import Space
from ...statements import indent, load_text, store_text, vector_loop
from .pooling_rows import along_rows, suits_rows
from .pooling_sliding import may_slide, sliding
from .pooling_window import UNROLL, PoolingKernel, PoolingWindow, windows
from .row_tasks import RowLoop

__all__ = ["PoolingWindow", "pooling_launch", "windows"]


def pooling_launch(
    op: Pooling,
    axes: Sequence[PoolingWindow],
    x: Tensor,
    out: Tensor,
    origin: str = "",
    name: str = "pooling",
    fast_math: bool = False,
) -> Launch:
    """Return the launch that computes operand ``out`` from operand ``x``.

    Args:
        op: gives the mode; ``lp_order`` must be positive.
        axes: the windows, along the pooled axes; on all other axes ``x`` and ``out`` have the same length.
        x: the input.
        out: the output.
        fast_math: means may be products with rounded reciprocals.
    """
    p = PoolingKernel(op, axes, x, out, origin, name, fast_math)
    kernel, loop = along_rows(p) if suits_rows(p) else sliding(p) if may_slide(p) else _columns(p)
    flops = prod(out.lens) * prod(w.size for w in axes)
    return loop.launch(kernel, (), x.footprint + out.footprint, flops, claims=True)


def _columns(p: PoolingKernel) -> tuple[KernelSource, RowLoop]:
    axes = list(enumerate(p.axes))
    kept = p.kept if p.kept.rank else Space((1,), ((1,), (1,)))
    counts = [w.count for w in p.axes]
    outer = [*kept.lens[:-1], *counts]
    x_strides = [*kept.strides[0][:-1], *(w.stride * p.x.strides[w.axis] for w in p.axes)]
    out_strides = [*kept.strides[1][:-1], *(p.out.strides[w.axis] for w in p.axes)]
    weight = prod(w.size for w in p.axes)
    loop = RowLoop(p.arguments, outer, [x_strides, out_strides], kept.lens[-1], UNROLL * p.lanes, weight)
    inner = [s[-1] for s in kept.strides]
    step = [p.arguments.step(f"t{k}", s) for k, s in enumerate(inner)]
    p.arguments.integer("skipped", sum(w.before * p.x.strides[w.axis] for w in p.axes))
    first_dim = len(kept.lens) - 1
    ranges = [line for k, w in axes for line in p.tap_range(k, w, f"i{first_dim + k}")]
    p.steps(axes)
    if p.average:
        ranges.append(f"count = imax(1, {' * '.join(f'count{k}' for k, _ in axes) or '1'})")
    if p.by_reciprocal:
        ranges.append(f"share = recip(cast_{p.combine.compute}(count))")

    def body(vectors: int, left: str) -> list[str]:
        places = [f"(c + {j * p.lanes})" if j else "c" for j in range(vectors)]
        loads = [load_text("q", place, inner[0], step[0], p.lanes, left) for place in places]
        lines = [f"m{j} = {p.combine.neutral(p.lanes)}" for j in range(vectors)]
        lines += p.tap_loops(axes, p.accumulate(loads))
        for j, place in enumerate(places):
            value = p.combine.finish(f"m{j}", "count", "share" if p.by_reciprocal else "")
            lines.append(store_text("r_out", place, inner[1], step[1], value, left, p.streamed))
        return lines

    wide = UNROLL * p.lanes
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)} - skipped)",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *ranges,
        "c = first",
        f"while c + {wide} <= last:",
        *indent([*body(UNROLL, ""), f"c += {wide}"]),
        *vector_loop(p.lanes, lambda left: body(1, left), first="c"),
    ]
    return loop.kernel(p.kernel_name(), inside, p.origin, streamed=p.streamed), loop
