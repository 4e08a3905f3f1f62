"""ResNet-50 (He et al., 2015; stride in the 3 by 3, as torchvision has it) with batch normalization kept as its own
node, exported at opset 13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import batch_norm, conv, gemm

EXPANSION = 4
RESIDUAL_GAIN = 0.5
"""Gain of the last convolution of a block: sums of 16 blocks stay of order one, as in a trained network."""


@dataclass(frozen=True)
class Config:
    image: int
    stem: int
    stages: tuple[tuple[int, int], ...]
    """Rows of table 1: channels of the 3 by 3, repeats. All but the first begin with a stride of 2."""
    classes: int


CONFIGS = {
    "full": Config(image=224, stem=64, stages=((64, 3), (128, 4), (256, 6), (512, 3)), classes=1000),
    "tiny": Config(image=32, stem=8, stages=((4, 2), (8, 1)), classes=10),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input [batch, 3, image, image]; output logits [batch, classes]."""
    c = CONFIGS[scale]
    g = GraphBuilder("resnet50", opset=13)
    x = g.input("input", [batch, 3, c.image, c.image])
    x = g.node("Relu", _conv_norm(g, "1", x, 3, c.stem, kernel=7, stride=2))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    channels = c.stem
    for stage, (width, repeats) in enumerate(c.stages, 1):
        for block in range(repeats):
            with g.scope(f"layer{stage}", f"layer{stage}.{block}"):
                x = _bottleneck(g, x, channels, width, 2 if stage > 1 and block == 0 else 1)
            channels = width * EXPANSION
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    with g.scope("fc"):
        logits = gemm(g, x, channels, c.classes)
    g.output("output", logits, [batch, c.classes])
    return g.model()


def _conv_norm(
    g: GraphBuilder,
    index: str,
    x: str,
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    gain: float = math.sqrt(2.0),
) -> str:
    with g.scope(f"conv{index}"):
        x = conv(g, x, channels_in, channels_out, kernel, stride=stride, bias=False, gain=gain)
    with g.scope(f"bn{index}"):
        return batch_norm(g, x, channels_out)


def _bottleneck(g: GraphBuilder, x: str, channels_in: int, width: int, stride: int) -> str:
    """Append 1x1, 3x3 and 1x1 convolutions plus the block's input, which passes a convolution where its size
    changes."""
    out = width * EXPANSION
    y = g.node("Relu", _conv_norm(g, "1", x, channels_in, width))
    y = g.node("Relu", _conv_norm(g, "2", y, width, width, kernel=3, stride=stride))
    y = _conv_norm(g, "3", y, width, out, gain=RESIDUAL_GAIN)
    if stride != 1 or channels_in != out:
        with g.scope("downsample"):
            x = _conv_norm(g, "", x, channels_in, out, stride=stride, gain=1.0)
    return g.node("Relu", g.node("Add", y, x))
