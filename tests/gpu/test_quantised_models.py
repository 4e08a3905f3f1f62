"""Models quantised by their file or by this package run in 8-bit device kernels with the values of ref."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.api.program import program as Model
from mgx_numba.api.quantizing import quantize
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu.engine import Engine

from ..cpu.agreement import reference
from .operators import hosted
from .programs import compiled

RNG = np.random.default_rng(5)
U8, I8 = np.uint8, np.int8


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


def codes(dtype: Any, *lens: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min + 1, info.max, lens, endpoint=True).astype(dtype)


def model(
    nodes: Sequence[tuple[str, Sequence[str], Sequence[str], dict[str, Any]]], given: np.ndarray, held: dict[str, Any]
) -> tuple[Model, dict[str, np.ndarray]]:
    """Return a model of one input ``x`` and one result ``y``, and its feeds."""
    kinds = [helper.np_dtype_to_tensor_dtype(given.dtype), TensorProto.UNDEFINED]
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
        "quantised",
        [helper.make_tensor_value_info("x", kinds[0], given.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in held.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = onnx.shape_inference.infer_shapes(made)
    return mgx_numba.parse_onnx_buffer(made.SerializeToString()), {"x": given}


SCALES = {"xs": np.float32(0.02), "ws": np.float32(0.004), "ys": np.float32(0.1)}
MODELS = {
    "QLinearConv": lambda: model(
        [("QLinearConv", ["x", "xs", "xz", "w", "wss", "wz", "ys", "yz", "b"], ["y"], {"pads": [1, 1, 1, 1]})],
        codes(U8, 1, 64, 4, 5),
        {
            **SCALES, "xz": U8(3), "yz": U8(120), "w": codes(I8, 32, 64, 3, 3), "wz": np.zeros(32, I8),
            "wss": RNG.uniform(0.001, 0.01, 32).astype(np.float32), "b": RNG.integers(-500, 500, 32).astype(np.int32),
        },
    ),
    "QLinearMatMul": lambda: model(
        [("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"], {})],
        codes(U8, 7, 32),
        {**SCALES, "xz": U8(9), "yz": U8(120), "w": codes(U8, 32, 48), "wz": U8(128)},
    ),
    "MatMulInteger": lambda: model(
        [
            ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
            ("MatMulInteger", ["q", "w", "z"], ["i"], {}),
            ("Cast", ["i"], ["c"], {"to": TensorProto.FLOAT}),
            ("Mul", ["s", "ws"], ["sw"], {}),
            ("Mul", ["c", "sw"], ["m"], {}),
            ("Add", ["m", "b"], ["y"], {}),
        ],
        RNG.standard_normal((9, 64)).astype(np.float32),
        {"ws": SCALES["ws"], "w": codes(I8, 64, 48), "b": RNG.standard_normal(48).astype(np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models_that_come_quantised(name: str, fast: bool, on: Engine) -> None:
    given, inputs = MODELS[name]()
    made = compiled(given.portable, on, fast_math=fast)
    assert made.executable is not None and not hosted(made), made.fallback_reasons()
    labels = [step.label for step in made.executable.plan.steps]
    assert sum("warpgroup_int32" in label for label in labels) == 1, labels
    (got,), (wanted,) = made.run(inputs), reference(given.portable, inputs).results
    if got.dtype == np.float32:
        step = np.ptp(inputs["x"]) / 255 * 127 * SCALES["ws"]  # of one element that lies between two codes
        np.testing.assert_allclose(got, wanted, atol=1.01 * step)
        assert (np.abs(got - wanted) > 1e-5).mean() < 0.2
    else:
        np.testing.assert_array_equal(got, wanted)


def test_sums_of_integers_less_their_zero_point(on: Engine) -> None:
    given, inputs = model(
        [("ConvInteger", ["x", "w", "xz"], ["y"], {"pads": [1, 1, 1, 1]})],
        codes(U8, 1, 3, 4, 5),
        {"w": codes(I8, 5, 3, 3, 3), "xz": U8(3)},
    )
    made = compiled(given.portable, on)
    assert not hosted(made), made.fallback_reasons()
    np.testing.assert_array_equal(made.run(inputs)[0], reference(given.portable, inputs).results[0])


def residual_block() -> tuple[Program, dict[str, np.ndarray]]:
    """Two convolutions and what came into them, after a maximum; then a product of means."""
    program, rng = Program(), np.random.default_rng(3)
    m = program.main
    x = m.add_parameter("x", Shape(Type.float_type, (2, 16, 8, 8)))

    def convolution(x: Any, kernel: int) -> Any:
        w = rng.standard_normal((16, 16, kernel, kernel)).astype(np.float32) / (4 * kernel)
        y = m.add_instruction("convolution", [x, m.add_literal(w)], padding=(kernel // 2,) * 2)
        bias = m.add_instruction("broadcast", [m.add_literal(rng.standard_normal(16).astype(np.float32))],
                                 axis=1, out_lens=y.shape.lens)  # fmt: skip
        return m.add_instruction("add", [y, bias])

    first = m.add_instruction("relu", [convolution(x, 3)])
    pooled = m.add_instruction("pooling", [first], mode="max", lengths=(2, 2), stride=(2, 2))
    inner = m.add_instruction("relu", [convolution(pooled, 1)])
    total = m.add_instruction("relu", [m.add_instruction("add", [convolution(inner, 3), pooled])])
    again = m.add_instruction("relu", [m.add_instruction("add", [convolution(total, 1), total])])
    mean = m.add_instruction("reduce_mean", [again], axes=(2, 3))
    flat = m.add_instruction("reshape", [mean], dims=(2, 16))
    m.add_return([m.add_instruction("dot", [flat, m.add_literal(rng.standard_normal((16, 8)).astype(np.float32))])])
    return program, {"x": rng.standard_normal((2, 16, 8, 8)).astype(np.float32)}


@pytest.mark.parametrize("kinds", [("int8",), ("int8", "fp16"), ("fp8", "fp16")])
def test_a_network_is_quantised(kinds: tuple[str, ...], on: Engine) -> None:
    program, inputs = residual_block()
    (exact,) = reference(program, inputs).results
    quantize(program, kinds, "ref", [inputs])
    made = compiled(program, on, fast_math=True)
    assert made.executable is not None and not hosted(made), made.fallback_reasons()
    steps = [step.label for step in made.executable.plan.steps]
    wide = "float32" if kinds[0] == "fp8" else "int32"
    kernels = [f"convolution_{solver}_{wide}" for solver in ("tensor", "warpgroup", "patch")]
    assert sum(any(kernel in step for kernel in kernels) for step in steps) >= 4, steps
    assert len(steps) <= 12, steps
    (got,) = made.run(inputs)
    error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert error < (0.1 if kinds[0] == "fp8" else 0.03), error
