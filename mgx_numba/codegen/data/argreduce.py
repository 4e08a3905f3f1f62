"""Positions of extreme elements (``argmax``, ``argmin``), with lanes along the axis or along a kept
dimension.
"""

from __future__ import annotations

from math import prod

from ..cluster.collapse import collapse
from ..cluster.text import (
    AHEAD_BYTES,
    Slots,
    Tensor,
    claim,
    dtype_name,
    footprint,
    indent,
    is_streamed,
    load_text,
    store_text,
)  # fmt: skip
from ..cpu import host
from ..launch import Launch
from .rows import KEPT_COLUMNS, RowLoop, cast_text, kept_columns, rows_ahead, vector_loop

__all__ = ["argreduce_launch"]

LONG_ROW = 16


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
    lanes *= 2 if not row_mode else 4 if length >= LONG_ROW * lanes else 1
    line = host.CACHE_LINE // x.type.size
    ahead = range(0, lanes, line) if is_streamed([x]) else ()
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
                *(f"prefetch(r_x, c + {AHEAD_BYTES // x.type.size + k})" for k in ahead if step == 1 and not left),
                f"v = {cast_text(load_text('r_x', 'c', step, t, lanes, left), storage, compute)}",
                f"take = {beats}(v, best)",
            ]
            if left:
                lines.append(f"take = logical_and(take, lane_mask({left}, {lanes}))")
            return [*lines, *better(f"add(iota_int32({lanes}), c)")]

        prologue = []
        across = f"reduce_arg{'max' if greatest else 'min'}{'_last' if last else ''}"
        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            f"best = {cast_text(f'load_splat(r_x, 0, {lanes})', storage, compute)}",
            f"at = const_int32(0, {lanes})",
            *vector_loop(lanes, compare),
            f"store_scalar(p_out, {loop.offset(1)}, cast_int64({across}(best, at)))",
        ]
    else:
        outer, cols = space.lens[:-1], space.lens[-1]
        least = kept_columns(outer, cols, lanes)
        strides = [x_strides[:-1], out_strides[:-1]]
        loop = RowLoop(slots, outer, strides, cols, lanes, 2 * length, longest=KEPT_COLUMNS, least=least)
        slots.integer("length", length)
        slots.integer("step", step)
        slots.integer("ahead", step * rows_ahead(loop.chunk * x.type.size))
        inner = (x_strides[-1], out_strides[-1])
        t0, t1 = (slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(inner))
        prologue = [f"{name}s = local_{t}({KEPT_COLUMNS + lanes})" for name, t in (("best", compute), ("at", "int32"))]
        keep = ["store(bests, c - first, best)", "store(ats, c - first, at)"]

        def load(name: str, left: str) -> str:
            return f"{name} = {cast_text(load_text('q', 'c', inner[0], t0, lanes, left), storage, compute)}"

        def begin(left: str) -> list[str]:
            return [load("best", left), f"at = const_int32(0, {lanes})", *keep]

        def compare_columns(left: str) -> list[str]:
            return [
                *(f"prefetch(q, c + ahead + {k})" for k in ahead if inner[0] == 1 and not left),
                load("v", left),
                f"best = load(bests, c - first, {lanes})",
                f"at = load(ats, c - first, {lanes})",
                f"take = {beats}(v, best)",
                *better("j"),
                *keep,
            ]

        def end(left: str) -> list[str]:
            return [store_text("r_out", "c", inner[1], t1, f"cast_int64(load(ats, c - first, {lanes}))", left)]

        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            f"r_out = offset(p_out, {loop.offset(1)})",
            "q = r_x",
            *vector_loop(lanes, begin),
            "for j in range(1, length):",
            *indent(["q = offset(q, step)", *vector_loop(lanes, compare_columns)], 1),
            *vector_loop(lanes, end),
        ]
    tasks, traffic = loop.tasks if 0 not in x.lens else 0, footprint(x) + footprint(out)
    return Launch(
        kernel=loop.kernel(f"arg{'max' if greatest else 'min'}_kernel", inside, origin, prologue),
        args=tuple(slots.values),
        tasks=tasks,
        grain=claim(tasks, traffic),
        flops=prod(x.lens),
        bytes=traffic,
    )
