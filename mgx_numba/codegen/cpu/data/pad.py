"""Padding: a copy between fills for a constant value, a copy through position tables for repeated elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ....core.dim import Length, SharedLength, is_symbolic, known_equal, known_in, known_less_equal, typical
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...problems.indexed_copy import remapping
from ...statements import indent, load_text, store_text, vector_loop
from ..loops import claim, is_streamed, tasks_unless_empty
from .edges import edges_launch
from .indexed import indexed_launch
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
