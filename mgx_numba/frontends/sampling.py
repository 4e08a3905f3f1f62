"""Sample images: between their pixels (GridSample, DeformConv, ``grid_sample``), and by weighted windows of an axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np

from ..core.dim import Dim
from ..core.shape import row_major_strides
from ..core.types import Type
from ..errors import ShapeError
from ..graph.instruction import Instruction
from .arithmetic import mul_scalar
from .builder import GraphBuilder

CUBIC = -0.75  # coefficient a of the cubic convolution, by ONNX's specification and in ATen


def _add(g: GraphBuilder, x: Instruction, value: float) -> Instruction:
    return x if value == 0 else g.pointwise("add", x, g.like(value, x))


class SampleAxis:
    """A spatial axis that is sampled between its elements: positions and weights of the samples."""

    def __init__(self, g: GraphBuilder, length: int, padding: str, align: bool) -> None:
        self.g, self.length, self.padding = g, length, padding
        self.low, self.span = (0.0, length - 1) if align else (-0.5, length)
        self.align = align

    def coordinate(self, grid: Instruction) -> Instruction:
        """Convert grid values in [-1, 1] to input coordinates."""
        g = self.g
        half = _add(g, grid, 1.0)
        if isinstance(self.span, Dim):
            place = mul_scalar(g, g.pointwise("mul", half, g.like(self.span, half)), 0.5)
        else:
            place = mul_scalar(g, half, self.span / 2)
        return place if self.align else _add(g, place, -0.5)

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
        along = g.pointwise("mod", _add(g, x, -self.low), g.like(2 * span, x))
        back = g.pointwise("sub", g.like(2 * span, x), along)
        return _add(g, g.pointwise("min", along, back), self.low)

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
            return [(base, rest), (_add(g, base, 1), t)]
        distances = [_add(g, t, 1), t, rest, _add(g, rest, 1)]
        weights = [self._cubic(d, far=k in (0, 3)) for k, d in enumerate(distances)]
        return [(_add(g, base, k - 1), w) for k, w in enumerate(weights)]

    def _cubic(self, d: Instruction, far: bool) -> Instruction:
        """Emit the cubic convolution weight at a distance below 1, or (``far``) from 1 to 2."""
        g, a = self.g, CUBIC
        coefficients = (a, -5 * a, 8 * a, -4 * a) if far else (a + 2, -(a + 3), 0.0, 1.0)
        value = _add(g, mul_scalar(g, d, coefficients[0]), coefficients[1])
        for c in coefficients[2:]:
            value = _add(g, g.op("mul", value, d), c)
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


def sampled(
    g: GraphBuilder,
    x: Instruction,
    axes: Sequence[SampleAxis],
    taps: Sequence[Sequence[tuple[Instruction, Instruction | None]]],
) -> Instruction:
    """Emit the sums [n, c, samples] of weighted elements of images [n, c, spatial...].

    Args:
        x: the images.
        axes: the spatial axes.
        taps: positions and weights [n, samples] of the elements along each axis.

    Raises:
        ShapeError: there are no spatial axes.
    """
    lens = g.lens(x)
    strides, pixels = row_major_strides(lens[2:]), prod(lens[2:])
    order = [0, *range(2, len(lens)), 1]
    rows = g.reshape(g.transpose(x, order), (lens[0] * pixels, lens[1]))
    offsets = g.pointwise("mul", g.iota(lens[0], 0, 2), g.literal(pixels, Type.int64_type))
    total: Instruction | None = None
    for chosen in itertools.product(*taps):
        place, weight, valid = offsets, None, None
        for axis, stride, (position, factor) in zip(axes, strides, chosen):
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
    return g.transpose(total, (0, 2, 1))


def deformable(
    g: GraphBuilder,
    x: Instruction,
    w: Instruction,
    offset: Instruction,
    mask: Instruction | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    group: int,
    offset_groups: int,
) -> Instruction:
    """Emit a deformable convolution of images [n, c, h, w], without bias: sampling, then a product.

    Dai et al., Deformable Convolutional Networks; v2 with a mask. Samples are interpolated between pixels; pixels
    outside the image are 0. Shapes:

        w: [o, c / group, kh, kw]
        offset: [n, offset_groups * kh * kw * 2, oh, ow], y before x
        mask: [n, offset_groups * kh * kw, oh, ow]

    Raises:
        ShapeError: lengths do not fit.
    """
    lens, weights = g.lens(x), g.lens(w)
    taps, out = prod(weights[2:]), g.lens(offset)[2:]
    fits = (
        min(group, offset_groups) > 0
        and lens[1] % offset_groups == 0
        and lens[1] == group * weights[1]
        and weights[0] % group == 0
    )
    if not fits or g.lens(offset) != (lens[0], offset_groups * taps * 2, *out):
        raise ShapeError(f"input {list(lens)}, weights {list(weights)}, offsets {list(g.lens(offset))} do not fit")
    columns = _columns(g, x, offset, mask, weights[2:], stride, padding, dilation, offset_groups)
    batch, rows = lens[0], weights[0] // group
    inner = weights[1] * taps
    left = g.broadcast(g.reshape(w, (1, group, rows, inner)), (batch, group, rows, inner))
    product = g.op("dot", left, g.reshape(columns, (batch, group, inner, prod(out))))
    return g.reshape(product, (batch, weights[0], *out))


def _columns(
    g: GraphBuilder,
    x: Instruction,
    offset: Instruction,
    mask: Instruction | None,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    offset_groups: int,
) -> Instruction:
    """Emit the samples [n, c, taps, positions]."""
    batch, channels, height, width = g.lens(x)
    out = g.lens(offset)[2:]
    taps, positions = prod(kernel), prod(out)
    g.limit(taps * positions, "a table of positions")
    moved = g.reshape(offset, (batch, offset_groups, taps, 2, positions))
    axes, tables = [], []
    for k, length in enumerate((height, width)):
        axis = SampleAxis(g, length, "zeros", align=False)
        start = np.arange(out[k]) * stride[k] - padding[k]
        place = np.indices(kernel)[k].reshape(-1, 1) * dilation[k]
        base = place + np.broadcast_to(start[:, None] if k == 0 else start, out).reshape(1, -1)
        shift = g.squeeze(g.slice(moved, 3, k, k + 1), [3])
        axes.append(axis)
        tables.append(axis.taps(g.pointwise("add", shift, g.literal(base, x.shape.type)), "linear"))
    group_channels = channels // offset_groups
    split = g.reshape(x, (batch, offset_groups, group_channels, height * width))
    rows = g.reshape(g.transpose(split, (0, 1, 3, 2)), (batch * offset_groups * height * width, group_channels))
    first = np.arange(batch * offset_groups, dtype=np.int64).reshape(batch, offset_groups, 1, 1) * (height * width)
    total = None
    for y_place, y_weight in tables[0]:
        for x_place, x_weight in tables[1]:
            (y_index, y_inside), (x_index, x_inside) = axes[0].index(y_place), axes[1].index(x_place)
            flat = g.op("add", g.pointwise("mul", y_index, g.like(width, y_index)), x_index)
            value = g.op("gather", rows, g.pointwise("add", flat, g.literal(first)), axis=0)
            weight = g.chain("mul", [v for v in (y_weight, x_weight) if v is not None])
            for inside in (y_inside, x_inside):
                weight = weight if inside is None else g.pointwise("where", inside, weight, g.like(0, weight))
            part = g.pointwise("mul", value, g.unsqueeze(weight, [4]))
            total = part if total is None else g.op("add", total, part)
    if total is None:
        raise ShapeError("there is nothing to sample")
    if mask is not None:
        total = g.pointwise("mul", total, g.reshape(mask, (batch, offset_groups, taps, positions, 1)))
    return g.reshape(g.transpose(total, (0, 1, 4, 2, 3)), (batch, channels, taps, positions))


def windows(used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions [out, taps] of windows of an axis, and which of them belong to the window.

    Args:
        used: whether an output position reads an element [out, length]; at least one in each row. The window is from
            the first to the last. A window shorter than others repeats its first element.
    """
    first = used.argmax(1)[:, None]
    end = used.shape[1] - used[:, ::-1].argmax(1)[:, None]
    places = first + np.arange((end - first).max(initial=0))
    inside = places < end
    return np.where(inside, places, first), inside


def window_sums(g: GraphBuilder, x: Instruction, axis: int, weights: np.ndarray) -> Instruction:
    """Emit weighted sums of an axis; ``weights`` [out, length] differ from 0 in a short window of each row.

    Elements outside a window do not affect its sum, even if they are infinite or NaN: a matrix product would spread
    them.
    """
    if not weights.size:
        lens = list(g.lens(x))
        lens[axis] = len(weights)
        return g.literal(np.zeros(lens, x.shape.type.numpy))
    places, inside = windows(weights != 0)
    # A short window repeats its first element: with halves of its weight, whose sum is exact. A weight of 0 would make
    # NaN of an infinite element.
    repeats = np.cumsum(~inside, 1)
    factors = np.take_along_axis(weights, places, 1) * np.where(inside, 1, 0.5**repeats)
    factors[:, :1] *= 0.5 ** repeats[:, -1:]
    return g.op("window_sum", x, g.literal(places), g.literal(factors, x.shape.type.compute), axis=axis)
