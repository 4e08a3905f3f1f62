"""Random quantised (QDQ) models against ONNX Runtime: ``python -m tests.random_models.quantized --seeds 0:2000``.

Every value between two operators is quantised with its own scale, as ONNX Runtime's quantiser does. Activations are
uint8 or int8 with a zero point, weights int8 with one scale or one for each output channel, biases int32. The result is
quantised too.

The result may differ by one step. Sums of integers are exact in both engines, but a quotient near the middle of two
steps may be rounded up in one engine and down in the other. This depends on whether it is computed by a reciprocal or a
division, and on the order of float32 sums (means, sigmoids). The number of differences is printed.

Where an intermediate value differs by one step, the result may differ by more: a sigmoid amplifies one step to twenty
in its middle. That is no error if the first differing value differs by one step. If no value differs once all values
are results, which prevents fusions, an engine's fused kernels round differently than its plain ones. Then both engines
must agree in the plain kernels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mgx_numba

from ..exact_integers import ExactSession

__all__ = ["Difference", "difference", "quantized_model"]

OPSET, IR_VERSION = 21, 10
MOST_STEPS = 6
"""Operators after the first."""


@dataclass
class _Graph:
    """A float32 model in the making; ``weights`` are initialisers and the axis of their output channels."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    lens: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def op(self, kind: str, inputs: list[str], lens: tuple[int, ...], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.lens[name] = lens
        return name

    def weights(self, lens: tuple[int, ...], axis: int) -> str:
        name = f"w{len(self.arrays)}"
        self.arrays[name] = self.rng.normal(0, 0.5, lens).astype(np.float32)
        self.axes[name] = axis
        return name

    def numbers(self, *values: int) -> str:
        """Add an int64 constant, which is not quantised."""
        name = f"n{len(self.arrays)}"
        self.arrays[name] = np.array(values, np.int64)
        return name

    def bias(self, count: int) -> list[str]:
        if self.rng.random() < 0.3:
            return []
        name = f"b{len(self.arrays)}"
        self.arrays[name] = self.rng.normal(0, 1, count).astype(np.float32)
        return [name]


def _conv(g: _Graph, x: str) -> str:
    n, c, h, w = g.lens[x]
    k, stride = (int(v) for v in (g.rng.choice([1, 3]), g.rng.choice([1, 2])))
    pad = int(g.rng.integers(0, k))
    depthwise = g.rng.random() < 0.2
    out = c if depthwise else int(g.rng.integers(1, 20))
    lens = (n, out, (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1)
    if min(lens) < 1:
        return x
    inputs = [x, g.weights((out, 1 if depthwise else c, k, k), 0), *g.bias(out)]
    return g.op("Conv", inputs, lens, pads=[pad] * 4, strides=[stride] * 2, group=c if depthwise else 1)


def _relu(g: _Graph, x: str) -> str:
    return g.op("Relu", [x], g.lens[x])


def _sigmoid(g: _Graph, x: str) -> str:
    return g.op("Sigmoid", [x], g.lens[x])


def _pool(g: _Graph, x: str) -> str:
    n, c, h, w = g.lens[x]
    if min(h, w) < 2:
        return g.op("GlobalAveragePool", [x], (n, c, 1, 1))
    kind = str(g.rng.choice(["MaxPool", "AveragePool"]))
    return g.op(kind, [x], (n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])


def _add(g: _Graph, x: str) -> str:
    same = [name for name, lens in g.lens.items() if lens == g.lens[x]]
    return g.op("Add", [x, str(g.rng.choice(same))], g.lens[x])


def _concat(g: _Graph, x: str) -> str:
    lens = g.lens[x]
    near = [name for name, other in g.lens.items() if other[0] == lens[0] and other[2:] == lens[2:]]
    other = str(g.rng.choice(near))
    return g.op("Concat", [x, other], (lens[0], lens[1] + g.lens[other][1], *lens[2:]), axis=1)


def _dense(g: _Graph, x: str) -> str:
    n, c = g.lens[x]
    out = int(g.rng.integers(1, 40))
    if g.rng.random() < 0.5:
        return g.op("MatMul", [x, g.weights((c, out), 1)], (n, out))
    return g.op("Gemm", [x, g.weights((c, out), 1), *g.bias(out)], (n, out))


def _mul(g: _Graph, x: str) -> str:
    same = [name for name, lens in g.lens.items() if lens == g.lens[x]]
    return g.op("Mul", [x, str(g.rng.choice(same))], g.lens[x])


def _transpose(g: _Graph, x: str) -> str:
    lens = g.lens[x]
    order = [0, *(1 + g.rng.permutation(len(lens) - 1)).tolist()]
    return g.op("Transpose", [x], tuple(lens[k] for k in order), perm=order)


def _slice(g: _Graph, x: str) -> str:
    lens = g.lens[x]
    first = int(g.rng.integers(0, lens[1]))
    bounds = [g.numbers(first), g.numbers(lens[1]), g.numbers(1)]
    return g.op("Slice", [x, *bounds], (lens[0], lens[1] - first, *lens[2:]))


def _pad(g: _Graph, x: str) -> str:
    lens = g.lens[x]
    pads = g.rng.integers(0, 2, 2 * len(lens))
    pads[[0, len(lens)]] = 0
    made = tuple(n + int(a + b) for n, a, b in zip(lens, pads, pads[len(lens) :]))
    return g.op("Pad", [x, g.numbers(*pads)], made)


def _resize(g: _Graph, x: str) -> str:
    n, c, h, w = lens = g.lens[x]
    if h * w > MOST_PIXELS:
        return x
    wanted = g.numbers(n, c, 2 * h, 2 * w)
    mode = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return g.op("Resize", [x, "", "", wanted], (*lens[:2], 2 * h, 2 * w), **mode)


def _leaky(g: _Graph, x: str) -> str:
    return g.op("LeakyRelu", [x], g.lens[x], alpha=0.1)


MOST_PIXELS = 200
"""Most pixels of an enlarged image."""
IMAGES = (_conv, _conv, _conv, _relu, _pool, _add, _concat, _sigmoid)
ROWS = (_dense, _dense, _relu, _add, _concat, _sigmoid)
MOVES = (_mul, _transpose, _slice, _pad, _leaky)
MOVING = 1_000_000
"""The first seed of models that have `MOVES` and nearest pixels, too."""
ONE_SIDED = 2_000_000
"""First seed of models in which some readers read a value before its quantisation pair, which may clip."""
CLIPPED = 0.25
"""Part of a value's range that such a pair may be for."""


def _float_model(rng: np.random.Generator, moves: bool = False) -> tuple[_Graph, str]:
    """A model in float32 and the name of its result; the input is ``x``."""
    g = _Graph(rng)
    images = rng.random() < 0.7
    lens = (1, int(rng.integers(1, 12)), *rng.integers(3, 14, 2).tolist()) if images else (int(rng.integers(1, 9)), 24)
    g.lens["x"] = tuple(lens)
    value = _conv(g, "x") if images else _dense(g, "x")
    for _ in range(int(rng.integers(0, MOST_STEPS + 1))):
        steps = IMAGES if images else ROWS
        if moves and rng.random() < 0.5:
            steps = (*MOVES, _resize) if images else MOVES
        value = steps[int(rng.integers(len(steps)))](g, value)
        if images and rng.random() < 0.15:
            n, *rest = g.lens[value]
            value = g.op("Flatten", [value], (n, int(np.prod(rest))))
            images = False
    return g, value


def quantized_model(seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """A model from float32 ``x`` to a quantised result, and an input."""
    import onnxruntime

    rng = np.random.default_rng(seed)
    g, result = _float_model(rng, seed >= MOVING)
    x = rng.normal(0, 1, g.lens["x"]).astype(np.float32)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in g.lens if name != "x"]
    floats = [numpy_helper.from_array(a, name) for name, a in g.arrays.items()]
    model = _model(g.nodes, given, values, floats)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    ranges = {"x": x, **dict(zip(names, session.run(None, {"x": x})))}
    return _with_pairs(g, result, given, ranges, rng, seed >= ONE_SIDED), x


def _with_pairs(
    g: _Graph,
    result: str,
    given: list[onnx.ValueInfoProto],
    ranges: dict[str, np.ndarray],
    rng: np.random.Generator,
    one_sided: bool,
) -> onnx.ModelProto:
    unsigned, per_channel = rng.random() < 0.6, rng.random() < 0.6
    dtype = np.uint8 if unsigned else np.int8
    limits = np.iinfo(dtype)
    nodes: list[onnx.NodeProto] = []
    arrays: dict[str, np.ndarray] = {}
    scales: dict[str, np.ndarray] = {}

    def pair(name: str) -> None:
        low, high = min(float(ranges[name].min()), 0.0), max(float(ranges[name].max()), 0.0)
        if one_sided and name != result and rng.random() < 0.5:
            low, high = low * CLIPPED, high * CLIPPED
        scale = np.float32(max(high - low, 1e-3) / 255)
        zero = dtype(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max))
        arrays[f"{name}_scale"], arrays[f"{name}_zero"] = scale, np.asarray(zero)
        scales[name] = scale
        parameters = [f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        if name != result:
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"]))

    def stored(name: str, source: str, beside: str) -> str:
        values = g.arrays[name]
        if values.dtype == np.int64:
            arrays[name] = values
            return name
        if name in g.axes:
            axis = g.axes[name]
            others = tuple(a for a in range(values.ndim) if a != axis)
            largest = np.abs(values).max(others if per_channel else None)
            scale, kind, extra = (largest / 127).astype(np.float32), np.int8, {"axis": axis} if per_channel else {}
            shape = [-1 if a == axis else 1 for a in range(values.ndim)] if per_channel else ()
            q = np.rint(values / scale.reshape(shape)).astype(np.int8)
        else:
            scale, kind, extra = scales[source] * scales[beside], np.int32, {"axis": 0}
            extra = extra if scale.ndim else {}
            q = np.rint(values / scale).astype(np.int32)
        scales[name] = scale
        arrays[f"{name}_q"], arrays[f"{name}_scale"] = q, scale
        arrays[f"{name}_zero"] = np.zeros(scale.shape, kind)
        parts = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", parts, [f"{name}_dq"], **extra))
        return f"{name}_dq"

    def read(name: str) -> str:
        """Return the name that the next reader reads: the value itself or its dequantised form."""
        return name if one_sided and rng.random() < 0.4 else f"{name}_dq"

    pair("x")
    for node in g.nodes:
        first, *rest = node.input
        others = [stored(name, first, rest[0]) if name in g.arrays else name and read(name) for name in rest]
        inputs = [read(first), *others]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        nodes.append(helper.make_node(node.op_type, inputs, list(node.output), **attributes))
        pair(node.output[0])
    kind = TensorProto.UINT8 if unsigned else TensorProto.INT8
    wanted = [helper.make_tensor_value_info(f"{result}_q", kind, None)]
    return _model(nodes, given, wanted, [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()])


def _model(
    nodes: list[onnx.NodeProto],
    given: list[onnx.ValueInfoProto],
    wanted: list[onnx.ValueInfoProto],
    arrays: list[onnx.TensorProto],
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "quantized", given, wanted, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


@dataclass(frozen=True)
class Difference:
    """By how many steps results differ at most, how many do, of how many; and by how many steps the first value on the
    way does that differs at all."""

    steps: int
    count: int
    of: int
    first: int


def difference(seed: int) -> Difference:
    """Ours on the CPU against ONNX Runtime's."""
    model, x = quantized_model(seed)
    expected = ExactSession(model).run({"x": x})[0]
    found = np.asarray(mgx_numba.parse_onnx(model).compile("cpu").run({"x": x})[0])
    assert found.dtype == expected.dtype and found.shape == expected.shape
    apart = np.abs(found.astype(int) - expected)
    steps = int(apart.max(initial=0))
    first = _first(model, x) or _plain(model, x) if steps > 1 else steps
    return Difference(steps, int((apart > 0).sum()), apart.size, first)


def _plain(model: onnx.ModelProto, x: np.ndarray) -> int:
    """Steps by which results differ, at least 1, where neither engine joins roundings or multiplies by inverses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = np.asarray(mgx_numba.parse_onnx(model).compile("cpu", fast_math=False).run({"x": x})[0])
    return max(1, int(np.abs(found.astype(int) - ExactSession(model, options).run({"x": x})[0]).max(initial=0)))


def _first(model: onnx.ModelProto, x: np.ndarray) -> int:
    """Steps by which the first quantised value differs that does, where all of them are results; 0 if none does."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    kind = model.graph.output[0].type.tensor_type.elem_type
    names = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name in names)
    found = mgx_numba.parse_onnx(whole).compile("cpu").run({"x": x})
    pairs = zip(found, ExactSession(whole).run({"x": x}))
    return next((s for a, b in pairs if (s := int(np.abs(np.asarray(a).astype(int) - b).max(initial=0)))), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:50", help="first:last")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    total = count = models = 0
    worse: list[int] = []
    for seed in range(first, last):
        d = difference(seed)
        total, count, models = total + d.of, count + d.count, models + bool(d.count)
        if d.steps > 1:
            print(f"seed {seed}: {d}", flush=True)
        if d.first != min(d.steps, 1):
            worse.append(seed)
    print(f"{last - first} models, {total} results: {count} differ by one step or more, in {models} models")
    print(f"{len(worse)} models have a first difference of more than one step: {worse}")


if __name__ == "__main__":
    main()
