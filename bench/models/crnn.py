"""CRNN (Shi et al., 2015): a convolutional feature extractor, two bidirectional LSTM layers,
log-probabilities for CTC; opset 14.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from bench.models.builder import GraphBuilder
from bench.models.layers import batch_norm, conv, linear, recurrent, zero_state


@dataclass(frozen=True)
class Config:
    width: int
    channels: tuple[int, int, int, int]
    hidden: int
    classes: int


CONFIGS = {
    "full": Config(width=160, channels=(64, 128, 256, 512), hidden=256, classes=37),
    "tiny": Config(width=32, channels=(4, 6, 8, 10), hidden=6, classes=7),
}


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input image [batch, 1, 32, width]; output log_probs [width / 4 + 1, batch, classes]."""
    c = CONFIGS[scale]
    g = GraphBuilder("crnn", opset=14)
    x = _features(g, c, g.input("image", [batch, 1, 32, c.width]))
    x = g.node("Transpose", g.node("Squeeze", x, g.ints(2)), perm=[2, 0, 1])
    features = c.channels[3]
    zeros = zero_state(g, batch, c.hidden)
    for layer in range(2):
        with g.scope(f"rnn.{layer}"):
            x, _ = recurrent(g, "LSTM", x, features, c.hidden, [zeros, zeros])
        features = 2 * c.hidden
    with g.scope("head"):
        x = linear(g, x, features, c.classes, gain=4.0)
    x = g.node("LogSoftmax", x, axis=2)
    g.output("log_probs", x, [c.width // 4 + 1, batch, c.classes])
    return g.model()


def _features(g: GraphBuilder, c: Config, x: str) -> str:
    """[batch, 1, 32, width] to [batch, channels, 1, width / 4 + 1]: height pooled away, width quartered."""
    a, b, d, e = c.channels
    halve = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0]}
    halve_height = {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [0, 1, 0, 1]}
    x = _conv_relu(g, 0, x, 1, a)
    x = g.node("MaxPool", x, ceil_mode=0, **halve)
    x = _conv_relu(g, 1, x, a, b)
    x = g.node("MaxPool", x, ceil_mode=0, **halve)
    x = _conv_relu(g, 2, x, b, d, norm=True)
    x = _conv_relu(g, 3, x, d, d)
    x = g.node("MaxPool", x, ceil_mode=0, **halve_height)
    x = _conv_relu(g, 4, x, d, e, norm=True)
    x = _conv_relu(g, 5, x, e, e)
    x = g.node("MaxPool", x, ceil_mode=0, **halve_height)
    return _conv_relu(g, 6, x, e, e, kernel=2, padding=0, norm=True)


def _conv_relu(
    g: GraphBuilder,
    index: int,
    x: str,
    channels_in: int,
    channels_out: int,
    *,
    kernel: int = 3,
    padding: int | None = None,
    norm: bool = False,
) -> str:
    with g.scope("cnn"):
        with g.scope(f"conv{index}"):
            x = conv(g, x, channels_in, channels_out, kernel, padding=padding)
        if norm:
            with g.scope(f"batchnorm{index}"):
                x = batch_norm(g, x, channels_out)
        with g.scope(f"relu{index}"):
            return g.node("Relu", x)
