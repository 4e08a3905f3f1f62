"""Scalar expressions in NumPy's notation: their results for each handler of the protocol."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import Type, from_numpy
from mgx_numba.errors import MgxError, OperatorError, ShapeError
from mgx_numba.ops.base import make_op
from mgx_numba.ops.elements import ScalarElement
from mgx_numba.ops.scalar import NumpyScalar, TypeScalar

from ..values import normal

OF_FLOATS: list[Callable[..., Any]] = [
    lambda x, y: x + 2 * y - 1,
    lambda x, y: x / (1 + np.exp(-y)),
    lambda x, y: np.where(x > y, x, np.float32(0.5)),
    lambda x, y: np.where((x > 0) & ~(y > 0), x**2, np.square(y)),
    lambda x, y: np.clip(x, -0.5, 0.5) * np.maximum(y, 0),
    lambda x, y: -abs(x) % (np.floor(np.sin(y)) + 3),
    lambda x, y: np.float32(3) - np.sqrt(x * x + y * y),
    lambda x, y: np.isnan(x).astype(np.float32) + np.isinf(y).astype("float32"),
    lambda x, y: x.astype(np.int32).astype(x.dtype) + y,
]
OF_INTEGERS: list[Callable[..., Any]] = [
    lambda x, y: (x & 3) | (y << 1),
    lambda x, y: x * y - (x ^ 5),
    lambda x, y: np.where(x == y, 1, np.minimum(x, y)),
    lambda x, y: ~x + np.sign(y),
    lambda x, y: x != y,
]


def by_handler(handler: Any, expression: Callable[..., Any], *values: Any) -> Any:
    return expression(*(ScalarElement("test::op", handler, v) for v in values)).value


@pytest.mark.parametrize("expression", range(len(OF_FLOATS)))
@np.errstate(all="ignore")
def test_floats_mean_what_they_mean_to_numpy(expression: int) -> None:
    x, y = normal(5, 7, special=True), normal(5, 7, seed=1, special=True)[::-1]
    function = OF_FLOATS[expression]
    if expression == 8:
        x = np.nan_to_num(x, posinf=3, neginf=3)  # NumPy does not define the integers of NaN and infinities
    wanted, found = function(x, y), by_handler(NumpyScalar(), function, x, y)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("expression", OF_INTEGERS)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integers_mean_what_they_mean_to_numpy(expression: Callable[..., Any], dtype: Any) -> None:
    x, y = (np.arange(-6, 6, dtype=dtype).reshape(3, 4), np.arange(12, dtype=dtype).reshape(3, 4) % 5)
    wanted, found = expression(x, y), by_handler(NumpyScalar(), expression, x, y)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("expression", OF_FLOATS)
def test_types_are_those_of_values_and_of_recorded_calls(expression: Callable[..., Any]) -> None:
    x = np.ones((2, 2), np.float32)
    wanted = from_numpy(by_handler(NumpyScalar(), expression, x, x).dtype)
    assert by_handler(TypeScalar(), expression, Type.float_type, Type.float_type) is wanted
    body = scalar_body(lambda s, *v: by_handler(s, expression, *v), [Type.float_type] * 2)
    assert body.dtype is wanted


@pytest.mark.parametrize("name", ["sqdiff", "gelu_erf", "gelu_tanh", "softsign", "mish", "hard_sigmoid"])
def test_a_pointwise_operator_rounds_once(name: str) -> None:
    op, x = make_op(name), (normal(50, seed=3) * 200).astype(np.float16)
    args = [x, x[::-1]][: op.arity]  # type: ignore[attr-defined]
    half, single = (
        op.compute(op.compute_shape([Shape(from_numpy(a.dtype), a.shape) for a in given]), given)
        for given in (args, [a.astype(np.float32) for a in args])
    )
    np.testing.assert_array_equal(half, single.astype(np.float16))


def test_functions_that_numpy_lacks() -> None:
    x = normal(9)
    found = by_handler(NumpyScalar(), lambda x: x.erf() + x.sigmoid(), x)
    np.testing.assert_allclose(found, [math.erf(v) + 1 / (1 + math.exp(-v)) for v in x.tolist()], rtol=1e-5)


@pytest.mark.parametrize(
    ("expression", "types", "kind", "message"),
    [
        (lambda x, y: x + y, "float int64", ShapeError, "add of float_type and int64_type, expected one type"),
        (lambda x, y: np.exp(x), "int32 int32", ShapeError, "exp of int32_type, expected a floating-point type"),
        (lambda x, y: x / y, "int32 int32", ShapeError, "div of int32_type"),
        (lambda x, y: x * 0.5, "int32 int32", ShapeError, "0.5 is no constant of int32_type"),
        (lambda x, y: x + np.ones(3), "float float", ShapeError, "is no constant of float_type"),
        (lambda x, y: x if x > y else y, "float float", OperatorError, r"choose by np.where\(condition, a, b\)"),
        (lambda x, y: math.exp(x), "float float", OperatorError, "np.exp for math.exp"),
        (lambda x, y: np.log10(x), "float float", OperatorError, "elements have no np.log10; they have: .*np.log2"),
        (lambda x, y: np.add.reduce(x), "float float", OperatorError, "elements have no np.add.reduce"),
        (lambda x, y: np.round(x), "float float", OperatorError, "elements have no np.round"),
        (lambda x, y: x.astype("quaternion"), "float float", OperatorError, "quaternion"),
    ],
)
def test_what_elements_have_not_is_said(expression: Any, types: str, kind: type[MgxError], message: str) -> None:
    given = [Type[f"{t}_type"] for t in types.split()]
    with pytest.raises(kind, match=f"test::op: .*{message}|{message}"):
        by_handler(TypeScalar(), expression, *given)
