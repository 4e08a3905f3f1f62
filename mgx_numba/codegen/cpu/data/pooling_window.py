"""The common parts of pooling kernels: windows, the combination of elements, loops over taps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from ....core.dim import SharedLength, is_symbolic, known_in, known_same, typical
from ....core.types import Type
from ....dataclass import dataclass
from ....ops.pooling import Pooling, PoolingMode
from ...arguments import Arguments
from ...problems.cluster import Tensor
from ...space import collapse
from ...statements import cast_text, const_text, dtype_name, indent
from .. import host
from ..loops import AHEAD_BYTES, is_streamed

UNROLL = 4
"""Vectors of channels side by side: maxima and sums are dependent chains, so several are needed to hide latency."""
UNROLLED_TAPS = 16
"""Most taps of a window without loops, limited by text and compile time. 3x3 and 4x4 are below."""


@dataclass(frozen=True)
class PoolingWindow:
    """The window along one axis: ``count`` positions over ``length`` elements and the padding around them."""

    axis: int
    length: SharedLength
    count: SharedLength
    size: SharedLength
    stride: int
    dilation: int
    before: SharedLength
    after: SharedLength

    @property
    def reach(self) -> SharedLength:
        """Return the elements from the first to the last tap."""
        return (self.size - 1) * self.dilation + 1


def windows(op: Pooling, lens: Sequence[int], out_lens: Sequence[object]) -> list[PoolingWindow]:
    """Return the windows of all axes along which a pooling is more than a copy."""
    rank = len(lens) - 2
    if op.dyn_global:
        return [
            PoolingWindow(a, lens[a], 1, lens[a], 1, 1, 0, 0) for a in range(2, len(lens)) if not known_in(lens[a], 1)
        ]
    found = []
    pads = op.pads(lens[2:])
    for k in range(rank):
        window = PoolingWindow(
            k + 2, lens[k + 2], out_lens[k + 2], op.lengths[k], op.stride[k], op.dilations[k], *pads[k]
        )
        copied = (window.size, window.stride, window.before, window.count), (1, 1, 0, window.length)
        if not known_same(*copied):
            found.append(window)
    return found


def places_of(axes: Sequence[tuple[int, PoolingWindow]]) -> list[tuple[int, ...]]:
    """Return the coordinates of a window's taps along its axes, in memory order."""
    return list(product(*(range(w.size) for _, w in axes)))


class Combine:
    """The reduction of a window's elements to its value, in the kernel language."""

    def __init__(self, op: Pooling, type: Type) -> None:
        self.mode, self.order = op.mode, op.lp_order
        self.storage = dtype_name(type)
        self.compute = dtype_name(type.compute)
        if op.mode is not PoolingMode.max and not type.is_floating:
            self.compute = "float64"
        self.type = type
        # On these CPUs a maximum that propagates NaN takes three instructions.
        self.tests_nan_apart = op.mode is PoolingMode.max and type.is_floating and not host.has("neon")

    def neutral(self, lanes: int) -> str:
        if self.mode is not PoolingMode.max:
            return const_text(self.compute, 0, lanes)
        if self.type.is_floating:
            return const_text(self.compute, float("-inf"), lanes)
        low = False if self.type is Type.bool_type else int(np.iinfo(self.type.numpy).min)
        return const_text(self.compute, low, lanes)

    def prepare(self, text: str) -> str:
        """Return the contribution of an element, given its load."""
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

    def merge(self, total: str, value: str) -> str:
        """Return the combination of two parts of a window."""
        return f"max({value}, {total})" if self.mode is PoolingMode.max else f"add({total}, {value})"

    def finish(self, total: str, count: str, share: str = "") -> str:
        """Return the stored value of a window of ``count`` elements; ``share`` is its reciprocal, if that may be
        used."""
        if self.mode is PoolingMode.average:
            total = f"mul({total}, {share})" if share else f"div({total}, {count})"
        elif self.mode is PoolingMode.lpnorm and self.order != 1:
            total = f"sqrt({total})" if self.order == 2 else f"pow({total}, {1 / self.order!r})"
        return cast_text(total, self.compute, self.storage)


class PoolingKernel:
    """A pooling to be printed, and the lines that all forms share.

    Attributes:
        axes: the windows; the last has the smallest stride in memory.
        kept: the other dimensions.
        combine: the reduction of elements to a value.
        by_reciprocal: means are products with reciprocals.
    """

    def __init__(
        self,
        op: Pooling,
        axes: Sequence[PoolingWindow],
        x: Tensor,
        out: Tensor,
        origin: str,
        name: str,
        fast_math: bool,
    ) -> None:
        self.op, self.x, self.out, self.origin, self.name = op, x, out, origin, name
        # The last window has the smallest stride in memory.
        self.axes = sorted(axes, key=lambda w: -typical(x.strides[w.axis]))
        pooled = {w.axis for w in axes}
        kept = [a for a in range(len(x.lens)) if a not in pooled]
        self.kept = collapse(out.lens, [x.strides, out.strides], order_by=1, axes=kept)
        self.combine = Combine(op, x.type)
        self.average = op.mode is PoolingMode.average
        # Integer quotients are truncated, so a rounded reciprocal could give one less.
        self.by_reciprocal = fast_math and self.average and x.type.is_floating
        self.lanes = host.lanes(self.combine.compute if self.combine.compute != "bool" else "uint8")
        self.arguments = Arguments()
        self.arguments.pointer("p_x", "x", dtype_name(x.type))
        self.arguments.pointer("p_out", "out", dtype_name(out.type))
        self.streamed = is_streamed([out])

    def tap_range(self, k: int, window: PoolingWindow, index: str) -> list[str]:
        """Return lines that set ``at``, the first position of a window, and its range of taps, ``from`` and ``to``."""
        slot = {
            what: self.arguments.integer(f"{what}{k}", value)
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
            d = self.arguments.integer(f"dilation{k}", window.dilation)
            lines += [
                f"from{k} = idiv(imax(0, -at{k}) + {d} - 1, {d})",
                f"to{k} = imin({slot['size']}, idiv(imax(0, {slot['length']} - at{k}) + {d} - 1, {d}))",
            ]
        if self.average:
            lines.append(f"count{k} = {self.count(k, window)}")
        return lines

    def count(self, k: int, window: PoolingWindow) -> str:
        """Return the expression of the number of elements in a mean, along one axis."""
        if not self.op.count_include_pad:
            return f"imax(0, to{k} - from{k})"
        end = self.arguments.integer(f"end{k}", window.length + window.after)
        if window.dilation == 1:
            return f"imin(size{k}, imax(0, {end} - at{k}))"
        return f"imin(size{k}, idiv(imax(0, {end} - at{k}) + dilation{k} - 1, dilation{k}))"

    def tap_loops(self, axes: Sequence[tuple[int, PoolingWindow]], body: list[str], start: str = "r_x") -> list[str]:
        """Return loops over the taps of ``axes``, from ``start``, around ``body``, which reads from ``q``."""
        lines = body
        for depth, (k, _) in reversed(list(enumerate(axes))):
            outer, own = f"q{depth}", f"q{depth + 1}" if depth + 1 < len(axes) else "q"
            lines = [
                f"for tap{k} in range(from{k}, to{k}):",
                *indent([f"{own} = offset({outer}, tap{k} * step{k})", *lines]),
            ]
        return [("q0" if axes else "q") + f" = {start}", *lines]

    def steps(self, axes: Sequence[tuple[int, PoolingWindow]]) -> None:
        for k, window in axes:
            self.arguments.integer(f"step{k}", window.dilation * self.x.strides[window.axis])

    def ahead(self, axes: Sequence[tuple[int, PoolingWindow]], vectors: int) -> list[str]:
        """Return lines that prefetch the elements that later windows are the first to read."""
        size = self.x.type.size
        if not is_streamed([self.x]):
            return []
        line, ahead = host.CACHE_LINE // size, AHEAD_BYTES // size
        first = [all(at >= w.size - w.stride for at, (_, w) in zip(index, axes)) for index in places_of(axes)]
        return [
            f"prefetch(tap{tap}, c + {ahead + start})"
            for tap, is_first in enumerate(first)
            for start in range(0, vectors * self.lanes if is_first else 0, line)
        ]

    @staticmethod
    def if_whole(axes: Sequence[tuple[int, PoolingWindow]], body: Callable[[bool], list[str]]) -> list[str]:
        """Return ``body(True)``, which may use the places ``tap0``, ``tap1``, ... of all taps, where none is in the
        padding.

        Elsewhere, and for large windows, ``body(False)`` is used.
        """
        taps = prod(w.size for _, w in axes)
        if not axes or is_symbolic(taps) or not 0 < taps <= UNROLLED_TAPS:
            return body(False)
        lines = []
        for tap, index in enumerate(places_of(axes)):
            terms = [f"{at} * step{k}" for at, (k, _) in zip(index, axes) if at]
            lines.append(f"tap{tap} = offset(r_x, {' + '.join(terms) or 0})")
        return [
            f"if {' and '.join(f'to{k} - from{k} == {w.size}' for k, w in axes)}:",
            *indent([*lines, *body(True)]),
            "else:",
            *indent(body(False)),
        ]

    def accumulate(self, loads: Sequence[str]) -> list[str]:
        """Return lines that add one element to each of the totals ``m0``, ``m1``, ...."""
        lines = [f"v{j} = {self.combine.prepare(load)}" for j, load in enumerate(loads)]
        return [*lines, *(f"m{j} = {self.combine.add(f'm{j}', f'v{j}')}" for j in range(len(loads)))]

    def combined(self, taps: Sequence[Sequence[str]], merged: bool = False) -> list[str]:
        """Return lines that set each of the totals ``m0``, ``m1``, ... from its load of every tap.

        Args:
            merged: combine named parts of the window instead of loads.
        """
        if not self.combine.tests_nan_apart:
            lines = [f"m{j} = {self.combine.neutral(self.lanes)}" for j in range(len(taps[0]))]
            if merged:
                return [
                    *lines,
                    *(f"m{j} = {self.combine.merge(f'm{j}', v)}" for own in taps for j, v in enumerate(own)),
                ]
            return [*lines, *(line for loads in taps for line in self.accumulate(loads))]
        lines = []
        odd = len(taps) % 2
        for tap, loads in enumerate(taps):
            for j, load in enumerate(loads):
                v, total = f"v{tap % 2}_{j}", f"m{j}"
                lines.append(f"{v} = {load if merged else self.combine.prepare(load)}")
                lines.append(f"{total} = where(gt({v}, {total}), {v}, {total})" if tap else f"{total} = {v}")
                # One comparison tests two elements for NaN; with an odd number the first needs none: NaN totals stay.
                if tap and tap % 2 != odd:
                    found = f"logical_or(isnan(v0_{j}), isnan(v1_{j}))"
                    lines.append(f"nan{j} = logical_or(nan{j}, {found})" if tap > 2 else f"nan{j} = {found}")
        if len(taps) == 1:
            return lines
        nan = const_text(self.combine.compute, float("nan"), self.lanes)
        return [*lines, *(f"m{j} = where(nan{j}, {nan}, m{j})" for j in range(len(taps[0])))]

    def kernel_name(self) -> str:
        return f"{self.name}_{self.op.mode.name}_kernel"
