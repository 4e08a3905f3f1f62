"""Sampling and assembly of images, and deformable convolution."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.dim import maximum
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ...ops.col2im import Col2Im
from ..arithmetic import mul_scalar
from ..sampling import SampleAxis, deformable, sampled
from .builder import Builder, rank
from .convolution import add_bias
from .node import Node
from .registry import MICROSOFT, register
from .window import read_window

MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


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
    g.limit(batch, "a table of images")
    total = sampled(g, x, axes, taps)
    if mode != "nearest":
        total = g.convert(total if type.is_floating else g.op("nearbyint", total), type)
    return g.reshape(total, (batch, channels, *out))


@register("AffineGrid")
def affine_grid(g: Builder, node: Node, theta: Instruction, size: Instruction) -> Instruction:
    """Return positions for GridSample [n, spatial..., axes]: theta [n, axes, axes + 1] times (x, y, ..., 1).

    The positions of an axis lie evenly in [-1, 1]; with ``align_corners`` they begin at -1 and end at 1, and the
    position of an axis of length 1 is -1. ONNX's function body squeezes a batch of 1, and divides by 0 for that axis.
    """
    lens, sizes = g.lens(theta), g.ints(size, "size")
    batch, spatial = sizes[0] if sizes else 0, sizes[2:]
    count = len(spatial)
    if count not in (2, 3) or lens[1:] != (count, count + 1) or lens[0] != batch:
        raise ShapeError(f"theta {list(lens)} and size {sizes} do not fit: expected theta [n, axes, axes + 1]")
    corner, one = int(node.get_bool("align_corners")), g.like(1, theta)
    rows = []
    for k, length in reversed(list(enumerate(spatial))):
        place = g.convert(g.iota(length, k, count), theta.shape.type)
        steps = g.like(length if not corner else maximum(1, length - 1), theta)
        place = place if corner else g.pointwise("add", place, g.like(0.5, theta))
        place = g.pointwise("div", g.pointwise("mul", place, g.like(2, theta)), steps)
        rows.append(g.unsqueeze(g.broadcast(g.pointwise("sub", place, one), spatial), [0]))
    rows.append(g.broadcast(one, (1, *spatial)))
    base = g.reshape(g.op("concat", *rows, axis=0), (count + 1, prod(spatial)))
    return g.reshape(g.swap_last(g.matmul(theta, base)), (batch, *spatial, count))


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
    return g.op(Col2Im(*map(tuple, (size, kernel, stride, dilation, pads[:count], steps))), x)


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


@register("DeformConv")
def deform_conv(
    g: Builder,
    node: Node,
    x: Instruction,
    w: Instruction,
    offset: Instruction,
    bias: Instruction | None = None,
    mask: Instruction | None = None,
) -> Instruction:
    """Emit a deformable convolution; see `sampling.deformable`."""
    if rank(x) != 4 or rank(w) != 4:
        raise UnsupportedError(f"input of {rank(x)} dimensions: 4 are supported")
    window = read_window(g, node, x, g.lens(w)[2:])
    group, offset_groups = node.get_int("group", 1), node.get_int("offset_group", 1)
    if window.kernel != g.lens(w)[2:]:
        raise ShapeError(f"a kernel of {list(window.kernel)} does not fit weights of {list(g.lens(w))}")
    steps = window.stride, window.padding, window.dilation
    return add_bias(g, deformable(g, x, w, offset, mask, *steps, group, offset_groups), bias)
