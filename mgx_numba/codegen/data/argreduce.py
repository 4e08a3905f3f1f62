"""Positions of extreme elements (``argmax``, ``argmin``), with lanes along the axis or along a kept
dimension.
"""

from __future__ import annotations

from math import prod

from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, dtype_name, footprint, indent, load_text, store_text
from ..cpu import host
from ..launch import Launch
from .rows import RowLoop, cast_text, vector_loop

__all__ = ["argreduce_launch"]


def argreduce_launch(greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """One launch that writes the int64 position of the extreme element along an axis.

    The axis has less than 2**31 elements. Operands are named ``x`` and ``out``. NaN is the extreme of both
    kinds.

    Args:
        greatest: look for the largest element, else for the smallest.
        last: of equal elements take the last one, else the first.
        axis: has length 1 in ``out``.
        x: the input.
        out: the positions.
    """
    kept = [a for a in range(len(x.lens)) if a != axis]
    space = collapse(out.lens, [x.strides, out.strides], order_by=0, axes=kept)
    length, step = x.lens[axis], x.strides[axis]
    row_mode = not space.rank or step <= space.strides[0][-1]
    storage = dtype_name(x.type)
    compute = "uint8" if storage == "bool" else dtype_name(x.type.compute)
    lanes = host.lanes(compute)
    beats = f"arg_g{'e' if last else 't'}" if greatest else f"arg_l{'e' if last else 't'}"

    slots = Slots()
    slots.pointer("p_x", "x", storage)
    slots.pointer("p_out", "out", "int64")
    x_strides, out_strides = space.strides

    def better(taken: str) -> list[str]:
        return ["best = where(take, v, best)", f"at = where(take, {taken}, at)"]

    if row_mode:
        loop = RowLoop(slots, space.lens, [x_strides, out_strides], length, lanes, 2, whole=True)
        t = slots.integer("t0", step) if step not in (0, 1) else ""

        def compare(left: str) -> list[str]:
            lines = [
                f"v = {cast_text(load_text('r_x', 'c', step, t, lanes, left), storage, compute)}",
                f"take = {beats}(v, best)",
            ]
            if left:
                lines.append(f"take = logical_and(take, lane_mask({left}, {lanes}))")
            return [*lines, *better(f"add(iota_int32({lanes}), c)")]

        across = f"reduce_arg{'max' if greatest else 'min'}{'_last' if last else ''}"
        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            f"best = {cast_text(f'load_splat(r_x, 0, {lanes})', storage, compute)}",
            f"at = const_int32(0, {lanes})",
            *vector_loop(lanes, compare),
            f"store_scalar(p_out, {loop.offset(1)}, cast_int64({across}(best, at)))",
        ]
    else:
        loop = RowLoop(slots, space.lens[:-1], [x_strides[:-1], out_strides[:-1]], space.lens[-1], lanes, 2 * length)
        slots.integer("length", length)
        slots.integer("step", step)
        inner = (x_strides[-1], out_strides[-1])
        t0, t1 = (slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(inner))

        def columns(left: str) -> list[str]:
            load = cast_text(load_text("q", "c", inner[0], t0, lanes, left), storage, compute)
            return [
                "q = r_x",
                f"best = {load}",
                f"at = const_int32(0, {lanes})",
                "for j in range(1, length):",
                *indent(["q = offset(q, step)", f"v = {load}", f"take = {beats}(v, best)", *better("j")], 1),
                store_text("r_out", "c", inner[1], t1, "cast_int64(at)", left),
            ]

        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            f"r_out = offset(p_out, {loop.offset(1)})",
            *vector_loop(lanes, columns),
        ]
    return Launch(
        kernel=loop.kernel(f"arg{'max' if greatest else 'min'}_kernel", inside, origin),
        args=tuple(slots.values),
        tasks=loop.tasks if 0 not in x.lens else 0,
        flops=prod(x.lens),
        bytes=footprint(x) + footprint(out),
    )
