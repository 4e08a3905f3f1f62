"""Small models of each kind that ``doctor`` tries, with random weights, as ONNX models with inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dataclass import dataclass

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

    from ...api.program import program

Feeds = dict[str, np.ndarray]

FLOAT32, SIXTEEN_BITS, EIGHT_BITS = 1e-4, 2e-2, 2e-2
"""Limits of the root mean square error relative to the largest result.

- Float32: ten times the bound of ``fast_math`` (1e-5).
- Sixteen bits: about five units in the last place of bfloat16 (2**-8).
- Eight bits: about five steps of 2**-8; a layer may round a value between two steps to the other step.
"""


@dataclass(frozen=True)
class SmallModel:
    """A small model.

    Attributes:
        title: kind of the model, for readers.
        make: returns the ONNX model and inputs for each run.
        limit: largest error of a result, see `FLOAT32`.
        prepare: changes the parsed program, for instance quantises it, given the inputs of all runs.
        target: the target that the model tries.
    """

    title: str
    make: Callable[[], tuple[ModelProto, Sequence[Feeds]]]
    limit: float
    prepare: Callable[[program, Sequence[Feeds]], object] = lambda program, feeds: None
    target: str = "cpu"


class _OnnxGraph:
    """An ONNX graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one result, and return the name of the result."""
        from onnx import helper

        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def random(self, *lens: int) -> str:
        """Add random weights, scaled so that products keep the magnitude of their inputs."""
        return self.constant(self.rng.standard_normal(lens) / np.sqrt(np.prod(lens[1:] if len(lens) > 2 else lens[:1])))

    def constant(self, values: object, dtype: str = "float32") -> str:
        """Add a constant, and return its name."""
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.asarray(values, dtype)
        return name

    def graph(self, inputs: Sequence[tuple[str, str, Sequence[Any]]], results: Sequence[str]) -> GraphProto:
        """Return the graph: inputs with dtype and lengths, float32 results."""
        from onnx import TensorProto, helper, numpy_helper

        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), lens)
            for name, dtype, lens in inputs
        ]
        found = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        return helper.make_graph(self.nodes, "doctor", given, found, weights)


def _model(graph: GraphProto) -> ModelProto:
    from onnx import helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _numbers(*lens: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(lens).astype(np.float32)


def convolutions() -> tuple[ModelProto, Sequence[Feeds]]:
    """Make a residual network of five convolutions, including a depthwise convolution."""
    g = _OnnxGraph()
    x = g.add("Relu", g.add("Conv", "x", g.random(16, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    x = g.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = g.add("Relu", g.add("Conv", x, g.random(16, 16, 3, 3), g.random(16), pads=[1, 1, 1, 1]))
    x = g.add("Relu", g.add("Add", x, g.add("Conv", y, g.random(16, 16, 3, 3), pads=[1, 1, 1, 1])))
    x = g.add("Conv", x, g.random(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    x = g.add("Flatten", g.add("GlobalAveragePool", g.add("Conv", x, g.random(32, 16, 1, 1))))
    result = g.add("Gemm", x, g.random(32, 10), g.random(10))
    graph = g.graph([("x", "float32", [2, 3, 40, 40])], [result])
    return _model(graph), [{"x": _numbers(2, 3, 40, 40, seed=seed)} for seed in (1, 2)]


def transformer(length: int | str = 24, runs: Sequence[int] = (24,)) -> tuple[ModelProto, Sequence[Feeds]]:
    """Make an encoder layer: layer norms, attention of four heads, GELU; ``length`` may be a symbol."""
    width, heads = 64, 4
    g = _OnnxGraph()
    split = g.constant([0, 0, heads, width // heads], "int64")

    def norm(x: str) -> str:
        return g.add("LayerNormalization", x, g.constant(np.ones(width)), g.random(width))

    def head(x: str) -> str:
        product = g.add("Add", g.add("MatMul", x, g.random(width, width)), g.random(width))
        return g.add("Transpose", g.add("Reshape", product, split), perm=[0, 2, 1, 3])

    x = norm("x")
    query, key, value = head(x), g.add("Transpose", head(x), perm=[0, 1, 3, 2]), head(x)
    scores = g.add("Mul", g.add("MatMul", query, key), g.constant(width**-0.5 * 2))
    mixed = g.add("Transpose", g.add("MatMul", g.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    mixed = g.add("Reshape", mixed, g.constant([0, 0, width], "int64"))
    x = g.add("Add", "x", g.add("MatMul", mixed, g.random(width, width)))
    y = g.add("MatMul", norm(x), g.random(width, 4 * width))
    y = g.add("Mul", y, g.add("Add", g.add("Erf", g.add("Mul", y, g.constant(0.5**0.5))), g.constant(1.0)))
    result = g.add("Add", x, g.add("MatMul", g.add("Mul", y, g.constant(0.5)), g.random(4 * width, width)))
    graph = g.graph([("x", "float32", [1, length, width])], [result])
    return _model(graph), [{"x": _numbers(1, n, width)} for n in runs]


def open_lengths() -> tuple[ModelProto, Sequence[Feeds]]:
    """Make the encoder layer with an open length, with runs of short and longer lengths."""
    return transformer("length", (1, 7, 33))


def control_flow() -> tuple[ModelProto, Sequence[Feeds]]:
    """Make a loop whose steps take one of two branches, for zero and more steps."""
    from onnx import TensorProto, helper

    body = _OnnxGraph()
    info = helper.make_tensor_value_info
    weights, half = body.random(16, 16), body.constant(0.5)
    halved, product = helper.make_node("Mul", ["s", half], ["a"]), helper.make_node("MatMul", ["s", weights], ["b"])
    tanh = helper.make_node("Tanh", ["b"], ["c"])
    branches = {
        "then_branch": helper.make_graph([halved], "then", [], [info("a", TensorProto.FLOAT, [4, 16])]),
        "else_branch": helper.make_graph([product, tanh], "else", [], [info("c", TensorProto.FLOAT, [4, 16])]),
    }
    odd = body.add("Cast", body.add("Mod", "i", body.constant(2, "int64")), to=TensorProto.BOOL)
    chosen = body.add("If", odd, **branches)
    step = body.graph([("i", "int64", []), ("on", "bool", []), ("s", "float32", [4, 16])], [chosen])
    step.output.insert(0, info("on_out", TensorProto.BOOL, []))
    step.node.append(helper.make_node("Identity", ["on"], ["on_out"]))
    g = _OnnxGraph()
    result = g.add("Loop", "steps", g.constant(True, "bool"), "x", body=step)
    graph = g.graph([("steps", "int64", []), ("x", "float32", [4, 16])], [result])
    return _model(graph), [{"steps": np.array(n, np.int64), "x": _numbers(4, 16)} for n in (0, 1, 5)]


def trees() -> tuple[ModelProto, Sequence[Feeds]]:
    """Make an ensemble of complete decision trees."""
    trees, depth, features = 20, 4, 8
    g = _OnnxGraph()
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = np.arange(count)
    is_inner = nodes < inner
    leaves = nodes[~is_inner]
    result = g.add(
        "TreeEnsembleRegressor",
        "x",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=np.repeat(np.arange(trees), count).tolist(),
        nodes_nodeids=np.tile(nodes, trees).tolist(),
        nodes_featureids=(g.rng.integers(0, features, trees * count) * np.tile(is_inner, trees)).tolist(),
        nodes_values=g.rng.standard_normal(trees * count).astype(np.float32).tolist(),
        nodes_modes=["BRANCH_LEQ" if one else "LEAF" for one in is_inner] * trees,
        nodes_truenodeids=np.tile(np.where(is_inner, 2 * nodes + 1, 0), trees).tolist(),
        nodes_falsenodeids=np.tile(np.where(is_inner, 2 * nodes + 2, 0), trees).tolist(),
        target_treeids=np.repeat(np.arange(trees), len(leaves)).tolist(),
        target_nodeids=np.tile(leaves, trees).tolist(),
        target_ids=[0] * (trees * len(leaves)),
        target_weights=g.rng.standard_normal(trees * len(leaves)).astype(np.float32).tolist(),
    )
    return _model(g.graph([("x", "float32", ["n", features])], [result])), [{"x": _numbers(50, features)}]


def _int8(program: program, feeds: Sequence[Feeds]) -> object:
    from ...api.quantization import quantize_int8

    return quantize_int8(program, calibration=list(feeds))


def _bf16(program: program, feeds: Sequence[Feeds]) -> object:
    from ...api.quantization import quantize_bf16

    return quantize_bf16(program)


def _fp16(program: program, feeds: Sequence[Feeds]) -> object:
    from ...api.quantization import quantize_fp16

    return quantize_fp16(program)


MODELS = {
    "convolutions": SmallModel("convolutions, float32", convolutions, FLOAT32),
    "transformer": SmallModel("transformer, float32", transformer, FLOAT32),
    "int8": SmallModel("convolutions, 8 bits", convolutions, EIGHT_BITS, _int8),
    "bfloat16": SmallModel("transformer, bfloat16", transformer, SIXTEEN_BITS, _bf16),
    "lengths": SmallModel("transformer, open length", open_lengths, FLOAT32),
    "control": SmallModel("loop and branches", control_flow, FLOAT32),
    "trees": SmallModel("tree ensemble", trees, FLOAT32),
    "gpu": SmallModel("convolutions, float32", convolutions, FLOAT32, target="gpu"),
    "gpu_fp16": SmallModel("transformer, float16", transformer, SIXTEEN_BITS, _fp16, "gpu"),
}
"""The models, by the names that ``--models`` takes."""
