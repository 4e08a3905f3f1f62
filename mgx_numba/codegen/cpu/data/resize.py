"""Resizing: nearest neighbours as a copy through position tables, interpolation as weighted sums.

Positions and weights of every output coordinate are constants computed by the compiler, or tables that a launch fills
where lengths are symbolic: with the values of the operators' NumPy definition, bit by bit. Lanes run along the channels
of NHWC memory, where a tap is a row and a weight, or along a resized axis.

Along a resized axis each input row is resampled into scratch memory, which keeps the rows that later outputs read
again; an output is a weighted sum of resampled rows. A vector of outputs reads two adjacent vectors of a row, or its
elements are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....core.dim import Length, ceil_div, known_in, minimum, typical
from ....errors import UnsupportedError
from ....ops.pad import PadMode
from ....ops.resize import Resize, interpolation_taps, nearest_index
from ...arguments import Arguments
from ...lang.target import itemsize
from ...launch import Launch
from ...problems.cluster import Tensor
from ...resampling import Resampled, clipped, coordinates, nearest, resampled_axes, taps, taps_of
from ...space import collapse
from ...statements import cast_text, const_text, dtype_name, indent, load_text, store_text, vector_loop
from .. import host
from ..loops import is_streamed
from .pad import remap_launch
from .row_tasks import RowLoop

LINE = 4096
"""Elements of a source row from which a block's outputs are read: 16 KiB of float32, a third of the L1 cache."""
KEPT_BYTES = 1 << 16
"""Scratch memory (bytes) for resampled rows: the stack limit of a kernel."""
ROWS_TOGETHER = 8
"""Least rows of outputs in a task, so that most of its resampled rows are read again. No figures kept."""
SPARSE = 4
"""Input elements for each output from which gathering is less work than reading all elements. No figures kept."""
MOST_FRESH = 0.7
"""Largest fraction of new rows for an output at which resampled rows are kept: keeping costs a store and a load.
Enlarging twice (a half) is 1.6 times as fast with kept rows; reducing by half reads all rows for each output."""
MOST_ROWS = 64
"""Most weighted rows of one output, which bounds the text of a kernel: linear interpolation along 7 axes, cubic along
4."""


def open_axes(op: Resize, x: Tensor, out: Tensor) -> dict[int, Resampled]:
    """Return the axes that a resize of symbolic lengths changes, each with the parameters of its table."""
    found = resampled_axes(op, x, out)
    if op.mode == "nearest" or not found:
        return found
    last = _of_resize(op, found, x, out, "")
    if last.is_along():
        axis = last.axes[-1]
        found[axis] = replace(found[axis], room=ceil_div(out.lens[axis], last.lanes) * last.lanes)
    return found


def open_resize_launch(op: Resize, x: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return a launch that interpolates ``x`` to ``out``, of symbolic lengths.

    Its other operands are, for each of `open_axes`, ``index<axis>`` and ``weight<axis>``, as `tap_positions`
    fills them. Weights have the compute type.
    """
    return _of_resize(op, open_axes(op, x, out), x, out, origin).launch()[0]


def resize_launch(op: Resize, x: Tensor, out: Tensor, origin: str = "") -> tuple[Launch, dict[str, np.ndarray]]:
    """Return the launch that resamples ``x`` to ``out``, and the constants that it reads.

    Interpolated elements must be floats.

    Returns:
        The launch, with operands ``x``, ``out`` and one for each table, and the tables by operand name.
    """
    samples = op.samples(x.lens)
    if op.mode == "nearest" or not samples:
        positions = {axis: nearest_index(op.nearest_mode, at, x.lens[axis]) for axis, at in samples}
        return remap_launch("resize_nearest_kernel", positions, x, out, origin)
    pairs = {axis: interpolation_taps(op.mode, at, x.lens[axis], op.cubic_coeff_a) for axis, at in samples}
    return _of_resize(op, pairs, x, out, origin).launch()


def _of_resize(op: Resize, resampled: Mapping[int, object], x: Tensor, out: Tensor, origin: str) -> _Interpolation:
    return _Interpolation(f"resize_{op.mode}_kernel", taps_of(op), resampled, x, out, origin)


def window_sum_launch(
    axis: int, positions: np.ndarray, weights: np.ndarray, x: Tensor, out: Tensor, origin: str = ""
) -> tuple[Launch, dict[str, np.ndarray]]:
    """Return the launch of the operator ``window_sum`` for constants [out, taps], and the tables that it reads, as
    `resize_launch`."""
    resampled = {axis: (positions.T, weights.T)}
    return _WindowSum("window_sum_kernel", positions.shape[1], resampled, x, out, origin).launch()


class _Interpolation:
    """The weighted sum over some positions along each of several axes, ``axes``, the slowest in memory first.

    ``resampled`` has, for each axis, pairs of positions and weights, tap by tap, or the parameters of its tables, for
    symbolic lengths.
    """

    def __init__(
        self,
        name: str,
        taps: int,
        resampled: Mapping[int, Any],
        x: Tensor,
        out: Tensor,
        origin: str,
    ) -> None:
        self.x, self.out, self.origin, self.name = x, out, origin, name
        self.storage, self.compute = dtype_name(x.type), dtype_name(x.type.compute)
        self.lanes = host.lanes(self.compute)
        self.streamed = is_streamed([out])
        self.kept = KEPT_BYTES // itemsize(self.compute)
        self.pairs = resampled
        self.axes = sorted(resampled, key=lambda axis: -typical(out.strides[axis]))
        self.open = isinstance(resampled[self.axes[0]], Resampled)
        self.taps = taps
        others = [a for a in range(len(out.lens)) if a not in self.axes]
        self.space = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=others)
        if self.taps ** len(self.axes) > MOST_ROWS * self.taps:
            raise UnsupportedError(f"interpolation along {len(self.axes)} axes")
        self.tables: dict[str, np.ndarray] = {}
        self.prologue: list[str] = []
        self.before: list[str] = []
        self.arguments = Arguments()
        self.arguments.pointer("p_x", "x", self.storage)
        self.arguments.pointer("p_out", "out", self.storage)

    def is_along(self) -> bool:
        """Return whether lanes are along the last axis."""
        return not self.space.rank or typical(self.out.strides[self.axes[-1]]) < typical(self.space.strides[1][-1])

    def launch(self) -> tuple[Launch, dict[str, np.ndarray]]:
        x, out, axes, space = self.x, self.out, self.axes, self.space
        last, along = axes[-1], self.is_along()
        lens = [*space.lens, *(out.lens[a] for a in axes)]
        x_strides = [*space.strides[0], *(0 for _ in axes)]
        out_strides = [*space.strides[1], *(out.strides[a] for a in axes)]
        inner = space.rank + len(axes) - 1 if along else space.rank - 1
        order = [d for d in range(len(lens)) if d != inner]
        outer = axes[:-1] if along else axes
        self.rows = self.taps ** len(outer)
        longest = self._longest() if along and not any(known_in(n, 0) for n in out.lens) else lens[inner]
        loop = RowLoop(
            self.arguments,
            [lens[d] for d in order],
            [[x_strides[d] for d in order], [out_strides[d] for d in order]],
            lens[inner],
            self.lanes,
            self.taps ** len(axes),
            longest=longest,
            least=minimum(ROWS_TOGETHER * lens[inner], self.kept) if along else 0,
        )
        self.steps = (x.strides[last] if along else x_strides[inner], out_strides[inner])
        self.step = [self.arguments.step(f"t{k}", s) for k, s in enumerate(self.steps)]
        places = [(a, f"i{order.index(space.rank + k)}") for k, a in enumerate(outer)]
        body = self._rows(places, minimum(longest, lens[inner])) if along else self._columns(places)
        inside = [f"base = {loop.offset(0)}", f"r_out = offset(p_out, {loop.offset(1)})", *body]
        kernel = loop.kernel(self.name, inside, self.origin, self.prologue, self.before, streamed=self.streamed)
        flops = 2 * prod(out.lens) * self.taps ** len(axes)
        return loop.launch(kernel, out.lens, x.footprint + out.footprint, flops, claims=True), self.tables

    def _table(self, name: str, values: np.ndarray) -> str:
        """Return the name of the pointer to a constant."""
        self.tables[name] = values
        self.arguments.pointer(f"p_{name}", name, values.dtype.name)
        return f"p_{name}"

    def _made(self, axis: int) -> tuple[str, str]:
        """Return the names of the pointers to an axis's tables that a launch fills."""
        self.arguments.pointer(f"p_index{axis}", f"index{axis}", "int64")
        self.arguments.pointer(f"p_weight{axis}", f"weight{axis}", self.compute)
        return f"p_index{axis}", f"p_weight{axis}"

    def _taps(self, axes: Sequence[tuple[int, str]], kept: bool = False) -> list[str]:
        """Return lines that set the weights ``w0``, ``w1``, ... and row places ``q0``, ``q1``, ... for all combinations
        of taps.

        Args:
            kept: the places are in scratch memory, not in the input.
        """
        lines: list[str] = []
        for k, (axis, index) in enumerate(axes):
            count = self.arguments.integer(f"count{k}", self.out.lens[axis])
            if self.open:
                place, weight = self._made(axis)
            else:
                positions = np.concatenate([at for at, _ in self.pairs[axis]])
                weights = np.concatenate([weight for _, weight in self.pairs[axis]]).astype(self.compute)
                place = self._table(f"index{axis}", positions * self.x.strides[axis])
                weight = self._table(f"weight{axis}", weights)
            if kept:
                # Taps are adjacent, so their positions modulo the number of taps differ.
                place = self._table(f"slot{axis}", positions % self.taps * self.taps ** (len(axes) - 1 - k))
            for tap in range(self.taps):
                lines.append(f"x{k}_{tap} = load_scalar({place}, {tap} * {count} + {index})")
                lines.append(f"y{k}_{tap} = load_scalar({weight}, {tap} * {count} + {index})")
        for j, corner in enumerate(product(range(self.taps), repeat=len(axes))):
            weight = f"y0_{corner[0]}"
            for k, tap in enumerate(corner[1:], 1):
                weight = f"mul({weight}, y{k}_{tap})"
            lines.append(f"w{j} = splat({weight}, {self.lanes})")
            at = " + ".join(f"x{k}_{tap}" for k, tap in enumerate(corner))
            lines.append(f"q{j} = offset(kept, ({at}) * width)" if kept else f"q{j} = offset(p_x, base + {at})")
        return lines

    def _weighted(self, load: Callable[[int], str]) -> list[str]:
        """Return lines that set ``total`` to the weighted sum of ``load`` over the rows."""
        return [
            f"total = fma({load(j)}, w{j}, total)" if j else f"total = mul({load(j)}, w0)" for j in range(self.rows)
        ]

    def _stored(self, left: str) -> str:
        value = cast_text("total", self.compute, self.storage)
        return store_text("r_out", "c", self.steps[1], self.step[1], value, left, self.streamed)

    def _columns(self, axes: Sequence[tuple[int, str]]) -> list[str]:
        """Return lines with lanes along a kept dimension."""

        def body(left: str) -> list[str]:
            def load(j: int) -> str:
                value = load_text(f"q{j}", "c", self.steps[0], self.step[0], self.lanes, left)
                return cast_text(value, self.storage, self.compute)

            return [*self._weighted(load), self._stored(left)]

        return [*self._taps(axes), *vector_loop(self.lanes, body)]

    def _source(self) -> str:
        """Return how a row is read while it is resampled.

        ``near`` and ``gather``: from the input itself, by two vectors for each vector of outputs or by elements;
        ``line``: from a copy.
        """
        last = self.axes[-1]
        if self.open or self.x.lens[last] > SPARSE * max(self.out.lens[last], self.lanes):
            return "gather"
        low, high = self._bounds()
        if (high - low).max(initial=0) > LINE:
            return "gather"
        straight = self.storage == self.compute and self.x.strides[last] == 1
        return "near" if straight and self._are_near() and self.x.lens[last] >= 2 * self.lanes else "line"

    def _are_near(self) -> bool:
        low, high = self._bounds()
        return bool((high - low).max(initial=0) <= 2 * self.lanes)

    def _longest(self) -> int:
        """Return the most outputs along the last axis for which all rows can be kept and a line holds their inputs."""
        blocks = max(1, self.kept // (self.rows * self.lanes))
        if self._source() == "line":
            low, high = self._bounds()
            blocks = min(blocks, len(low))
            while blocks > 1 and any(
                high[min(k + blocks, len(low)) - 1] - low[k] > LINE for k in range(0, len(low), blocks)
            ):
                blocks = -(-blocks // 2)
        return blocks * self.lanes

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first, and the last plus one, input position that each vector of outputs along the last axis
        reads."""
        positions = [self._padded(at).reshape(-1, self.lanes) for at, _ in self.pairs[self.axes[-1]]]
        return np.min(positions, (0, 2)), np.max(positions, (0, 2)) + 1

    def _padded(self, values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, -len(values) % self.lanes), "edge")

    def _rows(self, axes: Sequence[tuple[int, str]], columns: int) -> list[str]:
        """Return lines with lanes along the last axis: sums of rows; missing rows are resampled first.

        Args:
            columns: most columns of a chunk.
        """
        if not axes:
            return ["r_x = offset(p_x, base)", *self._resampled(["r_x"], lambda left: [self._stored(left)])]
        if not self._is_kept():
            rows = [f"q{j}" for j in range(self.rows)]
            return [*self._taps(axes), *self._resampled(rows, lambda left: [self._stored(left)])]
        width = self.arguments.integer("width", -(-columns // self.lanes) * self.lanes)
        self.prologue += [f"kept = local_{self.compute}({self.kept})", f"held = local_int64({self.rows})"]
        self.before += [f"for slot in range({self.rows}):", "    store_scalar(held, slot, -1)"]
        taps = self._taps(axes, kept=True)
        wanted, slot = ["base"], []
        for k, (axis, index) in enumerate(axes):
            wanted.append(f"load_scalar(p_index{axis}, tap{k} * count{k} + {index})")
            slot.append(f"load_scalar(p_slot{axis}, tap{k} * count{k} + {index})")
        fill = [
            f"wanted = {' + '.join(wanted)}",
            f"slot = {' + '.join(slot)}",
            "if load_scalar(held, slot) != wanted:",
            *indent(
                [
                    "store_scalar(held, slot, wanted)",
                    "r_x = offset(p_x, wanted)",
                    f"r_kept = offset(kept, slot * {width})",
                    *self._resampled(["r_x"], lambda left: ["store(r_kept, c - first, total)"]),
                ],
            ),
        ]
        for k in reversed(range(len(axes))):
            fill = [f"for tap{k} in range({self.taps}):", *indent(fill)]

        def body(left: str) -> list[str]:
            return [*self._weighted(lambda j: f"load(q{j}, c - first, {self.lanes})"), self._stored(left)]

        return [*fill, *taps, *vector_loop(self.lanes, body)]

    def _is_kept(self) -> bool:
        """Return whether enough rows are read again for later outputs."""
        if self.open:
            return False
        fresh = [min(self.taps, self.x.lens[axis] / max(self.out.lens[axis], 1)) for axis in self.axes[:-1]]
        return prod(fresh) <= MOST_FRESH * self.rows

    def _resampled(self, rows: Sequence[str], use: Callable[[str], list[str]]) -> list[str]:
        """Return lines that run ``use`` (a body for `vector_loop`) with the outputs of a chunk as ``total``.

        Args:
            rows: pointers to the source rows; several are weighted by ``w0``, ``w1``, ...
        """
        last, lanes = self.axes[-1], self.lanes
        source = self._source()
        if self.open:
            index, weight = self._made(last)
            whole = self.arguments.integer("count", self.pairs[last].room)
            return self._combined(rows, use, source, index, weight, whole)
        near = source != "gather" and self._are_near()
        low, high = self._bounds()
        starts = low if source == "line" else np.minimum(low, self.x.lens[last] - 2 * lanes) if near else 0 * low
        at = np.concatenate([self._padded(at) - starts.repeat(lanes) for at, _ in self.pairs[last]])
        if source == "gather":
            at = at * self.x.strides[last]
        weights = np.concatenate([self._padded(weight) for _, weight in self.pairs[last]]).astype(self.compute)
        index = self._table(f"index{last}", at.astype(np.int32 if near else np.int64))
        weight = self._table(f"weight{last}", weights)
        whole = self.arguments.integer("count", len(low) * lanes)
        start = "" if source == "gather" else self._table("low", starts)
        lines = []
        if source == "line":
            end = self._table("high", high)

            def combined(left: str) -> list[str]:
                def load(row: str) -> str:
                    value = load_text(row, "c", self.steps[0], self.step[0], lanes, left)
                    return cast_text(value, self.storage, self.compute)

                total = self._weighted(lambda j: load(rows[j])) if len(rows) > 1 else [f"total = {load(rows[0])}"]
                return [*total, "store(line, c - low, total)"]

            self.prologue.append(f"line = local_{self.compute}({LINE + 2 * lanes})")
            lines = [
                f"low = load_scalar({start}, idiv(first, {lanes}))",
                f"high = load_scalar({end}, idiv(last - 1, {lanes}))",
                *vector_loop(lanes, combined, first="low", last="high"),
            ]
            rows = ["line"]
        return [*lines, *self._combined(rows, use, source, index, weight, whole, start, near)]

    def _combined(
        self,
        rows: Sequence[str],
        use: Callable[[str], list[str]],
        source: str,
        index: str,
        weight: str,
        whole: str,
        start: str = "",
        near: bool = False,
    ) -> list[str]:
        """Return the loop of `_resampled` that reads tables."""
        lanes = self.lanes

        def body(left: str) -> list[str]:
            made = []
            if start:
                made.append(f"from_ = load_scalar({start}, idiv(c, {lanes})){' - low' if source == 'line' else ''}")
            for tap in range(self.taps):
                made.append(f"i{tap}_ = load({index}, {tap} * {whole} + c, {lanes})")
                made.append(f"f{tap} = load({weight}, {tap} * {whole} + c, {lanes})")
            for j, row in enumerate(rows):
                for tap in range(self.taps):
                    if source == "gather":
                        value = cast_text(f"gather({row}, i{tap}_)", self.storage, self.compute)
                    else:
                        value = (
                            f"load_near({row}, from_, i{tap}_)" if near else f"gather(offset({row}, from_), i{tap}_)"
                        )
                    made.append(f"part{j} = fma({value}, f{tap}, part{j})" if tap else f"part{j} = mul({value}, f0)")
            total = self._weighted(lambda j: f"part{j}") if len(rows) > 1 else ["total = part0"]
            return [*made, *total, *use(left)]

        return vector_loop(lanes, body)


class _WindowSum(_Interpolation):
    """Weighted sums along one axis, of any number of taps, over which the kernel has a loop.

    ``resampled`` has arrays [taps, out] of the positions and of the weights of that axis.
    """

    def _columns(self, axes: Sequence[tuple[int, str]]) -> list[str]:
        ((axis, index),) = axes
        place, weight = self._tables(axis)
        count = self.arguments.integer("count", self.out.lens[axis])

        def term(left: str) -> tuple[str, str]:
            entry = f"tap * {count} + {index}"
            row = f"offset(r_x, load_scalar({place}, {entry}))"
            value = load_text(row, "c", self.steps[0], self.step[0], self.lanes, left)
            return cast_text(value, self.storage, self.compute), f"splat(load_scalar({weight}, {entry}), {self.lanes})"

        return ["r_x = offset(p_x, base)", *self._summed(term)]

    def _rows(self, axes: Sequence[tuple[int, str]], columns: int) -> list[str]:
        axis = self.axes[0]
        place, weight = self._tables(axis, -self.out.lens[axis] % self.lanes)
        count = self.arguments.integer("count", ceil_div(self.out.lens[axis], self.lanes) * self.lanes)

        def term(left: str) -> tuple[str, str]:
            entry = f"tap * {count} + c, {self.lanes}"
            value = cast_text(f"gather(r_x, load({place}, {entry}))", self.storage, self.compute)
            return value, f"load({weight}, {entry})"

        return ["r_x = offset(p_x, base)", *self._summed(term)]

    def _source(self) -> str:
        return "gather"

    def _tables(self, axis: int, more: int = 0) -> tuple[str, str]:
        """Return the names of the pointers to places and weights, tap by tap; each tap has ``more`` of its last."""
        positions, weights = (np.pad(values, ((0, 0), (0, more)), "edge").ravel() for values in self.pairs[axis])
        index = self._table(f"index{axis}", positions.astype(np.int64) * self.x.strides[axis])
        return index, self._table(f"weight{axis}", weights.astype(self.compute))

    def _summed(self, term: Callable[[str], tuple[str, str]]) -> list[str]:
        """Return the loop that stores sums of products; ``term`` returns both factors of ``tap``."""
        taps, zero = self.arguments.integer("taps", self.taps), const_text(self.compute, 0.0, self.lanes)

        def body(left: str) -> list[str]:
            value, weight = term(left)
            step = f"total = fma({value}, {weight}, total)"
            return [f"total = {zero}", f"for tap in range({taps}):", *indent([step]), self._stored(left)]

        return vector_loop(self.lanes, body)


def pad_positions(
    mode: PadMode, length: Length, before: Length, count: Length, step: Length, origin: str = ""
) -> Launch:
    """Return a launch that fills the operand ``index`` with the source positions of a padded axis, as
    `Pad.positions`."""
    table = _Table(count, count, length, step)
    table.arguments.integer("before", before)
    lines = ["v = sub(i, before)"]
    if mode is PadMode.edge:
        lines.append(clipped("v"))
    elif mode is PadMode.wrap:
        lines.append("at = mod(v, length)")
    else:
        lines += ["period = 2 * (length - 1)", "v = mod(v, period)", "at = min(v, sub(period, v))"]
    return table.launch("pad_positions_kernel", [*lines, *table.stored(0)], origin)


def nearest_positions(op: Resize, axis: Resampled, origin: str = "") -> Launch:
    """Return a launch that fills the operand ``index`` with the position nearest to each coordinate, as
    `nearest_index`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    lines = [*coordinates(op, axis.factor, table.lanes), clipped(nearest(op, table.lanes)), *table.stored(0)]
    return table.launch("nearest_positions_kernel", lines, origin)


def tap_positions(op: Resize, axis: Resampled, dtype: str, origin: str = "") -> Launch:
    """Return a launch that fills the operands ``index`` and ``weight`` (of type ``dtype``), tap by tap, as
    `interpolation_taps`."""
    table = _Table(axis.count, axis.room, axis.length, axis.step)
    table.arguments.pointer("p_weight", "weight", dtype)

    weights, positions = taps(op, table.lanes)
    lines = [*coordinates(op, axis.factor, table.lanes), *weights]
    for k, position in enumerate(positions):
        lines += [
            clipped(position),
            *table.stored(k),
            f"store_tail(p_weight, {k} * room + c, {cast_text(f'w{k}', 'float32', dtype)}, left)",
        ]
    return table.launch("tap_positions_kernel", lines, origin)


class _Table:
    """Prints the kernel of a table ``index`` of several parts, each of ``room`` positions."""

    def __init__(self, count: Length, room: Length, length: Length, step: Length) -> None:
        self.lanes = host.lanes("int64") * 2
        self.arguments = Arguments()
        self.arguments.pointer("p_index", "index", "int64")
        self.arguments.integers(count=count, room=room, length=length, step=step)
        self._count = room

    @staticmethod
    def stored(part: int) -> list[str]:
        """Return lines that store ``at``, as an offset in the source, in a part of the table."""
        place = f"{part} * room + c" if part else "c"
        return [f"store_tail(p_index, {place}, mul(at, step), left)"]

    def launch(self, name: str, lines: list[str], origin: str) -> Launch:
        """Return the launch of a kernel that runs ``lines`` for vectors of positions ``i``."""
        loop = RowLoop(self.arguments, (), ((),), self._count, self.lanes, 4)
        text = [
            "c = first",
            "while c < last:",
            *indent(
                [
                    f"left = imin({self.lanes}, last - c)",
                    f"i = min(count - 1, add(iota_int64({self.lanes}), c))",
                    *lines,
                    f"c += {self.lanes}",
                ]
            ),
        ]
        return loop.launch(loop.kernel(name, text, origin), [self._count])
