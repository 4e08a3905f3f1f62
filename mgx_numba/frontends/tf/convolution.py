"""Convolutions."""

from __future__ import annotations

from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .data_format import DataFormat
from .node import TfNode
from .registry import register


@register("BiasAdd")
def bias_add(g: GraphBuilder, node: TfNode, x: Instruction, bias: Instruction) -> Instruction:
    """Emit the input plus one value per channel; channels are the last axis unless ``data_format`` is NCHW."""
    channels_last = node.get_str("data_format", "NHWC") != "NCHW"
    axis = rank(x) - 1 if channels_last else 1
    if rank(bias) != 1 or rank(x) < 2 or g.lens(bias)[0] != g.lens(x)[axis]:
        raise ShapeError(f"a bias of {list(g.lens(bias))} does not fit axis {axis} of {list(g.lens(x))}")
    return g.op("add", x, g.broadcast_axis(bias, axis, x))


@register("Conv2D", "Conv3D")
def conv(g: GraphBuilder, node: TfNode, x: Instruction, w: Instruction) -> Instruction:
    """Emit cross-correlation with filters [kernel..., c / groups, o]; the channels give the number of groups."""
    _check(node, x, w)
    axes = rank(x)
    return _convolved(g, node, x, g.transpose(w, [axes - 1, axes - 2, *range(axes - 2)]))


@register("DepthwiseConv2dNative")
def depthwise(g: GraphBuilder, node: TfNode, x: Instruction, w: Instruction) -> Instruction:
    """Emit depthwise convolution with filters [h, w, c, multiplier]."""
    _check(node, x, w)
    h, v, channels, multiplier = g.lens(w)
    return _convolved(g, node, x, g.reshape(g.transpose(w, (2, 3, 0, 1)), (channels * multiplier, 1, h, v)))


def _check(node: TfNode, x: Instruction, w: Instruction) -> None:
    axes = 5 if node.op_type == "Conv3D" else 4
    if rank(x) != axes or rank(w) != axes:
        raise ParseError(f"input and filter have {rank(x)} and {rank(w)} dimensions, expected {axes}")


def _convolved(g: GraphBuilder, node: TfNode, x: Instruction, w: Instruction) -> Instruction:
    """Emit convolution with weights [o, c / groups, kernel...]."""
    form = DataFormat(node, x)
    x = form.channels_first(g, x)
    (_, channels, *lens), (filters, each, *kernel) = g.lens(x), g.lens(w)
    if not (each and channels and filters) or channels % each or filters % (channels // each):
        raise ShapeError(f"a filter for {each} channels with {filters} results does not fit {channels} channels")
    stride, dilation = form.window("strides", None), form.window("dilations")
    y = g.op(
        "convolution",
        x,
        w,
        padding=form.padding(lens, kernel, stride, dilation),
        stride=tuple(stride),
        dilation=tuple(dilation),
        group=channels // each,
    )
    return form.restored(g, y)


@register("Conv2DBackpropInput")
def conv_backprop(g: GraphBuilder, node: TfNode, sizes: Instruction, w: Instruction, x: Instruction) -> Instruction:
    """Emit transposed convolution to the constant lengths ``input_sizes``, with filters [h, w, o, c]."""
    _check(node, x, w)
    form = DataFormat(node, x)
    out = g.ints(sizes, "input_sizes")
    if len(out) not in (2, rank(x)):
        raise ParseError(f"input_sizes are {out}, expected {rank(x)} lengths")
    lens = out if len(out) == 2 else form.spatial(out)
    x, w = form.channels_first(g, x), g.transpose(w, (3, 2, 0, 1))
    kernel = g.lens(w)[2:]
    stride, dilation = form.window("strides", None), form.window("dilations")
    padding = form.padding(lens, kernel, stride, dilation)
    windows = [
        (n + a + b - (k - 1) * d - 1) // s + 1
        for n, a, b, k, s, d in zip(lens, padding[:2], padding[2:], kernel, stride, dilation, strict=True)
    ]
    if list(g.lens(x)[2:]) != windows:
        raise ShapeError(f"input_sizes {out} belong to lengths {windows}, but the input has {list(g.lens(x)[2:])}")
    y = g.op("convolution_backwards", x, w, padding=(0, 0), stride=tuple(stride), dilation=tuple(dilation), group=1)
    # Cut the full result by the padding; extend it first where windows do not reach the end of the image.
    missing = [max(0, a + n - m) for a, n, m in zip(padding, lens, g.lens(y)[2:])]
    if any(missing):
        y = g.op("pad", y, pads=(0,) * 6 + tuple(missing))
    for k, n in enumerate(lens):
        y = g.slice(y, 2 + k, padding[k], padding[k] + n)
    return form.restored(g, y)
