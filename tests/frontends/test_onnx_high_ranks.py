"""Tensors of more than 32 dimensions, which some of NumPy's functions do not support, up to the supported 64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.errors import MgxError

from ..values import normal
from .onnx_cases import compare
from .support import ints, make_model

onnxruntime = pytest.importorskip("onnxruntime")

ONES = np.ones(1, np.float32)
ZERO = np.array(0, np.float32)
FOUR_AXES = (1, 3, 5, 4, 6, 4), (3, 3, 2, 3, 2, 1)
"""Lengths of images and weights."""


def cases(rank: int) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Operators, their inputs and attributes; the lengths of the data are 1 but for the last axes."""
    x = normal(*(1,) * (rank - 3), 2, 1, 3)
    last, nothing = rank - 1, np.zeros(x.shape, np.int64)
    at = np.zeros((1, rank), np.int64)
    return {
        "Add": ([x, x[0]], {}),
        "ArgMax": ([x], {"axis": -1}),
        "BatchNormalization": ([x, ONES, ONES, ONES, ONES], {}),
        "Clip": ([x, ZERO], {}),
        "Concat": ([x, x], {"axis": -3}),
        "CumSum": ([x, np.array(-1)], {}),
        "Expand": ([x, ints(*(1,) * (rank - 2), 4, 3)], {}),
        "Gather": ([x, ints(1, 0)], {"axis": rank - 3}),
        "GatherElements": ([x, nothing], {"axis": -1}),
        "GatherND": ([x, at], {}),
        "Gelu": ([x], {}),
        "Hardmax": ([x], {}),
        "InstanceNormalization": ([x, ONES, ONES], {}),
        "LayerNormalization": ([x, np.ones(3, np.float32)], {}),
        "MatMul": ([x, np.swapaxes(x, -1, -2)], {}),
        "Max": ([x, x[0, 0], ZERO], {}),
        "NonZero": ([x], {}),
        "OneHot": ([np.zeros((1,) * (rank - 1), np.int64), np.array(3), np.array([0, 1], np.float32)], {}),
        "Pad": ([x, ints(*(0,) * last, 1, *(0,) * last, 1)], {}),
        "ReduceMean": ([x, ints(0, rank - 3)], {}),
        "Reshape": ([x, ints(6)], {}),
        "Resize": ([x, None, np.array([1.0] * last + [2.0], np.float32)], {}),
        "ScatterElements": ([x, nothing, x], {"axis": -3}),
        "ScatterND": ([x, at, np.array([5], np.float32)], {}),
        "Slice": ([x, ints(1), ints(2), ints(-1)], {}),
        "Softmax": ([x], {}),
        "Squeeze": ([x], {}),
        "Tile": ([x, ints(2, *(1,) * (rank - 3), 3, 2)], {}),
        "TopK": ([x, ints(2)], {}),
        "Transpose": ([x], {}),
        "Trilu": ([x], {}),
        "Unsqueeze": ([x[0], ints(0)], {}),
        "Where": ([x > 0, x, ZERO], {}),
    }


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("rank", [33, 64])
def test_operators_on_tensors_of_many_dimensions(rank: int) -> None:
    """Compare all operators in one model; an operator's first input is an input of the model, the rest constant."""
    nodes, feeds, constants, outputs = [], {}, {}, {}
    for name, (inputs, attributes) in cases(rank).items():
        given = [f"{name}{k}" if value is not None else "" for k, value in enumerate(inputs)]
        for k, (key, value) in enumerate(zip(given, inputs, strict=True)):
            if key:
                (constants if k else feeds)[key] = value
        results = [f"{name}_y", f"{name}_z"] if name == "TopK" else [f"{name}_y"]
        nodes.append(helper.make_node(name, given, results, **attributes))
        outputs.update(dict.fromkeys(results, 0))
    model = make_model(nodes, feeds, outputs, opset=20, constants=constants)
    for info in model.graph.output:
        info.ClearField("type")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    for target, fast in (("ref", False), ("cpu", False), ("cpu", True)):
        results = migraphx.parse_onnx(model).compile(target, fast_math=fast, num_threads=1).run(feeds)
        for expected, found in zip(wanted, results, strict=True):
            compare(np.asarray(found), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("target", ["ref", "cpu"])
def test_a_product_of_many_vectors_beyond_all_memory_is_refused_before_a_part_is_taken(target: str) -> None:
    """171 bytes of a model took memory until there was none."""
    letters = "abcdefghijklmnopqrst"
    feeds = {"x": np.ones(4, np.float32)}
    node = helper.make_node("Einsum", ["x"] * len(letters), ["y"], equation=",".join(letters))
    model = make_model([node], feeds, {"y": TensorProto.FLOAT})
    program = migraphx.parse_onnx(model).compile(target)
    with pytest.raises(MgxError, match=r"^run: not enough memory for (the largest value of the program|results of)"):
        program.run(feeds)


@pytest.mark.parametrize("fast_math", [False, True])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "ConvInteger"])
def test_convolutions_over_four_axes(operator: str, fast_math: bool) -> None:
    """Compiling failed in a pass; such convolutions run in fallback steps."""
    if operator == "ConvInteger":
        x, w = (np.random.default_rng(k).integers(0, 255, n).astype(np.uint8) for k, n in enumerate(FOUR_AXES))
    else:
        x, w = (normal(*n, seed=k) for k, n in enumerate(FOUR_AXES))
    node = helper.make_node(operator, ["x", "w"], ["y"], pads=[1, 0, 1, 1, 0, 1, 1, 0], strides=[1, 2, 1, 1])
    kind = TensorProto.INT32 if operator == "ConvInteger" else TensorProto.FLOAT
    model = make_model([node], {"x": x}, {"y": kind}, constants={"w": w})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    made = migraphx.parse_onnx_buffer(model.SerializeToString())
    made.compile(migraphx.get_target("cpu"), fast_math=fast_math)
    compare(np.asarray(made.run({"x": x})[0]), session.run(None, {"x": x})[0], 1e-4, 1e-4)
