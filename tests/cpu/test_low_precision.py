"""Programs in 16, 8 and 4 bits on the CPU: kernels for all of them, results as near as the reference's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba
from bench.models import MODELS, build, inputs
from mgx_numba.runtime.plan import HostStep

TYPES = {"fp16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}


def host_steps(p: mgx_numba.program) -> list[str]:
    """Labels of steps that NumPy runs."""
    compiled: Any = p._compiled
    return [step.label for step in compiled.executable.plan.steps if isinstance(step, HostStep)]


def half_model(dtype: Any, code: int, convolution: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(4)
    lens = [2, 5, 9, 7] if convolution else [3, 50, 33]
    w = rng.uniform(-0.3, 0.3, (11, 5, 3, 3) if convolution else (33, 21)).astype(dtype)
    node = helper.make_node("Conv" if convolution else "MatMul", ["x", "w"], ["c"])
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["r", "one"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", code, lens)],
        [helper.make_tensor_value_info("y", code, None)],
        [
            helper.make_tensor("w", code, w.shape, w.tobytes(), raw=True),
            helper.make_tensor("one", code, [1], np.ones(1, dtype).tobytes(), raw=True),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("fast_math", [False, True])
def test_models_of_16_bits_run_in_kernels(kind: str, convolution: bool, fast_math: bool) -> None:
    dtype, code = TYPES[kind]
    model = half_model(dtype, code, convolution)
    p = mgx_numba.parse_onnx(model)
    shape = p.get_parameter_shapes()["x"]
    x = np.random.default_rng(1).uniform(-1, 1, shape.lens()).astype(dtype)
    expected = np.asarray(mgx_numba.parse_onnx(model).compile("ref").run({"x": x})[0]).astype(np.float32)
    p.compile("cpu", fast_math=fast_math)
    assert not host_steps(p)
    found = np.asarray(p.run({"x": x})[0])
    assert found.dtype == dtype
    bound = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=bound, atol=1e-3)


def test_float16_as_onnx_runtime_computes_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = half_model(np.float16, TensorProto.FLOAT16, True)
    x = np.random.default_rng(1).uniform(-1, 1, (2, 5, 9, 7)).astype(np.float16)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.asarray(mgx_numba.parse_onnx(model).compile("cpu").run({"x": x})[0])
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "name, quantize",
    [*((n, mgx_numba.quantize_fp16) for n in MODELS), *((n, mgx_numba.quantize_bf16) for n in ("bert", "gru", "unet"))],
)
def test_whole_models_in_16_bits(name: str, quantize: Any) -> None:
    model = build(name, scale="tiny")
    values = inputs(name, model)
    wide, narrow = (mgx_numba.parse_onnx_buffer(model.SerializeToString()) for _ in range(2))
    wide.compile("cpu")
    quantize(narrow)
    narrow.compile("cpu")
    assert host_steps(narrow) == host_steps(wide)
    bound = 5e-3 if quantize is mgx_numba.quantize_fp16 else 4e-2
    for found, expected in zip(narrow.run(values), wide.run(values)):
        found, expected = np.asarray(found), np.asarray(expected)
        assert found.dtype == expected.dtype
        if expected.dtype.kind == "f":
            assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)
