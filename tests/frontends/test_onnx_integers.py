"""Operators on integers that no float holds match exact arithmetic modulo the type's range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mgx_numba as migraphx
from mgx_numba.errors import OperatorError
from mgx_numba.ops.base import make_op

from .support import make_model, single

TARGETS = (("ref", False), ("cpu", False), ("cpu", True))
LARGE = 2**53 + 1
"""The least positive integer that float64 does not hold."""
ENDS = {np.int64: (LARGE, 2**63 - 1, -(2**63)), np.uint64: (LARGE, 2**64 - 1, 2**63 + 1), np.int32: (2**31 - 1,)}


def everywhere(model: onnx.ModelProto, feeds: dict[str, np.ndarray], wanted: np.ndarray) -> None:
    """Check that each target gives exactly the expected result."""
    for target, fast in TARGETS:
        (found,) = migraphx.parse_onnx(model).compile(target, fast_math=fast).run(feeds)
        assert np.asarray(found).dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found), wanted, err_msg=f"{target}, fast_math={fast}")


def elem(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dtype", ENDS)
def test_pad_keeps_every_digit_of_its_value(dtype: Any, constant: bool) -> None:
    for value in ENDS[dtype]:
        x, pads, fill = np.arange(6, dtype=dtype).reshape(2, 3), np.array([0, 1, 1, 2]), np.array(value, dtype)
        model, feeds = single("Pad", [x, pads, fill], outputs=(elem(dtype),), constant=(1, 2) if constant else (1,))
        everywhere(model, feeds, np.pad(x, ((0, 1), (1, 2)), constant_values=fill))


@pytest.mark.parametrize("value", [LARGE, 2**64 - 1])
def test_pad_of_open_lengths_and_of_a_saved_program(value: int, tmp_path: Path) -> None:
    node = helper.make_node("Pad", ["x", "pads", "value"], ["y"])
    constants = {"pads": np.array([1, 0]), "value": np.array(value, np.uint64)}
    model = make_model([node], {"x": np.zeros(3, np.uint64)}, {"y": elem(np.uint64)}, constants=constants)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    program = migraphx.parse_onnx(model, default_dyn_dim_value=migraphx.shape.dynamic_dimension(1, 9))
    program.save(tmp_path / "pad.mxr")
    for made in (program, migraphx.load(tmp_path / "pad.mxr")):
        made.compile("cpu")
        for length in (2, 5, 7):
            x = np.arange(length, dtype=np.uint64)
            np.testing.assert_array_equal(made.run({"x": x})[0], np.array([value, *x], np.uint64))


def test_a_value_is_an_integer_only_where_no_float_is_equal() -> None:
    for given, kept in ((7, float), (np.int64(2**60), float), (LARGE, int), (np.uint64(2**64 - 1), int), (0.5, float)):
        value = make_op("pad", pads=(0, 1), value=given).attributes()["value"]
        assert type(value) is kept and value == given
    for wrong in ("1", 10**400, 1j):
        with pytest.raises(OperatorError, match="pad: attribute value must be float"):
            make_op("pad", value=wrong)


def wrapped(values: list[int], dtype: Any) -> np.ndarray:
    """Return integers modulo the range of a type."""
    bits = np.iinfo(dtype).bits
    return np.array([v % (1 << bits) for v in values], f"u{bits // 8}").view(dtype)


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("exponent", [np.int64, np.int32, np.float32])
@pytest.mark.parametrize("base", [np.int64, np.int32])
def test_powers_are_integers(base: Any, exponent: Any, constant: tuple[int, ...]) -> None:
    a, b = [3, -3, 7, 10, -1, 1, 5, -1, 2], [13, 11, 2, 5, 4, 0, -2, -3, -1]
    if constant:  # a floating exponent is exact where it is known, and may be anything else
        a, b = [3, -3, *a], [39, 37, *b]
    expected = [x**y if y >= 0 else x if abs(x) == 1 and y % 2 else int(abs(x) == 1) for x, y in zip(a, b, strict=True)]
    model, feeds = single("Pow", [np.array(a, base), np.array(b, exponent)], outputs=(elem(base),), constant=constant)
    everywhere(model, feeds, wrapped(expected, base))


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_shrunk_integers(bias: float) -> None:
    x = np.array([LARGE, -LARGE, 2**62 + 1, 3, 1, 0, -1, -2])
    model, feeds = single("Shrink", [x], outputs=(elem(np.int64),), lambd=1.5, bias=bias)
    everywhere(model, feeds, np.where(x < -1.5, x + int(bias), np.where(x > 1.5, x - int(bias), 0)))


@pytest.mark.parametrize("lambd", [300.0, -300.0, -1.0])
def test_limits_of_shrink_that_the_type_does_not_hold(lambd: float) -> None:
    x = np.array([-128, -3, 0, 3, 127], np.int8)
    model, feeds = single("Shrink", [x], outputs=(elem(np.int8),), lambd=lambd, bias=0.0)
    everywhere(model, feeds, np.where((x < -lambd) | (x > lambd), x, 0).astype(np.int8))


def test_whole_factors_of_products_of_integers() -> None:
    a, b = np.array([[LARGE, 3]]), np.array([[1], [2]])
    model, feeds = single("Gemm", [a, b], outputs=(elem(np.int64),), alpha=2.0, beta=0.5)  # beta has nothing to scale
    everywhere(model, feeds, 2 * (a @ b))


def test_bounds_of_clip_beyond_the_integers() -> None:
    x = np.array([-5, 0, 7, 2**31 - 1], np.int32)
    model, feeds = single("Clip", [x], opset=6, outputs=(elem(np.int32),), min=-3.4e38, max=3.4e38)
    with pytest.warns(UserWarning, match="does not allow"):
        everywhere(model, feeds, x)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("bias", [1.0, 2.0, -1.0])
def test_shrink_takes_a_bias_from_unsigned_integers(dtype: Any, bias: float) -> None:
    """The bias was added as a negative number, which such a type does not have: it was 0."""
    x = np.array([0, 1, 2, 3, 100], dtype)
    model, feeds = single("Shrink", [x], outputs=(elem(dtype),), bias=bias)
    shrunk = x - dtype(bias) if bias > 0 else x + dtype(-bias)  # which wraps, as in ONNX Runtime
    everywhere(model, feeds, np.where(x > 0, shrunk, dtype(0)))


@pytest.mark.parametrize("open_axes", [False, True])
@pytest.mark.parametrize(("dtype", "large"), [(np.int32, 100000), (np.int64, 4 * 10**9)])
def test_norms_whose_sums_exceed_their_type(dtype: Any, large: int, open_axes: bool) -> None:
    """Sums of squares wrapped around below the root, and sums below the logarithm."""
    x = np.array([[large, -large, 0], [3, 4, 0], [0, 0, 0]], dtype)
    norms = np.array([[int(np.hypot(large, large))], [5], [0]], dtype)
    constant = () if open_axes else (1,)
    for op_type, given, wanted in (
        ("ReduceL2", x, norms),
        (
            "ReduceLogSum",
            np.full((2, 3), np.iinfo(dtype).max // 2, dtype),
            np.log(np.full((2, 1), np.iinfo(dtype).max * 1.5)),
        ),
    ):
        model, feeds = single(op_type, [given, np.array([1])], opset=18, outputs=(elem(dtype),), constant=constant)
        everywhere(model, feeds, wanted.astype(dtype))
