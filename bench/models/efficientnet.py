"""EfficientNet-B0 (Tan and Le, 2019), opset 17, batch normalization folded as in an eval-mode export."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import SILU_GAIN, conv, gemm, silu


@dataclass(frozen=True)
class Config:
    image: int
    stem: int
    stages: tuple[tuple[int, int, int, int, int], ...]
    """Rows of table 1: expansion, kernel, stride of the first, output channels, repeats."""
    last: int
    classes: int


CONFIGS = {
    "full": Config(
        image=224,
        stem=32,
        stages=(
            (1, 3, 1, 16, 1),
            (6, 3, 2, 24, 2),
            (6, 5, 2, 40, 2),
            (6, 3, 2, 80, 3),
            (6, 5, 1, 112, 3),
            (6, 5, 2, 192, 4),
            (6, 3, 1, 320, 1),
        ),
        last=1280,
        classes=1000,
    ),
    "tiny": Config(image=32, stem=8, stages=((1, 3, 1, 8, 1), (4, 3, 2, 12, 2), (4, 5, 2, 16, 2)), last=32, classes=10),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input [batch, 3, image, image]; output logits [batch, classes]."""
    c = CONFIGS[scale]
    g = GraphBuilder("efficientnet_b0", opset=17)
    x = g.input("input", [batch, 3, c.image, c.image])
    with g.scope("features", "features.0"):
        x = _conv_silu(g, 0, x, 3, c.stem, kernel=3, stride=2, gain=2 * SILU_GAIN)
    channels = c.stem
    for stage, (expansion, kernel, first_stride, out, repeats) in enumerate(c.stages, start=1):
        for i in range(repeats):
            with g.scope("features", f"features.{stage}", f"features.{stage}.{i}"):
                x = _mbconv(g, x, channels, out, expansion, kernel, first_stride if i == 0 else 1)
            channels = out
    with g.scope("features", f"features.{len(c.stages) + 1}"):
        x = _conv_silu(g, 0, x, channels, c.last)
    x = g.node("Flatten", g.node("GlobalAveragePool", x), axis=1)
    with g.scope("classifier", "classifier.1"):
        logits = gemm(g, x, c.last, c.classes)
    g.output("output", logits, [batch, c.classes])
    return g.model()


def _conv_silu(
    g: GraphBuilder,
    index: int,
    x: str,
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    gain: float = SILU_GAIN,
) -> str:
    with g.scope(f"block.{index}"):
        with g.scope(f"block.{index}.0"):
            x = conv(g, x, channels_in, channels_out, kernel, stride=stride, groups=groups, gain=gain)
        with g.scope(f"block.{index}.1"):
            return silu(g, x)


def _mbconv(
    g: GraphBuilder, x: str, channels_in: int, channels_out: int, expansion: int, kernel: int, stride: int
) -> str:
    """Expand, depthwise convolution, squeeze-excite, linear projection, residual where shapes allow it."""
    hidden = channels_in * expansion
    residual = stride == 1 and channels_in == channels_out
    y = x
    index = 0
    with g.scope("block"):
        if expansion != 1:
            y = _conv_silu(g, index, y, channels_in, hidden)
            index += 1
        y = _conv_silu(g, index, y, hidden, hidden, kernel=kernel, stride=stride, groups=hidden)
        with g.scope(f"block.{index + 1}"):
            y = _squeeze_excite(g, y, hidden, max(1, channels_in // 4))
        with g.scope(f"block.{index + 2}"):
            y = conv(g, y, hidden, channels_out, gain=1.0 if residual else 2.0)
    return g.node("Add", y, x) if residual else y


def _squeeze_excite(g: GraphBuilder, x: str, channels: int, squeezed: int) -> str:
    pooled = g.node("GlobalAveragePool", x)
    with g.scope("fc1"):
        hidden = conv(g, pooled, channels, squeezed, gain=1.0)
    with g.scope("activation"):
        hidden = silu(g, hidden)
    with g.scope("fc2"):
        gate = conv(g, hidden, squeezed, channels, gain=0.3)
    return g.node("Mul", g.node("Sigmoid", gate), x)
