"""Pooling over the spatial axes of [n, c, spatial...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import reduce
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dim import all_of, less, maximum
from ..core.shape import DynamicDimension, Shape
from ..core.types import from_numpy
from ..dataclass import dataclass
from .base import Operator, register, register_enum
from .dims import packed_like
from .scalar import widened
from .window import PaddingMode, auto_padding, check_window, fits_nowhere, known_padding, pad_pairs, window_counts


@register_enum
class PoolingMode(Enum):
    """Reduction of a window: its mean, its largest element, or the ``lp_order`` norm of its elements."""

    average = 0
    max = 1
    lpnorm = 2


@register
@dataclass(frozen=True)
class Pooling(Operator):
    """ONNX AveragePool, MaxPool and LpPool, over any number of spatial axes.

    ``padding`` has n (both sides) or 2n values. With ``ceil_mode`` a last, partial window counts if it starts
    inside of the input or the padding before it. The mean is over the window's elements in the input, with
    ``count_include_pad`` also those in the padding. With ``dyn_global`` the window is the whole image.
    """

    name: ClassVar[str] = "pooling"
    mode: PoolingMode = PoolingMode.average
    padding: tuple[int, ...] = (0, 0)
    padding_mode: PaddingMode = PaddingMode.default_
    stride: tuple[int, ...] = (1, 1)
    lengths: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False
    lp_order: int = 2
    dyn_global: bool = False

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        """Padding as values before all axes, then after all axes; computed for static lengths."""
        if self.dyn_global or (self.padding_mode is not PaddingMode.default_ and inputs[0].is_dynamic):
            return self
        pairs = self.pads(inputs[0].max_lens[2:])
        if self.padding_mode is not PaddingMode.default_ and not known_padding(pairs):
            return self
        padding = tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)
        return self.with_attributes(padding=padding, padding_mode=PaddingMode.default_)

    def pads(self, lens: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding before and after each spatial axis for input lengths."""
        if self.padding_mode is PaddingMode.default_:
            return pad_pairs(self, self.padding, len(lens))
        return auto_padding(self.padding_mode, lens, self.lengths, self.stride, self.dilations)

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        (x,) = self.expect_inputs(inputs, 1)
        rank = x.ndim - 2
        if rank < 1:
            raise self.fail(f"input needs at least 3 axes, got {x}")
        if self.dyn_global:
            spatial = [DynamicDimension(1, 1)] * rank
        else:
            check_window(self, rank, lengths=self.lengths, stride=self.stride, dilations=self.dilations)
            high = self._spatial(x.max_lens[2:])
            if fits_nowhere(x.max_lens, high):
                raise self.fail(
                    f"window {list(self.lengths)} does not fit into lengths {list(x.max_lens[2:])}"
                    f" with padding {self.pads(x.max_lens[2:])}"
                )
            low = self._spatial([d.min for d in x.dims[2:]])
            spatial = [DynamicDimension(maximum(a, 0), maximum(b, 0)) for a, b in zip(low, high)]
        if x.is_dynamic:
            return Shape.dynamic(x.type, [*x.dims[:2], *spatial])
        return packed_like(x, [*x.lens[:2], *(d.min for d in spatial)])

    def _spatial(self, lens: Sequence[int]) -> list[int]:
        pads, result = self.pads(lens), []
        counts = window_counts(self.padding_mode, lens, pads, self.lengths, self.stride, self.dilations)
        for n, (before, after), k, s, d, count in zip(lens, pads, self.lengths, self.stride, self.dilations, counts):
            if self.ceil_mode and self.padding_mode is PaddingMode.default_:
                left = (n + before + after - (k - 1) * d - 1) % s
                count += all_of(less(0, left), less(count * s, n + before))
            result.append(count)
        return result

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x = args[0]
        kind = from_numpy(x.dtype)
        x = widened(x)
        if self.dyn_global:
            pads = [(0, 0)] * (x.ndim - 2)
            lengths = x.shape[2:]
            stride = dilations = (1,) * (x.ndim - 2)
        else:
            pads, lengths, stride, dilations = (
                self.pads(x.shape[2:]),
                self.lengths,
                self.stride,
                self.dilations,
            )
        geometry = list(zip(output.lens[2:], (p[0] for p in pads), lengths, stride, dilations))

        if self.mode is PoolingMode.max:
            lowest = -np.inf if kind.is_floating else (False if x.dtype == np.bool_ else np.iinfo(x.dtype).min)
            return _over_windows(x, geometry, np.maximum, lowest).astype(output.type.numpy, copy=False)
        with np.errstate(all="ignore"):
            if self.mode is PoolingMode.average:
                total = _over_windows(x.astype(np.float64), geometry, np.add, 0.0)
                result = total / np.maximum(self._count(x.shape[2:], pads, geometry), 1)
            elif self.lp_order == 0:
                result = np.ones(output.lens)
            else:
                powers = np.abs(x.astype(np.float64)) ** self.lp_order
                result = _over_windows(powers, geometry, np.add, 0.0) ** (1 / self.lp_order)
        return result.astype(output.type.numpy)

    def _count(
        self,
        lens: Sequence[int],
        pads: Sequence[tuple[int, int]],
        geometry: Sequence[tuple[int, int, int, int, int]],
    ) -> np.ndarray:
        """Elements that each window's mean is over, by output position."""
        columns = []
        for n, (before, after), (count, _, k, s, d) in zip(lens, pads, geometry):
            position = np.arange(count)[:, None] * s - before + np.arange(k) * d
            low, high = (-before, n + after) if self.count_include_pad else (0, n)
            columns.append(((position >= low) & (position < high)).sum(1))
        return reduce(np.multiply.outer, columns)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return inputs[0].elements if self.dyn_global else output.elements * prod(self.lengths)


def _over_windows(
    x: np.ndarray,
    geometry: Sequence[tuple[int, int, int, int, int]],
    combine: Callable[..., np.ndarray],
    neutral: float | int,
) -> np.ndarray:
    """Combine the elements of each window, one spatial axis after the other.

    ``geometry`` has output length, padding before, window length, stride and dilation of each spatial axis.
    """
    for axis, (count, before, k, stride, dilation) in enumerate(geometry, 2):
        x = np.moveaxis(x, axis, 0)
        needed = (count - 1) * stride + (k - 1) * dilation + 1
        after = max(0, needed - before - x.shape[0])
        if before or after:
            rest = x.shape[1:]
            x = np.concatenate(
                [np.full((before, *rest), neutral, x.dtype), x, np.full((after, *rest), neutral, x.dtype)]
            )
        result = np.full((count, *x.shape[1:]), neutral, x.dtype)
        for tap in range(k):
            start = tap * dilation
            stop = start + (count - 1) * stride + 1 if count else start
            combine(result, x[start:stop:stride], out=result)
        x = np.moveaxis(result, 0, axis)
    return x
