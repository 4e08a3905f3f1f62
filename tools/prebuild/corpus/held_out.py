"""Networks that are no part of the corpus: they tell how many kernels of a new model ship."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import onnx
from numpy.typing import NDArray

from bench.models.builder import GraphBuilder
from bench.models.layers import batch_norm, conv, gelu_erf, gemm, layer_norm_op, linear, silu
from tools.prebuild.corpus.item import Item, parsed, with_open_batch

__all__ = ["held_out"]


def held_out() -> Iterator[Item]:
    """Return the networks, each with a fixed and an open batch size."""
    for make in (regnet, unet, whisper_encoder, convnext, detector, recogniser):
        model = make()
        yield Item(make.__name__, partial(parsed, model), (2,))
        yield Item(f"{make.__name__}, open", partial(parsed, with_open_batch(model)), (2,))


class _Graph(GraphBuilder):
    """A graph whose weights may have equal names."""

    def weight(self, name: str, value: NDArray[Any]) -> str:
        """Return a weight under a name with a number."""
        self._made = getattr(self, "_made", 0) + 1
        return super().weight(f"{name}.{self._made}", value)


def _normed(g: _Graph, x: str, a: int, b: int, taps: int, stride: int = 1, groups: int = 1) -> str:
    return batch_norm(g, conv(g, x, a, b, taps, stride=stride, groups=groups, bias=False), b)


def regnet() -> onnx.ModelProto:
    """Return a RegNetY (Radosavovic et al., 2020): grouped convolutions with squeeze and excitation."""
    g = _Graph("regnet", 17)
    x = g.node("Relu", _normed(g, g.input("image", [1, 3, 224, 224]), 3, 32, 3, 2))
    width = 32
    for out, depth in ((48, 1), (104, 2), (208, 2), (440, 1)):
        for k in range(depth):
            stride = 1 if k else 2
            y = g.node("Relu", _normed(g, x, width, out, 1))
            y = g.node("Relu", _normed(g, y, out, out, 3, stride, out // 8))
            s = g.node("GlobalAveragePool", y)
            s = g.node("Relu", conv(g, s, out, width // 4, 1))
            y = g.node("Mul", y, g.node("Sigmoid", conv(g, s, width // 4, out, 1)))
            y = _normed(g, y, out, out, 1)
            x = g.node("Relu", g.node("Add", y, x if k else _normed(g, x, width, out, 1, stride)))
            width = out
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    g.output("scores", gemm(g, x, width, 1000), [1, 1000])
    return g.model()


def unet() -> onnx.ModelProto:
    """Return a U-Net (Ronneberger et al., 2015) with LeakyRelu and transposed convolutions."""
    g = _Graph("held-out unet", 17)
    x, width = g.input("image", [1, 1, 128, 128]), 1
    skips = []
    for out in (24, 48, 96):
        for _ in range(2):
            x = g.node("LeakyRelu", _normed(g, x, width, out, 3), alpha=0.1)
            width = out
        skips.append((x, width))
        x = g.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for skip, out in reversed(skips):
        weight = g.weight("up", g.normal(width, out, 2, 2, std=0.05))
        x = g.node("Concat", g.node("ConvTranspose", x, weight, strides=[2, 2]), skip, axis=1)
        x = g.node("LeakyRelu", _normed(g, x, 2 * out, out, 3), alpha=0.1)
        width = out
    g.output("mask", g.node("Sigmoid", conv(g, x, width, 1, 1)), [1, 1, 128, 128])
    return g.model()


def _attention(g: _Graph, x: str, width: int, heads: int) -> str:
    q, k, v = (
        g.node("Transpose", g.node("Reshape", linear(g, x, width, width), g.ints(0, 0, heads, -1)), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = g.node("Softmax", g.node("Mul", g.node("MatMul", q, k), g.const((width // heads) ** -0.5)), axis=-1)
    y = g.node("Transpose", g.node("MatMul", scores, v), perm=[0, 2, 1, 3])
    return linear(g, g.node("Reshape", y, g.ints(0, 0, -1)), width, width)


def whisper_encoder() -> onnx.ModelProto:
    """Return an encoder of speech (Radford et al., 2023): convolutions over time, then a pre-norm transformer."""
    g = _Graph("whisper", 17)
    x = g.input("mel", [1, 80, 1000])
    for a, b, stride in ((80, 384, 1), (384, 384, 2)):
        weight, bias = g.weight("w", g.normal(b, a, 3, std=0.05)), g.weight("b", g.normal(b, std=0.05))
        x = gelu_erf(g, g.node("Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    x = g.node("Add", g.node("Transpose", x, perm=[0, 2, 1]), g.weight("positions", g.normal(500, 384, std=0.02)))
    for _ in range(2):
        x = g.node("Add", x, _attention(g, layer_norm_op(g, x, 384), 384, 6))
        x = g.node("Add", x, linear(g, gelu_erf(g, linear(g, layer_norm_op(g, x, 384), 384, 1536)), 1536, 384))
    g.output("states", layer_norm_op(g, x, 384), [1, 500, 384])
    return g.model()


def convnext() -> onnx.ModelProto:
    """Return a ConvNeXt (Liu et al., 2022): depthwise 7x7, norms over channels, GELU."""
    g = _Graph("convnext", 17)
    x = conv(g, g.input("image", [1, 3, 224, 224]), 3, 64, 4, stride=4, padding=0)
    for _ in range(2):
        y = g.node("Transpose", conv(g, x, 64, 64, 7, groups=64), perm=[0, 2, 3, 1])
        y = linear(g, gelu_erf(g, linear(g, layer_norm_op(g, y, 64), 64, 256)), 256, 64)
        y = g.node("Mul", g.weight("scale", g.normal(64, std=0.1)), y)
        x = g.node("Add", x, g.node("Transpose", y, perm=[0, 3, 1, 2]))
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    g.output("scores", gemm(g, layer_norm_op(g, x, 64), 64, 1000), [1, 1000])
    return g.model()


def detector() -> onnx.ModelProto:
    """Return a detector's backbone of SiLU convolutions with split and joined channels, and its head."""
    g = _Graph("detector", 17)
    x, width = silu(g, _normed(g, g.input("image", [1, 3, 320, 320]), 3, 24, 3, 2)), 24
    for out in (48, 96, 192):
        x = silu(g, _normed(g, x, width, out, 3, 2))
        left = silu(g, _normed(g, x, out, out // 2, 1))
        right = silu(g, _normed(g, x, out, out // 2, 1))
        y = silu(g, _normed(g, silu(g, _normed(g, right, out // 2, out // 2, 3)), out // 2, out // 2, 3))
        x = g.node("Concat", left, g.node("Add", right, y), axis=1)
        width = out
    pooled = [x]
    for _ in range(3):
        pooled.append(g.node("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2], strides=[1, 1]))
    x = silu(g, _normed(g, g.node("Concat", *pooled, axis=1), 4 * width, width, 1))
    x = g.node("Reshape", conv(g, x, width, 85, 1), g.ints(0, 85, -1))
    g.output("boxes", g.node("Sigmoid", g.node("Transpose", x, perm=[0, 2, 1])), [1, 400, 85])
    return g.model()


def recogniser() -> onnx.ModelProto:
    """Return a small image classifier of HardSwish and depthwise convolutions (Howard et al., 2019)."""
    g = _Graph("recogniser", 17)
    x, width = g.node("HardSwish", _normed(g, g.input("image", [1, 3, 96, 96]), 3, 16, 3, 2)), 16
    for wide, out, taps, stride in ((48, 24, 3, 2), (72, 24, 5, 1), (96, 40, 5, 2)):
        y = g.node("HardSwish", _normed(g, x, width, wide, 1))
        y = g.node("HardSwish", _normed(g, y, wide, wide, taps, stride, wide))
        s = g.node("Relu", conv(g, g.node("GlobalAveragePool", y), wide, wide // 4, 1))
        y = g.node("Mul", y, g.node("HardSigmoid", conv(g, s, wide // 4, wide, 1)))
        y = _normed(g, y, wide, out, 1)
        x, width = (g.node("Add", x, y) if stride == 1 and width == out else y), out
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    x = g.node("HardSwish", gemm(g, x, width, 128))
    g.output("scores", g.node("Softmax", gemm(g, x, 128, 100), axis=-1), [1, 100])
    return g.model()
