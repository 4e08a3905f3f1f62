"""Layers by themselves: contractions with each usual epilogue, norms, attention, pooling, and what moves data.

A held-out network seldom has a layer that is new, but often a pair of layer and epilogue that no network of the corpus
has. Each pair is a small model; sizes are those of usual networks, for these choose a solver.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.prebuild.corpus.item import Item, parsed

__all__ = ["items"]

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8


class Graph:
    """Nodes and constants of a small model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._rng = np.random.default_rng(0)

    def input(self, *lens: int | str, dtype: int = FLOAT) -> str:
        """Return a new input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(lens)))
        return name

    def const(self, value: object, dtype: type = np.float32) -> str:
        """Return a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        """Return a constant vector of integers."""
        return self.const(values, np.int64)

    def weights(self, *lens: int) -> str:
        """Return random weights."""
        return self.const(self._rng.standard_normal(lens) * 0.05)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of a node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def model(self, *results: str) -> onnx.ModelProto:
        """Return the model."""
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(self.nodes, "layer", self.inputs, outputs, self.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        )
        model.ir_version = 10
        return model


Epilogue = Callable[[Graph, str, Callable[[], str]], str]
"""A function of the graph, a layer's result, and a function that gives another input of the result's shape."""


def _gelu_nodes(g: Graph, x: str, other: Callable[[], str]) -> str:
    shifted = g.op("Add", g.op("Erf", g.op("Div", x, g.const(math.sqrt(2)))), g.const(1.0))
    return g.op("Mul", g.op("Mul", x, shifted), g.const(0.5))


def _hardswish_nodes(g: Graph, x: str, other: Callable[[], str]) -> str:
    shifted = g.op("Clip", g.op("Add", x, g.const(3.0)), g.const(0.0), g.const(6.0))
    return g.op("Div", g.op("Mul", x, shifted), g.const(6.0))


def _scaled(g: Graph, x: str) -> str:
    """Return learned scalars times and plus an activation, as PaddlePaddle's mobile networks have them."""
    return g.op("Add", g.op("Mul", x, g.weights(1)), g.weights(1))


EPILOGUES: dict[str, Epilogue] = {
    "nothing": lambda g, x, other: x,
    "relu": lambda g, x, other: g.op("Relu", x),
    "relu6": lambda g, x, other: g.op("Clip", x, g.const(0.0), g.const(6.0)),
    "silu": lambda g, x, other: g.op("Mul", x, g.op("Sigmoid", x)),
    "sigmoid": lambda g, x, other: g.op("Sigmoid", x),
    "tanh": lambda g, x, other: g.op("Tanh", x),
    "hardswish": lambda g, x, other: g.op("HardSwish", x),
    "hardswish nodes": _hardswish_nodes,
    "hardswish scaled": lambda g, x, other: _scaled(g, _hardswish_nodes(g, x, other)),
    "relu scaled": lambda g, x, other: _scaled(g, g.op("Relu", x)),
    "hardsigmoid 0.2": lambda g, x, other: g.op("HardSigmoid", x, alpha=0.2, beta=0.5),
    "hardsigmoid": lambda g, x, other: g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "gelu": _gelu_nodes,
    "gelu tanh": lambda g, x, other: g.op("Gelu", x, approximate="tanh"),
    "leaky": lambda g, x, other: g.op("LeakyRelu", x, alpha=0.1),
    "elu": lambda g, x, other: g.op("Elu", x),
    "mish": lambda g, x, other: g.op("Mish", x),
    "softplus": lambda g, x, other: g.op("Softplus", x),
    "add": lambda g, x, other: g.op("Add", x, other()),
    "add relu": lambda g, x, other: g.op("Relu", g.op("Add", x, other())),
    "relu add": lambda g, x, other: g.op("Add", other(), g.op("Relu", x)),
    "gate": lambda g, x, other: g.op("Mul", g.op("Mul", x, g.op("Sigmoid", x)), other()),
    "silu add": lambda g, x, other: g.op("Add", other(), g.op("Mul", x, g.op("Sigmoid", x))),
    "multiply": lambda g, x, other: g.op("Mul", x, other()),
    "scale": lambda g, x, other: g.op("Mul", x, g.const(0.125)),
}

CONVOLUTIONS = [
    # channels in, channels out, taps, stride, groups, image, dilation
    (3, 32, 3, 2, 1, 224, 1), (3, 64, 7, 2, 1, 224, 1), (3, 64, 3, 1, 1, 64, 1), (3, 96, 4, 4, 1, 224, 1),
    (3, 768, 16, 16, 1, 224, 1), (1, 32, 3, 1, 1, 64, 1), (3, 32, 6, 2, 1, 224, 1),
    (64, 64, 1, 1, 1, 56, 1), (64, 256, 1, 1, 1, 56, 1), (256, 512, 1, 2, 1, 28, 1), (320, 1280, 1, 1, 1, 7, 1),
    (16, 96, 1, 1, 1, 112, 1), (960, 160, 1, 1, 1, 7, 1), (24, 8, 1, 1, 1, 1, 1),
    (64, 64, 3, 1, 1, 56, 1), (128, 256, 3, 2, 1, 28, 1), (512, 512, 3, 1, 1, 7, 1), (64, 64, 3, 1, 1, 28, 2),
    (32, 32, 5, 1, 1, 28, 1), (16, 16, 3, 1, 1, 160, 1),
    (96, 96, 3, 1, 96, 56, 1), (144, 144, 3, 2, 144, 56, 1), (240, 240, 5, 1, 240, 14, 1),
    (240, 240, 5, 2, 240, 28, 1), (96, 96, 7, 1, 96, 56, 1), (128, 128, 3, 1, 128, 14, 2),
    (1, 24, 3, 1, 1, 64, 1), (3, 24, 3, 2, 1, 160, 1), (24, 104, 1, 1, 1, 28, 1), (104, 40, 1, 1, 1, 14, 1),
    (40, 40, 3, 1, 1, 28, 1), (72, 72, 3, 1, 72, 24, 1), (104, 104, 3, 1, 13, 14, 1), (104, 104, 3, 2, 13, 14, 1),
    (128, 128, 3, 1, 32, 28, 1), (240, 240, 3, 2, 15, 28, 1), (64, 64, 1, 1, 4, 28, 1),
    (96, 96, 3, 1, 96, 40, 1), (96, 96, 3, 1, 96, 20, 1), (96, 96, 3, 2, 96, 40, 1),
    (96, 96, 5, 1, 96, 40, 1), (96, 96, 5, 1, 96, 20, 1), (96, 96, 5, 2, 96, 40, 1),
]  # fmt: skip
PRODUCTS = [
    # rows, inputs, outputs
    (1, 768, 768), (1, 512, 10), (1, 40, 100), (8, 256, 256), (128, 768, 768), (128, 768, 3072), (197, 384, 1152),
    (50, 64, 64),
]  # fmt: skip


EXACT = {*"nothing relu relu6 silu sigmoid hardswish gelu leaky add multiply".split(), "add relu", "silu add"}
"""Epilogues of usual networks, which are planned without ``fast_math`` too."""
OPEN_BATCH = {"nothing", "relu", "silu", "add", "add relu", "relu6", "sigmoid", "hardswish"}
OPEN_IMAGES = {*"nothing relu silu relu6 sigmoid hardswish leaky".split(), "hardswish nodes", "hardswish scaled"}
"""Epilogues of convolutions whose image has open lengths, as those of detectors and readers of text."""
KINDS = ("", "open", "rank 3", "open rank 3")
"""Of products: whether rows have names, and whether they lie in two dimensions."""


def items() -> Iterator[Item]:
    """Return all layers."""
    for layer, (name, epilogue) in itertools.product(CONVOLUTIONS, EPILOGUES.items()):
        yield from _items(f"convolution {layer} {name}", partial(_convolution, layer, epilogue, 1), name in EXACT)
        if name in OPEN_BATCH:
            yield from _items(f"convolution {layer} {name}, open", partial(_convolution, layer, epilogue, "n"))
        if name in OPEN_IMAGES and layer[5] > 1:
            yield from _items(
                f"convolution {layer} {name}, open image", partial(_convolution, layer, epilogue, "n", ("h", "w"))
            )
    for product, (name, epilogue), kind in itertools.product(PRODUCTS, EPILOGUES.items(), KINDS):
        yield from _items(f"product {product} {name} {kind}", partial(_product, product, epilogue, kind), name in EXACT)
    for name, make in {**POINTWISE, **NORMS, **MOVES}.items():
        for kind in ("", "open"):
            yield from _items(f"{name} {kind}", partial(make, 1 if not kind else "n"), True)


def _items(name: str, make: Callable[[], onnx.ModelProto], exact: bool = False) -> Iterator[Item]:
    yield Item(name, lambda: parsed(make()), threads=(1, 4))
    if exact:
        yield Item(f"{name}, exact", lambda: parsed(make()), (4,), {"fast_math": False})


def _convolution(
    layer: tuple[int, ...], epilogue: Epilogue, batch: int | str, lens: tuple[str, ...] = ()
) -> onnx.ModelProto:
    wide, narrow, taps, stride, groups, image, dilation = layer
    g = Graph()
    pad = dilation * (taps // 2) if stride < taps or taps == 1 else 0
    x = g.op(
        "Conv", g.input(batch, wide, *(lens or (image, image))), g.weights(narrow, wide // groups, taps, taps),
        g.weights(narrow),
        strides=[stride] * 2, group=groups, pads=[pad] * 4, dilations=[dilation] * 2,
    )  # fmt: skip
    size = (image + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
    return g.model(epilogue(g, x, lambda: g.input(batch, narrow, size, size)))


def _product(product: tuple[int, int, int], epilogue: Epilogue, kind: str) -> onnx.ModelProto:
    rows, k, n = product
    g = Graph()
    if "rank 3" in kind:
        lens: list[int | str] = ["b", "s"] if "open" in kind else [1, rows]
        x = g.op("Add", g.op("MatMul", g.input(*lens, k), g.weights(k, n)), g.weights(n))
    else:
        lens = ["n" if kind else rows]
        x = g.op("Gemm", g.input(*lens, k), g.weights(n, k), g.weights(n), transB=1)
    return g.model(epilogue(g, x, lambda: g.input(*lens, n)))


def _pointwise(epilogue: Epilogue, lens: tuple[int, ...], batch: int | str) -> onnx.ModelProto:
    g = Graph()
    return g.model(epilogue(g, g.input(batch, *lens), lambda: g.input(batch, *lens)))


Maker = Callable[[int | str], onnx.ModelProto]
POINTWISE: dict[str, Maker] = {
    f"{name} of {lens}": partial(_pointwise, epilogue, lens)
    for (name, epilogue), lens in itertools.product(EPILOGUES.items(), ((64, 28, 28), (197, 384), (1000,)))
}


OPERANDS: dict[str, Callable[[Graph, int | str], str]] = {
    "scalar": lambda g, batch: g.const(0.7),
    "channels": lambda g, batch: g.weights(64, 1, 1),
    "row": lambda g, batch: g.weights(28),
    "images": lambda g, batch: g.input(batch, 1, 1, 1),
    "gates": lambda g, batch: g.input(batch, 64, 1, 1),
    "map": lambda g, batch: g.input(batch, 1, 28, 28),
}
"""Right-hand sides that are broadcast to images of 64 channels."""


def _broadcast(op: str, operand: str, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    return g.model(g.op(op, g.input(batch, 64, 28, 28), OPERANDS[operand](g, batch)))


def _reduced(op: str, axes: tuple[int, ...], keep: int, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    return g.model(g.op(op, g.input(batch, 64, 28, 28), g.ints(*axes), keepdims=keep))


POINTWISE |= {
    f"{op} of {operand}": partial(_broadcast, op, operand)
    for op, operand in itertools.product(("Add", "Sub", "Mul", "Div"), OPERANDS)
}
POINTWISE |= {
    f"{op} over {axes} {keep}": partial(_reduced, op, axes, keep)
    for op, axes, keep in itertools.product(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"), ((-1,), (2, 3), (1,)), (0, 1)
    )
}


def _normed(kind: str, width: int, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.input(batch, 197, width)
    if "add" in kind:
        x = g.op("Add", x, g.input(batch, 197, width))
    if "layer" in kind:
        y = g.op("LayerNormalization", x, g.weights(width), g.weights(width), epsilon=1e-5)
    elif "rms" in kind:
        mean = g.op("ReduceMean", g.op("Pow", x, g.const(2.0)), g.const([-1], np.int64))
        y = g.op("Mul", g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.const(1e-6)))), g.weights(width))
    else:
        y = g.op(kind.split()[-1], x, axis=-1)
    return g.model(*((y, x) if "add" in kind else (y,)))


def _image_norm(op: str, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.input(batch, 64, 28, 28)
    if op == "group":
        y = g.op("Reshape", x, g.const([0, 32, -1], np.int64))
        y = g.op("InstanceNormalization", y, g.const(np.ones(32)), g.const(np.zeros(32)))
        y = g.op("Reshape", y, g.op("Shape", x))
        y = g.op("Add", g.op("Mul", y, g.weights(64, 1, 1)), g.weights(64, 1, 1))
    elif op == "batch":
        y = g.op("BatchNormalization", x, *(g.const(np.ones(64)) for _ in range(4)))
    else:
        y = g.op("InstanceNormalization", x, g.weights(64), g.weights(64))
    return g.model(g.op("Mul", y, g.op("Sigmoid", y)), y)


def _attention(heads: int, size: int, tokens: int, mask: str, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.input(batch, tokens, heads * size)
    q, k, v = (
        g.op(
            "Transpose",
            g.op(
                "Reshape",
                g.op("Add", g.op("MatMul", x, g.weights(heads * size, heads * size)), g.weights(heads * size)),
                g.const([0, -1, heads, size], np.int64),
            ),
            perm=perm,
        )
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = g.op("Mul", g.op("MatMul", q, k), g.const(size**-0.5))
    if mask:
        scores = g.op("Add", scores, g.input(batch, 1, tokens if mask == "square" else 1, tokens))
    y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.const([0, -1, heads * size], np.int64))
    y = g.op("Add", g.op("MatMul", y, g.weights(heads * size, heads * size)), g.weights(heads * size))
    return g.model(g.op("Add", x, y))


NORMS: dict[str, Maker] = {
    **{
        f"{kind} of {width}": partial(_normed, kind, width)
        for kind in ("layer", "add layer", "rms", "add rms", "Softmax", "LogSoftmax")
        for width in (64, 384, 768, 1280)
    },
    **{f"{op} norm": partial(_image_norm, op) for op in ("group", "batch", "instance")},
    **{
        f"attention {heads} {size} {tokens} {mask}": partial(_attention, heads, size, tokens, mask)
        for heads, size, tokens in ((12, 64, 128), (6, 64, 197), (8, 32, 64), (8, 40, 256))
        for mask in ("", "row", "square")
    },
}


def _squeeze(batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.input(batch, 96, 28, 28)
    y = g.op("GlobalAveragePool", x)
    y = g.op("Relu", g.op("Conv", y, g.weights(24, 96, 1, 1), g.weights(24)))
    y = g.op("Sigmoid", g.op("Conv", y, g.weights(96, 24, 1, 1), g.weights(96)))
    return g.model(g.op("Mul", x, y))


def _squeezed_product(narrow: int, epilogue: str, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.op("Mul", g.input(batch, 96, 28, 28), g.op("Sigmoid", g.input(batch, 96, 1, 1)))
    x = g.op("Conv", x, g.weights(narrow, 96, 1, 1), g.weights(narrow))
    return g.model(EPILOGUES[epilogue](g, x, lambda: g.input(batch, narrow, 28, 28)))


def _pixels(batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.op("Cast", g.input(batch, 224, 224, 3, dtype=UINT8), to=FLOAT)
    x = g.op("Div", g.op("Sub", g.op("Div", x, g.const(255.0)), g.weights(3)), g.weights(3))
    return g.model(g.op("Transpose", x, perm=[0, 3, 1, 2]))


def _embedding(batch: int | str) -> onnx.ModelProto:
    g = Graph()
    ids = g.input(batch, 128, dtype=INT64)
    x = g.op("Add", g.op("Gather", g.weights(1000, 768), ids), g.op("Gather", g.weights(2, 768), g.const(0, np.int64)))
    x = g.op("Add", x, g.weights(1, 128, 768))
    return g.model(g.op("LayerNormalization", x, g.weights(768), g.weights(768)))


def _move(op: str, attributes: Mapping[str, Any], lens: tuple[int, ...], batch: int | str) -> onnx.ModelProto:
    g = Graph()
    return g.model(g.op(op, g.input(batch, *lens), **attributes))


def _resized(mode: str, coordinates: str, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    scales = g.const([1, 1, 2, 2])
    return g.model(
        g.op("Resize", g.input(batch, 64, 28, 28), "", scales, mode=mode, coordinate_transformation_mode=coordinates)
    )


def _joined(batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x, y = g.input(batch, 64, 28, 28), g.input(batch, 64, 14, 14)
    up = g.op("Resize", y, "", g.const([1, 1, 2, 2]), mode="nearest", nearest_mode="floor")
    return g.model(g.op("Concat", x, up, axis=1))


def _transposed(taps: int, batch: int | str) -> onnx.ModelProto:
    g = Graph()
    x = g.op(
        "ConvTranspose", g.input(batch, 64, 28, 28), g.weights(64, 32, taps, taps), g.weights(32),
        strides=[2, 2], pads=[(taps - 2) // 2] * 4,
    )  # fmt: skip
    return g.model(g.op("Relu", x))


def _line(layer: tuple[int, ...], epilogue: str, batch: int | str) -> onnx.ModelProto:
    wide, narrow, taps, stride, groups = layer
    g = Graph()
    x = g.op(
        "Conv", g.input(batch, wide, 400), g.weights(narrow, wide // groups, taps), g.weights(narrow),
        strides=[stride], group=groups, pads=[taps // 2] * 2,
    )  # fmt: skip
    return g.model(EPILOGUES[epilogue](g, x, lambda: x))


IMAGE = (64, 28, 28)
MOVES: dict[str, Maker] = {
    "squeeze and excitation": _squeeze,
    **{
        f"squeezed product of {narrow} {epilogue}": partial(_squeezed_product, narrow, epilogue)
        for narrow in (24, 104, 160)
        for epilogue in (
            "nothing",
            "add",
            "relu",
            "add relu",
            "silu",
            "hardswish",
            "hardswish nodes",
            "hardswish scaled",
        )
    },
    "pixels": _pixels,
    "embedding": _embedding,
    "joined": _joined,
    **{f"transposed convolution {taps}": partial(_transposed, taps) for taps in (2, 3, 4)},
    **{
        f"line {layer} {epilogue}": partial(_line, layer, epilogue)
        for layer in ((80, 384, 3, 1, 1), (384, 384, 3, 2, 1), (1, 64, 10, 5, 1), (64, 64, 5, 1, 64), (64, 64, 1, 1, 1))
        for epilogue in ("nothing", "relu", "gelu", "silu", "leaky", "tanh")
    },
    **{
        f"resize {mode} {coordinates}": partial(_resized, mode, coordinates)
        for mode in ("nearest", "linear")
        for coordinates in ("asymmetric", "half_pixel", "align_corners")
    },
    **{
        f"{op} {attributes}": partial(_move, op, attributes, lens)
        for op, attributes, lens in (
            ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, IMAGE),
            ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, IMAGE),
            ("MaxPool", {"kernel_shape": [5, 5], "pads": [2] * 4}, IMAGE),
            ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, IMAGE),
            ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}, IMAGE),
            ("GlobalAveragePool", {}, IMAGE),
            ("GlobalMaxPool", {}, IMAGE),
            ("Transpose", {"perm": [0, 2, 3, 1]}, IMAGE),
            ("Transpose", {"perm": [0, 2, 1]}, (197, 384)),
            ("Softmax", {"axis": 1}, IMAGE),
            ("ArgMax", {"axis": 1}, IMAGE),
            ("ArgMax", {"axis": -1}, (1000,)),
            ("Softmax", {"axis": -1}, (1000,)),
            ("DepthToSpace", {"blocksize": 2}, IMAGE),
            ("SpaceToDepth", {"blocksize": 2}, IMAGE),
            ("LRN", {"size": 5}, IMAGE),
            ("LpNormalization", {"axis": -1}, (384,)),
            ("Cast", {"to": TensorProto.FLOAT16}, IMAGE),
            ("Flatten", {}, IMAGE),
        )
    },
}
