"""Positions of extreme elements (``argmax``, ``argmin``), with lanes along the axis or along a kept dimension.

Few long rows are cut into parts: one launch finds the extreme of each part, another the best part of each row.
"""

from __future__ import annotations

from math import prod

from ....core.dim import Length, ceil_div, known_equal, known_in, less_equal, preferred
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..cluster.walk import TINY_ROW
from ..loops import AHEAD_BYTES, is_streamed
from .row_tasks import KEPT_COLUMNS, RowLoop, kept_columns, lanes_across, row_share, rows_ahead

LONG_ROW = 16
"""Vectors of a row from which four registers search side by side, as more registers have to be compared at the end of a
row."""

SHORT_ROW = 32
"""Most lanes of a vector that a row has to fill to be searched with lanes along it.

Zen 4: 21568 rows of 10 float32 take 163 us with lanes across rows and 312 along them, rows of 16 both 340; 20000 rows
of 10, 40 and 60 uint8 take 78, 440 and 860 us, and 426, 355 and 395."""
BLOCK = 256
"""Elements of a block whose extreme is found before its position.

Zen 3, 8 rows of 4096 float32: 5.2 us with blocks of 256, 7.0 us of 1024, 13.4 us without. Of 100,000 float32: 78, 75
and 296 us."""
FEWEST_BLOCKS = 4
"""Blocks of a row from which their extremes are found first: 8 rows of 1000 take 3.7 us instead of 5.1 us."""


class _Search:
    """A search for an extreme (minimum or maximum) along an axis of a tensor."""

    def __init__(self, greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor) -> None:
        kept = [a for a in range(len(x.lens)) if a != axis]
        self.space = space = collapse(out.lens, [x.strides, out.strides], order_by=0, axes=kept)
        self.x, self.length, self.step = x, x.lens[axis], x.strides[axis]
        self.storage = dtype_name(x.type)
        self.type = Type.uint8_type if x.type is Type.bool_type else x.type.compute
        self.compute = dtype_name(self.type)
        lanes = host.lanes(self.compute)
        self.by_rows = not lanes_across(space, self.length, self.step, short=max(TINY_ROW, min(lanes, SHORT_ROW) - 1))
        self.wide = self.by_rows and preferred(less_equal(LONG_ROW * lanes, self.length))
        self.lanes = lanes * (2 if not self.by_rows else 4 if self.wide else 1)
        self.beats = f"arg_g{'e' if last else 't'}" if greatest else f"arg_l{'e' if last else 't'}"
        self.extreme = "max" if greatest else "min"
        self.across = f"reduce_arg{'max' if greatest else 'min'}{'_last' if last else ''}"
        self.name = f"arg{'max' if greatest else 'min'}"
        rows = prod(space.lens)
        self.share = row_share(rows, self.length, self.lanes) if self.by_rows else self.length
        self.count = 1 if known_equal(self.share, self.length) else rows * ceil_div(self.length, self.share)

    def ahead(self) -> range:
        """Return the offsets of a vector's cache lines to prefetch; empty if the input does not come from memory."""
        return range(0, self.lanes, host.CACHE_LINE // self.x.type.size) if is_streamed([self.x]) else range(0)

    def load(self, pointer: str, stride: Length, step: str, left: str) -> str:
        return cast_text(load_text(pointer, "c", stride, step, self.lanes, left), self.storage, self.compute)

    def along_row(self, arguments: Arguments) -> list[str]:
        """Return lines that set ``found`` to the position among the elements ``first`` to ``last`` of ``r_x``.

        Of many elements, the extremes of blocks are found first: the position is that of the best block's extreme.
        """
        lanes, step = self.lanes, self.step
        t = arguments.step("t0", step)
        blocks = self.wide and preferred(less_equal(FEWEST_BLOCKS * BLOCK, self.length))
        begin, end = ("part", "part_end") if blocks else ("first", "last")

        def load(left: str) -> list[str]:
            asked = self.ahead() if known_in(step, 1) and not left else ()
            ahead = [f"prefetch(r_x, c + {AHEAD_BYTES // self.x.type.size + k})" for k in asked]
            return [*ahead, f"v = {self.load('r_x', step, t, left)}"]

        def compare(left: str) -> list[str]:
            take = f"{self.beats}(v, best)"
            if left:
                take = f"logical_and({take}, lane_mask({left}, {lanes}))"
            taken = [f"take = {take}", *_better(f"add(iota_int32({lanes}), c)")]
            return [f"v = {self.load('r_x', step, t, left)}", *taken] if blocks else [*load(left), *taken]

        def extreme(left: str) -> list[str]:
            masked = [f"v = where(lane_mask({left}, {lanes}), v, top)"] if left else []
            return [*load(left), *masked, f"top = {self.extreme}(top, v)"]

        def start(at: str) -> str:
            return f"{at} * {t}" if t else "0" if known_in(step, 0) else at

        def splat(at: str) -> str:
            return cast_text(f"load_splat(r_x, {start(at)}, {lanes})", self.storage, self.compute)

        search = [
            f"best = {splat(begin)}",
            f"at = splat(cast_int32({begin}), {lanes})",
            *vector_loop(lanes, compare, begin, end),
            f"found = cast_int64({self.across}(best, at))",
        ]
        if not blocks:
            return search
        every = [
            f"top = {splat('part')}",
            f"part_end = imin(last, part + {BLOCK})",
            *vector_loop(lanes, extreme, "part", "part_end"),
            f"most = reduce_{self.extreme}(top)",
            f"if {self.beats}(most, record):",
            "    record = most",
            "    chosen = part",
            f"part += {BLOCK}",
        ]
        first = f"load_scalar(r_x, {start('first')})"
        return [
            f"record = {cast_text(first, self.storage, self.compute)}",
            "chosen = first",
            "part = first",
            "while part < last:",
            *indent(every),
            "part = chosen",
            f"part_end = imin(last, chosen + {BLOCK})",
            *search,
        ]


def _better(taken: str) -> list[str]:
    return ["best = where(take, v, best)", f"at = where(take, {taken}, at)"]


def arg_parts(axis: int, x: Tensor, out: Tensor) -> tuple[int, Type]:
    """Return the number of parts of all rows (1 if none is cut) and the type of their extremes."""
    search = _Search(True, False, axis, x, out)
    return search.count, search.type


def arg_part_launch(greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes the extreme of each part and its int64 position, for `arg_join_launch`.

    Operands are named ``x``, ``values`` (of the type that `arg_parts` returns) and ``places``; arguments are those of
    `argreduce_launch`.
    """
    search = _Search(greatest, last, axis, x, out)
    arguments = Arguments()
    arguments.pointer("p_x", "x", search.storage)
    arguments.pointer("p_values", "values", search.compute)
    arguments.pointer("p_places", "places", "int64")
    strides, share = search.space.strides[:1], search.share
    loop = RowLoop(arguments, search.space.lens, strides, search.length, search.lanes, 2, longest=share, least=share)
    lines = search.along_row(arguments)
    found = ("0", "found")[search.step] if known_in(search.step, 0, 1) else "found * t0"
    value = cast_text(f"load_scalar(r_x, {found})", search.storage, search.compute)
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)})",
        *lines,
        f"store_scalar(p_values, task, {value})",
        "store_scalar(p_places, task, found)",
    ]
    return loop.launch(loop.kernel(f"{search.name}_part_kernel", inside, origin), (), x.footprint, prod(x.lens))


def arg_join_launch(greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes the positions to ``out`` from the ``values`` and ``places`` of
    `arg_part_launch`."""
    whole = _Search(greatest, last, axis, x, out)
    rows = prod(whole.space.lens)
    parts = Tensor(whole.type, (rows, whole.count // rows), (whole.count // rows, 1))
    search = _Search(greatest, last, 1, parts, Tensor(Type.int64_type, (rows, 1), (1, 1)))
    arguments = Arguments()
    arguments.pointer("p_values", "values", whole.compute)
    arguments.pointer("p_places", "places", "int64")
    arguments.pointer("p_out", "out", "int64")
    loop = RowLoop(arguments, whole.space.lens, whole.space.strides[1:], parts.lens[1], search.lanes, whole=True)
    inside = [
        "r_x = offset(p_values, row * cols)",
        *search.along_row(arguments),
        f"store_scalar(p_out, {loop.offset(0)}, load_scalar(p_places, row * cols + found))",
    ]
    return loop.launch(loop.kernel(f"{search.name}_join_kernel", inside, origin), (), out.footprint, whole.count)


def argreduce_launch(greatest: bool, last: bool, axis: int, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes the int64 position of the extreme element along an axis.

    The axis has less than 2**31 elements. Operands are named ``x`` and ``out``. NaN is the extreme of both kinds.

    Args:
        greatest: search for the largest element, else for the smallest.
        last: of equal elements take the last, else the first.
        axis: has length 1 in ``out``.
        x: the input.
        out: the positions.
    """
    search = _Search(greatest, last, axis, x, out)
    space, length, lanes, storage, compute = search.space, search.length, search.lanes, search.storage, search.compute
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", "int64")
    x_strides, out_strides = space.strides
    prologue = []
    if search.by_rows:
        loop = RowLoop(arguments, space.lens, [x_strides, out_strides], length, lanes, 2, whole=True)
        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            *search.along_row(arguments),
            f"store_scalar(p_out, {loop.offset(1)}, found)",
        ]
    else:
        outer, cols = space.lens[:-1], space.lens[-1]
        least = kept_columns(outer, cols, lanes)
        strides = [x_strides[:-1], out_strides[:-1]]
        loop = RowLoop(arguments, outer, strides, cols, lanes, 2 * length, longest=KEPT_COLUMNS, least=least)
        arguments.integer("length", length)
        arguments.integer("step", search.step)
        arguments.integer("ahead", search.step * rows_ahead(loop.chunk * x.type.size))
        inner = (x_strides[-1], out_strides[-1])
        t0, t1 = (arguments.step(f"t{k}", s) for k, s in enumerate(inner))
        prologue = [f"{name}s = local_{t}({KEPT_COLUMNS + lanes})" for name, t in (("best", compute), ("at", "int32"))]
        keep = ["store(bests, c - first, best)", "store(ats, c - first, at)"]

        def begin(left: str) -> list[str]:
            return [f"best = {search.load('q', inner[0], t0, left)}", f"at = const_int32(0, {lanes})", *keep]

        def compare_columns(left: str) -> list[str]:
            asked = search.ahead() if known_in(inner[0], 1) and not left else ()
            return [
                *(f"prefetch(q, c + ahead + {k})" for k in asked),
                f"v = {search.load('q', inner[0], t0, left)}",
                f"best = load(bests, c - first, {lanes})",
                f"at = load(ats, c - first, {lanes})",
                f"take = {search.beats}(v, best)",
                *_better("j"),
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
            *indent(["q = offset(q, step)", *vector_loop(lanes, compare_columns)]),
            *vector_loop(lanes, end),
        ]
    kernel = loop.kernel(f"{search.name}_kernel", inside, origin, prologue)
    return loop.launch(kernel, x.lens, x.footprint + out.footprint, prod(x.lens), claims=True)
