"""Resizing: nearest neighbours as a copy through position tables, interpolation as weighted sums.

Positions and weights of every output coordinate are constants made by the compiler. Lanes run along the
channels of NHWC memory, where a tap is a row and a weight, or along a resized axis, where taps are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...ops.resize import Resize, interpolation_taps, nearest_index
from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, dtype_name, footprint, indent, load_text, store_text
from ..cpu import host
from ..launch import Launch
from .pad import remap_launch
from .rows import RowLoop, cast_text, const_text, vector_loop

__all__ = ["resize_launch"]


def resize_launch(op: Resize, x: Tensor, out: Tensor, origin: str = "") -> tuple[Launch, dict[str, np.ndarray]]:
    """One launch that resamples ``x`` to ``out``, and the constants that it reads.

    Elements that are interpolated must be floats.

    Returns:
        The launch, with operands ``x``, ``out`` and one for each table, and the tables by operand name.
    """
    samples = op.samples(x.lens)
    if op.mode == "nearest" or not samples:
        positions = {axis: nearest_index(op.nearest_mode, at, x.lens[axis]) for axis, at in samples}
        return remap_launch("resize_nearest_kernel", positions, x, out, origin)
    dtype = dtype_name(x.type.compute)
    tables: dict[str, np.ndarray] = {}
    taps = 0
    for axis, coordinate in samples:
        pairs = interpolation_taps(op.mode, coordinate, x.lens[axis], op.cubic_coeff_a)
        taps = len(pairs)
        tables[f"index{axis}"] = np.concatenate([at * x.strides[axis] for at, _ in pairs])
        tables[f"weight{axis}"] = np.concatenate([weight for _, weight in pairs]).astype(dtype)
    axes = sorted((axis for axis, _ in samples), key=lambda axis: -out.strides[axis])
    return _interpolate(f"resize_{op.mode}_kernel", axes, taps, x, out, origin), tables


def _interpolate(name: str, axes: Sequence[int], taps: int, x: Tensor, out: Tensor, origin: str) -> Launch:
    """The weighted sum over ``taps`` positions along each of ``axes``, the slowest in memory first."""
    kept = [a for a in range(len(out.lens)) if a not in axes]
    space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
    last = axes[-1]
    along = not space.rank or out.strides[last] < space.strides[1][-1]
    lens = [*space.lens, *(out.lens[a] for a in axes)]
    x_strides = [*space.strides[0], *(0 for _ in axes)]
    out_strides = [*space.strides[1], *(out.strides[a] for a in axes)]
    inner = space.rank + len(axes) - 1 if along else space.rank - 1
    order = [d for d in range(len(lens)) if d != inner]
    storage, compute = dtype_name(x.type), dtype_name(x.type.compute)
    lanes = host.lanes(compute)

    slots = Slots()
    slots.pointer("p_x", "x", storage)
    slots.pointer("p_out", "out", storage)
    for k, axis in enumerate(axes):
        slots.pointer(f"p_index{k}", f"index{axis}", "int64")
        slots.pointer(f"p_weight{k}", f"weight{axis}", compute)
    loop = RowLoop(
        slots,
        [lens[d] for d in order],
        [[x_strides[d] for d in order], [out_strides[d] for d in order]],
        lens[inner],
        lanes,
        taps ** len(axes),
    )
    steps = [x_strides[inner], out_strides[inner]]
    step = [slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(steps)]
    counts = [slots.integer(f"count{k}", out.lens[a]) for k, a in enumerate(axes)]
    places = [f"i{order.index(space.rank + k)}" if space.rank + k in order else "c" for k in range(len(axes))]
    outer = len(axes) - 1

    def scalar(table: str, k: int, tap: str) -> str:
        return f"load_scalar(p_{table}{k}, {tap} * {counts[k]} + {places[k]})"

    def body(left: str) -> list[str]:
        at = f"q{outer}" if outer else "r_x"
        lines = []
        for tap in range(taps):
            if along:
                place = f"{tap} * {counts[outer]} + c"
                index, weight = (
                    load_text(f"p_{table}{outer}", place, 1, "", lanes, left) for table in ("index", "weight")
                )
                value = f"gather_tail({at}, {index}, {left}, 0)" if left else f"gather({at}, {index})"
                weight = f"mul({weight}, w{outer})" if outer else weight
            else:
                tap_row = f"offset({at}, {scalar('index', outer, str(tap))})"
                value = load_text(tap_row, "c", steps[0], step[0], lanes, left)
                weight = scalar("weight", outer, str(tap))
                weight = f"mul({weight}, w{outer})" if outer else weight
                weight = f"splat({weight}, {lanes})"
            lines.append(f"total = fma({cast_text(value, storage, compute)}, {weight}, total)")
        for k in range(outer - 1, -1, -1):
            source, weight = (
                (f"q{k}", f"mul({scalar('weight', k, f'tap{k}')}, w{k})")
                if k
                else (
                    "r_x",
                    scalar("weight", k, f"tap{k}"),
                )
            )
            lines = [
                f"for tap{k} in range({taps}):",
                *indent(
                    [
                        f"q{k + 1} = offset({source}, {scalar('index', k, f'tap{k}')})",
                        f"w{k + 1} = {weight}",
                        *lines,
                    ],
                    1,
                ),
            ]
        stored = cast_text("total", compute, storage)
        return [
            f"total = {const_text(compute, 0, lanes)}",
            *lines,
            store_text("r_out", "c", steps[1], step[1], stored, left),
        ]

    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *vector_loop(lanes, body),
    ]
    return Launch(
        kernel=loop.kernel(name, inside, origin),
        args=tuple(slots.values),
        tasks=loop.tasks if 0 not in out.lens else 0,
        flops=2 * prod(out.lens) * taps ** len(axes),
        bytes=footprint(x) + footprint(out),
    )
