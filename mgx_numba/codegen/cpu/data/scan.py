"""Prefix sums (``prefix_scan_sum``): a vector of a row at a time, or many columns whose sums are kept in memory.

Few long rows are cut into parts: one launch adds up each part, another starts from the sums of the parts before.
"""

from __future__ import annotations

from math import prod

from ....core.dim import ceil_div, known_equal, known_in, known_less_equal, typical
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, const_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..loops import AHEAD_BYTES, is_streamed, streamable
from .row_tasks import KEPT_COLUMNS, RowLoop, kept_columns, row_share, rows_ahead


def scan_parts(axis: int, x: Tensor, out: Tensor) -> tuple[int, Type]:
    """Return the number of parts of all rows of a prefix sum (1 if none is cut), and the type of their sums."""
    kind = _ScannedRows(axis, x, out)
    return kind.count, kind.type


def part_sums_launch(axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch for the sums of the parts that `scan_launch` starts from.

    Operands are named ``x`` and ``sums``: for each row the sums of its parts, of the type that `scan_parts` returns.

    Args:
        axis: the axis of the prefix sum.
        x: the input.
        out: the target of the prefix sums.
    """
    kind = _ScannedRows(axis, x, out)
    lanes, wide = kind.lanes, kind.wide
    arguments = Arguments()
    arguments.pointer("p_x", "x", kind.storage)
    arguments.pointer("p_sums", "sums", wide)
    loop = RowLoop(
        arguments, kind.space.lens, kind.space.strides[:1], kind.length, lanes, longest=kind.share, least=kind.share
    )
    step = x.strides[axis]
    t0 = arguments.step("t0", step)

    def add(left: str) -> list[str]:
        value = cast_text(load_text("r_x", "c", step, t0, lanes, left), kind.storage, wide)
        masked = f"where(lane_mask({left}, {lanes}), {value}, {const_text(wide, kind.start, lanes)})" if left else value
        return [f"total = add(total, {masked})"]

    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        f"total = {const_text(wide, kind.start, lanes)}",
        *vector_loop(lanes, add),
        "store_scalar(p_sums, task, reduce_add(total))",
    ]
    return loop.launch(loop.kernel("prefix_scan_part_kernel", inside, origin), (), x.footprint, prod(x.lens))


class _ScannedRows:
    """How a prefix sum is walked: rows or columns, and the ``share`` of a row that one task takes."""

    def __init__(self, axis: int, x: Tensor, out: Tensor) -> None:
        kept = [a for a in range(len(x.lens)) if a != axis]
        self.space = space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
        self.type = _accumulator(x.type)
        self.storage, self.wide = dtype_name(x.type), dtype_name(self.type)
        self.lanes = 2 * host.lanes(self.wide)
        self.start = -0.0 if self.type.is_floating else 0
        """A sum of no elements, to which -0 may be added: a sum of -0 alone is -0."""
        self.length = x.lens[axis]
        inner = space.rank and typical(space.strides[1][-1]) < typical(out.strides[axis])
        self.by_columns = bool(inner) and not known_less_equal(space.lens[-1], 1)
        rows = prod(space.lens)
        self.share = self.length if self.by_columns else row_share(rows, self.length, self.lanes)
        self.count = 1 if known_equal(self.share, self.length) else rows * ceil_div(self.length, self.share)


def scan_launch(axis: int, exclusive: bool, reverse: bool, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch for the prefix sum along an axis, in float64 or 64-bit integers.

    Operands are named ``x`` and ``out``, and ``sums`` if there are `scan_parts`.

    Args:
        axis: the axis of the sum.
        exclusive: a sum excludes the element at its own position.
        reverse: sums run from the end.
        x: the input.
        out: the sums.
    """
    kind = _ScannedRows(axis, x, out)
    storage, wide, lanes, length = kind.storage, kind.wide, kind.lanes, kind.length
    start = 0 if exclusive else kind.start  # an exclusive sum begins with 0
    x_strides, out_strides = kind.space.strides
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", storage)
    divided = kind.count > 1
    if divided:
        arguments.pointer("p_sums", "sums", wide)
    sign = "-" if reverse else ""
    outer, inner = kind.space.lens, (x.strides[axis], out.strides[axis])
    if kind.by_columns:
        cols, outer = outer[-1], outer[:-1]
        inner = (x_strides[-1], out_strides[-1])
        rows = [x_strides[:-1], out_strides[:-1]]
        least = kept_columns(outer, cols, lanes)
        loop = RowLoop(arguments, outer, rows, cols, lanes, 2 * length, longest=KEPT_COLUMNS, least=least)
    elif divided:
        rows = [x_strides, out_strides]
        loop = RowLoop(arguments, outer, rows, length, lanes, 2, longest=kind.share, least=kind.share)
    else:
        loop = RowLoop(arguments, outer, [x_strides, out_strides], length, lanes, 2, whole=True)
    t0, t1 = (arguments.step(f"t{k}", s) for k, s in enumerate(inner))
    forward = kind.by_columns or not reverse
    streamed = forward and known_in(inner[1], 1) and streamable(out, lanes) and is_streamed([out])
    line = host.CACHE_LINE // x.type.size
    prefetched = range(0, lanes, line) if not reverse and known_in(inner[0], 1) and is_streamed([x]) else ()

    def load(pointer: str, left: str) -> str:
        return cast_text(load_text(pointer, "c", inner[0], t0, lanes, left), storage, wide)

    def store(pointer: str, value: str, left: str) -> str:
        return store_text(pointer, "c", inner[1], t1, cast_text(value, wide, storage), left, streamed)

    def columns(left: str) -> list[str]:
        # What a masked store wrote is slow to load. Only of streamed rows may the first vector be a partial one.
        keep = f"store_tail(sums, c - first, total, {left})" if left and streamed else "store(sums, c - first, total)"
        before, after = f"before = load(sums, c - first, {lanes})", f"total = add(before, {load('q', left)})"
        ahead = () if left else (f"prefetch(q, c + ahead + {k})" for k in prefetched)
        return [*ahead, before, after, keep, store("w", "before" if exclusive else "total", left)]

    def along(left: str) -> list[str]:
        ahead = () if left else (f"prefetch(r_x, c + {AHEAD_BYTES // x.type.size + k})" for k in prefetched)
        which = ("_behind" if exclusive else "_back") if reverse else "_before" if exclusive else ""
        scan = f"add(scan_add{which}(v), total)"
        mask = [f"v = where(lane_mask({left}, {lanes}), v, {const_text(wide, start, lanes)})"] if left else []
        total = "total = add(total, reduce_add(v))"
        return [*ahead, f"v = {load('r_x', left)}", *mask, store("r_out", scan, left), total]

    prologue = []
    if kind.by_columns:
        arguments.integer("length", length)
        steps = [arguments.integer(name, t.strides[axis]) for name, t in (("x_step", x), ("out_step", out))]
        arguments.integer("ahead", x.strides[axis] * rows_ahead(loop.chunk * x.type.size))
        starts = [f"q = offset(q, (length - 1) * {steps[0]})", f"w = offset(w, (length - 1) * {steps[1]})"]
        walk = ["q = r_x", "w = r_out", *(starts if reverse else []), "for j in range(length):"]
        move = [f"q = offset(q, {sign}{steps[0]})", f"w = offset(w, {sign}{steps[1]})"]
        prologue = [f"sums = local_{wide}({KEPT_COLUMNS + lanes})"]
        clear = vector_loop(lanes, lambda left: [f"store(sums, c - first, {const_text(wide, start, lanes)})"])
        row = [*clear, *walk, *indent([*vector_loop(lanes, columns, aligned="w" if streamed else ""), *move])]
    else:
        row = [f"total = {const_text(wide, start, 0)}"]
        if divided:
            parts = "task + 1, (block + 1) * chunks" if reverse else "block * chunks, task"
            row += [f"for part in range({parts}):", "    total = add(total, load_scalar(p_sums, part))"]
        if reverse:
            whole = [f"while c >= first + {lanes}:", *indent([f"c -= {lanes}", *along("")])]
            row += ["c = last", *whole]
            row += ["if c > first:", *indent(["left = c - first", "c = first", *along("left")])]
        else:
            row += vector_loop(lanes, along, aligned="r_out" if streamed else "")
    inside = [f"r_x = offset(p_x, {loop.offset(0)})", f"r_out = offset(p_out, {loop.offset(1)})", *row]
    kernel = loop.kernel("prefix_scan_sum_kernel", inside, origin, prologue, streamed=streamed)
    return loop.launch(kernel, x.lens, x.footprint + out.footprint, prod(x.lens), claims=True)


def _accumulator(type: Type) -> Type:
    if type.is_floating:
        return Type.double_type
    return Type.int64_type if type.is_signed else Type.uint64_type
