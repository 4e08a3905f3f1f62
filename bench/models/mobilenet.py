"""MobileNet-v2 (Sandler et al., 2018) with batch normalization kept as its own node, exported at opset 13."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import batch_norm, conv, gemm


@dataclass(frozen=True)
class Config:
    image: int
    stem: int
    stages: tuple[tuple[int, int, int, int], ...]
    """Rows of table 2: expansion, output channels, repeats, stride of the first."""
    last: int
    classes: int


CONFIGS = {
    "full": Config(
        image=224,
        stem=32,
        stages=(
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ),
        last=1280,
        classes=1000,
    ),
    "tiny": Config(image=32, stem=8, stages=((1, 8, 1, 1), (3, 12, 2, 2), (3, 16, 2, 2)), last=32, classes=10),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input [batch, 3, image, image]; output logits [batch, classes]."""
    c = CONFIGS[scale]
    g = GraphBuilder("mobilenet_v2", opset=13)
    x = g.input("input", [batch, 3, c.image, c.image])
    with g.scope("features", "features.0"):
        x = _conv_norm(g, 0, x, 3, c.stem, kernel=3, stride=2)
    channels = c.stem
    index = 1
    for expansion, out, repeats, first_stride in c.stages:
        for i in range(repeats):
            with g.scope("features", f"features.{index}"):
                x = _inverted_residual(g, x, channels, out, expansion, first_stride if i == 0 else 1)
            channels = out
            index += 1
    with g.scope("features", f"features.{index}"):
        x = _conv_norm(g, 0, x, channels, c.last)
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    with g.scope("classifier", "classifier.1"):
        logits = gemm(g, x, c.last, c.classes)
    g.output("output", logits, [batch, c.classes])
    return g.model()


def _conv_norm(
    g: GraphBuilder,
    index: int,
    x: str,
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: bool = True,
) -> str:
    """Conv, BatchNormalization and, where it has an activation, Clip(0, 6)."""
    gain = math.sqrt(2.0) if activation else 1.0
    with g.scope(f"{index}.0"):
        x = conv(g, x, channels_in, channels_out, kernel, stride=stride, groups=groups, bias=False, gain=gain)
    with g.scope(f"{index}.1"):
        x = batch_norm(g, x, channels_out)
    if not activation:
        return x
    with g.scope(f"{index}.2"):
        return g.node("Clip", x, g.const(0.0), g.const(6.0))


def _inverted_residual(
    g: GraphBuilder, x: str, channels_in: int, channels_out: int, expansion: int, stride: int
) -> str:
    hidden = channels_in * expansion
    y = x
    index = 0
    with g.scope("conv"):
        if expansion != 1:
            y = _conv_norm(g, index, y, channels_in, hidden)
            index += 1
        y = _conv_norm(g, index, y, hidden, hidden, kernel=3, stride=stride, groups=hidden)
        y = _conv_norm(g, index + 1, y, hidden, channels_out, activation=False)
    return g.node("Add", x, y) if stride == 1 and channels_in == channels_out else y
