"""Sampling and assembly of images.

ai.onnx: Col2Im GridSample ImageDecoder ImageScaler.
com.microsoft: GridSample.
"""

from __future__ import annotations

import itertools
from math import prod

import numpy as np

from ...core.dim import Dim
from ...core.shape import row_major_strides
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from .activation import add_scalar, mul_scalar
from .builder import Builder, rank
from .node import Node
from .registry import MICROSOFT, register

CUBIC = -0.75  # GridSample's coefficient a, by ONNX's specification
MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


class SampleAxis:
    """A spatial axis that is sampled between its elements: positions and weights of the samples."""

    def __init__(self, g: Builder, length: int, padding: str, align: bool) -> None:
        self.g, self.length, self.padding = g, length, padding
        self.low, self.span = (0.0, length - 1) if align else (-0.5, length)
        self.align = align

    def coordinate(self, grid: Instruction) -> Instruction:
        """Convert grid values in [-1, 1] to input coordinates."""
        g = self.g
        half = add_scalar(g, grid, 1.0)
        if isinstance(self.span, Dim):
            place = mul_scalar(g, g.pointwise("mul", half, g.like(self.span, half)), 0.5)
        else:
            place = mul_scalar(g, half, self.span / 2)
        return place if self.align else add_scalar(g, place, -0.5)

    def folded(self, x: Instruction) -> Instruction:
        """Map coordinates into the axis, by the padding mode."""
        g = self.g
        if self.padding == "border":
            return g.pointwise("clip", x, g.like(0, x), g.like(self.length - 1, x))
        if self.padding == "zeros":
            return x
        span = self.span
        if span <= 0:
            return g.pointwise("mul", x, g.like(0, x))
        along = g.pointwise("mod", add_scalar(g, x, -self.low), g.like(2 * span, x))
        back = g.pointwise("sub", g.like(2 * span, x), along)
        return add_scalar(g, g.pointwise("min", along, back), self.low)

    def taps(self, x: Instruction, mode: str) -> list[tuple[Instruction, Instruction | None]]:
        """Return the positions (float) and weights of the elements that a sample combines.

        Cubic weights belong to the unfolded coordinate, as in torch's ``grid_sample`` and ONNX Runtime: beyond a
        border, the padding supplies elements, while coordinates are unchanged.
        """
        g = self.g
        if mode == "nearest":
            return [(self.folded(g.op("nearbyint", x)), None)]
        if mode == "cubic" and self.padding == "border":
            # If all four positions lie beyond a border, the distance does not matter; clip it so that it is finite.
            x = g.pointwise("clip", x, g.like(-2, x), g.like(self.length + 1, x))
        else:
            x = self.folded(x)
        base = g.op("floor", x)
        t = g.op("sub", x, base)
        rest = g.pointwise("sub", g.like(1, t), t)
        if mode == "linear":
            return [(base, rest), (add_scalar(g, base, 1), t)]
        distances = [add_scalar(g, t, 1), t, rest, add_scalar(g, rest, 1)]
        weights = [self._cubic(d, far=k in (0, 3)) for k, d in enumerate(distances)]
        return [(add_scalar(g, base, k - 1), w) for k, w in enumerate(weights)]

    def _cubic(self, d: Instruction, far: bool) -> Instruction:
        """Emit the cubic convolution weight at a distance below 1, or (``far``) from 1 to 2."""
        g, a = self.g, CUBIC
        coefficients = (a, -5 * a, 8 * a, -4 * a) if far else (a + 2, -(a + 3), 0.0, 1.0)
        value = add_scalar(g, mul_scalar(g, d, coefficients[0]), coefficients[1])
        for c in coefficients[2:]:
            value = add_scalar(g, g.op("mul", value, d), c)
        return value

    def index(self, place: Instruction) -> tuple[Instruction, Instruction | None]:
        """Return a position as an index into the axis, and a mask of positions inside (``None``: all are inside)."""
        g = self.g
        valid = None
        if self.padding == "zeros":
            low = g.pointwise("greater_or_equal", place, g.like(0, place))
            high = g.pointwise("less_or_equal", place, g.like(self.length - 1, place))
            valid = g.op("logical_and", low, high)
        elif self.padding == "reflection":
            place = self.folded(place)
        clipped = g.pointwise("clip", place, g.like(0, place), g.like(self.length - 1, place))
        return g.convert(clipped, Type.int64_type), valid


@register("GridSample", domain=("", MICROSOFT))
def grid_sample(g: Builder, node: Node, x: Instruction, grid: Instruction) -> Instruction:
    """Sample x [n, c, spatial...] at grid [n, out..., axes], whose last axis lists spatial coordinates last axis first.

    Positions and interpolated values are computed in float32, or in float64 for a float64 grid and for interpolated
    float64 or integers of 4 or 8 bytes. Integer results are rounded to nearest. Samples at NaN are 0 with zero padding;
    otherwise NaN, or in mode ``nearest`` any element.
    """
    mode = MODES[node.get_choice("mode", tuple(MODES), "linear")]
    padding = node.get_choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    lens, wanted = g.lens(x), g.lens(grid)
    spatial = len(lens) - 2
    if spatial < 1 or len(wanted) != len(lens) or wanted[0] != lens[0] or wanted[-1] != spatial:
        raise ShapeError(f"input {list(lens)} and grid {list(wanted)} do not fit")
    batch, channels, out = lens[0], lens[1], wanted[1:-1]
    if 0 in (batch, channels, *out):
        return g.literal(np.empty((batch, channels, *out), x.shape.type.numpy))
    if 0 in lens:
        raise ShapeError(f"input {list(lens)} has no elements to sample")
    type = x.shape.type
    exact = type is Type.double_type or (not type.is_floating and type.size >= 4)
    wide = Type.double_type if grid.shape.type is Type.double_type or (exact and mode != "nearest") else Type.float_type
    if mode != "nearest":
        x = g.convert(x, wide)
    flat = g.reshape(g.convert(grid, wide), (batch, prod(out), spatial))
    axes, taps = [], []
    for k, length in enumerate(lens[2:]):
        axis = SampleAxis(g, length, padding, node.get_bool("align_corners"))
        place = g.squeeze(g.slice(flat, 2, spatial - 1 - k, spatial - k), [2])
        axes.append(axis)
        taps.append(axis.taps(axis.coordinate(place), mode))
    strides = row_major_strides(lens[2:])
    order = [0, *range(2, len(lens)), 1]
    rows = g.reshape(g.transpose(x, order), (batch * prod(lens[2:]), channels))
    g.limit(batch, "a table of images")
    if x.shape.symbolic:
        offsets = g.pointwise("mul", g.iota(batch, 0, 2), g.literal(prod(lens[2:]), Type.int64_type))
    else:
        offsets = g.literal((np.arange(batch, dtype=np.int64) * prod(lens[2:]))[:, None])
    total = None
    for chosen in itertools.product(*taps):
        place, weight, valid = offsets, None, None
        for axis, stride, (position, factor) in zip(axes, strides, chosen, strict=False):
            index, inside = axis.index(position)
            place = g.pointwise("add", place, g.pointwise("mul", index, g.like(stride, index)))
            weight = factor if weight is None or factor is None else g.op("mul", weight, factor)
            valid = inside if valid is None or inside is None else g.op("logical_and", valid, inside)
        value = g.op("gather", rows, place, axis=0)
        if weight is not None:
            value = g.pointwise("mul", value, g.unsqueeze(weight, [2]))
        if valid is not None:
            value = g.pointwise("where", g.unsqueeze(valid, [2]), value, g.like(0, value))
        total = value if total is None else g.op("add", total, value)
    if total is None:
        raise ShapeError("there is nothing to sample")
    if mode != "nearest":
        total = g.convert(total if type.is_floating else g.op("nearbyint", total), type)
    return g.reshape(g.transpose(total, (0, 2, 1)), (batch, channels, *out))


@register("Col2Im")
def col2im(g: Builder, node: Node, x: Instruction, image: Instruction, block: Instruction) -> Instruction:
    """Add up blocks [n, c * block, positions] at their positions in an image [n, c, image...]."""
    size, kernel = g.ints(image, "image_shape"), g.ints(block, "block_shape")
    count = len(size)
    stride, dilation = (node.get_ints(n, (1,) * count) for n in ("strides", "dilations"))
    pads = node.get_ints("pads", (0,) * (2 * count))
    lens = g.lens(x)
    if not count or not len(kernel) == len(stride) == len(dilation) == count or len(pads) != 2 * count:
        raise ParseError(f"block_shape {kernel}, strides {stride}, dilations {dilation}, pads {pads} do not fit {size}")
    if any(v < 1 for v in (*size, *kernel, *stride, *dilation)):
        raise ParseError("lengths, strides and dilations must be positive")
    steps = [
        (n + pads[k] + pads[k + count] - d * (b - 1) - 1) // s + 1
        for k, (n, b, s, d) in enumerate(zip(size, kernel, stride, dilation, strict=False))
    ]
    if len(lens) != 3 or lens[1] % prod(kernel) or any(n < 1 for n in steps) or lens[2] != prod(steps):
        raise ShapeError(f"input {list(lens)} does not have blocks of {kernel} at {steps} positions")
    if prod(kernel) * prod(steps) > LARGEST:
        raise UnsupportedError(f"blocks of {kernel} at {steps} positions are too many")
    target = _block_places(size, kernel, stride, dilation, pads, steps)
    channels = lens[1] // prod(kernel)
    rows = lens[0] * channels
    zeros = g.broadcast(g.like(0, x), (rows, prod(size) + 1))
    places = g.broadcast(g.literal(target.reshape(1, -1)), (rows, target.size))
    added = g.op("scatter_add", zeros, places, g.reshape(x, (rows, target.size)), axis=1)
    return g.reshape(g.slice(added, 1, 0, prod(size)), (lens[0], channels, *size))


def _block_places(
    size: list[int],
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    pads: list[int],
    steps: list[int],
) -> np.ndarray:
    """Return each block element's flat image position, for every block; one past the end for the padding."""
    count = len(size)
    flat, inside = np.zeros((1,) * (2 * count), np.int64), np.ones((1,) * (2 * count), bool)
    for k, weight in enumerate(row_major_strides(size)):
        place = np.arange(kernel[k])[:, None] * dilation[k] + np.arange(steps[k]) * stride[k] - pads[k]
        shape = [1] * (2 * count)
        shape[k], shape[count + k] = place.shape
        inside = inside & ((place >= 0) & (place < size[k])).reshape(shape)
        flat = flat + (place * weight).reshape(shape)
    return np.where(inside, flat, prod(size))


@register("ImageScaler")
def image_scaler(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``x * scale + bias`` with one bias per channel."""
    bias = g.literal(np.array(node.get_floats("bias"), np.float32), x.shape.type)
    if rank(x) < 2 or g.lens(x)[1] != bias.shape.elements:
        raise ShapeError(f"bias has {bias.shape.elements} values for an input of lengths {list(g.lens(x))}")
    scaled = mul_scalar(g, x, node.get_float("scale", 1.0))
    return g.op("add", scaled, g.broadcast_axis(bias, 1, scaled))


@register("ImageDecoder")
def image_decoder(g: Builder, node: Node, encoded: Instruction) -> Instruction:
    """Emit the pixels of an encoded image."""
    return g.op("decode_image", encoded, pixel_format=node.get_str("pixel_format", "RGB"))
