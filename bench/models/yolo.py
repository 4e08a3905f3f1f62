"""A YOLOv5-nano-like detector: Focus, C3 blocks, SPPF, path aggregation, box decoding, suppression.

Exported at opset 13, batch normalization folded. `yolo` uses SiLU, `yolo_leaky` LeakyRelu(0.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx

from bench.models.builder import INT64, GraphBuilder
from bench.models.layers import SILU_GAIN, conv, silu

ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Anchor widths and heights in pixels for the strides 8, 16 and 32."""


@dataclass(frozen=True)
class Config:
    image: int
    width: int
    depths: tuple[int, int, int, int]
    classes: int
    prior: float
    """Bias of the objectness and class logits: in a trained detector most boxes hold nothing."""


CONFIGS = {
    "full": Config(image=320, width=16, depths=(1, 2, 3, 1), classes=80, prior=-2.3),
    "tiny": Config(image=64, width=4, depths=(1, 1, 1, 1), classes=3, prior=-0.3),
}


class _Network:
    """The builder, the configuration and the activation, which every block needs."""

    def __init__(self, name: str, c: Config, leaky: bool) -> None:
        self.g = GraphBuilder(name, opset=13)
        self.c = c
        self.leaky = leaky

    def act(self, x: str) -> str:
        return self.g.node("LeakyRelu", x, alpha=0.1) if self.leaky else silu(self.g, x)

    def conv(
        self,
        name: str,
        x: str,
        channels_in: int,
        channels_out: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        damping: float = 1.0,
    ) -> str:
        gain = damping * (math.sqrt(2.0) if self.leaky else SILU_GAIN)
        with self.g.scope(name):
            with self.g.scope("conv"):
                x = conv(self.g, x, channels_in, channels_out, kernel, stride=stride, gain=gain)
            with self.g.scope("act"):
                return self.act(x)

    def c3(self, x: str, channels_in: int, channels_out: int, repeats: int, shortcut: bool = True) -> str:
        """Cross-stage partial block: a chain of bottlenecks beside a 1x1 convolution, concatenated."""
        hidden = channels_out // 2
        damping = 0.4 if shortcut else 1.0
        y = self.conv("cv1", x, channels_in, hidden)
        for i in range(repeats):
            with self.g.scope("m", f"m.{i}"):
                z = self.conv("cv2", self.conv("cv1", y, hidden, hidden), hidden, hidden, 3, damping=damping)
                y = self.g.node("Add", y, z) if shortcut else z
        beside = self.conv("cv2", x, channels_in, hidden)
        return self.conv("cv3", self.g.node("Concat", y, beside, axis=1), 2 * hidden, channels_out)

    def sppf(self, x: str, channels: int) -> str:
        pooled = [self.conv("cv1", x, channels, channels // 2)]
        for _ in range(3):
            pool = self.g.node("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4, ceil_mode=0)
            pooled.append(pool)
        return self.conv("cv2", self.g.node("Concat", *pooled, axis=1), 2 * channels, channels)

    def focus(self, x: str) -> str:
        """Space to depth by strided slices: [n, 3, h, w] to [n, 12, h / 2, w / 2]."""
        g = self.g
        end = g.ints(np.iinfo(np.int64).max)
        parts = []
        for column in (0, 1):
            for row in (0, 1):
                rows = g.node("Slice", x, g.ints(row), end, g.ints(2), g.ints(2))
                parts.append(g.node("Slice", rows, g.ints(column), end, g.ints(3), g.ints(2)))
        return g.node("Concat", *parts, axis=1)

    def upsample(self, x: str) -> str:
        return self.g.node(
            "Resize",
            x,
            "",
            self.g.const([1.0, 1.0, 2.0, 2.0]),
            coordinate_transformation_mode="asymmetric",
            cubic_coeff_a=-0.75,
            mode="nearest",
            nearest_mode="floor",
        )


def build(batch: int, scale: str) -> onnx.ModelProto:
    """Input images [batch, 3, image, image]; outputs predictions [batch, boxes, 5 + classes] (centre x and y,
    width, height in pixels, objectness, class probabilities) and selected_indices [selected, 3] of
    NonMaxSuppression.
    """
    return _build(_Network("yolo", CONFIGS[scale], leaky=False), batch)


def build_leaky(batch: int, scale: str) -> onnx.ModelProto:
    """`build` with LeakyRelu in place of SiLU."""
    return _build(_Network("yolo_leaky", CONFIGS[scale], leaky=True), batch)


def _build(net: _Network, batch: int) -> onnx.ModelProto:
    g, c = net.g, net.c
    x = g.input("images", [batch, 3, c.image, c.image])
    features = _neck(net, _backbone(net, x))
    with g.scope("model.24"):
        grids = [_decode(net, batch, i, x) for i, x in enumerate(features)]
        predictions = g.node("Concat", *grids, axis=1)
    boxes = sum(3 * (c.image // stride) ** 2 for stride in (8, 16, 32))
    g.output("predictions", predictions, [batch, boxes, 5 + c.classes])
    g.output("selected_indices", _suppress(net, predictions), ["selected", 3], INT64)
    return g.model()


def _backbone(net: _Network, x: str) -> list[str]:
    """Features of strides 8, 16, 32 with 4, 8 and 16 times the base width."""
    w = net.c.width
    with net.g.scope("model.0"):
        x = net.conv("conv", net.focus(x), 12, w, 3, damping=2.0)
    features = []
    for i, depth in enumerate(net.c.depths):
        x = net.conv(f"model.{2 * i + 1}", x, w << i, w << (i + 1), 3, stride=2)
        with net.g.scope(f"model.{2 * i + 2}"):
            x = net.c3(x, w << (i + 1), w << (i + 1), depth)
        features.append(x)
    with net.g.scope("model.9"):
        features[3] = net.sppf(x, w << 4)
    return features[1:]


def _neck(net: _Network, features: list[str]) -> list[str]:
    """Path aggregation: top down with nearest upsampling, then bottom up with strided convolutions."""
    g, w = net.g, net.c.width
    small, medium, large = features
    top = net.conv("model.10", large, 16 * w, 8 * w)
    with g.scope("model.13"):
        x = net.c3(g.node("Concat", net.upsample(top), medium, axis=1), 16 * w, 8 * w, 1, shortcut=False)
    middle = net.conv("model.14", x, 8 * w, 4 * w)
    with g.scope("model.17"):
        out_small = net.c3(g.node("Concat", net.upsample(middle), small, axis=1), 8 * w, 4 * w, 1, shortcut=False)
    x = net.conv("model.18", out_small, 4 * w, 4 * w, 3, stride=2)
    with g.scope("model.20"):
        out_medium = net.c3(g.node("Concat", x, middle, axis=1), 8 * w, 8 * w, 1, shortcut=False)
    x = net.conv("model.21", out_medium, 8 * w, 8 * w, 3, stride=2)
    with g.scope("model.23"):
        out_large = net.c3(g.node("Concat", x, top, axis=1), 16 * w, 16 * w, 1, shortcut=False)
    return [out_small, out_medium, out_large]


def _decode(net: _Network, batch: int, level: int, x: str) -> str:
    """One level to [batch, 3 * side * side, 5 + classes]: logits to centres and sizes by grid and anchors."""
    g, c = net.g, net.c
    fields = 5 + c.classes
    stride = 8 << level
    side = c.image // stride
    prior = np.array([0.0] * 4 + [c.prior] * (1 + c.classes))
    with g.scope(f"m.{level}"):
        x = conv(g, x, c.width * (4 << level), 3 * fields, bias_mean=np.tile(prior, 3), gain=0.4)
    x = g.node("Reshape", x, g.ints(batch, 3, fields, side, side))
    x = g.node("Sigmoid", g.node("Transpose", x, perm=[0, 1, 3, 4, 2]))
    centre, size, rest = (
        g.node("Slice", x, g.ints(begin), g.ints(end), g.ints(4), g.ints(1))
        for begin, end in ((0, 2), (2, 4), (4, fields))
    )
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    grid = np.stack([columns, rows], axis=-1).reshape(1, 1, side, side, 2) - 0.5
    anchors = np.array(ANCHORS[level], dtype=np.float32).reshape(1, 3, 1, 1, 2)
    centre = g.node("Mul", centre, g.const(2.0))
    centre = g.node("Mul", g.node("Add", centre, g.const(grid)), g.const(float(stride)))
    size = g.node("Pow", g.node("Mul", size, g.const(2.0)), g.const(2.0))
    size = g.node("Mul", size, g.const(anchors))
    x = g.node("Concat", centre, size, rest, axis=4)
    return g.node("Reshape", x, g.ints(batch, -1, fields))


def _suppress(net: _Network, predictions: str) -> str:
    g, fields = net.g, 5 + net.c.classes
    centre, size, objectness, classes = (
        g.node("Slice", predictions, g.ints(begin), g.ints(end), g.ints(2), g.ints(1))
        for begin, end in ((0, 2), (2, 4), (4, 5), (5, fields))
    )
    half = g.node("Div", size, g.const(2.0))
    corners = g.node("Concat", g.node("Sub", centre, half), g.node("Add", centre, half), axis=2)
    scores = g.node("Transpose", g.node("Mul", classes, objectness), perm=[0, 2, 1])
    limit = g.const([20], np.int64)
    return g.node("NonMaxSuppression", corners, scores, limit, g.const([0.45]), g.const([0.25]))
