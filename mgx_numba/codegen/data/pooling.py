"""Pooling windows (MIGraphX ``pooling``) over tensors of any strides.

Two forms. In *column* mode lanes run along a kept dimension, the channels of NHWC memory: every tap is one
vector load, and padding is a shorter range of taps. In *row* mode, for NCHW memory, lanes run along the last
pooled axis: the taps of the other axes are combined into a row of scratch memory whose ends hold the neutral
element where the padding is, and the taps of the last axis are combined from there once the next row is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ...graph.types import Type
from ...ops.pooling import Pooling, PoolingMode
from ..cluster.collapse import Space, collapse
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
    vector_loop,
)
from ..cpu import host
from ..launch import Launch
from .rows import RowLoop, cast_text, const_text

__all__ = ["Window", "pooling_launch", "windows"]

ROW_BUFFER = 2048
LOADED_EVERY = 4
UNROLL = 4
UNROLLED_TAPS = 16


@dataclass(frozen=True)
class Window:
    """The window along one axis: ``count`` positions over ``length`` elements and the padding around them."""

    axis: int
    length: int
    count: int
    size: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Elements from the first to the last tap."""
        return (self.size - 1) * self.dilation + 1


def windows(op: Pooling, lens: Sequence[int], out_lens: Sequence[int]) -> list[Window]:
    """The axes along which a pooling does more than copy."""
    rank = len(lens) - 2
    if op.dyn_global:
        return [Window(a, lens[a], 1, lens[a], 1, 1, 0, 0) for a in range(2, len(lens)) if lens[a] != 1]
    found = []
    pads = op.pads(lens[2:])
    for k in range(rank):
        window = Window(k + 2, lens[k + 2], out_lens[k + 2], op.lengths[k], op.stride[k], op.dilations[k], *pads[k])
        if (window.size, window.stride, window.before, window.count) != (1, 1, 0, window.length):
            found.append(window)
    return found


def pooling_launch(
    op: Pooling,
    axes: Sequence[Window],
    x: Tensor,
    out: Tensor,
    origin: str = "",
    name: str = "pooling",
    fast_math: bool = False,
) -> Launch:
    """One launch that computes ``out`` from ``x``; operands of these names.

    Args:
        op: gives the mode; ``lp_order`` must be positive.
        axes: the windows, along the axes that are pooled; on all others ``x`` and ``out`` have one length.
        x: the input.
        out: the output.
        fast_math: means may be products with rounded reciprocals.
    """
    return _PoolingKernel(op, axes, x, out, origin, name, fast_math).launch()


def _places(axes: Sequence[tuple[int, Window]]) -> list[tuple[int, ...]]:
    """Where the taps of a window are along its axes, in the order of memory."""
    return list(product(*(range(w.size) for _, w in axes)))


class _Combine:
    """How the elements of a window become its value, in the kernel language."""

    def __init__(self, op: Pooling, type: Type) -> None:
        self.mode, self.order = op.mode, op.lp_order
        self.storage = dtype_name(type)
        self.compute = dtype_name(type.compute)
        if op.mode is not PoolingMode.max and not type.is_floating:
            self.compute = "float64"
        self.type = type
        # Where a maximum that passes NaN on is three instructions.
        self.tests_nan_apart = op.mode is PoolingMode.max and type.is_floating and not host.has("neon")

    def neutral(self, lanes: int) -> str:
        if self.mode is not PoolingMode.max:
            return const_text(self.compute, 0, lanes)
        if self.type.is_floating:
            return const_text(self.compute, float("-inf"), lanes)
        low = False if self.type is Type.bool_type else int(np.iinfo(self.type.numpy).min)
        return const_text(self.compute, low, lanes)

    def prepare(self, text: str) -> str:
        """Contribution of an element given by its load."""
        value = cast_text(text, self.storage, self.compute)
        if self.mode is not PoolingMode.lpnorm:
            return value
        if self.order == 2:
            return value
        return f"abs({value})" if self.order == 1 else f"pow(abs({value}), {float(self.order)!r})"

    def add(self, total: str, value: str) -> str:
        if self.mode is PoolingMode.max:
            return f"max({value}, {total})"
        if self.mode is PoolingMode.lpnorm and self.order == 2:
            return f"fma({value}, {value}, {total})"
        return f"add({total}, {value})"

    def finish(self, total: str, count: str, share: str = "") -> str:
        """Stored value of a window of ``count`` elements; ``share`` is its reciprocal, if that may be used."""
        if self.mode is PoolingMode.average:
            total = f"mul({total}, {share})" if share else f"div({total}, {count})"
        elif self.mode is PoolingMode.lpnorm and self.order != 1:
            total = f"sqrt({total})" if self.order == 2 else f"pow({total}, {1 / self.order!r})"
        return cast_text(total, self.compute, self.storage)


class _PoolingKernel:
    def __init__(
        self,
        op: Pooling,
        axes: Sequence[Window],
        x: Tensor,
        out: Tensor,
        origin: str,
        name: str,
        fast_math: bool,
    ) -> None:
        self.op, self.x, self.out, self.origin, self.name = op, x, out, origin, name
        # The last window is the one that moves least in memory.
        self.axes = sorted(axes, key=lambda w: -x.strides[w.axis])
        pooled = {w.axis for w in axes}
        kept = [a for a in range(len(x.lens)) if a not in pooled]
        self.kept = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
        self.combine = _Combine(op, x.type)
        self.average = op.mode is PoolingMode.average
        # Of integers the quotient is truncated, so it must not come out below.
        self.by_reciprocal = fast_math and self.average and x.type.is_floating
        self.lanes = host.lanes(self.combine.compute if self.combine.compute != "bool" else "uint8")
        self.slots = Slots()
        self.slots.pointer("p_x", "x", dtype_name(x.type))
        self.slots.pointer("p_out", "out", dtype_name(out.type))
        self.streamed = is_streamed([out])

    def launch(self) -> Launch:
        kernel, tasks = self._row() if self._row_mode() else self._column()
        work = prod(self.out.lens) * prod(w.size for w in self.axes)
        traffic = footprint(self.x) + footprint(self.out)
        return Launch(
            kernel=kernel,
            args=tuple(self.slots.values),
            tasks=tasks,
            grain=claim(tasks, traffic),
            flops=work,
            bytes=traffic,
        )

    def _row_mode(self) -> bool:
        if not self.axes or self.axes[-1].reach > ROW_BUFFER:
            return False
        if not self.kept.rank:
            return True
        last = self.axes[-1]
        along_kept = [s[-1] for s in self.kept.strides]
        if along_kept == [1, 1] and (self.kept.lens[-1] >= self.lanes // 2 or self.x.strides[last.axis] != 1):
            return False
        return self.x.strides[last.axis] <= max(along_kept[0], 1)

    def _tap_range(self, k: int, window: Window, index: str) -> list[str]:
        """Lines that set ``at``, the first position of a window, and its taps, ``from`` and ``to``."""
        slot = {
            what: self.slots.integer(f"{what}{k}", value)
            for what, value in (
                ("size", window.size),
                ("stride", window.stride),
                ("before", window.before),
                ("length", window.length),
            )
        }
        lines = [f"at{k} = {index} * {slot['stride']} - {slot['before']}"]
        if window.dilation == 1:
            lines += [
                f"from{k} = imax(0, -at{k})",
                f"to{k} = imin({slot['size']}, {slot['length']} - at{k})",
            ]
        else:
            d = self.slots.integer(f"dilation{k}", window.dilation)
            lines += [
                f"from{k} = idiv(imax(0, -at{k}) + {d} - 1, {d})",
                f"to{k} = imin({slot['size']}, idiv(imax(0, {slot['length']} - at{k}) + {d} - 1, {d}))",
            ]
        if self.average:
            lines.append(f"count{k} = {self._count(k, window)}")
        return lines

    def _count(self, k: int, window: Window) -> str:
        """Expression of the elements that a mean is over, along one axis."""
        if not self.op.count_include_pad:
            return f"imax(0, to{k} - from{k})"
        end = self.slots.integer(f"end{k}", window.length + window.after)
        if window.dilation == 1:
            return f"imin(size{k}, imax(0, {end} - at{k}))"
        return f"imin(size{k}, idiv(imax(0, {end} - at{k}) + dilation{k} - 1, dilation{k}))"

    def _tap_loops(self, axes: Sequence[tuple[int, Window]], body: list[str]) -> list[str]:
        """Loops over the taps of some windows, from ``r_x``, around ``body``, which reads from ``q``."""
        lines = body
        for depth, (k, _) in reversed(list(enumerate(axes))):
            outer, own = f"q{depth}", f"q{depth + 1}" if depth + 1 < len(axes) else "q"
            lines = [
                f"for tap{k} in range(from{k}, to{k}):",
                *indent([f"{own} = offset({outer}, tap{k} * step{k})", *lines], 1),
            ]
        return [("q0" if axes else "q") + " = r_x", *lines]

    def _steps(self, axes: Sequence[tuple[int, Window]]) -> None:
        for k, window in axes:
            self.slots.integer(f"step{k}", window.dilation * self.x.strides[window.axis])

    # Column mode

    def _column(self) -> tuple:
        axes = list(enumerate(self.axes))
        kept = self.kept if self.kept.rank else Space((1,), ((1,), (1,)))
        counts = [w.count for w in self.axes]
        outer = [*kept.lens[:-1], *counts]
        x_strides = [*kept.strides[0][:-1], *(w.stride * self.x.strides[w.axis] for w in self.axes)]
        out_strides = [*kept.strides[1][:-1], *(self.out.strides[w.axis] for w in self.axes)]
        weight = prod(w.size for w in self.axes)
        loop = RowLoop(self.slots, outer, [x_strides, out_strides], kept.lens[-1], UNROLL * self.lanes, weight)
        inner = [s[-1] for s in kept.strides]
        step = [self.slots.integer(f"t{k}", s) if s not in (0, 1) else "" for k, s in enumerate(inner)]
        self.slots.integer("skipped", sum(w.before * self.x.strides[w.axis] for w in self.axes))
        first_dim = len(kept.lens) - 1
        ranges = [line for k, w in axes for line in self._tap_range(k, w, f"i{first_dim + k}")]
        self._steps(axes)
        if self.average:
            ranges.append(f"count = imax(1, {' * '.join(f'count{k}' for k, _ in axes) or '1'})")
        if self.by_reciprocal:
            ranges.append(f"share = recip(cast_{self.combine.compute}(count))")

        def body(vectors: int, left: str, whole: bool) -> list[str]:
            places = [f"(c + {j * self.lanes})" if j else "c" for j in range(vectors)]

            def loads(source: str) -> list[str]:
                return [load_text(source, p, inner[0], step[0], self.lanes, left) for p in places]

            if whole:
                lines = [] if left else self._ahead(axes, vectors)
                lines += self._combined([loads(f"tap{tap}") for tap in range(weight)])
            else:
                lines = [f"m{j} = {self.combine.neutral(self.lanes)}" for j in range(vectors)]
                lines += self._tap_loops(axes, self._accumulate(loads("q")))
            for j, place in enumerate(places):
                value = self.combine.finish(f"m{j}", "count", "share" if self.by_reciprocal else "")
                lines.append(store_text("r_out", place, inner[1], step[1], value, left, self.streamed))
            return lines

        def columns(whole: bool) -> list[str]:
            wide = UNROLL * self.lanes
            return [
                "c = first",
                f"while c + {wide} <= last:",
                *indent([*body(UNROLL, "", whole), f"c += {wide}"], 1),
                *vector_loop(self.lanes, lambda left: body(1, left, whole), first="c"),
            ]

        inside = [
            f"r_x = offset(p_x, {loop.offset(0)} - skipped)",
            f"r_out = offset(p_out, {loop.offset(1)})",
            *ranges,
        ]
        inside += self._if_whole(axes, columns)
        return loop.kernel(self._kernel_name(), inside, self.origin, streamed=self.streamed), loop.tasks

    def _ahead(self, axes: Sequence[tuple[int, Window]], vectors: int) -> list[str]:
        """Lines that ask for elements that windows further on are the first to read."""
        size = self.x.type.size
        if not is_streamed([self.x]):
            return []
        line, ahead = host.CACHE_LINE // size, AHEAD_BYTES // size
        first = [all(at >= w.size - w.stride for at, (_, w) in zip(index, axes)) for index in _places(axes)]
        return [
            f"prefetch(tap{tap}, c + {ahead + start})"
            for tap, is_first in enumerate(first)
            for start in range(0, vectors * self.lanes if is_first else 0, line)
        ]

    @staticmethod
    def _if_whole(axes: Sequence[tuple[int, Window]], body: Callable[[bool], list[str]]) -> list[str]:
        """``body(True)``, which has the places ``tap0``, ``tap1``, ... of all taps, where none is in the padding.

        Elsewhere, and for large windows, ``body(False)``.
        """
        if not axes or not 0 < prod(w.size for _, w in axes) <= UNROLLED_TAPS:
            return body(False)
        lines = []
        for tap, index in enumerate(_places(axes)):
            terms = [f"{at} * step{k}" for at, (k, _) in zip(index, axes) if at]
            lines.append(f"tap{tap} = offset(r_x, {' + '.join(terms) or 0})")
        return [
            f"if {' and '.join(f'to{k} - from{k} == {w.size}' for k, w in axes)}:",
            *indent([*lines, *body(True)], 1),
            "else:",
            *indent(body(False), 1),
        ]

    def _accumulate(self, loads: Sequence[str]) -> list[str]:
        """Lines that add one element to each of the totals ``m0``, ``m1``, ...."""
        lines = [f"v{j} = {self.combine.prepare(load)}" for j, load in enumerate(loads)]
        return [*lines, *(f"m{j} = {self.combine.add(f'm{j}', f'v{j}')}" for j in range(len(loads)))]

    def _combined(self, taps: Sequence[Sequence[str]]) -> list[str]:
        """Lines that set each of the totals ``m0``, ``m1``, ... from its load of every tap."""
        if not self.combine.tests_nan_apart:
            lines = [f"m{j} = {self.combine.neutral(self.lanes)}" for j in range(len(taps[0]))]
            return [*lines, *(line for loads in taps for line in self._accumulate(loads))]
        lines = []
        for tap, loads in enumerate(taps):
            for j, load in enumerate(loads):
                v, total = f"v{tap % 2}_{j}", f"m{j}"
                lines.append(f"{v} = {self.combine.prepare(load)}")
                lines.append(f"{total} = where(gt({v}, {total}), {v}, {total})" if tap else f"{total} = {v}")
                if tap % 2 or tap == len(taps) - 1:
                    # One comparison tests two elements.
                    found = f"logical_or(isnan(v0_{j}), isnan({v}))"
                    lines.append(f"nan{j} = logical_or(nan{j}, {found})" if tap > 1 else f"nan{j} = {found}")
        nan = const_text(self.combine.compute, float("nan"), self.lanes)
        return [*lines, *(f"m{j} = where(nan{j}, {nan}, m{j})" for j in range(len(taps[0])))]

    # Row mode

    def _row(self) -> tuple:
        *others, last = self.axes
        axes, lanes = list(enumerate(others)), self.lanes
        k = len(others)
        outer = [*self.kept.lens, *(w.count for w in others)]
        x_strides = [*self.kept.strides[0], *(w.stride * self.x.strides[w.axis] for w in others)]
        out_strides = [*self.kept.strides[1], *(self.out.strides[w.axis] for w in others)]
        weight = prod(w.size for w in self.axes)
        longest = max(1, (ROW_BUFFER - last.reach) // last.stride + 1)
        loop = RowLoop(self.slots, outer, [x_strides, out_strides], last.count, lanes, weight, longest)
        inner = (self.x.strides[last.axis], self.out.strides[last.axis])
        step = [self.slots.integer(f"t{j}", s) if s not in (0, 1) else "" for j, s in enumerate(inner)]
        self.slots.integer("skipped", sum(w.before * self.x.strides[w.axis] for w in others))
        ranges = [line for j, w in axes for line in self._tap_range(j, w, f"i{self.kept.rank + j}")]
        self._steps(axes)
        if self.average:
            ranges.append(f"others = {' * '.join(f'count{j}' for j, _ in axes) or '1'}")
        for what, value in (
            ("size", last.size),
            ("stride", last.stride),
            ("before", last.before),
            ("length", last.length),
            ("dilation", last.dilation),
        ):
            self.slots.integer(f"{what}{k}", value)
        self.slots.integer("padded", last.length + last.after)
        reach = self.slots.integer("reach", last.reach)
        neutral = self.combine.neutral(lanes)

        taps = prod(w.size for w in others)

        def combine_rows(left: str, whole: bool) -> list[str]:
            def load(source: str) -> str:
                return load_text(source, "c", inner[0], step[0], lanes, left)

            if whole:
                lines = self._ahead(axes, 1) if inner[0] == 1 and not left else []
                lines += self._combined([[load(f"tap{tap}")] for tap in range(taps)])
            else:
                lines = [f"m0 = {neutral}", *self._tap_loops(axes, self._accumulate([load("q")]))]
            return [*lines, "store(scratch, c, m0)"]

        def rows(whole: bool) -> list[str]:
            return vector_loop(lanes, lambda left: combine_rows(left, whole), first="low", last="high")

        def combine_tap(tap: int | str, left: str) -> list[str]:
            at = f"(c - first) * stride{k} + {tap} * dilation{k}"
            if last.stride == 1:
                load = f"load(scratch, {at}, {lanes})"
            elif last.stride <= LOADED_EVERY:
                load = f"load_every(scratch, {at}, {last.stride}, {lanes})"
            elif left:
                load = f"load_strided_tail(scratch, {at}, stride{k}, {left}, 0, {lanes})"
            else:
                load = f"load_strided(scratch, {at}, stride{k}, {lanes})"
            total = "max(v0, m0)" if self.op.mode is PoolingMode.max else "add(m0, v0)"
            return [f"v0 = {load}", f"m0 = {total}"]

        def combine_taps(left: str) -> list[str]:
            value = self.combine.finish("m0", "count")
            if last.size <= UNROLLED_TAPS:
                lines = [line for tap in range(last.size) for line in combine_tap(tap, left)]
            else:
                lines = [f"for tap in range(size{k}):", *indent(combine_tap("tap", left), 1)]
            return [
                f"m0 = {neutral}",
                *lines,
                *(self._vector_count(k, last) if self.average else []),
                store_text("r_out", "c", inner[1], step[1], value, left, self.streamed),
            ]

        half = ROW_BUFFER + (LOADED_EVERY + 1) * lanes
        finish = [
            "if started:",
            *indent([f"scratch = offset(rows_of_two, (1 - turn) * {half})", *vector_loop(lanes, combine_taps)], 1),
        ]
        inside = [
            f"scratch = offset(rows_of_two, turn * {half})",
            *ranges,
            f"at = first * stride{k} - before{k}",
            f"need = (last - first - 1) * stride{k} + {reach}",
            "low = imin(need, imax(0, -at))",
            f"high = imax(low, imin(need, length{k} - at))",
            f"r_x = offset(p_x, {loop.offset(0)} - skipped + at * {step[0] or inner[0]})",
            "c = 0",
            "while c < low:",
            *indent([f"store(scratch, c, {neutral})", f"c += {lanes}"], 1),
            *self._if_whole(axes, rows),
            "c = high",
            "while c < need:",
            *indent([f"store(scratch, c, {neutral})", f"c += {lanes}"], 1),
            # A row is read back after the next one has been written: loads over the borders of stores wait for these.
            *finish,
            f"r_out = offset(p_out, {loop.offset(1)})",
            *(["others_before = others"] if self.average else []),
            "started = True",
            "turn = 1 - turn",
        ]
        kernel = loop.kernel(
            self._kernel_name(),
            inside,
            self.origin,
            prologue=[f"rows_of_two = local_{self.combine.compute}({2 * half})"],
            before=["turn = 0", "started = False", "r_out = p_out", *(["others_before = 1"] if self.average else [])],
            after=finish,
            streamed=self.streamed,
        )
        return kernel, loop.tasks

    def _vector_count(self, k: int, window: Window) -> list[str]:
        """Lines that set ``count`` to the elements that the means of neighbouring windows are over."""
        end = "padded" if self.op.count_include_pad else f"length{k}"
        lines = [f"place = add(mul(add(iota_int32({self.lanes}), c), stride{k}), -before{k})"]
        rounded = "" if window.dilation == 1 else f"dilation{k}"

        def taps(distance: str) -> str:
            return f"div(add({distance}, {rounded} - 1), {rounded})" if rounded else distance

        beyond = taps(f"max(0, sub({end}, place))")
        lines.append(f"along = min(size{k}, {beyond})")
        if not self.op.count_include_pad:
            lines.append(f"along = max(0, sub(along, {taps('max(0, neg(place))')}))")
        lines.append(f"count = max(1, cast_{self.combine.compute}(mul(along, others_before)))")
        return lines

    def _kernel_name(self) -> str:
        return f"{self.name}_{self.op.mode.name}_kernel"
