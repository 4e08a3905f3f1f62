"""Pooling."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.shape import row_major_strides
from ...core.types import Type
from ...errors import ParseError, ShapeError, UnsupportedError
from ...graph.folding import LARGEST
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register
from .window import Window, check_spatial, read_window

MODES = {"AveragePool": "average", "MaxPool": "max", "LpPool": "lpnorm"}


@register(*MODES)
def pool(g: Builder, node: Node, x: Instruction) -> Instruction | list[Instruction]:
    """Emit the mean, largest element or norm of each window; MaxPool also gives the flat positions of its elements."""
    y, window = pool_mode(g, node, x, MODES[node.op_type])
    if not node.wants(1):
        return y
    return [y, _positions(g, x, y, window, node.get_bool("storage_order"))]


def pool_mode(g: Builder, node: Node, x: Instruction, mode: str) -> tuple[Instruction, Window]:
    """Emit pooling as the node's attributes describe it."""
    window = read_window(g, node, x)
    y = g.op(
        "pooling",
        x,
        mode=mode,
        padding=window.shared_padding,
        padding_mode=window.padding_mode,
        stride=window.stride,
        lengths=window.kernel,
        dilations=window.dilation,
        ceil_mode=node.get_bool("ceil_mode"),
        count_include_pad=node.get_bool("count_include_pad"),
        lp_order=node.get_int("p", 2),
    )
    return y, window


def _positions(g: Builder, x: Instruction, y: Instruction, window: Window, column_major: bool) -> Instruction:
    """Emit the flat positions in ``x`` of a max pooling's elements: windows are gathered, then argmax."""
    lens, out = g.lens(x), g.lens(y)
    if not x.shape.symbolic:
        if prod(out[2:]) * prod(window.kernel) > LARGEST:
            raise UnsupportedError(f"positions of {list(out)} windows of {list(window.kernel)} are too many")
        g.limit(sum(out[2:]) * sum(window.kernel), "a table of positions")
    orders = [row_major_strides(lens[2:]), row_major_strides(lens[2:][::-1])[::-1]]
    tables, inside = [g.literal(np.zeros((1, 1), np.int64))] * 2, g.literal(np.ones((1, 1), bool))
    for k in range(len(window.kernel)):
        taps = np.arange(window.kernel[k])[None, :] * window.dilation[k] - window.padding[k]
        steps = g.pointwise("mul", g.iota(out[2 + k], 0, 2), g.literal(window.stride[k], Type.int64_type))
        axis = g.pointwise("add", steps, g.literal(taps.astype(np.int64)))
        low = g.pointwise("greater_or_equal", axis, g.like(0, axis))
        valid = g.op("logical_and", low, g.pointwise("less", axis, g.like(lens[2 + k], axis)))
        axis = g.pointwise("where", valid, axis, g.like(0, axis))
        moved = [g.pointwise("mul", axis, g.like(strides[k], axis)) for strides in orders]
        tables = [_outer(g, table, own, "add") for table, own in zip(tables, moved)]
        inside = _outer(g, inside, valid, "logical_and")
    flat = g.reshape(x, (*lens[:2], prod(lens[2:])))
    lowest = -np.inf if x.shape.type.is_floating else np.iinfo(x.shape.type.numpy).min
    windows = g.pointwise("where", inside, g.op("gather", flat, tables[0], axis=2), g.like(lowest, x))
    chosen = g.op("argmax", windows, axis=3)
    rows = g.broadcast(tables[column_major], (*lens[:2], *tables[0].shape.lens))
    images = g.reshape(g.iota(prod(lens[:2])), (*lens[:2], 1, 1))
    images = g.pointwise("mul", images, g.like(prod(lens[2:]), images))
    return g.reshape(g.pointwise("add", g.op("gather_elements", rows, chosen, axis=3), images), out)


def _outer(g: Builder, a: Instruction, b: Instruction, combine: str) -> Instruction:
    """Combine windows [positions, taps] of two axes into windows of both axes."""
    both = g.pointwise(combine, g.unsqueeze(a, [1, 3]), g.unsqueeze(b, [0, 2]))
    first, second, third, fourth = both.shape.lens
    return g.reshape(both, (first * second, third * fourth))


@register(*(f"Global{name}" for name in MODES))
def global_pool(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit pooling with one window, the whole image."""
    return global_pool_mode(g, node, x, MODES[node.op_type.removeprefix("Global")])


def global_pool_mode(g: Builder, node: Node, x: Instruction, mode: str) -> Instruction:
    """Emit pooling of whole images."""
    spatial = check_spatial(x)
    order = node.get_int("p", 2)
    if not all(d.is_fixed for d in x.shape.dims[2:]):
        return g.op("pooling", x, mode=mode, lp_order=order, dyn_global=True)
    lengths = tuple(d.min for d in x.shape.dims[2:])
    ones = (1,) * spatial
    return g.op(
        "pooling",
        x,
        mode=mode,
        padding=(0,) * spatial,
        stride=ones,
        lengths=lengths,
        dilations=ones,
        lp_order=order,
    )


@register("MaxUnpool")
def max_unpool(
    g: Builder, node: Node, x: Instruction, indices: Instruction, shape: Instruction | None = None
) -> Instruction:
    """Write elements at flat positions of a tensor of zeros.

    The positions are the indices that MaxPool returns for an input of the result's lengths. The lengths are
    ``output_shape``, or the least that the windows cover. ONNX's test of ``output_shape`` always takes positions in the
    latter.
    """
    lens = g.lens(x)
    spatial = check_spatial(x)
    kernel = node.get_ints("kernel_shape")
    stride = node.get_ints("strides", (1,) * spatial)
    pads = node.get_ints("pads", (0,) * (2 * spatial))
    if len(kernel) != spatial or len(stride) != spatial or len(pads) != 2 * spatial:
        raise ParseError(f"kernel_shape {kernel}, strides {stride} and pads {pads} do not fit {spatial} spatial axes")
    natural = [
        (n - 1) * s + k - before - after
        for n, s, k, before, after in zip(lens[2:], stride, kernel, pads[:spatial], pads[spatial:], strict=False)
    ]
    out = [*lens[:2], *natural] if shape is None else g.ints(shape, "output_shape")
    if len(out) != len(lens) or tuple(out[:2]) != lens[:2] or any(n < 1 for n in out[2:]):
        raise ShapeError(f"output_shape is {out}, expected {list(lens[:2])} and {spatial} lengths of at least 1")
    places = g.from_start(g.convert(indices, Type.int64_type))
    zeros = g.broadcast(g.like(0, x), (prod(out),))
    flat = g.op("scatter_none", zeros, g.reshape(places, (prod(lens),)), g.reshape(x, (prod(lens),)), axis=0)
    return g.reshape(flat, out)
