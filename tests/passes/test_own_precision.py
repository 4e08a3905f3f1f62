"""A value is rounded only for readers that need it, and wherever the model converts it explicitly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba

from ..interpreter.engine import interpreted

TARGETS = pytest.mark.parametrize("target", ["ref", "cpu", "gpu"])
MATH = pytest.mark.parametrize("fast_math", [True, False])
Nodes = list[tuple[str, list[str], str, dict[str, object]]]


def run(
    nodes: Nodes,
    x: np.ndarray,
    held: dict[str, np.ndarray],
    results: list[str],
    target: str,
    fast_math: bool,
    change: Callable[[Any], Any] = lambda program: program,
) -> list[np.ndarray]:
    """Return the results of a model whose only input is ``x``."""
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [out], **given) for op, inputs, out, given in nodes],
        "readers",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with interpreted():
        program = change(mgx_numba.parse_onnx_buffer(model.SerializeToString())).compile(target, fast_math=fast_math)
        return [np.asarray(result) for result in program.run({"x": x})]


def quantised(x: np.ndarray, scale: float, zero: np.integer) -> np.ndarray:
    """``dequantize(quantize(x))``."""
    limits = np.iinfo(zero.dtype)
    steps = np.clip(np.rint(x / np.float32(scale)) + int(zero), limits.min, limits.max)
    return ((steps - int(zero)) * np.float32(scale)).astype(np.float32)


def pair(source: str, out: str, name: str = "") -> Nodes:
    parameters = [f"s{name}", f"z{name}"]
    return [
        ("QuantizeLinear", [source, *parameters], f"{out}_q", {}),
        ("DequantizeLinear", [f"{out}_q", *parameters], out, {}),
    ]


@TARGETS
@MATH
@pytest.mark.parametrize("rank", [1, 3, 4])
@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(128), np.int8(0)])
def test_what_is_quantised_for_one_reader_is_whole_for_others(
    target: str, fast_math: bool, rank: int, zero: np.integer
) -> None:
    """``a + dequantize(quantize(a))``; the quantisation clips."""
    x = np.array([3, -2, 100, -100, 0.26, 1e30], np.float32).reshape(*[1] * (rank - 1), 6)
    nodes: Nodes = [("Neg", ["x"], "a", {}), *pair("a", "d"), ("Add", ["a", "d"], "y", {})]
    (y,) = run(nodes, x, {"s": np.float32(0.1), "z": np.asarray(zero)}, ["y"], target, fast_math)
    np.testing.assert_allclose(y, -x + quantised(-x, 0.1, zero), rtol=1e-6)


@TARGETS
@MATH
def test_a_convolution_between_quantised_ones_has_a_whole_result(target: str, fast_math: bool) -> None:
    """A residual sum reads the value, and the quantised form is clipped at half the value's range."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (1, 4, 5, 6)).astype(np.float32)
    w = rng.integers(-20, 20, (4, 4, 1, 1)).astype(np.int8)
    nodes: Nodes = [
        *pair("x", "xd"),
        ("DequantizeLinear", ["w", "sw"], "wd", {}),
        ("Conv", ["xd", "wd"], "a", {}),
        *pair("a", "ad", "a"),
        ("Conv", ["ad", "wd"], "c", {}),
        ("Add", ["a", "c"], "y", {}),
    ]
    held = {"s": np.float32(0.05), "z": np.uint8(128), "sw": np.float32(0.05), "w": w}

    def conv(v: np.ndarray) -> np.ndarray:
        return np.einsum("oi,nihw->nohw", w[:, :, 0, 0] * np.float32(0.05), v)

    a = conv(quantised(x, 0.05, np.uint8(128)))
    scale = np.float32(np.abs(a).max() / 510)  # of 127 steps up and down
    held |= {"sa": scale, "za": np.uint8(128)}
    (y,) = run(nodes, x, {k: np.asarray(v) for k, v in held.items()}, ["y"], target, fast_math)
    c = conv(quantised(a, scale, np.uint8(128)))
    step = scale * np.abs(w).sum(1).max() * 0.05  # a value in the middle of two steps may go to either
    np.testing.assert_allclose(y, a + c, atol=step)


NUMBERS = np.array(
    [0.1, -0.2, 1e-3, 300, 70000, -70000, 3.4e38, -3.4e38, 1e-7, -1e-40, 1e-45, 0, -0.0, np.nan, np.inf, -np.inf],
    np.float32,
)
NARROW = {
    "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
}  # fmt: skip


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    """Convert to a type and back; float8 saturates."""
    kind = np.dtype(name) if name == "float16" else np.dtype(getattr(ml_dtypes, name))
    with np.errstate(all="ignore"):
        if "float8" in name:
            largest = float(ml_dtypes.finfo(kind).max)
            x = np.clip(x, -largest, largest)
        return x.astype(kind).astype(x.dtype)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """NaN equals NaN; zeros have the same sign."""
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(wanted[numbers]))


@TARGETS
@MATH
@pytest.mark.parametrize("name", NARROW)
def test_a_cast_to_fewer_bits_and_back_rounds(target: str, fast_math: bool, name: str) -> None:
    """Only readers of the cast see the rounded value; readers of its source see all bits."""
    nodes: Nodes = [
        ("Neg", ["x"], "a", {}),
        ("Cast", ["a"], "n", {"to": NARROW[name]}),
        ("Cast", ["n"], "w", {"to": TensorProto.FLOAT}),
        ("Sub", ["a", "w"], "y", {}),
        ("Mul", ["w", "w"], "z", {}),
    ]
    w, y, z, a = run(nodes, NUMBERS, {}, ["w", "y", "z", "a"], target, fast_math)
    near = rounded(-NUMBERS, name)
    assert_same_bits(a, -NUMBERS)
    assert_same_bits(w, near)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, -NUMBERS - near)
        np.testing.assert_array_equal(z, near * near)


@TARGETS
@MATH
def test_a_cast_from_double_and_back_rounds(target: str, fast_math: bool) -> None:
    x = np.array([0.1, -1e-50, 1e300, -0.0, np.nan], np.float64)
    nodes: Nodes = [
        ("Neg", ["x"], "a", {}),
        ("Cast", ["a"], "n", {"to": TensorProto.FLOAT}),
        ("Cast", ["n"], "w", {"to": TensorProto.DOUBLE}),
    ]
    with np.errstate(all="ignore"):
        assert_same_bits(run(nodes, x, {}, ["w"], target, fast_math)[0], (-x).astype(np.float32).astype(np.float64))


@TARGETS
@MATH
def test_casts_of_float16_read_float16(target: str, fast_math: bool) -> None:
    """A cast of the float16 square sees the rounded square, also if ``fast_math`` computes more bits."""
    x = np.array([0.1, 1.732, 300, -2.236, 9.95, 1e-4], np.float16)
    kinds = {"w": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "i": TensorProto.INT32, "b": TensorProto.BFLOAT16}
    nodes: Nodes = [("Mul", ["x", "x"], "q", {})]
    nodes += [("Cast", ["q"], name, {"to": kind}) for name, kind in kinds.items()]
    nodes += [("Cast", ["b"], "h", {"to": TensorProto.FLOAT16})]
    with np.errstate(over="ignore"):
        square = x * x
        finite = np.isfinite(square)
        wanted = [square.astype(t) for t in (np.float32, np.float64)]
        wanted += [np.where(finite, square, 0).astype(np.int32), rounded(square.astype(np.float32), "bfloat16")]
    found = run(nodes, x, {}, ["w", "d", "i", "h"], target, fast_math)
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(a[finite] if k == 2 else a, b[finite] if k == 2 else b.astype(a.dtype))


@TARGETS
@MATH
def test_a_cast_to_integers_and_back_truncates(target: str, fast_math: bool) -> None:
    x = np.array([0.1, -0.9, 2.7, -3.4, 100.5, -0.0, 1e-40], np.float32)
    nodes: Nodes = [
        ("Neg", ["x"], "a", {}),
        ("Cast", ["a"], "n", {"to": TensorProto.INT8}),
        ("Cast", ["n"], "w", {"to": TensorProto.FLOAT}),
        ("Div", ["one", "w"], "r", {}),
    ]
    w, r = run(nodes, x, {"one": np.float32(1)}, ["w", "r"], target, fast_math)
    assert_same_bits(w, (-x).astype(np.int8).astype(np.float32))
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(r, 1 / w, rtol=1e-6)


@MATH
def test_products_between_casts_are_of_what_they_round(fast_math: bool) -> None:
    """Mixed precision as exporters write it; quantize_bf16 leaves the author's casts unchanged."""
    rng = np.random.default_rng(3)
    x, w = rng.normal(0, 1, (5, 16)).astype(np.float32), rng.normal(0, 1, (16, 7)).astype(np.float32)
    nodes: Nodes = [
        ("Tanh", ["x"], "a", {}),
        ("Cast", ["a"], "an", {"to": TensorProto.FLOAT16}),
        ("Cast", ["w"], "wn", {"to": TensorProto.FLOAT16}),
        ("MatMul", ["an", "wn"], "pn", {}),
        ("Cast", ["pn"], "p", {"to": TensorProto.FLOAT}),
        ("Cast", ["an"], "b", {"to": TensorProto.FLOAT}),
        ("Sub", ["a", "b"], "lost", {}),
    ]
    a = np.tanh(x)
    product = (rounded(a, "float16").astype(np.float64) @ rounded(w, "float16")).astype(np.float16)
    for change in (lambda p: p, mgx_numba.quantize_bf16, lambda p: mgx_numba.quantize_fp16(p, ins_names=["tanh"])):
        p, b, lost = run(nodes, x, {"w": w}, ["p", "b", "lost"], "cpu", fast_math, change)
        assert_same_bits(b, b.astype(np.float16).astype(np.float32))
        assert_same_bits(p, p.astype(np.float16).astype(np.float32))
        np.testing.assert_allclose(p, product, rtol=2e-2, atol=2e-2)
    p, b, lost = run(nodes, x, {"w": w}, ["p", "b", "lost"], "cpu", fast_math)
    np.testing.assert_allclose(b + lost, a, atol=1e-6)
    assert np.abs(lost).max() > 1e-5


def test_programs_tell_whose_a_conversion_is() -> None:
    """The mark is in a program's text and files; a conversion that a script adds is the author's."""
    program = mgx_numba.program()
    main = program.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(lens=[4]))
    narrow = main.add_instruction(mgx_numba.op("convert", target_type=1), [x])
    main.add_return([main.add_instruction(mgx_numba.op("convert", target_type=2), [narrow])])
    assert "elidable" not in str(program)
    given = np.array([0.1, 70000, -1e-8, 3], np.float32)
    (y,) = program.clone().compile("cpu").run({"x": given})
    assert_same_bits(np.asarray(y), rounded(given, "float16"))
    own = mgx_numba.program()
    main = own.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(lens=[4, 4]))
    main.add_return([main.add_instruction(mgx_numba.op("dot"), [x, x])])
    mgx_numba.quantize_fp16(own)
    assert str(own).count("elidable=1") == 2
    again = mgx_numba.load_buffer(mgx_numba.save_buffer(own))
    assert str(again) == str(own)
