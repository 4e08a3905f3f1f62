"""Long functions of a quantised result: a pointwise step of their own, which looks them up, or an epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba


def quantised_sigmoid(beside: bool) -> onnx.ModelProto:
    """A product in QDQ form, quantised, and its SiLU, whose factors and result are quantised; ``beside``: times an
    input, so that it is no function of one byte."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-127, 128, (64, 96)).astype(np.int8), "zero": np.uint8(120), "none": np.int8(0),
        "sx": np.float32(0.0213), "sw": np.float32(0.0097), "s1": np.float32(0.05), "s2": np.float32(1 / 255),
        "s3": np.float32(0.04), "z0": np.uint8(0), "z3": np.uint8(7),
    }  # fmt: skip
    steps = [
        ("DequantizeLinear", "x sx zero", "xf"), ("DequantizeLinear", "w sw none", "wf"), ("MatMul", "xf wf", "m"),
        ("QuantizeLinear", "m s1 zero", "q1"), ("DequantizeLinear", "q1 s1 zero", "f1"), ("Sigmoid", "f1", "g"),
        ("QuantizeLinear", "g s2 z0", "q2"), ("DequantizeLinear", "q2 s2 z0", "f2"),
        ("Mul", "f2 y" if beside else "f1 f2", "p"), ("QuantizeLinear", "p s3 z3", "out"),
    ]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in steps], "silu",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [50, 64])]
        + [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 96])] * beside,
        [helper.make_tensor_value_info("out", TensorProto.UINT8, [50, 96])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("beside", [False, True])
def test_a_long_function_of_a_quantised_product(beside: bool) -> None:
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {"x": rng.integers(0, 256, (50, 64)).astype(np.uint8)}
    if beside:
        feeds["y"] = rng.standard_normal((50, 96)).astype(np.float32)
    model = quantised_sigmoid(beside)
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run(feeds)[0])
    program = mgx_numba.parse_onnx(model)
    program.compile("cpu", num_threads=1, fast_math=False)
    found = np.asarray(program.run(feeds)[0])
    np.testing.assert_array_equal(found, expected)  # no product of these scales is near a tie
    compiled: Any = program.compiled
    labels = [step.label for step in compiled.executable.plan.steps]
    (product,) = [k for k, label in enumerate(labels) if "gemm" in label]
    after = compiled.executable.plan.steps[product + 1 :]
    assert ["table" in step.kernel.text for step in after] == [True] * (not beside)
