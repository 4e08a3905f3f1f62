"""Deformable convolution.

ai.onnx: DeformConv.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...errors import ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..sampling import SampleAxis
from .builder import Builder
from .convolution import add_bias
from .node import Node
from .registry import register
from .window import Window, read_window


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
    """Emit deformable convolution: sampling, then a product.

    Dai et al., Deformable Convolutional Networks; v2 with a mask. Samples are interpolated between pixels; pixels
    outside the image are 0. Shapes:

        x: [n, c, h, w]
        weights: [o, c / group, kh, kw]
        offsets: [n, offset_group * kh * kw * 2, oh, ow], y before x
        mask: [n, offset_group * kh * kw, oh, ow]
    """
    lens, weights = g.lens(x), g.lens(w)
    if len(lens) != 4 or len(weights) != 4:
        raise UnsupportedError(f"input of {len(lens)} dimensions: 4 are supported")
    window = read_window(g, node, x, weights[2:])
    group, bags = node.get_int("group", 1), node.get_int("offset_group", 1)
    taps, out = prod(weights[2:]), g.lens(offset)[2:]
    expected = (lens[0], bags * taps * 2, *out)
    fits = min(group, bags) > 0 and lens[1] % bags == 0 and lens[1] == group * weights[1] and weights[0] % group == 0
    if not fits or window.kernel != weights[2:] or g.lens(offset) != expected:
        raise ShapeError(f"input {list(lens)}, weights {list(weights)}, offsets {list(g.lens(offset))} do not fit")
    columns = _columns(g, x, offset, mask, window, bags)
    batch, rows = lens[0], weights[0] // group
    inner = weights[1] * taps
    left = g.broadcast(g.reshape(w, (1, group, rows, inner)), (batch, group, rows, inner))
    product = g.op("dot", left, g.reshape(columns, (batch, group, inner, prod(out))))
    return add_bias(g, g.reshape(product, (batch, weights[0], *out)), bias)


def _columns(
    g: Builder, x: Instruction, offset: Instruction, mask: Instruction | None, window: Window, bags: int
) -> Instruction:
    """Emit the samples [n, c, taps, positions]."""
    batch, channels, height, width = g.lens(x)
    out = g.lens(offset)[2:]
    taps, spots = prod(window.kernel), prod(out)
    g.limit(taps * spots, "a table of positions")
    moved = g.reshape(offset, (batch, bags, taps, 2, spots))
    axes, tables = [], []
    for k, length in enumerate((height, width)):
        axis = SampleAxis(g, length, "zeros", align=False)
        start = np.arange(out[k]) * window.stride[k] - window.padding[k]
        place = np.indices(window.kernel)[k].reshape(-1, 1) * window.dilation[k]
        base = place + np.broadcast_to(start[:, None] if k == 0 else start, out).reshape(1, -1)
        shift = g.squeeze(g.slice(moved, 3, k, k + 1), [3])
        axes.append(axis)
        tables.append(axis.taps(g.pointwise("add", shift, g.literal(base, x.shape.type)), "linear"))
    per_bag = channels // bags
    split = g.reshape(x, (batch, bags, per_bag, height * width))
    rows = g.reshape(g.transpose(split, (0, 1, 3, 2)), (batch * bags * height * width, per_bag))
    first = np.arange(batch * bags, dtype=np.int64).reshape(batch, bags, 1, 1) * (height * width)
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
        total = g.pointwise("mul", total, g.reshape(mask, (batch, bags, taps, spots, 1)))
    return g.reshape(g.transpose(total, (0, 1, 4, 2, 3)), (batch, channels, taps, spots))
