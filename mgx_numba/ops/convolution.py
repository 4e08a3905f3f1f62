"""Convolutions over any number of spatial axes: [n, c, spatial...] with weights [o, c / group, kernel...]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from ..core.dim import maximum
from ..core.shape import DynamicDimension, Shape, find_permutation
from ..core.types import Type
from ..dataclass import dataclass
from .base import Operator, register
from .dims import any_dynamic, may_be
from .dot import product_type, quantized_output, wrap_int32
from .window import (
    PaddingMode,
    auto_padding,
    check_window,
    fits_nowhere,
    known_padding,
    pad_pairs,
    pad_spatial,
    window_counts,
)


@dataclass(frozen=True)
class ConvolutionBase(Operator):
    """Base class of convolutions; subclasses declare the attributes in MIGraphX's order."""

    padding: tuple[int, ...] = (0, 0)
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)

    @property
    def mode(self) -> PaddingMode:
        """Return the source of padding."""
        return self.padding_mode  # type: ignore[attr-defined,no-any-return]

    def normalized(self, inputs: Sequence[Shape]) -> Operator:
        """Return the operator with explicit padding: before all axes, then after all axes; computed for static
        lengths."""
        x, w = inputs
        if self.mode is not PaddingMode.default_ and x.is_dynamic:
            return self
        pairs = self.pads(x.max_lens[2:], w.lens[2:])
        if self.mode is not PaddingMode.default_ and not known_padding(pairs):
            return self
        padding = tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)
        return self.with_attributes(padding=padding, padding_mode=PaddingMode.default_)

    def pads(self, lens: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding before and after each spatial axis for these input lengths."""
        if self.mode is PaddingMode.default_:
            return pad_pairs(self, self.padding, len(kernel))
        return auto_padding(self.mode, lens, kernel, self.stride, self.dilation)

    def check(self, inputs: Sequence[Shape]) -> None:
        """Check ranks and attributes."""
        x, w = self.expect_inputs(inputs, 2)
        if x.ndim != w.ndim or x.ndim < 3:
            raise self.fail(f"inputs need the same rank of at least 3, got {x} and {w}")
        if w.is_dynamic:
            raise self.fail(f"weights need static lengths, got {w}")
        check_window(self, x.ndim - 2, stride=self.stride, dilation=self.dilation)
        if self.mode is PaddingMode.default_:
            pad_pairs(self, self.padding, x.ndim - 2)

    def spatial_dims(self, inputs: Sequence[Shape]) -> list[DynamicDimension]:
        """Return the output lengths of the spatial axes.

        Raises:
            ShapeError: no window fits even the largest lengths.
        """
        high = self.most_spatial(inputs)
        low = high
        if inputs[0].is_dynamic:
            low = [maximum(n, 0) for n in self.spatial([d.min for d in inputs[0].dims[2:]], inputs[1].lens[2:])]
        return [DynamicDimension(a, b) for a, b in zip(low, high)]

    def most_spatial(self, inputs: Sequence[Shape]) -> list[int]:
        """Return the output lengths of the spatial axes for the largest input lengths.

        Raises:
            ShapeError: no window fits.
        """
        kernel, lens = inputs[1].lens[2:], inputs[0].max_lens[2:]
        counts = self.spatial(lens, kernel)
        if fits_nowhere(lens, counts):
            raise self.fail(
                f"kernel {list(kernel)} does not fit into lengths {list(lens)} with padding {self.pads(lens, kernel)}"
            )
        return [maximum(n, 0) for n in counts]

    def spatial(self, lens: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """Return the output lengths of the spatial axes for these input lengths (below 1 where no window fits)."""
        return window_counts(self.mode, lens, self.pads(lens, kernel), kernel, self.stride, self.dilation)

    def window_shape(self, inputs: Sequence[Shape], type: Type, group: int) -> Shape:
        """Return the output shape of a forward convolution."""
        self.check(inputs)
        x, w = inputs
        wanted = w.lens[1] * group
        if group < 1 or w.lens[0] % group:
            raise self.fail(f"group {group} does not divide the {w.lens[0]} output channels")
        if not (may_be(x.dims[1], wanted) if x.is_dynamic else x.lens[1] == wanted):
            raise self.fail(f"input has {x.dims[1]} channels, weights {list(w.lens)} with group {group} take {wanted}")
        return self.output_shape(inputs, type, w.lens[0])

    def output_shape(self, inputs: Sequence[Shape], type: Type, channels: int) -> Shape:
        """Return the output shape in the memory order that most of the inputs have."""
        if any_dynamic(inputs):
            return Shape.dynamic(type, [inputs[0].dims[0], channels, *self.spatial_dims(inputs)])
        lens = [inputs[0].lens[0], channels, *self.most_spatial(inputs)]
        return Shape.from_permutation(type, lens, find_permutation(inputs))

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * output.elements * prod(inputs[1].lens[1:])

    def convolve(self, x: np.ndarray, w: np.ndarray, spatial: Sequence[int], group: int) -> np.ndarray:
        """Return the cross-correlation of ``x`` with ``w`` in their common type."""
        x = pad_spatial(x, self.pads(x.shape[2:], w.shape[2:]))
        if w.shape[1] == 1 and group > 1:
            return _depthwise(x, w, spatial, self.stride, self.dilation)
        windows = window_view(x, w.shape[2:], spatial, self.stride, self.dilation)
        terms = prod(w.shape[1:])
        weights = w.reshape(group, w.shape[0] // group, terms)
        result = np.empty((x.shape[0], w.shape[0], *spatial), x.dtype)
        for source, target in zip(windows, result):
            columns = source.reshape(group, terms, prod(spatial))
            target[...] = np.matmul(weights, columns).reshape(target.shape)
        return result


def window_view(
    x: np.ndarray,
    kernel: Sequence[int],
    spatial: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> np.ndarray:
    """Return the view [n, c, kernel..., spatial...] of the windows of a padded ``x``."""
    inner = [s * d for s, d in zip(x.strides[2:], dilation)]
    outer = [s * step for s, step in zip(x.strides[2:], stride)]
    return np.lib.stride_tricks.as_strided(
        x, (*x.shape[:2], *kernel, *spatial), (*x.strides[:2], *inner, *outer), writeable=False
    )


def _depthwise(
    x: np.ndarray, w: np.ndarray, spatial: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> np.ndarray:
    """Return a convolution with one input channel per group: a sum of scaled input slices over kernel positions."""
    if w.shape[0] != x.shape[1]:
        x = np.repeat(x, w.shape[0] // x.shape[1], axis=1)
    weights = w.reshape(w.shape[0], prod(w.shape[2:]), *[1] * len(spatial))
    result = np.zeros((*x.shape[:2], *spatial), x.dtype)
    for position, tap in enumerate(itertools.product(*map(range, w.shape[2:]))):
        area = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, spatial, stride))
        result += x[(slice(None), slice(None), *area)] * weights[:, position]
    return result


@register
@dataclass(frozen=True)
class Convolution(ConvolutionBase):
    """Cross-correlation; padding has n (both sides) or 2n values, ``padding_mode`` computes it instead."""

    name: ClassVar[str] = "convolution"
    group: int = 1
    padding_mode: PaddingMode = PaddingMode.default_

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_same_type(inputs)
        return self.window_shape(inputs, inputs[0].type if inputs else Type.float_type, self.group)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        wide = product_type(args[0].dtype, output.type)
        x, w = (a.astype(wide, copy=False) for a in args)
        with np.errstate(all="ignore"):
            return self.convolve(x, w, output.lens[2:], self.group).astype(output.type.numpy, copy=False)


@register
@dataclass(frozen=True)
class QuantConvolution(ConvolutionBase):
    """``convolution`` of 8-bit integers into int32, or of float8 into float."""

    name: ClassVar[str] = "quant_convolution"
    padding_mode: PaddingMode = PaddingMode.default_
    group: int = 1

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        return self.window_shape(inputs, quantized_output(self, inputs), self.group)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, w = (a.astype(product_type(a.dtype, output.type), copy=False) for a in args)
        return wrap_int32(self.convolve(x, w, output.lens[2:], self.group), output.type)


@register
@dataclass(frozen=True)
class ConvolutionBackwards(ConvolutionBase):
    """Transposed convolution: [n, c, spatial...] with weights [c, o / group, kernel...].

    Output lengths are ``stride * (length - 1) + (kernel - 1) * dilation + 1 - padding``,
    or ``length * stride`` with ``padding_mode``.
    """

    name: ClassVar[str] = "convolution_backwards"
    padding_mode: PaddingMode = PaddingMode.default_
    group: int = 1

    def pads(self, lens: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
        """Return the elements cropped before and after each axis of the full result."""
        if self.mode is PaddingMode.default_:
            return pad_pairs(self, self.padding, len(kernel))
        wanted = [n * s for n, s in zip(lens, self.stride)]
        return auto_padding(self.mode, wanted, kernel, self.stride, self.dilation)

    def spatial(self, lens: Sequence[int], kernel: Sequence[int]) -> list[int]:
        return [
            s * (n - 1) + (k - 1) * d + 1 - sum(p)
            for n, k, s, d, p in zip(lens, kernel, self.stride, self.dilation, self.pads(lens, kernel))
        ]

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_same_type(inputs)
        return self.scattered_shape(inputs, inputs[0].type if inputs else Type.float_type)

    def scattered_shape(self, inputs: Sequence[Shape], type: Type) -> Shape:
        """Return the output shape of a transposed convolution with result type ``type``."""
        self.check(inputs)
        x, w = inputs
        if self.group < 1 or w.lens[0] % self.group or not may_be(x.dims[1], w.lens[0]):
            raise self.fail(
                f"input has {x.dims[1]} channels, weights {list(w.lens)} take {w.lens[0]} in {self.group} groups"
            )
        return self.output_shape(inputs, type, w.lens[1] * self.group)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        wide = product_type(args[0].dtype, output.type)
        x, w = (a.astype(wide, copy=False) for a in args)
        return self.scatter(output, x, w).astype(output.type.numpy, copy=False)

    def scatter(self, output: Shape, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return the sum of products of ``x`` with ``w``, scattered to their output positions, in their common type."""
        lens, kernel, group = x.shape[2:], w.shape[2:], self.group
        full = [s * (n - 1) + (k - 1) * d + 1 for n, k, s, d in zip(lens, kernel, self.stride, self.dilation)]
        result = np.zeros((x.shape[0], output.lens[1], *full), x.dtype)
        inner = w.shape[0] // group
        weights = np.swapaxes(w.reshape(group, inner, prod(w.shape[1:])), 1, 2)
        taps = list(itertools.product(*map(range, kernel)))
        for source, target in zip(x, result):
            columns = np.matmul(weights, source.reshape(group, inner, prod(lens)))
            columns = columns.reshape(output.lens[1], len(taps), *lens)
            for position, tap in enumerate(taps):
                area = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, self.dilation, lens, self.stride)
                )
                target[(slice(None), *area)] += columns[:, position]
        cut = tuple(slice(before, n - after) for n, (before, after) in zip(full, self.pads(lens, kernel)))
        return result[(slice(None), slice(None), *cut)]

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * inputs[0].elements * prod(inputs[1].lens[1:])


@register
@dataclass(frozen=True)
class QuantConvolutionBackwards(ConvolutionBackwards):
    """``convolution_backwards`` of 8-bit integers into int32."""

    name: ClassVar[str] = "quant_convolution_backwards"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 2)
        return self.scattered_shape(inputs, quantized_output(self, inputs))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, w = (a.astype(product_type(a.dtype, output.type), copy=False) for a in args)
        return wrap_int32(self.scatter(output, x, w), output.type)


@register
@dataclass(frozen=True)
class Im2Col(ConvolutionBase):
    """Windows of one image [1, c, spatial...] as rows [output positions, c * kernel].

    The second input is the weights; only their lengths matter.
    """

    name: ClassVar[str] = "im2col"
    padding_mode: PaddingMode = PaddingMode.default_

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.check(inputs)
        x, w = inputs
        if x.is_dynamic or x.lens[0] != 1:
            raise self.fail(f"needs one image of static lengths, got {x}")
        return Shape(x.type, (prod(d.min for d in self.spatial_dims(inputs)), x.lens[1] * prod(w.lens[2:])))

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, w = args
        kernel = w.shape[2:]
        padded = pad_spatial(x, self.pads(x.shape[2:], kernel))
        windows = window_view(padded, kernel, self.spatial(x.shape[2:], kernel), self.stride, self.dilation)
        return np.moveaxis(windows[0], range(1 + len(kernel)), range(-1 - len(kernel), 0)).reshape(output.lens)
