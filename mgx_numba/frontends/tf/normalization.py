"""Normalisation."""

from __future__ import annotations

from ...errors import ShapeError, UnsupportedError
from ...graph.instruction import Instruction
from ..builder import GraphBuilder
from .data_format import DataFormat
from .node import TfNode
from .registry import register

_RESULTS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")


@register("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", outputs=_RESULTS)
def fused_batch_norm(
    g: GraphBuilder,
    node: TfNode,
    x: Instruction,
    scale: Instruction,
    offset: Instruction,
    mean: Instruction,
    variance: Instruction,
) -> list[Instruction]:
    """Emit ``(x - mean) * (scale / sqrt(variance + epsilon)) + offset`` for each channel."""
    if node.get_bool("is_training", True):
        raise UnsupportedError("is_training is true, only inference is supported: freeze the model with it false")
    form = DataFormat(node, x)
    x = form.channels_first(g, x)
    channels = g.lens(x)[1]
    parts = {"scale": scale, "offset": offset, "mean": mean, "variance": variance}
    for what, value in parts.items():
        if g.lens(value) != (channels,):
            raise ShapeError(f"input {what!r} is {list(g.lens(value))}, expected [{channels}], one for each channel")
    a, b, m, v = (g.unsqueeze(value, list(range(1, form.axes - 1))) for value in parts.values())
    inverse = g.op("rsqrt", g.pointwise("add", v, g.like(node.get_float("epsilon", 1e-4), v)))
    factor = g.convert(g.pointwise("mul", a, inverse), x.shape.type)
    centred = g.pointwise("sub", x, g.convert(m, x.shape.type))
    y = g.pointwise("add", g.pointwise("mul", centred, factor), g.convert(b, x.shape.type))
    return [form.restored(g, y), mean, variance, mean, variance]


@register("LRN")
def lrn(g: GraphBuilder, node: TfNode, x: Instruction) -> Instruction:
    """Emit LRN over ``depth_radius`` channels before and after; the IR divides ``alpha`` by their number."""
    form = DataFormat(node, x)
    size = 2 * node.get_int("depth_radius", 5) + 1
    y = g.op(
        "lrn",
        form.channels_first(g, x),
        alpha=node.get_float("alpha", 1.0) * size,
        beta=node.get_float("beta", 0.5),
        bias=node.get_float("bias", 1.0),
        size=size,
    )
    return form.restored(g, y)
