"""Resizing: nearest neighbours as a copy through position tables, interpolation as weighted sums.

Positions and weights of every output coordinate are constants made by the compiler. Lanes run along the
channels of NHWC memory, where a tap is a row and a weight, or along a resized axis. There the taps of the other
axes are combined into a line of scratch memory first, of which neighbouring outputs read neighbouring elements; or,
where the line would be much longer than what is read of it, taps are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from ...errors import UnsupportedError
from ...ops.resize import Resize, interpolation_taps, nearest_index
from ..cluster.collapse import collapse
from ..cluster.text import Slots, Tensor, claim, dtype_name, footprint, is_streamed, load_text, store_text
from ..cpu import host
from ..launch import Launch
from .pad import remap_launch
from .rows import RowLoop, cast_text, const_text, vector_loop

__all__ = ["resize_launch"]

LINE = 4096
SPARSE = 4
MOST_ROWS = 64


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
    return _Interpolation(op, samples, x, out, origin).launch()


class _Interpolation:
    """The weighted sum over some positions along each of several axes, ``axes``, the slowest in memory first."""

    def __init__(
        self, op: Resize, samples: Sequence[tuple[int, np.ndarray]], x: Tensor, out: Tensor, origin: str
    ) -> None:
        self.x, self.out, self.origin, self.name = x, out, origin, f"resize_{op.mode}_kernel"
        self.storage, self.compute = dtype_name(x.type), dtype_name(x.type.compute)
        self.lanes = host.lanes(self.compute)
        self.streamed = is_streamed([out])
        self.pairs = {axis: interpolation_taps(op.mode, at, x.lens[axis], op.cubic_coeff_a) for axis, at in samples}
        self.axes = sorted(self.pairs, key=lambda axis: -out.strides[axis])
        self.taps = len(self.pairs[self.axes[0]])
        if self.taps ** len(self.axes) > MOST_ROWS * self.taps:
            raise UnsupportedError(f"interpolation along {len(self.axes)} axes")
        self.tables: dict[str, np.ndarray] = {}
        self.slots = Slots()
        self.slots.pointer("p_x", "x", self.storage)
        self.slots.pointer("p_out", "out", self.storage)

    def launch(self) -> tuple[Launch, dict[str, np.ndarray]]:
        x, out, axes = self.x, self.out, self.axes
        space = collapse(
            out.lens, [x.strides, out.strides], order_by=1, axes=[a for a in range(len(out.lens)) if a not in axes]
        )
        last = axes[-1]
        along = not space.rank or out.strides[last] < space.strides[1][-1]
        lens = [*space.lens, *(out.lens[a] for a in axes)]
        x_strides = [*space.strides[0], *(0 for _ in axes)]
        out_strides = [*space.strides[1], *(out.strides[a] for a in axes)]
        inner = space.rank + len(axes) - 1 if along else space.rank - 1
        order = [d for d in range(len(lens)) if d != inner]
        parts = self._parts() if along and 0 not in out.lens else None
        loop = RowLoop(
            self.slots,
            [lens[d] for d in order],
            [[x_strides[d] for d in order], [out_strides[d] for d in order]],
            lens[inner],
            self.lanes,
            self.taps ** len(axes),
            longest=lens[inner] if parts is None else parts,
        )
        outer = axes[:-1] if along else axes
        prepared = self._rows([(a, f"i{order.index(space.rank + k)}") for k, a in enumerate(outer)])
        self.steps = (x.strides[last] if along else x_strides[inner], out_strides[inner])
        self.step = [self.slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(self.steps)]
        body = self._columns() if not along else self._gathered() if parts is None else self._line()
        inside = [
            f"r_x = offset(p_x, {loop.offset(0)})",
            f"r_out = offset(p_out, {loop.offset(1)})",
            *prepared,
            *body,
        ]
        prologue = [] if parts is None else [f"line = local_{self.compute}({LINE + 2 * self.lanes})"]
        tasks = loop.tasks if 0 not in out.lens else 0
        traffic = footprint(x) + footprint(out)
        launch = Launch(
            kernel=loop.kernel(self.name, inside, self.origin, prologue, streamed=self.streamed),
            args=tuple(self.slots.values),
            tasks=tasks,
            grain=claim(tasks, traffic),
            flops=2 * prod(out.lens) * self.taps ** len(axes),
            bytes=traffic,
        )
        return launch, self.tables

    def _table(self, name: str, values: np.ndarray) -> str:
        """Name of the pointer to a constant."""
        self.tables[name] = values
        self.slots.pointer(f"p_{name}", name, values.dtype.name)
        return f"p_{name}"

    def _rows(self, axes: Sequence[tuple[int, str]]) -> list[str]:
        """Lines that set the rows ``q0``, ``q1``, ... and their weights ``w0``, ... by the indices along axes."""
        lines: list[str] = []
        for k, (axis, index) in enumerate(axes):
            count = self.slots.integer(f"count{k}", self.out.lens[axis])
            at = np.concatenate([at * self.x.strides[axis] for at, _ in self.pairs[axis]])
            weights = np.concatenate([weight for _, weight in self.pairs[axis]]).astype(self.compute)
            place, weight = self._table(f"index{axis}", at), self._table(f"weight{axis}", weights)
            for tap in range(self.taps):
                lines.append(f"x{k}_{tap} = load_scalar({place}, {tap} * {count} + {index})")
                lines.append(f"y{k}_{tap} = load_scalar({weight}, {tap} * {count} + {index})")
        for j, taps in enumerate(product(range(self.taps), repeat=len(axes))):
            terms = [f"x{k}_{tap}" for k, tap in enumerate(taps)]
            weight = f"y0_{taps[0]}" if taps else ""
            for k, tap in enumerate(taps[1:], 1):
                weight = f"mul({weight}, y{k}_{tap})"
            lines.append(f"q{j} = offset(r_x, {' + '.join(terms) or 0})")
            if weight:
                lines.append(f"w{j} = splat({weight}, {self.lanes})")
        self.rows, self.weighted = self.taps ** len(axes), bool(axes)
        return lines

    def _loaded(self, left: str, load: Callable[[str], str]) -> list[str]:
        """Lines that set ``total`` to the weighted sum over the rows of what ``load`` gives of each."""
        if not self.weighted:
            return [f"total = {cast_text(load('q0'), self.storage, self.compute)}"]
        lines = []
        for j in range(self.rows):
            value = cast_text(load(f"q{j}"), self.storage, self.compute)
            lines.append(f"total = fma({value}, w{j}, total)" if j else f"total = mul({value}, w0)")
        return lines

    def _stored(self, left: str) -> str:
        value = cast_text("total", self.compute, self.storage)
        return store_text("r_out", "c", self.steps[1], self.step[1], value, left, self.streamed)

    def _columns(self) -> list[str]:
        """Lanes along a dimension that is kept."""

        def body(left: str) -> list[str]:
            lines = self._loaded(left, lambda q: load_text(q, "c", self.steps[0], self.step[0], self.lanes, left))
            return [*lines, self._stored(left)]

        return vector_loop(self.lanes, body)

    def _gathered(self) -> list[str]:
        """Lanes along the last axis, whose taps are gathered from every row."""
        last = self.axes[-1]
        count = self.slots.integer("count", self.out.lens[last])
        at = np.concatenate([at * self.x.strides[last] for at, _ in self.pairs[last]])
        weights = np.concatenate([weight for _, weight in self.pairs[last]]).astype(self.compute)
        index, weight = self._table(f"index{last}", at), self._table(f"weight{last}", weights)

        def body(left: str) -> list[str]:
            lines = [f"sum = {const_text(self.compute, 0, self.lanes)}"]
            for tap in range(self.taps):
                place = f"{tap} * {count} + c"
                lines.append(f"index = {load_text(index, place, 1, '', self.lanes, left)}")
                gathered = f"gather_tail({{}}, index, {left}, 0)" if left else "gather({}, index)"
                lines += self._loaded(left, gathered.format)
                lines.append(f"sum = fma(total, {load_text(weight, place, 1, '', self.lanes, left)}, sum)")
            return [*lines, "total = sum", self._stored(left)]

        return vector_loop(self.lanes, body)

    def _parts(self) -> int | None:
        """Most outputs along the last axis of which a line holds all that is read; ``None`` to gather instead."""
        last = self.axes[-1]
        if self.x.lens[last] > SPARSE * max(self.out.lens[last], self.lanes):
            return None
        low, high = self._bounds()
        blocks = len(low)
        while blocks > 1 and any(
            high[min(k + blocks, len(low)) - 1] - low[k] > LINE for k in range(0, len(low), blocks)
        ):
            blocks = -(-blocks // 2)
        return blocks * self.lanes if (high - low).max() <= LINE else None

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last input position, and one, that each vector of outputs along the last axis reads."""
        positions = [self._padded(at).reshape(-1, self.lanes) for at, _ in self.pairs[self.axes[-1]]]
        return np.min(positions, (0, 2)), np.max(positions, (0, 2)) + 1

    def _padded(self, values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, -len(values) % self.lanes), "edge")

    def _line(self) -> list[str]:
        """Lanes along the last axis, after the rows have been combined into a line."""
        last, lanes = self.axes[-1], self.lanes
        low, high = self._bounds()
        near = bool((high - low).max() <= 2 * lanes)
        starts = self._table("low", low)
        ends = self._table("high", high)
        whole = self.slots.integer("count", len(low) * lanes)
        at = np.concatenate([self._padded(at) - low.repeat(lanes) for at, _ in self.pairs[last]])
        index = self._table(f"index{last}", at.astype(np.int32))
        weights = np.concatenate([self._padded(weight) for _, weight in self.pairs[last]])
        weight = self._table(f"weight{last}", weights.astype(self.compute))

        def combine(left: str) -> list[str]:
            lines = self._loaded(left, lambda q: load_text(q, "c", self.steps[0], self.step[0], lanes, left))
            return [*lines, "store(line, c - low, total)"]

        def body(left: str) -> list[str]:
            lines = [f"from_ = load_scalar({starts}, idiv(c, {lanes})) - low"]
            for tap in range(self.taps):
                place = f"load({index}, {tap} * {whole} + c, {lanes})"
                value = f"load_near(line, from_, {place})" if near else f"gather(offset(line, from_), {place})"
                factor = f"load({weight}, {tap} * {whole} + c, {lanes})"
                lines.append(f"total = fma({value}, {factor}, total)" if tap else f"total = mul({value}, {factor})")
            return [*lines, self._stored(left)]

        return [
            f"low = load_scalar({starts}, idiv(first, {lanes}))",
            f"high = load_scalar({ends}, idiv(last - 1, {lanes}))",
            *vector_loop(lanes, combine, first="low", last="high"),
            *vector_loop(lanes, body),
        ]
