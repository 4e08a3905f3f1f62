"""Pooling."""

from __future__ import annotations

from ...errors import ParseError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder
from .data_format import DataFormat
from .node import TfNode
from .registry import register


@register("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D")
def pool(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit the mean (padding excluded) or the largest element of each window."""
    form = DataFormat(node, x)
    return _pooled(g, node, x, form, form.window("ksize", None), form.window("strides", None))


@register("MaxPoolV2")
def max_pool_v2(g: GraphBuilder, node: TfNode, x: Instruction, size: Instruction, strides: Instruction) -> Instruction:
    """Emit MaxPoolV2, whose window and strides are inputs."""
    form = DataFormat(node, x)
    kernel, stride = g.ints(size, "ksize"), g.ints(strides, "strides")
    if len(kernel) != form.axes or len(stride) != form.axes:
        raise ParseError(f"ksize {kernel} and strides {stride} must have {form.axes} numbers")
    return _pooled(g, node, x, form, form.spatial(kernel), form.spatial(stride))


def _pooled(
    g: GraphBuilder, node: TfNode, x: Instruction, form: DataFormat, kernel: list[int], stride: list[int]
) -> Instruction:
    x = form.channels_first(g, x)
    ones = [1] * len(kernel)
    y = g.op(
        "pooling",
        x,
        mode="average" if node.op_type.startswith("Avg") else "max",
        padding=form.padding(g.lens(x)[2:], kernel, stride, ones),
        stride=tuple(stride),
        lengths=tuple(kernel),
        dilations=tuple(ones),
    )
    return form.restored(g, y)
