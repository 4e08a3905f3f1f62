"""Running sums (``prefix_scan_sum``): element by element along a row, or many columns at a time."""

from __future__ import annotations

from math import prod

from ...graph.types import Type
from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, dtype_name, footprint, indent, load_text, store_text
from ..cpu import host
from ..launch import Launch
from .rows import RowLoop, cast_text, const_text, vector_loop

__all__ = ["scan_launch"]


def scan_launch(axis: int, exclusive: bool, reverse: bool, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """One launch for the running sum along an axis, in float64 or 64-bit integers.

    Operands are named ``x`` and ``out``.

    Args:
        axis: the sum runs along it.
        exclusive: a sum leaves out the element at its own position.
        reverse: sums run from the end.
        x: the input.
        out: the sums.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
    storage, wide = dtype_name(x.type), _accumulator(x.type)
    lanes = host.lanes(wide)
    column_mode = space.rank and space.strides[1][-1] < out.strides[axis] and space.lens[-1] > 1
    x_strides, out_strides = space.strides
    slots = Slots()
    slots.pointer("p_x", "x", storage)
    slots.pointer("p_out", "out", storage)
    length = x.lens[axis]
    if column_mode:
        cols, outer = space.lens[-1], space.lens[:-1]
        inner = (x_strides[-1], out_strides[-1])
        x_strides, out_strides = x_strides[:-1], out_strides[:-1]
    else:
        cols, outer, inner = 1, space.lens, (1, 1)
    loop = RowLoop(slots, outer, [x_strides, out_strides], cols, lanes, 2 * length)
    slots.integer("length", length)
    steps = [slots.integer(name, t.strides[axis]) for name, t in (("x_step", x), ("out_step", out))]
    t0, t1 = (slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(inner))

    def scan(load: str, store: str, width: int) -> list[str]:
        stores = [f"sum = {cast_text('total', wide, storage)}", store]
        adds = [f"total = add(total, {cast_text(load, storage, wide)})"]
        start = [f"q = offset(q, (length - 1) * {steps[0]})", f"w = offset(w, (length - 1) * {steps[1]})"]
        sign = "-" if reverse else ""
        return [
            f"total = {const_text(wide, 0, width)}",
            "q = r_x",
            "w = r_out",
            *(start if reverse else []),
            "for j in range(length):",
            *indent([*(stores + adds if exclusive else adds + stores)], 1),
            *indent([f"q = offset(q, {sign}{steps[0]})", f"w = offset(w, {sign}{steps[1]})"], 1),
        ]

    def columns(left: str) -> list[str]:
        return scan(
            load_text("q", "c", inner[0], t0, lanes, left),
            store_text("w", "c", inner[1], t1, "sum", left),
            lanes,
        )

    row = scan("load_scalar(q, 0)", "store_scalar(w, 0, sum)", 0)
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *(vector_loop(lanes, columns) if column_mode else row),
    ]
    return Launch(
        kernel=loop.kernel("prefix_scan_sum_kernel", inside, origin),
        args=tuple(slots.values),
        tasks=loop.tasks if 0 not in x.lens else 0,
        flops=prod(x.lens),
        bytes=footprint(x) + footprint(out),
    )


def _accumulator(type: Type) -> str:
    if type.is_floating:
        return "float64"
    return "int64" if type.is_signed else "uint64"
