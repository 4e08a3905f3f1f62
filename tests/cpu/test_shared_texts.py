"""Models of the same structure share kernel texts bit for bit: constants of a model are operands of its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.codegen.statements import hoisted

FEATURES = ("", "x86-64-v3")


def model(steps: str, constants: dict[str, Any], lens: list[int], out: int) -> onnx.ModelProto:
    """A model of one input ``x`` and one result ``y``; each step is ``Operator operand ... > result``."""
    nodes = []
    for step in steps.split(";"):
        given, _, result = step.partition(">")
        op, *operands = given.split()
        attributes = {"axis": -1} if op.endswith("Linear") else {}
        nodes.append(helper.make_node(op, operands, [result.strip()], **attributes))
    graph = helper.make_graph(
        nodes, "shared", [helper.make_tensor_value_info("x", TensorProto.FLOAT, lens)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def texts_and_result(made: onnx.ModelProto, x: np.ndarray) -> tuple[set[str], np.ndarray]:
    program = mgx_numba.parse_onnx(made)
    program.compile("cpu", num_threads=1, fast_math=False)
    return {kernel.text for kernel in program.kernels()}, np.asarray(program.run({"x": x})[0])


PRODUCTS = (
    "QuantizeLinear x s z > q; DequantizeLinear q s z > d; DequantizeLinear w ws wz > v; MatMul d v > m;"
    "QuantizeLinear m s2 z2 > q2; DequantizeLinear q2 s2 z2 > d2; Softmax d2 > p; QuantizeLinear p s z > y"
)


def quantised(dtype: Any, points: tuple[int, int]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.0213), "z": dtype(points[0]), "ws": np.float32(0.01), "wz": np.int8(0),
        "w": rng.integers(-127, 128, (48, 40)).astype(np.int8), "s2": np.float32(0.31), "z2": dtype(points[1]),
    }  # fmt: skip
    return model(PRODUCTS, constants, [9, 48], TensorProto.UINT8 if dtype is np.uint8 else TensorProto.INT8)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_models_of_other_zero_points_had_kernels_of_their_own(
    dtype: Any, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    x = np.random.default_rng(1).uniform(-3, 3, (9, 48)).astype(np.float32)
    known: set[str] = set()
    for points in ((3, 101), (7, 55)):
        made = quantised(dtype, points)
        texts, result = texts_and_result(made, x)
        expected = np.asarray(mgx_numba.parse_onnx(made).compile("ref").run({"x": x})[0])
        assert np.abs(result.astype(int) - expected).max() <= 1
        assert texts == (known or texts)
        known = texts


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_of_pointwise_kernels_stood_in_their_texts(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-90, 90, (7, 33)).astype(np.float32)
    code = TensorProto.FLOAT if dtype is np.float32 else TensorProto.INT32
    found = []
    for numbers in ((7, 0.25, -12), (5, 0.125, -9)):
        a, b, c = (dtype(n if dtype is np.float32 else int(n * 16)) for n in numbers)
        steps = f"{'Abs x > i' if dtype is np.float32 else 'Cast x > i'}; Add i a > r; Mul r b > t; Max t c > y"
        made = model(steps, {"a": a, "b": b, "c": c}, [7, 33], code)
        for node in made.graph.node:
            if node.op_type == "Cast":
                node.attribute.append(helper.make_attribute("to", code))
        texts, result = texts_and_result(made, x)
        i = np.abs(x) if dtype is np.float32 else x.astype(np.int32)
        np.testing.assert_array_equal(result, np.maximum((i + a) * b, c))
        found.append(texts)
    assert found[0] == found[1]


@pytest.mark.parametrize("divisor", [8.0, 3.5])
def test_divisors_that_are_powers_of_two_stay(divisor: float) -> None:
    x = np.linspace(-5, 5, 66, dtype=np.float32).reshape(6, 11)
    made = model("Abs x > a; Div c a > b; Div b d > y", {"c": np.float32(0.7), "d": np.float32(divisor)}, [6, 11], 1)
    texts, result = texts_and_result(made, x)
    np.testing.assert_array_equal(result, np.float32(0.7) / np.abs(x) / np.float32(divisor))
    assert any("8.0" in text for text in texts) <= (divisor == 8.0)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_each_column_is_rounded_with_its_own_zero_point(
    dtype: Any, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGX_CPU_FEATURES", features)
    info = np.iinfo(dtype)
    points = np.arange(info.min, info.max + 1).astype(dtype)
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-400, 400, (40, 256)), np.full((6, 256), 0.5)]).astype(np.float32)
    for row, value in enumerate((np.nan, np.inf, -np.inf, 2.0**31, -(2.0**40), -0.5)):
        x[row] = value
    x[6:20] = np.round(x[6:20]) + 0.5
    with np.errstate(invalid="ignore"):
        exact = np.clip(np.rint(x.astype(np.float64)) + points, info.min, info.max)
    expected = np.where(np.isnan(x), 0, exact).astype(dtype)
    kinds = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
    steps = "QuantizeLinear x s z > y"
    made = model(steps, {"s": np.ones(256, np.float32), "z": points}, list(x.shape), kinds[dtype])
    np.testing.assert_array_equal(texts_and_result(made, x)[1], expected)
    for point in (info.min, -1 if info.min else 1, 0, info.max):
        made = model(steps, {"s": np.float32(1), "z": dtype(point)}, list(x.shape), kinds[dtype])
        with np.errstate(invalid="ignore"):
            exact = np.clip(np.rint(x.astype(np.float64)) + point, info.min, info.max)
        np.testing.assert_array_equal(texts_and_result(made, x)[1], np.where(np.isnan(x), 0, exact).astype(dtype))


def test_only_values_that_do_not_vary_leave_the_loop() -> None:
    lines = ["v0 = load(r_x0, c, 32)", "v1 = const_float32(1e-05, 32)", "v2 = sub(v1, h1)", "v3 = add(v0, v2)"]
    assert hoisted([*lines, "store(r_out0, c, v3)"], ["h1"]) == (
        lines[1:3],
        [lines[0], lines[3], "store(r_out0, c, v3)"],
    )
    assert hoisted(lines, []) == ([], lines)
