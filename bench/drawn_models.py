"""Random models of one or two operators, by kind: their graphs, inputs and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.models.builder import GraphBuilder
from bench.random_problems import length

OPSET, CONTRIB = 21, "com.microsoft"
MOST_FLOPS, MOST_ELEMENTS = 2e9, 1 << 22
"""Most operations (20 ms at 100 GFLOP/s) and elements of a value of a problem."""


class Drawn(GraphBuilder):
    """A model under construction, with random choices and the values of its inputs."""

    def __init__(self, kind: str, seed: int, index: int) -> None:
        super().__init__(kind, OPSET)
        self.rng = np.random.default_rng([seed, index, *map(ord, kind)])
        self.feeds: dict[str, np.ndarray] = {}
        self.label: list[str] = []

    def pick(self, *values: Any) -> Any:
        """Return one of ``values``."""
        return values[self.rng.integers(len(values))]

    def flag(self, share: float, text: str = "") -> bool:
        """Return true for ``share`` of the calls, and add ``text`` to the label then."""
        drawn = bool(self.rng.random() < share)
        if drawn and text:
            self.label.append(text)
        return drawn

    def n(self, low: int, high: int) -> int:
        """Return a length whose logarithm is uniform; a third of the lengths are odd ones."""
        return length(self.rng, low, high)

    def lens(self, low: int = 1, high: int = 4, most: int = MOST_ELEMENTS) -> tuple[int, ...]:
        """Return the lengths of a tensor of ``low`` to ``high`` axes."""
        while True:
            rank = int(self.rng.integers(low, high + 1))
            lens = tuple(self.n(1, (1 << 16, 2048, 512, 128)[rank - 1]) for _ in range(rank))
            if 256 <= prod(lens) <= most:
                return lens

    def values(self, lens: Sequence[int], dtype: Any = np.float32, low: int = 0, high: int = 0) -> np.ndarray:
        """Return random numbers: normal ones, or integers from ``low`` to ``high`` - 1 for integer types."""
        if np.issubdtype(dtype, np.integer):
            bounds = (low, high) if high else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            return self.rng.integers(*bounds, lens).astype(dtype)
        return self.rng.standard_normal(lens, np.float32).astype(dtype)

    def x(self, *lens: int, dtype: Any = np.float32, low: int = 0, high: int = 0) -> str:
        """Return a new input."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.values(lens, dtype, low, high)
        self.label.append("x".join(map(str, lens)) + ("" if dtype == np.float32 else f" {np.dtype(dtype)}"))
        return self.input(name, lens, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def scalar(self, value: int) -> str:
        """Return an int64 constant without axes."""
        return str(self.const(value, np.int64))

    def given(self, value: np.ndarray) -> str:
        """Return a new input with this value."""
        name = self.x(*value.shape, dtype=value.dtype)
        self.feeds[name] = value
        return name

    def w(self, *lens: int, dtype: Any = np.float32, low: int = 0, high: int = 0, scale: float = 1.0) -> str:
        """Return a new constant."""
        self.label.append("w" + "x".join(map(str, lens)))
        value = self.values(lens, dtype, low, high)
        return self.weight(f"w{len(self._weights)}", value if scale == 1.0 else (value * scale).astype(dtype))

    def do(self, op: str, *inputs: str, count: int = 1, **attrs: Any) -> Any:
        """Append a node; return its result, or its results."""
        self.label.append(op + "".join(f" {k}={v}" for k, v in attrs.items() if k != "domain").replace(", ", ","))
        made = self.nodes(op, *inputs, count=count, **attrs)
        return made[0] if count == 1 else made

    def finished(self, *results: str) -> onnx.ModelProto:
        """Return the model."""
        model = onnx.ModelProto()
        for name, value in zip("yzuv", results):
            self.output(name, value, [])
        model = self.model()
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
        for value in model.graph.output:
            value.ClearField("type")
        return model


def activated(g: Drawn, y: str, channels: int, image: bool = False) -> str:
    """Append no, or a common epilogue."""
    if g.flag(0.3) and not image:
        y = g.do("Add", y, g.w(channels))
    form = g.pick("", "", "Relu", "Gelu", "Sigmoid", "silu", "tanh")
    if form == "silu":
        return str(g.do("Mul", y, g.do("Sigmoid", y)))
    return str(g.do(form.capitalize(), y)) if form else y


def products(g: Drawn, dtype: Any = np.float32) -> str:
    """Draw a product."""
    while True:
        m, n, k = g.n(1, 4096), g.n(1, 4096), g.n(1, 4096)
        batch = tuple(g.n(1, 64) for _ in range(g.pick(0, 0, 0, 1, 2)))
        if g.flag(0.3):
            m = g.pick(1, 1, 2, 4, 8)
        count = prod(batch)
        if 2.0 * m * n * k * count < MOST_FLOPS and count * max(m * n, m * k, n * k) < MOST_ELEMENTS:
            break
    form = g.pick("constant", "constant", "constant", "gemm", "inputs", "batched", "turned", "left")
    if form == "gemm":
        a, b = (int(g.flag(0.3)) for _ in range(2))
        c = g.w(n) if g.flag(0.5) else ""
        left = g.x(*((k, m) if a else (m, k)), dtype=dtype)
        right = g.w(*((n, k) if b else (k, n)), dtype=dtype, scale=k**-0.5)
        return activated(g, g.do("Gemm", left, right, *[c] * bool(c), transA=a, transB=b), n)
    if form == "constant":
        y = g.do("MatMul", g.x(*batch, m, k, dtype=dtype), g.w(k, n, dtype=dtype, scale=k**-0.5))
        return y if dtype != np.float32 else activated(g, y, n)
    if form == "left":
        return str(g.do("MatMul", g.w(m, k, dtype=dtype), g.x(*batch, k, n, dtype=dtype)))
    if form == "turned":
        order = [*range(len(batch)), len(batch) + 1, len(batch)]
        if g.flag(0.5):
            x, y = g.x(*batch, m, k, dtype=dtype), g.x(*batch, n, k, dtype=dtype)
            return str(g.do("MatMul", x, g.do("Transpose", y, perm=order)))
        left = g.do("Transpose", g.x(*batch, k, m, dtype=dtype), perm=order)
        return str(g.do("MatMul", left, g.x(*batch, k, n, dtype=dtype)))
    other = tuple(1 if g.flag(0.3) else length for length in batch) if form == "batched" else batch
    return str(g.do("MatMul", g.x(*batch, m, k, dtype=dtype), g.x(*other, k, n, dtype=dtype)))


def _convolution(g: Drawn, transposed: bool = False) -> dict[str, Any]:
    """Draw lengths and attributes of a convolution."""
    while True:
        rank = g.pick(1, 2, 2, 2, 2, 2, 3)
        kind = g.pick("dense", "dense", "dense", "few", "groups", "depthwise")
        k = g.pick(1, 3, 3, 5, 7) if kind in ("dense", "few") else g.pick(3, 3, 5, 7)
        groups, channels, out = 1, g.n(1, 512), g.n(1, 512)
        if kind == "few":
            channels, out = g.pick((3, g.n(8, 64)), (1, g.n(1, 32)), (g.n(8, 64), g.pick(1, 2, 3)))
        elif kind == "groups":
            groups = g.pick(2, 4, 8, 32)
            channels, out = groups * g.n(1, 32), groups * g.n(1, 32)
        elif kind == "depthwise":
            groups = channels = g.n(3, 512)
            out = channels * g.pick(1, 1, 1, 2)
        side = g.n(4, (4096, 224, 28)[rank - 1])
        lens = (side,) * rank
        stride, dilation = g.pick(1, 1, 1, 2, 4) if not transposed else g.pick(1, 2, 2), g.pick(1, 1, 1, 1, 2)
        pad = dilation * (k // 2)
        batch = g.pick(1, 1, 1, 2, 8)
        places = batch * prod(lens) * (stride**rank if transposed else 1)
        flops = 2.0 * places * channels * out / groups * k**rank / (1 if transposed else stride**rank)
        if flops < MOST_FLOPS and places * max(channels, out) < MOST_ELEMENTS and side > (k - 1) * dilation:
            break
    weights = (channels, out // groups, *(k,) * rank) if transposed else (out, channels // groups, *(k,) * rank)
    attrs = {
        "strides": [stride] * rank, "dilations": [dilation] * rank, "pads": [pad] * 2 * rank, "group": groups,
        "kernel_shape": [k] * rank,
    }  # fmt: skip
    return {"x": (batch, channels, *lens), "w": weights, "out": out, "attrs": attrs}


def convolutions(g: Drawn, dtype: Any = np.float32) -> str:
    """Draw a convolution."""
    own = _convolution(g)
    w = g.w(*own["w"], dtype=dtype, scale=prod(own["w"][1:]) ** -0.5)
    more = [g.w(own["out"], dtype=dtype)] if g.flag(0.6) else []
    y = g.do("Conv", g.x(*own["x"], dtype=dtype), w, *more, **own["attrs"])
    return y if dtype != np.float32 else activated(g, y, own["out"], image=True)


def transposed(g: Drawn) -> str:
    """Draw a transposed convolution."""
    own = _convolution(g, transposed=True)
    w = g.w(*own["w"], scale=prod(own["w"][1:]) ** -0.5)
    return str(g.do("ConvTranspose", g.x(*own["x"]), w, **own["attrs"]))


def attention(g: Drawn) -> str:
    """Draw an attention, as exported from PyTorch or as an operator of ONNX Runtime."""
    while True:
        batch, heads, depth = g.pick(1, 1, 2, 8), g.n(1, 16), g.pick(16, 32, 40, 48, 64, 64, 64, 80, 96, 128, 256)
        queries = 1 if g.flag(0.15) else g.n(4, 1024)
        keys = queries if g.flag(0.6) and queries > 1 else g.n(4, 1024)
        if 4.0 * batch * heads * queries * keys * depth < MOST_FLOPS and batch * heads * queries * keys < MOST_ELEMENTS:
            break
    if g.flag(0.3):
        width = heads * depth
        q, k, v = g.x(batch, queries, width), g.x(batch, keys, width), g.x(batch, keys, width)
        return str(g.do("MultiHeadAttention", q, k, v, num_heads=heads, domain=CONTRIB))
    q, v = g.x(batch, heads, queries, depth), g.x(batch, heads, keys, depth)
    if g.flag(0.5):
        k = g.x(batch, heads, depth, keys)
    else:
        k = g.do("Transpose", g.x(batch, heads, keys, depth), perm=[0, 1, 3, 2])
    scores = g.do("Mul", g.do("MatMul", q, k), g.const(depth**-0.5))
    mask = g.pick((), (), (batch, 1, 1, keys), (1, 1, queries, keys), (1, heads, queries, keys))
    if mask:
        scores = g.do("Add", scores, g.x(*mask))
    return str(g.do("MatMul", g.do("Softmax", scores, axis=-1), v))


def recurrent(g: Drawn) -> str:
    """Draw a recurrent layer."""
    op, gates = g.pick(("LSTM", 4), ("LSTM", 4), ("GRU", 3), ("GRU", 3), ("RNN", 1))
    ways = 1 + g.flag(0.3)
    while True:
        steps, batch, width, hidden = g.n(1, 128), g.pick(1, 1, 2, g.n(3, 64)), g.n(1, 512), g.n(4, 512)
        if 2.0 * steps * batch * (width + hidden) * hidden * gates < MOST_FLOPS / ways:
            break
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" and g.flag(0.6) else {}
    weights = [
        g.w(ways, gates * hidden, width, scale=hidden**-0.5), g.w(ways, gates * hidden, hidden, scale=hidden**-0.5),
        g.w(ways, 2 * gates * hidden, scale=hidden**-0.5),
    ]  # fmt: skip
    direction = "bidirectional" if ways == 2 else g.pick("forward", "forward", "reverse")
    more |= {"hidden_size": hidden, "direction": direction}
    return str(g.do(op, g.x(steps, batch, width), *weights, **more, count=2)[0])


def norms(g: Drawn) -> str:
    """Draw a normalisation."""
    form = g.pick("LayerNormalization", "LayerNormalization", "rms", "skip", "Batch", "Instance", "Group", "Lp")
    lens = g.lens(*{"LayerNormalization": (2, 4), "rms": (2, 4), "Lp": (2, 4), "skip": (3, 3)}.get(form, (3, 4)))
    if form in ("LayerNormalization", "skip"):
        scale, bias = g.w(lens[-1]), g.w(lens[-1])
        if form == "skip":
            return str(g.do("SkipLayerNormalization", g.x(*lens), g.x(*lens), scale, bias, domain=CONTRIB))
        return str(g.do(form, g.x(*lens), scale, bias, axis=-1))
    if form == "Lp":
        return str(g.do("LpNormalization", g.x(*lens), axis=int(g.rng.integers(len(lens))), p=2))
    x = g.x(*lens)
    if form == "rms":
        square = g.do("ReduceMean", g.do("Mul", x, x), g.ints(-1))
        root = g.do("Sqrt", g.do("Add", square, g.const(1e-5)))
        return str(g.do("Mul", g.do("Div", x, root), g.w(lens[-1])))
    if form == "Group":
        groups = g.pick(*[k for k in (1, 2, 4, 8, 32) if lens[1] % k == 0])
        return str(g.do("GroupNormalization", x, g.w(lens[1]), g.w(lens[1]), num_groups=groups))
    parts = [g.w(lens[1]) for _ in range(3)]
    if form == "Batch":
        return str(g.do("BatchNormalization", x, *parts, g.weight("var", g.uniform(lens[1], low=0.5, high=1.5))))
    return str(g.do("InstanceNormalization", x, *parts[:2]))


def reductions(g: Drawn, dtype: Any = np.float32) -> str:
    """Draw a reduction of random axes, or a softmax."""
    lens = g.lens()
    x = g.x(*lens, dtype=dtype)
    axis = int(g.rng.integers(len(lens)))
    form = g.pick("softmax", "softmax", "arg", "reduce", "reduce", "reduce")
    if form == "softmax":
        return str(g.do(g.pick("Softmax", "Softmax", "LogSoftmax"), x, axis=axis))
    if form == "arg" and dtype == np.float32:
        return str(g.do(g.pick("ArgMax", "ArgMin"), x, axis=axis))
    axes = [k for k in range(len(lens)) if k == axis or g.rng.random() < 0.35]
    op = g.pick("Sum", "Mean", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    g.label.append(f"axes={axes}".replace(" ", ""))
    return str(g.do(f"Reduce{op}", x, g.ints(*axes), keepdims=g.pick(0, 1)))


UNARY = (
    "Relu Sigmoid Tanh Exp Erf Gelu HardSwish HardSigmoid LeakyRelu Elu Softplus Abs Neg Floor Round Sin Cos Mish Selu "
    "Reciprocal Softsign Celu ThresholdedRelu Sign Not Log Sqrt Atan Sinh Asinh IsNaN Ceil Cast"
).split()


def pointwise(g: Drawn, dtype: Any = np.float32) -> str:
    """Draw one or two pointwise operations, of operands that broadcast."""
    lens = g.lens()
    x = g.x(*lens, dtype=dtype)
    if g.flag(0.5):
        op = g.pick(*UNARY)
        if op == "Not":
            return str(g.do("Not", g.do("Greater", x, g.const(0, dtype))))
        if op in ("Log", "Sqrt"):
            x = g.do("Abs", x)
        goal = {"to": g.pick(TensorProto.FLOAT16, TensorProto.INT32, TensorProto.UINT8)} if op == "Cast" else {}
        return str(g.do(op, x, **goal))
    kept = [n if g.rng.random() < 0.6 else 1 for n in lens][int(g.rng.integers(len(lens))) :]
    y = g.x(*kept, dtype=dtype) if g.flag(0.7) else g.w(*kept, dtype=dtype)
    op = g.pick("Add", "Mul", "Sub", "Div", "Max", "Min", "Greater", "Equal", "Pow", "PRelu", "Where", "Mod")
    if op == "Where":
        return str(g.do("Where", g.do("Greater", y, g.const(0, dtype)), x, y))
    if op == "Pow":
        return str(g.do("Pow", x, g.const(g.pick(2.0, 3.0, 0.5), dtype)))
    return str(g.do(op, x, y, **({"fmod": 1} if op == "Mod" else {})))


def moves(g: Drawn, dtype: Any = np.float32) -> str | list[str]:
    """Draw an operator that moves elements."""
    lens = g.lens(2, 4)
    rank, axis = len(lens), int(g.rng.integers(len(lens)))
    form = g.pick(
        "Transpose", "Transpose", "Concat", "Gather", "Gather", "embed", "GatherElements", "GatherND", "Slice", "Split",
        "Pad", "Expand", "Tile", "depth", "Scatter", "ScatterElements", "OneHot", "Trilu",
    )  # fmt: skip
    if form == "embed":
        table = g.w(g.n(16, 8192), g.n(8, 256), dtype=dtype)
        rows = g.x(g.n(1, 8), g.n(1, 256), dtype=np.int64, low=0, high=16)
        return str(g.do("Gather", table, rows))
    if form == "OneHot":
        ids = g.x(g.n(1, 64), g.n(1, 64), dtype=np.int64, low=0, high=10)
        return str(g.do("OneHot", ids, g.const(g.n(10, 512), np.int64), g.const([0.0, 1.0])))
    if form == "depth":
        a, b = g.pick((2, 4), (3, 9))
        x = g.x(g.pick(1, 2), g.n(1, 32) * b, g.n(1, 64) * a, g.n(1, 64) * a)
        return str(g.do(g.pick("DepthToSpace", "SpaceToDepth"), x, blocksize=a))
    x = g.x(*lens, dtype=dtype)
    if form == "Transpose":
        return str(g.do("Transpose", x, perm=[int(k) for k in g.rng.permutation(rank)]))
    if form == "Concat":
        lengths = [g.n(1, lens[axis]) for _ in range(g.pick(1, 1, 2, 3))]
        others = [g.x(*lens[:axis], n, *lens[axis + 1 :], dtype=dtype) for n in lengths]
        return str(g.do("Concat", x, *others, axis=axis))
    if form == "Gather":
        return str(g.do("Gather", x, g.x(g.n(1, 64), dtype=np.int64, low=0, high=lens[axis]), axis=axis))
    if form in ("GatherElements", "ScatterElements"):
        ids = g.x(*lens[:axis], g.n(1, lens[axis]), *lens[axis + 1 :], dtype=np.int64, low=0, high=lens[axis])
        if form == "GatherElements":
            return str(g.do(form, x, ids, axis=axis))
        return str(g.do(form, x, ids, g.x(*g.feeds["x1"].shape, dtype=dtype), axis=axis, reduction="add"))
    if form in ("GatherND", "Scatter"):
        ids = g.x(g.n(1, 256), 1, dtype=np.int64, low=0, high=lens[0])
        if form == "GatherND":
            return str(g.do(form, x, ids))
        return str(g.do("ScatterND", x, ids, g.x(g.feeds["x1"].shape[0], *lens[1:], dtype=dtype)))
    if form == "Slice":
        step = g.pick(1, 1, 2, -1)
        begin, end = (lens[axis] - 1, -lens[axis] - 1) if step < 0 else (lens[axis] // 4, lens[axis])
        g.label.append(f"axis={axis} step={step}")
        return str(g.do("Slice", x, g.ints(begin), g.ints(end), g.ints(axis), g.ints(step)))
    if form == "Split" and lens[axis] > 1:
        return list(g.do("Split", x, g.ints(lens[axis] // 2, lens[axis] - lens[axis] // 2), axis=axis, count=2))
    if form == "Expand":
        return str(g.do("Expand", g.x(*(n if g.flag(0.5) else 1 for n in lens), dtype=dtype), g.ints(*lens)))
    if form == "Tile":
        return str(g.do("Tile", x, g.ints(*(2 if k == axis else 1 for k in range(rank)))))
    if form == "Trilu":
        return str(g.do("Trilu", x, upper=g.pick(0, 1)))
    mode = g.pick("constant", "reflect", "edge") if min(lens) > 2 else "constant"
    return str(g.do("Pad", x, g.ints(*(int(g.rng.integers(3)) for _ in range(2 * rank))), mode=mode))


def images(g: Drawn) -> str:
    """Draw a pooling, resizing or sampling of images."""
    while True:
        lens = (g.pick(1, 1, 2, 8), g.n(1, 256), g.n(4, 128), g.n(4, 128))
        if prod(lens) < MOST_ELEMENTS // 4:
            break
    x = g.x(*lens)
    form = g.pick("pool", "pool", "pool", "global", "resize", "resize", "resize", "lrn", "grid", "lp")
    if form == "pool":
        k = g.pick(2, 2, 3, 3, 4)
        op = g.pick("MaxPool", "MaxPool", "AveragePool")
        more = {"count_include_pad": g.pick(0, 1)} if op == "AveragePool" else {}
        pads = [g.pick(0, (k - 1) // 2)] * 4
        return str(g.do(op, x, kernel_shape=[k, k], strides=[g.pick(1, 2, k)] * 2, pads=pads, **more))
    if form == "global":
        return str(g.do(g.pick("GlobalAveragePool", "GlobalMaxPool"), x))
    if form == "lrn":
        return str(g.do("LRN", x, size=5))
    if form == "lp":
        return str(g.do("LpPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    if form == "grid":
        return str(g.do("GridSample", x, g.x(lens[0], g.n(4, 64), g.n(4, 64), 2), mode=g.pick("linear", "nearest")))
    scale = g.pick((2.0, 2.0), (2.0, 2.0), (0.5, 0.5), (1.7, 0.8))
    mode = g.pick("nearest", "linear", "linear", "cubic")
    rule = g.pick("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    g.label.append(f"{scale}")
    return str(g.do("Resize", x, "", g.const([1.0, 1.0, *scale]), mode=mode, coordinate_transformation_mode=rule))


def ordering(g: Drawn) -> str | list[str]:
    """Draw an operator that sorts, selects or accumulates."""
    lens = g.lens(1, 3, 1 << 20)
    axis = int(g.rng.integers(len(lens)))
    form = g.pick("TopK", "TopK", "TopK", "CumSum", "CumSum", "sort", "NonZero", "Unique", "Compress")
    x = g.x(*lens)
    if form in ("TopK", "sort"):
        k = lens[axis] if form == "sort" else min(lens[axis], g.pick(1, 5, 10, 50, 100))
        g.label.append(f"k={k}")
        return list(g.do("TopK", x, g.ints(k), axis=axis, largest=g.pick(1, 1, 0), count=2))
    if form == "CumSum":
        return str(g.do("CumSum", x, g.const(axis, np.int64), reverse=g.pick(0, 0, 1)))
    if form == "NonZero":
        return str(g.do("NonZero", g.do("Relu", x)))
    if form == "Unique":
        return str(g.do("Unique", g.do("Round", x)))
    keep = g.weight("keep", g.rng.random(lens[axis]) < 0.5)
    return str(g.do("Compress", x, keep, axis=axis))


def half(g: Drawn) -> Any:
    """Draw a problem of another kind with float16 or bfloat16 inputs."""
    kind = g.pick(products, convolutions, pointwise, reductions, moves)
    return kind(g, dtype=g.pick(np.float16, np.float16, ml_dtypes.bfloat16))


def quantised(g: Drawn) -> Any:
    """Draw a product or convolution in 8 bits."""
    form = g.pick("qdq", "qdq", "conv", "conv", "linear", "linear_conv", "integer", "dynamic")
    scale, zero = g.const(0.02), g.const(g.pick(0, 3, 128), np.uint8)
    if "conv" in form:
        own = _convolution(g)
        each = (own["out"],) if g.flag(0.7, "per channel") else ()
        w = g.w(*own["w"], dtype=np.int8)
        scales = g.const(np.full(each, 0.01)), g.const(np.zeros(each), np.int8)
        if form == "linear_conv":
            x = g.x(*own["x"], dtype=np.uint8)
            return g.do("QLinearConv", x, scale, zero, w, *scales, g.const(0.5), zero, **own["attrs"])
        x = g.node("DequantizeLinear", g.node("QuantizeLinear", g.x(*own["x"]), scale, zero), scale, zero)
        more = {"axis": 0} if each else {}
        y = g.do("Conv", x, g.node("DequantizeLinear", w, *scales, **more), **own["attrs"])
        return g.node("DequantizeLinear", g.node("QuantizeLinear", y, g.const(0.5), zero), g.const(0.5), zero)
    while True:
        m, n, k = g.n(1, 1024), g.n(1, 4096), g.n(1, 4096)
        if 2.0 * m * n * k < MOST_FLOPS and n * k < MOST_ELEMENTS:
            break
    w = g.w(k, n, dtype=np.int8)
    if form == "integer":
        return g.do("MatMulInteger", g.x(m, k, dtype=np.uint8), w, zero)
    if form == "dynamic":
        x, own_scale, own_zero = g.do("DynamicQuantizeLinear", g.x(m, k), count=3)
        y = g.do("Cast", g.do("MatMulInteger", x, w, own_zero), to=TensorProto.FLOAT)
        return g.do("Mul", y, g.node("Mul", own_scale, g.const(0.01)))
    scales = g.const(0.01), g.const(0, np.int8)
    if form == "linear":
        return g.do("QLinearMatMul", g.x(m, k, dtype=np.uint8), scale, zero, w, *scales, g.const(0.5), zero)
    x = g.node("DequantizeLinear", g.node("QuantizeLinear", g.x(m, k), scale, zero), scale, zero)
    y = g.do("MatMul", x, g.node("DequantizeLinear", w, *scales))
    return g.node("DequantizeLinear", g.node("QuantizeLinear", y, g.const(0.5), zero), g.const(0.5), zero)


def nbits(g: Drawn) -> str:
    """Draw a product with weights of 4 or 8 bits in blocks."""
    while True:
        m, n, k = g.pick(1, 1, 2, g.n(3, 256)), g.n(16, 4096), g.n(32, 4096)
        if 2.0 * m * n * k < MOST_FLOPS and n * k < MOST_ELEMENTS:
            break
    bits, block = g.pick(4, 4, 8), g.pick(32, 32, 64, 128)
    blocks = -(-k // block)
    w = g.w(n, blocks, block * bits // 8, dtype=np.uint8)
    scales = g.weight("scales", g.uniform(n * blocks, low=0.001, high=0.01))
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": g.pick(0, 4), "domain": CONTRIB}
    return str(g.do("MatMulNBits", g.x(m, k), w, scales, **attrs))


def small(g: Drawn) -> Any:
    """Draw a model of a few operators on few elements, whose time is the overhead of a call."""
    lens = g.pick(1, 2), g.pick(4, 16, 33)
    x = g.x(*lens)
    for _ in range(g.pick(1, 2, 4, 8)):
        op = g.pick("MatMul", "Softmax", "Relu", "Add", "Sigmoid")
        others = {"MatMul": lambda: [g.w(lens[1], lens[1], scale=0.1)], "Add": lambda: [g.x(*lens)]}
        x = g.do(op, x, *others.get(op, list)())
    return x


def detection(g: Drawn) -> str | list[str]:
    """Draw what detectors do with boxes, or a step of the preparation of their images."""
    form = g.pick("regions", "suppression", "suppression", "best", "bytes", "chosen", "chosen")
    if form == "regions":
        lens, count = (1, g.n(8, 256), g.n(7, 100), g.n(7, 100)), g.n(1, 300)
        corners = g.rng.random((count, 2)).astype(np.float32) * 60
        boxes = np.concatenate([corners, corners + 1 + g.rng.random((count, 2)) * 40], 1).astype(np.float32)
        side = g.pick(7, 7, 14)
        sizes = {"output_height": side, "output_width": side, "sampling_ratio": g.pick(0, 2), "spatial_scale": 0.5}
        images = g.const(np.zeros(count), np.int64)
        return str(g.do("RoiAlign", g.x(*lens), g.given(boxes), images, **sizes))
    if form == "suppression":
        count, classes = g.n(50, 9000), g.pick(1, 1, 4, 20)
        corners = g.rng.random((1, count, 2)).astype(np.float32)
        boxes = np.concatenate([corners, corners + np.float32(g.pick(0.02, 0.1, 0.3))], 2)
        scores = g.given(g.rng.random((1, classes, count)).astype(np.float32))
        limits = g.ints(g.pick(20, 100, 300)), g.const([0.5]), g.const([g.pick(0.1, 0.5, 0.9)])
        return str(g.do("NonMaxSuppression", g.given(boxes), scores, *limits))
    if form == "best":
        count = g.n(2000, 100_000)
        return list(g.do("TopK", g.x(1, count), g.ints(min(count, g.pick(500, 1000, 2000))), axis=1, count=2))
    if form == "bytes":
        x = g.x(1, 3, g.n(100, 720), g.n(100, 720), dtype=np.uint8)
        return str(g.do("Resize", x, "", "", g.ints(1, 3, 224, 224), mode="linear"))
    values = g.x(g.n(50, 9000))
    corner = g.do("Expand", g.x(1, 4), g.ints(*g.feeds["x0"].shape, 4))
    kept = g.do("Squeeze", g.do("NonZero", g.do("Greater", values, g.const(0.5))), g.ints(0))
    chosen = g.do("Gather", corner, kept)
    for _ in range(g.pick(1, 3, 6)):
        chosen = g.do("Mul", chosen, g.const(1.5))
    return [str(chosen), str(g.do("Sigmoid", g.do("Gather", values, kept)))]


def counted(g: Drawn) -> str | list[str]:
    """Draw a selection of elements or rows by their values, and an operator on the selected ones."""
    x = g.x(*g.lens(1, 3, 1 << 17))
    lens = g.feeds["x0"].shape
    above = g.do("Greater", x, g.const([g.pick(-1.0, 0.0, 1.0, 2.0)]))
    form = g.pick("positions", "elements", "elements", "rows")
    if form == "positions":
        return str(g.do("Transpose", g.do("NonZero", above), perm=[1, 0]))
    if form == "rows":
        kept = g.do("Compress", x, g.given(g.rng.random(lens[0]) < g.pick(0.1, 0.9)), axis=0)
        return str(g.do("Relu", kept))
    chosen = g.do("GatherND", x, g.do("Transpose", g.do("NonZero", above), perm=[1, 0]))
    again = g.pick("Neg", "Pad", "Tile", "CumSum", "NonZero", "ReduceSum", "Slice", "Concat", "Range")
    if again == "NonZero":
        small = g.do("Squeeze", g.do("NonZero", g.do("Less", chosen, g.const([1.5]))), g.ints(0))
        return [str(g.do("Gather", chosen, small)), str(small)]
    if again == "Range":
        numbers = g.do("Range", g.scalar(0), g.do("Size", chosen), g.scalar(1))
        return str(g.do("Add", chosen, g.do("Cast", numbers, to=1)))
    more = {"Pad": g.ints(1, 2), "Tile": g.ints(2), "CumSum": g.scalar(0), "Concat": chosen}
    bounds = (g.ints(-50), g.ints(9999)) if again == "Slice" else ()
    attributes: dict[str, Any] = {"axis": 0} if again == "Concat" else {}
    return str(g.do(again, chosen, *([more[again]] if again in more else ()), *bounds, **attributes))


def integers(g: Drawn) -> str:
    """Draw a product, or arithmetic on elements, of 32- or 64-bit integers."""
    dtype = g.pick(np.int32, np.int64)
    form = g.pick("MatMul", "MatMul", "Mul", "Div", "Mod", "ReduceSum", "ReduceMax")
    if form == "MatMul":
        m, n, k = (g.n(1, 300) for _ in range(3))
        return str(g.do("MatMul", g.x(m, k, dtype=dtype, low=-99, high=99), g.x(k, n, dtype=dtype, low=-99, high=99)))
    lens = g.lens(1, 3, 1 << 18)
    x = g.x(*lens, dtype=dtype, low=-1000, high=1000)
    if form.startswith("Reduce"):
        return str(g.do(form, x, g.ints(int(g.rng.integers(len(lens))))))
    return str(g.do(form, x, g.x(lens[-1], dtype=dtype, low=1, high=99)))


def tiny(g: Drawn) -> str:
    """Draw a reduction of many tiny rows."""
    x = g.x(g.n(500, 50_000), g.pick(2, 3, 4, 5, 6, 8, 10))
    form = g.pick("Softmax", "ReduceSum", "ReduceMax", "ArgMax", "LayerNormalization", "ReduceL2")
    width = g.feeds["x0"].shape[1]
    if form == "LayerNormalization":
        return str(g.do(form, x, g.w(width), g.w(width)))
    return str(
        g.do(form, x, *([g.ints(1)] if form.startswith("Reduce") else []), **({"axis": 1} if form == "ArgMax" else {}))
    )


KINDS: dict[str, Callable[[Drawn], Any]] = {
    f.__name__: f
    for f in (
        products, convolutions, transposed, attention, recurrent, norms, reductions, pointwise, moves, images, ordering,
        half, quantised, nbits, small, detection, counted, integers, tiny,
    )
}  # fmt: skip


def drawn(kind: str, seed: int, index: int) -> tuple[str, onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the label, the model and the inputs of a problem."""
    g = Drawn(kind, seed, index)
    results = KINDS[kind](g)
    model = g.finished(*([results] if isinstance(results, str) else results))
    return " ".join(g.label), model, g.feeds
