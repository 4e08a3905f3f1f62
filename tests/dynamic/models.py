"""Models as exporters write them, with symbolic dimensions and shapes computed from shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..values import normal

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Feeds = dict[str, np.ndarray]


class Graph:
    """Collects nodes and constants."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def const(self, value: Any, dtype: Any = None) -> str:
        name = self.name()
        array = np.asarray(value, dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def weights(self, *lens: int, seed: int = 0, scale: float = 0.3) -> str:
        return self.const(normal(*lens, seed=seed + self._count) * np.float32(scale))

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def dim(self, x: str, axis: int) -> str:
        """Return one length as a vector."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis), axis=0)

    def vector(self, *parts: str | int) -> str:
        """Lengths joined: names of vectors, or integers."""
        return self.op("Concat", *(p if isinstance(p, str) else self.ints(p) for p in parts), axis=0)

    def model(self, inputs: dict[str, tuple[int, Sequence[Any]]], outputs: Sequence[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(n, t, list(d)) for n, (t, d) in inputs.items()],
            [onnx.ValueInfoProto(name=n) for n in outputs],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 10
        return model


@dataclass(frozen=True)
class Case:
    """A model and how its inputs are drawn."""

    model: onnx.ModelProto
    draw: Callable[[np.random.Generator], Feeds]
    tolerance: float = 1e-4
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


def _floats(rng: np.random.Generator, *lens: int) -> np.ndarray:
    return rng.standard_normal(lens).astype(np.float32)


def fully_convolutional() -> Case:
    """N, H and W are open; the last layer is resized to the input's lengths, as segmentation nets do."""
    g = Graph()
    y = g.op("Relu", g.op("Conv", "x", g.weights(8, 3, 3, 3), g.weights(8), pads=[1, 1, 1, 1], strides=[2, 2]))
    y = g.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = g.op("Conv", y, g.weights(4, 8, 1, 1), g.weights(4))
    sizes = g.op("Concat", g.op("Slice", g.op("Shape", y), g.ints(0), g.ints(2)), _tail(g, "x", 2), axis=0)
    y = g.op("Resize", y, "", "", sizes, mode="linear", coordinate_transformation_mode="pytorch_half_pixel")
    y = g.op("Softmax", y, axis=1)

    def draw(rng: np.random.Generator) -> Feeds:
        n, h, w = rng.integers(1, 4), rng.integers(5, 40), rng.integers(5, 40)
        return {"x": _floats(rng, n, 3, h, w)}

    return Case(g.model({"x": (FLOAT, ["N", 3, "H", "W"])}, [y]), draw)


def _tail(g: Graph, x: str, start: int) -> str:
    return g.op("Slice", g.op("Shape", x), g.ints(start), g.ints(9), g.ints(0))


def shuffle_net() -> Case:
    """Channel shuffle with batch taken from the shape."""
    g = Graph()
    y = g.op("Conv", "x", g.weights(8, 4, 1, 1), g.weights(8))
    n, h, w = (g.dim(y, k) for k in (0, 2, 3))
    split = g.op("Reshape", y, g.vector(n, 2, 4, h, w))
    y = g.op("Reshape", g.op("Transpose", split, perm=[0, 2, 1, 3, 4]), g.vector(n, -1, h, w))
    a, b = g.op("Split", y, axis=1, outputs=2)
    y = g.op("Concat", g.op("Relu", a), g.op("Conv", b, g.weights(4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]), axis=1)
    y = g.op("Flatten", g.op("GlobalAveragePool", y))
    y = g.op("Gemm", y, g.weights(5, 8), g.weights(5), transB=1)

    def draw(rng: np.random.Generator) -> Feeds:
        n, s = rng.integers(1, 9), rng.integers(1, 12)
        return {"x": _floats(rng, n, 4, s, s + 1)}

    return Case(g.model({"x": (FLOAT, ["N", 4, "H", "W"])}, [y]), draw)


def encoder(layers: int = 1, width: int = 16, most: int = 20) -> Case:
    """Self-attention with batch and tokens open, a mask made of int64 ones, positions by Range; up to ``most`` tokens,
    and a second product in each layer but the only one."""
    heads = 4
    g = Graph()
    table, positions = g.weights(50, width), g.weights(64, width)
    length = g.op("Squeeze", g.dim("ids", 1), g.ints(0))
    where = g.op("Range", g.const(np.int64(0)), length, g.const(np.int64(1)))
    y = g.op("Add", g.op("Gather", table, "ids"), g.op("Gather", positions, where))
    n, t = g.dim("ids", 0), g.dim("ids", 1)

    def split(x: str) -> str:
        return g.op("Transpose", g.op("Reshape", x, g.vector(n, t, heads, width // heads)), perm=[0, 2, 1, 3])

    mask = g.op("Cast", g.op("Unsqueeze", "mask", g.ints(1, 2)), to=FLOAT)
    wide = g.op("Expand", mask, g.vector(n, 1, t, t))
    bias = g.op("Mul", g.op("Sub", g.const(np.float32(1)), wide), g.const(np.float32(-1e4)))
    for _ in range(layers):
        q, k, v = (split(g.op("MatMul", y, g.weights(width, width))) for _ in range(3))
        scores = g.op("Div", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), g.const(np.float32(2)))
        mixed = g.op("MatMul", g.op("Softmax", g.op("Add", scores, bias), axis=-1), v)
        joined = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.vector(n, t, width))
        y = g.op("Add", y, g.op("MatMul", joined, g.weights(width, width)))
        y = g.op("LayerNormalization", y, g.weights(width), g.weights(width), axis=-1)
        if layers > 1:
            inner = g.op("Relu", g.op("MatMul", y, g.weights(width, 4 * width)))
            y = g.op("Add", y, g.op("MatMul", inner, g.weights(4 * width, width)))
            y = g.op("LayerNormalization", y, g.weights(width), g.weights(width), axis=-1)

    def draw(rng: np.random.Generator) -> Feeds:
        n, t = rng.integers(1, 5), rng.integers(1, most)
        mask = (rng.random((n, t)) < 0.8).astype(np.int64)
        mask[:, 0] = 1
        return {"ids": rng.integers(0, 50, (n, t)), "mask": mask}

    shapes = {"ids": (INT64, ["batch", "tokens"]), "mask": (INT64, ["batch", "tokens"])}
    return Case(g.model(shapes, [y]), draw)


def decoder() -> Case:
    """A step with a cache: batch, new tokens and past are open; the causal mask is a slice of a triangle."""
    width, heads = 16, 2
    g = Graph()
    n, t = g.dim("x", 0), g.dim("x", 1)
    past = g.dim("past_k", 2)
    total = g.op("Add", past, t)

    def split(x: str) -> str:
        return g.op("Transpose", g.op("Reshape", x, g.vector(n, t, heads, width // heads)), perm=[0, 2, 1, 3])

    q, k, v = (split(g.op("MatMul", "x", g.weights(width, width))) for _ in range(3))
    k, v = g.op("Concat", "past_k", k, axis=2), g.op("Concat", "past_v", v, axis=2)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    ones = g.op("ConstantOfShape", g.vector(total, total), value=numpy_helper.from_array(np.ones(1, np.float32)))
    triangle = g.op("Slice", g.op("Trilu", ones, upper=0), past, total, g.ints(0), g.ints(1))
    allowed = g.op("Cast", triangle, to=BOOL)
    scores = g.op("Where", allowed, scores, g.const(np.float32(-1e9)))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    y = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, width))

    def draw(rng: np.random.Generator) -> Feeds:
        n, t, p = rng.integers(1, 4), rng.integers(1, 6), rng.integers(0, 10)
        cache = (n, heads, p, width // heads)
        return {"x": _floats(rng, n, t, width), "past_k": _floats(rng, *cache), "past_v": _floats(rng, *cache)}

    cache = (FLOAT, ["batch", heads, "past", width // heads])
    shapes = {"x": (FLOAT, ["batch", "tokens", width]), "past_k": cache, "past_v": cache}
    return Case(g.model(shapes, [y, k, v]), draw)


def recogniser() -> Case:
    """A CRNN: columns of a convolution's result are steps of an LSTM."""
    g = Graph()
    y = g.op("Relu", g.op("Conv", "x", g.weights(6, 1, 3, 3), g.weights(6), pads=[1, 1, 1, 1]))
    y = g.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    n, w = g.dim(y, 0), g.dim(y, 3)
    y = g.op("Transpose", g.op("Reshape", y, g.vector(n, 24, w)), perm=[2, 0, 1])
    zeros = g.op("ConstantOfShape", g.vector(2, n, 5))
    y, _, _ = g.op(
        "LSTM",
        *(y, g.weights(2, 20, 24), g.weights(2, 20, 5), g.weights(2, 40), "", zeros, zeros),
        outputs=3,
        direction="bidirectional",
        hidden_size=5,
    )
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))
    y = g.op("LogSoftmax", g.op("MatMul", y, g.weights(10, 7)), axis=-1)

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": _floats(rng, rng.integers(1, 4), 1, 8, rng.integers(4, 40))}

    return Case(g.model({"x": (FLOAT, ["N", 1, 8, "width"])}, [y]), draw)


def detector_head() -> Case:
    """RetinaNet's: the k best of a computed number of anchors, decoded, suppressed, gathered."""
    classes = 3
    g = Graph()
    scores = g.op("Sigmoid", g.op("Reshape", "scores", g.ints(-1, classes)))
    boxes = g.op("Reshape", "boxes", g.ints(-1, 4))
    count = g.op("Gather", g.op("Shape", scores), g.const(np.int64(0)), axis=0)
    k = g.op("Reshape", g.op("Min", count, g.const(np.int64(20))), g.ints(1))
    best, where = g.op("TopK", g.op("ReduceMax", scores, axes=[1], keepdims=0), k, outputs=2)
    chosen = g.op("Gather", boxes, where)
    corner, size = g.op("Split", chosen, g.ints(2, 2), axis=1, outputs=2)
    decoded = g.op("Concat", corner, g.op("Add", corner, g.op("Exp", size)), axis=1)
    keep = g.op("Greater", best, g.const(np.float32(0.5)))
    kept = g.op("Squeeze", g.op("NonZero", keep), g.ints(0))
    decoded, best = g.op("Gather", decoded, kept), g.op("Gather", best, kept)
    selected = g.op(
        "NonMaxSuppression",
        g.op("Unsqueeze", decoded, g.ints(0)),
        g.op("Unsqueeze", best, g.ints(0, 1)),
        *(g.ints(100), g.const(np.float32([0.5])), g.const(np.float32([0.1]))),
    )
    index = g.op("Squeeze", g.op("Slice", selected, g.ints(2), g.ints(3), g.ints(1)), g.ints(1))
    out, out_scores = g.op("Gather", decoded, index), g.op("Gather", best, index)
    ratio = g.op("Cast", g.op("Shape", "image"), to=FLOAT)
    out = g.op("Mul", out, g.op("Gather", ratio, g.const(np.int64(3)), axis=0))

    def draw(rng: np.random.Generator) -> Feeds:
        anchors = int(rng.integers(1, 40))
        return {
            "scores": _floats(rng, 1, anchors, classes),
            "boxes": _floats(rng, 1, anchors, 4),
            "image": _floats(rng, 1, 3, rng.integers(2, 9), rng.integers(2, 9)),
        }

    shapes = {
        "scores": (FLOAT, [1, "anchors", classes]),
        "boxes": (FLOAT, [1, "anchors", 4]),
        "image": (FLOAT, [1, 3, "H", "W"]),
    }
    return Case(g.model(shapes, [out, out_scores, index]), draw)


def single_shot() -> Case:
    """SSD's: heads on two maps of open height and width, boxes about a grid that Range makes, and of each class the
    best of those above a threshold, as many as there are or fewer, suppressed."""
    classes, anchors = 3, 2
    g = Graph()
    maps = [g.op("Relu", g.op("Conv", "x", g.weights(6, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))]
    maps.append(g.op("Relu", g.op("Conv", maps[0], g.weights(6, 6, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])))
    scores, boxes = [], []
    for level, y in enumerate(maps):
        for into, depth, scale in ((scores, classes, 1.0), (boxes, 4, 0.1)):
            head = g.op("Conv", y, g.weights(anchors * depth, 6, 3, 3, scale=scale), pads=[1, 1, 1, 1])
            h, w = g.dim(head, 2), g.dim(head, 3)
            parted = g.op("Reshape", head, g.vector(1, anchors, depth, h, w))
            into.append(g.op("Reshape", g.op("Transpose", parted, perm=[0, 3, 4, 1, 2]), g.ints(-1, depth)))
        rows, columns = (g.op("Range", *_counting(g, y, axis)) for axis in (2, 3))
        lens = g.vector(g.dim(y, 2), g.dim(y, 3))
        grid = [
            g.op("Expand", g.op("Unsqueeze", rows, g.ints(1)), lens),
            g.op("Expand", g.op("Unsqueeze", columns, g.ints(0)), lens),
        ]
        centres = g.op("Concat", *(g.op("Reshape", axis, g.ints(-1, 1)) for axis in grid), axis=1)
        tiled = g.op("Reshape", g.op("Tile", centres, g.ints(1, anchors)), g.ints(-1, 2))
        corner = g.op("Mul", g.op("Cast", tiled, to=FLOAT), g.const(np.float32(2 << level)))
        size = g.op("Add", corner, g.const(np.float32(3 << level)))
        boxes[level] = g.op("Add", boxes[level], g.op("Concat", corner, size, axis=1))
    probabilities = g.op("Softmax", g.op("Concat", *scores, axis=0), axis=-1)
    decoded = g.op("Concat", *boxes, axis=0)
    found = []
    for label in range(1, classes):
        of_class = g.op("Gather", probabilities, g.const(np.int64(label)), axis=1)
        kept = g.op("Squeeze", g.op("NonZero", g.op("Greater", of_class, g.const(np.float32(0.3)))), g.ints(0))
        above = g.op("Gather", of_class, kept)
        k = g.op("Min", g.op("Shape", above), g.ints(10))
        best, where = g.op("TopK", above, k, outputs=2)
        chosen = g.op("Gather", g.op("Gather", decoded, kept), where)
        selected = g.op(
            "NonMaxSuppression",
            g.op("Unsqueeze", chosen, g.ints(0)),
            g.op("Unsqueeze", best, g.ints(0, 1)),
            *(g.ints(100), g.const(np.float32([0.45])), g.const(np.float32([0.0]))),
        )
        index = g.op("Squeeze", g.op("Slice", selected, g.ints(2), g.ints(3), g.ints(1)), g.ints(1))
        found.append((g.op("Gather", chosen, index), g.op("Gather", best, index)))
    out, out_scores = (g.op("Concat", *parts, axis=0) for parts in zip(*found))

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": _floats(rng, 1, 3, rng.integers(3, 20), rng.integers(3, 20))}

    return Case(g.model({"x": (FLOAT, [1, 3, "H", "W"])}, [out, out_scores]), draw)


def _counting(g: Graph, x: str, axis: int) -> list[str]:
    """Inputs of a Range over one length."""
    return [g.const(np.int64(0)), g.op("Squeeze", g.dim(x, axis), g.ints(0)), g.const(np.int64(1))]


def two_stages() -> Case:
    """Proposals above a threshold, RoiAlign on as many as there are, then a box head."""
    g = Graph()
    features = g.op("Relu", g.op("Conv", "x", g.weights(4, 3, 3, 3), pads=[1, 1, 1, 1]))
    keep = g.op("NonZero", g.op("Greater", "confidence", g.const(np.float32(0))))
    rois = g.op("Gather", "proposals", g.op("Squeeze", keep, g.ints(0)))
    number = g.dim(rois, 0)
    batch = g.op("ConstantOfShape", number, value=numpy_helper.from_array(np.zeros(1, np.int64)))
    pooled = g.op("RoiAlign", features, rois, batch, output_height=3, output_width=3, sampling_ratio=2)
    y = g.op("Reshape", pooled, g.vector(number, 36))
    y = g.op("Relu", g.op("Gemm", y, g.weights(8, 36), g.weights(8), transB=1))
    y = g.op("Softmax", g.op("Gemm", y, g.weights(5, 8), g.weights(5), transB=1), axis=1)

    def draw(rng: np.random.Generator) -> Feeds:
        count, h, w = rng.integers(1, 30), rng.integers(6, 20), rng.integers(6, 20)
        corner = rng.random((count, 2)) * 3
        confidence = _floats(rng, count)
        return {
            "x": _floats(rng, 1, 3, h, w),
            "proposals": np.concatenate([corner, corner + 1 + rng.random((count, 2)) * 3], 1).astype(np.float32),
            "confidence": confidence,
        }

    shapes = {
        "x": (FLOAT, [1, 3, "H", "W"]),
        "proposals": (FLOAT, ["proposals", 4]),
        "confidence": (FLOAT, ["proposals"]),
    }
    return Case(g.model(shapes, [y, rois]), draw)


MODELS: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (fully_convolutional, shuffle_net, encoder, decoder, recogniser, detector_head, single_shot, two_stages)
}
