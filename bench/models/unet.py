"""A U-Net (Ronneberger et al., 2015) with transposed convolutions and batch normalization, opset 13."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import batch_norm, conv


@dataclass(frozen=True)
class Config:
    image: int
    base: int
    depth: int


CONFIGS = {"full": Config(image=256, base=32, depth=4), "tiny": Config(image=16, base=4, depth=2)}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input [batch, 3, image, image]; output mask [batch, 1, image, image] in (0, 1)."""
    c = CONFIGS[scale]
    g = GraphBuilder("unet", opset=13)
    x = g.input("input", [batch, 3, c.image, c.image])
    channels = 3
    skips = []
    for level in range(c.depth):
        out = c.base << level
        with g.scope(f"encoder{level + 1}"):
            x = _double_conv(g, x, channels, out)
        skips.append(x)
        with g.scope(f"pool{level + 1}"):
            x = g.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, ceil_mode=0)
        channels = out
    with g.scope("bottleneck"):
        x = _double_conv(g, x, channels, 2 * channels)
    for level in reversed(range(c.depth)):
        out = c.base << level
        with g.scope(f"upconv{level + 1}"):
            x = _up_conv(g, x, 2 * out, out)
        x = g.node("Concat", x, skips[level], axis=1)
        with g.scope(f"decoder{level + 1}"):
            x = _double_conv(g, x, 2 * out, out)
    with g.scope("conv"):
        x = conv(g, x, c.base, 1, gain=0.2)
    g.output("mask", g.node("Sigmoid", x), [batch, 1, c.image, c.image])
    return g.model()


def _double_conv(g: GraphBuilder, x: str, channels_in: int, channels_out: int) -> str:
    for i, channels in enumerate((channels_in, channels_out), start=1):
        with g.scope(f"conv{i}"):
            x = conv(g, x, channels, channels_out, 3, bias=False)
        with g.scope(f"norm{i}"):
            x = batch_norm(g, x, channels_out)
        with g.scope(f"relu{i}"):
            x = g.node("Relu", x)
    return x


def _up_conv(g: GraphBuilder, x: str, channels_in: int, channels_out: int) -> str:
    """A 2x2 transposed convolution of stride 2; windows do not overlap: `channels_in` products an output."""
    weight = g.normal(channels_in, channels_out, 2, 2, std=math.sqrt(2.0 / channels_in))
    return g.node(
        "ConvTranspose",
        x,
        g.weight("weight", weight),
        g.weight("bias", g.normal(channels_out, std=0.05)),
        dilations=[1, 1],
        group=1,
        kernel_shape=[2, 2],
        pads=[0] * 4,
        strides=[2, 2],
    )
