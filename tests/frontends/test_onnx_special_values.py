"""Elementwise operators at NaN, infinities, zeros of both signs, denormals and extremes, against float64 in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx

from ..interpreter.engine import interpreted
from ..values import normal
from .support import make_model

WIDE = np.float64
TYPES = {np.float16: TensorProto.FLOAT16, np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}
ERROR = {np.float16: 2.0**-10, np.float32: 2.0**-18, np.float64: 2.0**-43}
"""Tolerance relative to the result: rounding of float16; for wider types 64 ulp, for functions and cancellation."""
erf = np.vectorize(math.erf, otypes=[WIDE])


def limited(low: float, x: Any, high: float) -> Any:
    return np.where(np.isnan(x), x, np.minimum(np.maximum(x, low), high))


def sigmoid(x: Any) -> Any:
    return np.where(x > 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


def softplus(x: Any) -> Any:
    return np.where(x > 0, x + np.log1p(np.exp(-x)), np.log1p(np.exp(x)))


SELU = WIDE(np.float32(1.05070102214813232421875)), WIDE(np.float32(1.67326319217681884765625))
UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "HardSigmoid": lambda x: limited(0, WIDE(np.float32(0.2)) * x + 0.5, 1),
    "HardSwish": lambda x: x * limited(0, x * WIDE(np.float32(1 / 6)) + 0.5, 1),
    "Identity": lambda x: x,
    "IsInf": np.isinf,
    "IsNaN": np.isnan,
    "LeakyRelu": lambda x: np.where(x < 0, WIDE(np.float32(0.01)) * x, x),
    "Log": np.log,
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.where(x < 0, 0, x),
    "Round": np.round,
    "Selu": lambda x: SELU[0] * np.where(x < 0, SELU[1] * (np.exp(x) - 1), x),
    "Sigmoid": sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Div": np.divide,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": np.maximum,
    "Mean": lambda x, y: (x + y) / 2,
    "Min": np.minimum,
    "Mod": np.fmod,
    "Mul": np.multiply,
    "PRelu": lambda x, y: np.where(x < 0, x * y, x),
    "Pow": np.power,
    "Sub": np.subtract,
    "Sum": np.add,
}
NO_SIGN_OF_ZERO = frozenset({"Max", "Mean", "Min", "Relu", "Sum", "ThresholdedRelu"})
"""Operators for which ONNX does not define the sign of a zero, or whose sum may begin with 0."""


def special(dtype: Any) -> np.ndarray:
    """Return the limits of a type, numbers beyond the limits, and numbers near corners of functions."""
    ends = np.finfo(dtype)
    sizes = [
        0,
        np.inf,
        ends.max,
        ends.tiny,
        ends.smallest_subnormal,
        ends.tiny / 4,
        ends.eps,
        1 - ends.eps,
        1 + ends.eps,
    ]
    sizes += [0.5, 1, 1.5, 2.5, 3, 6, 20, 50, 88, 100, 710, 1e-4, 1e4, math.pi]
    return np.array([np.nan, *sizes, *(-np.array(sizes))], dtype)


def check(name: str, found: np.ndarray, wanted: np.ndarray, dtype: Any, fast: bool) -> None:
    if wanted.dtype == np.bool_:
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    ends, got = np.finfo(dtype), found.astype(WIDE)
    assert found.dtype == dtype
    assert np.array_equal(np.isnan(got), np.isnan(wanted)), name
    smallest = ends.tiny if fast else 2 * float(ends.smallest_subnormal)
    # Elu's and Selu's subtraction of 1 leaves a multiple of the type's epsilon
    smallest = max(smallest, float(ends.eps)) if name in ("Elu", "Selu") else smallest
    smallest *= 100 if name == "Mish" else 1  # of -100 it is -100 times a denormal
    near = (got == wanted) | (np.abs(got - wanted) <= ERROR[dtype] * np.abs(wanted) + smallest) | np.isnan(wanted)
    near |= np.isinf(got) & (np.abs(wanted) > float(ends.max) * (1 - ERROR[dtype])) & (np.sign(got) == np.sign(wanted))
    assert near.all(), (name, got[~near], wanted[~near])
    zero = (wanted == 0) & (got == 0)
    assert fast or name in NO_SIGN_OF_ZERO or np.array_equal(np.signbit(got[zero]), np.signbit(wanted[zero])), name


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arity", [1, 2])
@np.errstate(all="ignore")
def test_elementwise_operators_at_special_values(arity: int, dtype: Any) -> None:
    functions: dict[str, Callable[..., Any]] = UNARY if arity == 1 else BINARY
    values = np.append(special(dtype), normal(20, seed=4).astype(dtype))
    inputs = [values] if arity == 1 else [v.ravel() for v in np.meshgrid(values, values)]
    wanted = {n: np.asarray(f(*(x.astype(WIDE) for x in inputs))) for n, f in functions.items()}
    feeds = {f"x{k}": x for k, x in enumerate(inputs)}
    nodes = [helper.make_node(n, list(feeds), [n], **({"fmod": 1} if n == "Mod" else {})) for n in functions]
    types = {n: TensorProto.BOOL if w.dtype == np.bool_ else TYPES[dtype] for n, w in wanted.items()}
    model = make_model(nodes, feeds, types, opset=22)
    for target, fast in (("ref", False), ("cpu", False), ("cpu", True)):
        results = migraphx.parse_onnx(model).compile(target, fast_math=fast).run(feeds)
        for (name, expected), found in zip(wanted.items(), results, strict=True):
            check(name, np.asarray(found), expected, dtype, fast)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("given", [{}, {"approximate": "tanh"}])
def test_gelu_of_the_largest_numbers_is_finite(given: dict[str, Any], dtype: Any) -> None:
    """It was infinite without ``fast_math``, since ``x * (1 + erf)`` was halved last."""
    x = np.array([1, 0.6, -1], dtype) * np.finfo(dtype).max
    model = make_model([helper.make_node("Gelu", ["x"], ["y"], **given)], {"x": x}, {"y": TYPES[dtype]}, opset=20)
    for target, fast in (("ref", False), ("ref", True), ("cpu", False), ("cpu", True)):
        (found,) = migraphx.parse_onnx(model).compile(target, fast_math=fast).run({"x": x})
        np.testing.assert_array_equal(np.asarray(found), np.maximum(x, 0))


@pytest.mark.parametrize("target", ["ref", "cpu", "gpu"])
def test_a_float16_product_is_rounded_before_it_is_converted(target: str) -> None:
    """ONNX Runtime, which multiplies in float32, leaves the rounding out."""
    x = np.array([1.0009765625, 1.001953125, 300], np.float16)
    nodes = [helper.make_node("Mul", ["x", "x"], ["m"]), helper.make_node("Cast", ["m"], ["y"], to=TensorProto.DOUBLE)]
    model = make_model(nodes, {"x": x}, {"y": TensorProto.DOUBLE})
    with interpreted():
        (found,) = migraphx.parse_onnx(model).compile(target, fast_math=False).run({"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.asarray(found), (x * x).astype(np.float64))


@pytest.mark.parametrize("target", ["ref", "cpu", "gpu"])
def test_the_largest_of_a_window_with_nan_is_nan(target: str) -> None:
    """As in ReduceMax and NumPy; ONNX Runtime's result depends on the position of NaN in the window."""
    x = np.array([[[np.nan, 1, 2, 3, np.nan]]], np.float32)
    model = make_model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2])], {"x": x}, {"y": TensorProto.FLOAT}
    )
    with interpreted():
        (found,) = migraphx.parse_onnx(model).compile(target, fast_math=False).run({"x": x})
    np.testing.assert_array_equal(np.asarray(found), [[[np.nan, 2, 3, np.nan]]])
