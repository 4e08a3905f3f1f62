"""Running sums (``prefix_scan_sum``): a vector of a row at a time, or many columns whose sums are kept in memory.

Sums along a row that leave out the element at their own position go element by element.
"""

from __future__ import annotations

from math import prod

from ...graph.types import Type
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
    streamable,
)
from ..cpu import host
from ..launch import Launch
from .rows import KEPT_COLUMNS, RowLoop, cast_text, const_text, kept_columns, rows_ahead, vector_loop

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
    lanes = 2 * host.lanes(wide)
    column_mode = space.rank and space.strides[1][-1] < out.strides[axis] and space.lens[-1] > 1
    x_strides, out_strides = space.strides
    slots = Slots()
    slots.pointer("p_x", "x", storage)
    slots.pointer("p_out", "out", storage)
    length = x.lens[axis]
    sign = "-" if reverse else ""
    if column_mode:
        cols, outer = space.lens[-1], space.lens[:-1]
        inner = (x_strides[-1], out_strides[-1])
        x_strides, out_strides = x_strides[:-1], out_strides[:-1]
        least = kept_columns(outer, cols, lanes)
    else:
        cols, outer, inner, least = 1, space.lens, (x.strides[axis], out.strides[axis]), 0
    rows = [x_strides, out_strides]
    loop = RowLoop(slots, outer, rows, cols, lanes, 2 * length, longest=KEPT_COLUMNS, least=least)
    slots.integer("length", length)
    steps = [slots.integer(name, t.strides[axis]) for name, t in (("x_step", x), ("out_step", out))]
    t0, t1 = (slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(inner))
    streamed = is_streamed([out]) and inner[1] == 1 and streamable(out, lanes) and not (reverse and not column_mode)
    line = host.CACHE_LINE // x.type.size
    prefetched = range(0, lanes, line) if is_streamed([x]) and inner[0] == 1 and not reverse else ()

    def load(pointer: str, left: str) -> str:
        return cast_text(load_text(pointer, "c", inner[0], t0, lanes, left), storage, wide)

    def store(pointer: str, value: str, left: str) -> str:
        return store_text(pointer, "c", inner[1], t1, cast_text(value, wide, storage), left, streamed)

    def columns(left: str) -> list[str]:
        keep = f"store_tail(sums, c - first, total, {left})" if left else "store(sums, c - first, total)"
        before, after = f"before = load(sums, c - first, {lanes})", f"total = add(before, {load('q', left)})"
        ahead = () if left else (f"prefetch(q, c + ahead + {k})" for k in prefetched)
        return [*ahead, before, after, keep, store("w", "before" if exclusive else "total", left)]

    def along(left: str) -> list[str]:
        ahead = () if left else (f"prefetch(r_x, c + {AHEAD_BYTES // x.type.size + k})" for k in prefetched)
        scan = f"add(scan_add{'_back' * reverse}(v), total)"
        mask = [f"v = where(lane_mask({left}, {lanes}), v, {const_text(wide, 0, lanes)})"] if left else []
        total = "total = add(total, reduce_add(v))"
        return [*ahead, f"v = {load('r_x', left)}", *mask, store("r_out", scan, left), total]

    starts = [f"q = offset(q, (length - 1) * {steps[0]})", f"w = offset(w, (length - 1) * {steps[1]})"]
    walk = ["q = r_x", "w = r_out", *(starts if reverse else []), "for j in range(length):"]
    move = [f"q = offset(q, {sign}{steps[0]})", f"w = offset(w, {sign}{steps[1]})"]
    prologue = []
    if column_mode:
        slots.integer("ahead", x.strides[axis] * rows_ahead(loop.chunk * x.type.size))
        prologue = [f"sums = local_{wide}({KEPT_COLUMNS + lanes})"]
        clear = vector_loop(lanes, lambda left: [f"store(sums, c - first, {const_text(wide, 0, lanes)})"])
        row = [*clear, *walk, *indent([*vector_loop(lanes, columns, aligned="w" if streamed else ""), *move], 1)]
    elif exclusive:
        one = ["store_scalar(w, 0, " + cast_text("total", wide, storage) + ")"]
        one += [f"total = add(total, {cast_text('load_scalar(q, 0)', storage, wide)})", *move]
        row = [f"total = {const_text(wide, 0, 0)}", *walk, *indent(one, 1)]
    elif reverse:
        whole = [f"while c >= {lanes}:", *indent([f"c -= {lanes}", *along("")], 1)]
        part = ["if c > 0:", *indent(["left = c", "c = 0", *along("left")], 1)]
        row = [f"total = {const_text(wide, 0, 0)}", "c = length", *whole, *part]
    else:
        aligned = "r_out" if streamed else ""
        row = [f"total = {const_text(wide, 0, 0)}", *vector_loop(lanes, along, "0", "length", aligned=aligned)]
    inside = [f"r_x = offset(p_x, {loop.offset(0)})", f"r_out = offset(p_out, {loop.offset(1)})", *row]
    tasks, traffic = loop.tasks if 0 not in x.lens else 0, footprint(x) + footprint(out)
    return Launch(
        kernel=loop.kernel("prefix_scan_sum_kernel", inside, origin, prologue, streamed=streamed),
        args=tuple(slots.values),
        tasks=tasks,
        grain=claim(tasks, traffic),
        flops=prod(x.lens),
        bytes=traffic,
    )


def _accumulator(type: Type) -> str:
    if type.is_floating:
        return "float64"
    return "int64" if type.is_signed else "uint64"
