"""Padding: a copy between fills for a constant value, a copy through position tables for repeated elements."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ....core.dim import (
    Length,
    SharedLength,
    is_symbolic,
    known_equal,
    known_in,
    known_less_equal,
    known_same,
    minimum,
    typical,
)
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...problems.indexed_copy import remapping
from ...space import collapse
from ...statements import indent, load_text, store_text, vector_loop
from ..loops import claim, is_streamed, tasks_unless_empty
from .copies import indexed_launch
from .row_tasks import RowLoop, mover, mover_lanes

SHORT_ROW = 128
"""Most bytes of a row, which takes three short loops, for which filling everything first is faster; half of it where
the filled data is re-read from memory."""
FEWEST_ROWS = 4096
"""Rows from which a second launch for the fill pays. No figures kept."""


@dataclass(frozen=True)
class _PaddedAxis:
    """An axis of ``out`` positions, of which ``length`` positions starting with ``before`` hold the elements of the
    source."""

    length: SharedLength
    out: SharedLength
    before: SharedLength
    x_stride: SharedLength
    out_stride: SharedLength

    @property
    def padded(self) -> bool:
        return not known_in(self.before, 0) or not known_equal(self.length, self.out)

    def merged(self, inner: _PaddedAxis) -> _PaddedAxis | None:
        """Return this axis merged with the next inner axis, or None if memory does not allow it."""
        if inner.padded or not known_equal(self.out_stride, inner.out_stride * inner.out):
            return None
        if not known_equal(self.x_stride, inner.x_stride * inner.length):
            return None
        n = inner.out
        return replace(inner, length=self.length * n, out=self.out * n, before=self.before * n)


def _axes(before: Sequence[Length], x: Tensor, out: Tensor) -> list[_PaddedAxis]:
    """Return the axes in the memory order of the output, merged where possible."""
    axes = [_PaddedAxis(*values) for values in zip(x.lens, out.lens, before, x.strides, out.strides, strict=True)]
    kept = [a for a in axes if not known_in(a.out, 1) or a.padded]
    result: list[_PaddedAxis] = []
    for axis in sorted(kept, key=lambda a: -typical(a.out_stride)):
        both = result[-1].merged(axis) if result else None
        if both is None:
            result.append(axis)
        else:
            result[-1] = both
    return result or [_PaddedAxis(1, 1, 0, 1, 1)]


def has_short_rows(before: Sequence[Length], x: Tensor, out: Tensor) -> bool:
    """Return whether rows are so many and short that filling all of the output and copying ``x`` over it is faster."""
    inner = _axes(before, x, out)[-1]
    if not known_in(inner.x_stride, 1) or not known_in(inner.out_stride, 1) or is_symbolic(inner.out):
        return False
    short = SHORT_ROW // 2 if is_streamed([out]) else SHORT_ROW
    rows = prod(out.lens) // max(inner.out, 1)
    return bool(inner.out * x.type.size <= short) and known_less_equal(FEWEST_ROWS, rows)


def pad_launch(before: Sequence[Length], value: np.ndarray | None, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that copies ``x`` into ``out``, ``before`` elements in on each axis, and fills the rest with
    ``value``.

    ``value`` is an array without axes. Operands are named ``x``, ``out``, and ``value``, which holds the value if none
    is given here. A negative ``before`` cuts, and so does the end of ``out``.
    """
    *outer, inner = _axes(before, x, out)
    dtype, lanes = mover(x.type), mover_lanes(x.type, inner.out)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_out", "out", dtype)
    prologue = _splat(arguments, value, dtype, lanes)
    arguments.integer("before", inner.before)
    arguments.integer("length", inner.length)
    loop = RowLoop(
        arguments,
        [a.out for a in outer],
        [[a.x_stride for a in outer], [a.out_stride for a in outer]],
        inner.out,
        lanes,
    )
    bounds = _bounds(arguments, outer)
    skipped = sum(axis.before * axis.x_stride for axis in outer if axis.padded)
    arguments.integer("skipped", skipped + inner.before * inner.x_stride)
    strides = (inner.x_stride, inner.out_stride)
    step = [arguments.step(f"t{k}", s) for k, s in enumerate(strides)]

    def copy(left: str) -> list[str]:
        loaded = load_text("r_x", "c", strides[0], step[0], lanes, left)
        return [store_text("r_out", "c", strides[1], step[1], loaded, left)]

    copied = vector_loop(lanes, copy, first="low", last="high")
    inside = [
        f"r_x = offset(p_x, {loop.offset(0)} - skipped)",
        f"r_out = offset(p_out, {loop.offset(1)})",
        *bounds,
        *_filled(inner, step[1], lanes, copied),
    ]
    kernel = loop.kernel("pad_kernel" if value is not None else "pad_with_kernel", inside, origin, prologue)
    return loop.launch(kernel, out.lens, x.footprint + out.footprint)


def border_launch(
    before: Sequence[Length], value: np.ndarray | None, x: Tensor, out: Tensor, origin: str = ""
) -> Launch:
    """Return the launch that writes ``value`` around ``x``, which already is in ``out``, ``before`` elements in on each
    axis.

    Operands are ``out``, and ``value``, which holds the value if none is given here.
    """
    *outer, inner = _axes(before, x, out)
    dtype, lanes = mover(x.type), mover_lanes(x.type, inner.out)
    arguments = Arguments()
    arguments.pointer("p_out", "out", dtype)
    prologue = _splat(arguments, value, dtype, lanes)
    arguments.integers(before=inner.before, length=inner.length)
    loop = RowLoop(arguments, [a.out for a in outer], [[a.out_stride for a in outer]], inner.out, lanes, whole=True)
    step = arguments.integer("step", inner.out_stride) if inner.out_stride not in (0, 1) else ""
    bounds = _bounds(arguments, outer)

    inside = [f"r_out = offset(p_out, {loop.offset(0)})", *bounds, *_filled(inner, step, lanes, [])]
    filled = (prod(out.lens) - prod(x.lens)) * x.type.size
    return Launch(
        kernel=loop.kernel("border_kernel" if value is not None else "border_with_kernel", inside, origin, prologue),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(loop.tasks, [filled]), claim(loop.tasks, filled)),
        bytes=filled,
    )


def _bounds(arguments: Arguments, outer: Sequence[_PaddedAxis]) -> list[str]:
    """Return the statements that set ``low`` and ``high``, between which the columns of a row are of ``x``."""
    tests = []
    for d, axis in enumerate(outer):
        if axis.padded:
            start = arguments.integer(f"before{d}", axis.before)
            tests += [f"i{d} >= {start}", f"i{d} < {start} + {arguments.integer(f'length{d}', axis.length)}"]
    bounds = ["low = imin(last, imax(first, before))", "high = imax(low, imin(last, before + length))"]
    return ["low = last", "high = last", f"if {' and '.join(tests)}:", *indent(bounds)] if tests else bounds


def _filled(axis: _PaddedAxis, step: str, lanes: int, copied: list[str]) -> list[str]:
    """Return the statements that fill a row around the columns from ``low`` to ``high``, which ``copied`` writes.

    Ends that are narrower than a vector are filled one by one, which is faster than a masked store.
    """

    def fill(left: str) -> list[str]:
        return [store_text("r_out", "c", axis.out_stride, step, "value", left)]

    def fill_one_by_one(first: str, last: str) -> list[str]:
        place = f"c * {step}" if step else "c"
        return [f"c = {first}", f"while c < {last}:", f"    store_scalar(r_out, {place}, one)", "    c += 1"]

    if not all(known_less_equal(n, lanes - 1) for n in (axis.before, axis.out - axis.before - axis.length)):
        return [*vector_loop(lanes, fill, last="low"), *copied, *vector_loop(lanes, fill, first="high")]
    ends = fill_one_by_one("first", "low"), fill_one_by_one("high", "last")
    return ["if low < high:", *indent([*ends[0], *copied, *ends[1]]), "else:", *indent(vector_loop(lanes, fill))]


def _splat(arguments: Arguments, value: np.ndarray | None, dtype: str, lanes: int) -> list[str]:
    """Return the statements that set ``one`` and a vector of it: the value, or that of the operand that holds it."""
    if value is None:
        arguments.pointer("p_value", "value", dtype)
        one = "load_scalar(p_value, 0)"
    else:
        arguments.integer("bits", int(value.reshape(1).view(f"i{value.itemsize}")[0]))
        one = f"cast_{dtype}(bits)"
    return [f"one = {one}", f"value = splat(one, {lanes})"]


def remap_launch(
    name: str, positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor, origin: str = ""
) -> tuple[Launch, dict[str, np.ndarray]]:
    """Return the launch for ``out[i, j, ...] = x[positions[0][i], j, ...]``, and the constants that it reads.

    Args:
        name: kernel name.
        positions: for some axes the input position of every output position; on all other axes lengths agree.
        x: the input.
        out: the output.

    Returns:
        The launch, with operands ``x``, ``out`` and one for each table, and the tables by operand name.
    """
    edges = edges_launch(name, positions, x, out, origin)
    if edges is not None:
        return edges
    copy, tables = remapping(name, positions, x, out, origin)
    return indexed_launch(copy), tables


LONGEST_STEP = 256
"""Most bytes of a step along the axis with the table; longer steps are copied as runs. No figures kept."""
LARGEST_TABLE = 1 << 16
"""Most positions in a table, of 8 bytes each: half of an L2 cache of 1 MiB."""


@dataclass(frozen=True)
class _EdgeRows:
    """The axis of the rows, and the positions of their elements in the source's row."""

    axis: int
    inside: tuple[int, ...]
    positions: np.ndarray

    def middle(self) -> tuple[int, int]:
        """Return the begin and the end of the longest run of consecutive positions."""
        cuts = np.flatnonzero(np.diff(self.positions) != 1) + 1
        bounds = [0, *cuts.tolist(), len(self.positions)]
        return max(itertools.pairwise(bounds), key=lambda pair: pair[1] - pair[0])


def _rows(positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor) -> _EdgeRows | None:
    """Return the innermost axis with a table, merged with all axes inside it, if elements of both tensors are
    contiguous there."""
    if not positions or any(known_in(n, 0) for n in out.lens):
        return None
    axis = min(positions, key=lambda a: typical(out.strides[a]))
    within = [a for a in range(len(out.lens)) if a != axis and typical(out.strides[a]) < typical(out.strides[axis])]
    inside = sorted((a for a in within if not known_in(out.lens[a], 1)), key=lambda a: typical(out.strides[a]))
    step = 1
    for a in inside:
        if a in positions or not known_equal(x.strides[a], step) or not known_equal(out.strides[a], step):
            return None
        step *= out.lens[a]
    if is_symbolic(step) or not known_same((x.strides[axis], out.strides[axis]), (step, step)):
        return None
    if step * x.type.size > LONGEST_STEP or step * out.lens[axis] > LARGEST_TABLE:
        return None
    at = positions[axis].astype(np.int64)[:, None] * step + np.arange(step)
    return _EdgeRows(axis, tuple(inside), at.reshape(-1))


def edges_launch(
    name: str, positions: Mapping[int, np.ndarray], x: Tensor, out: Tensor, origin: str = ""
) -> tuple[Launch, dict[str, np.ndarray]] | None:
    """Return the launch and tables of ``remap_launch``, which see; ``None`` if rows are not mostly consecutive
    elements."""
    rows = _rows(positions, x, out)
    if rows is None:
        return None
    low, high = rows.middle()
    if 2 * (high - low) < len(rows.positions):
        return None
    others = [a for a in range(len(out.lens)) if a != rows.axis and a not in rows.inside]
    tables = {f"table{a}": positions[a].astype(np.int64) * x.strides[a] for a in others if a in positions}
    strides = [
        [0 if a in positions else s for a, s in enumerate(x.strides)],
        list(out.strides),
        *([int(a == b) for a in range(len(out.lens))] for b in others if b in positions),
    ]
    space = collapse(out.lens, strides, order_by=1, axes=others)
    cols, lanes, dtype = len(rows.positions), mover_lanes(x.type, len(rows.positions)), mover(x.type)
    arguments = Arguments()
    arguments.pointer("p_x", "x", dtype)
    arguments.pointer("p_out", "out", dtype)
    arguments.pointer("p_row", "row", "int64")
    for table in tables:
        arguments.pointer(f"p_{table}", table, "int64")
    for key, value in (("low", low), ("high", high), ("shift", int(rows.positions[low]) - low)):
        arguments.integer(key, value)
    loop = RowLoop(arguments, space.lens, space.strides, cols, lanes)
    places = [loop.offset(0), *(f"load_scalar(p_{t}, {loop.offset(k + 2)})" for k, t in enumerate(tables))]
    single = [
        "while c < {}:",
        *indent(["store_scalar(r_out, c, load_scalar(r_x, load_scalar(p_row, c)))", "c += 1"]),
    ]

    def copy(left: str) -> list[str]:
        if left:
            return [f"store_tail(r_out, c, load_tail(r_x, c + shift, {left}, 0, {lanes}), {left})"]
        return [f"store(r_out, c, load(r_x, c + shift, {lanes}))"]

    inside = [
        f"r_x = offset(p_x, {' + '.join(places)})",
        f"r_out = offset(p_out, {loop.offset(1)})",
        "begin_copy = imin(last, imax(first, low))",
        "end_copy = imax(begin_copy, imin(last, high))",
        "c = first",
        *(line.format("begin_copy") for line in single),
        *vector_loop(lanes, copy, first="begin_copy", last="end_copy"),
        "c = end_copy",
        *(line.format("last") for line in single),
    ]
    traffic = out.footprint + minimum(x.footprint, out.footprint)
    launch = Launch(
        kernel=loop.kernel(name, inside, origin),
        args=arguments.values,
        geometry=TaskRange(tasks_unless_empty(loop.tasks, out.lens), claim(loop.tasks, traffic)),
        bytes=traffic,
    )
    return launch, {"row": rows.positions, **tables}
