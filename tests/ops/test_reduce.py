"""Reductions, softmax and running sums against direct formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from ..values import normal
from .running import call, onnx_reference, shape

FORMULAS = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("axes", [(), (1,), (0, -1), (0, 1, 2)])
def test_reductions_keep_axes(name: str, axes: tuple) -> None:
    for x in (normal(3, 5, 7), normal(7, 5, 3).T, np.broadcast_to(normal(1, 5, 1), (3, 5, 7))):
        expected = FORMULAS[name](x.astype(np.float64), axis=axes or None, keepdims=True)
        np.testing.assert_array_equal(call(name, x, axes=(*axes, *axes)), call(name, x, axes=axes))
        np.testing.assert_allclose(call(name, x, axes=axes), expected, rtol=1e-6, atol=1e-6)


def test_reductions_keep_the_memory_order() -> None:
    x = normal(2, 5, 5, 3).transpose(0, 3, 1, 2)
    assert shape("reduce_mean", x, axes=(2, 3)).lens == (2, 3, 1, 1)
    assert shape("reduce_sum", x, axes=(0,)).strides == (75, 1, 15, 3)


def test_axes_as_second_input() -> None:
    x = normal(3, 4)
    np.testing.assert_allclose(call("reduce_sum", x, np.array([1])), x.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(call("reduce_max", x, np.array([], np.int64)), x)
    assert shape("reduce_sum", x, np.array([1])).is_dynamic
    with pytest.raises(ShapeError, match="given twice"):
        shape("reduce_sum", x, np.array([1]), axes=(0,))


def test_sums_accumulate_wider_than_the_storage_type() -> None:
    half = np.ones((1, 5000), np.float16)
    assert call("reduce_sum", half, axes=(1,)).tolist() == [[5000]]
    small = np.full((300,), 100, np.int8)
    assert call("reduce_mean", small, axes=(0,)).tolist() == [100]
    assert call("reduce_mean", np.array([-3, -4]), axes=(0,)).tolist() == [-3]
    bf16 = np.full((4, 300), 1.0, ml_dtypes.bfloat16)
    assert call("reduce_sum", bf16, axes=(0, 1)).astype(np.float32).tolist() == [[1200.0]]
    assert call("reduce_max", bf16, axes=(0,)).dtype == ml_dtypes.bfloat16


def test_reductions_over_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    assert call("reduce_sum", x, axes=(1,)).tolist() == [[0], [0]]
    assert call("reduce_prod", x, axes=(1,)).tolist() == [[1], [1]]
    assert call("reduce_max", x, axes=(1,)).tolist() == [[-np.inf]] * 2
    assert call("reduce_min", np.zeros((0,), np.int32), axes=(0,)).tolist() == [2**31 - 1]
    assert np.isnan(call("reduce_mean", x, axes=(1,))).all()


def test_nan_propagates_through_extremes() -> None:
    x = np.array([1, np.nan, 3], np.float32)
    assert np.isnan(call("reduce_max", x, axes=(0,))).all()


def test_any_and_all_are_bool() -> None:
    x = np.array([[True, False], [True, True]])
    assert call("reduce_any", x, axes=(1,)).tolist() == [[True], [True]]
    assert call("reduce_all", x, axes=(1,)).tolist() == [[False], [True]]


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_arg_reductions(name: str, last: bool, axis: int) -> None:
    x = np.random.default_rng(1).integers(0, 4, (5, 9)).astype(np.float32)
    expected = onnx_reference(
        {"argmax": "ArgMax", "argmin": "ArgMin"}[name], x, axis=axis, keepdims=1, select_last_index=int(last)
    )[0]
    np.testing.assert_array_equal(call(name, x, axis=axis, select_last_index=last), expected)


def test_arg_reduction_refuses_an_empty_axis() -> None:
    with pytest.raises(ShapeError, match="empty"):
        shape("argmax", np.zeros((0, 2), np.float32))


def test_reduction_of_ranges() -> None:
    x = Shape.dynamic(Type.float_type, [DynamicDimension(1, 4), 5])
    assert shape("reduce_sum", x, axes=(1,)).dims == (DynamicDimension(1, 4), DynamicDimension(1, 1))
    with pytest.raises(ShapeError, match="out of range"):
        shape("reduce_sum", x, axes=(2,))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_and_its_logarithm(axis: int) -> None:
    x = 30 * normal(3, 4, 5)
    for name, op in (("softmax", "Softmax"), ("logsoftmax", "LogSoftmax")):
        expected = onnx_reference(op, x.astype(np.float64), axis=axis)[0]
        np.testing.assert_allclose(call(name, x, axis=axis), expected, rtol=3e-5, atol=1e-6)
        assert call(name, x.T[:, :2], axis=axis).shape == (5, 2, 3)
    assert call("softmax", np.zeros((2, 0), np.float32)).shape == (2, 0)


def test_softmax_with_masked_elements() -> None:
    x = np.array([[-np.inf, 0, 0]], np.float16)
    assert call("softmax", x, axis=1).tolist() == [[0, 0.5, 0.5]]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_prefix_scan_sum(exclusive: bool, reverse: bool, axis: int) -> None:
    for x in (np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 0), np.float32)):
        expected = onnx_reference("CumSum", x, np.array(axis), exclusive=int(exclusive), reverse=int(reverse))[0]
        result = call("prefix_scan_sum", x, axis=axis, exclusive=exclusive, reverse=reverse)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("operation", ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
def test_results_of_parts_reduce_to_that_of_the_whole(operation: str, axes: tuple) -> None:
    for x in (normal(6, 5, 8), normal(8, 5, 6).T, np.broadcast_to(normal(1, 5, 1), (6, 5, 8))):
        cut = axes[:1] if len(axes) < 3 else axes[:2]
        length, last = (int(np.prod([x.shape[a] for a in c])) for c in (cut, axes[-1:]))
        for parts, share, fold in ((1, length, 1), (3, -(-length // 3), 1), (4, length, last), (2, length - 1, 2)):
            attributes = {"axes": axes, "cut": cut, "share": share, "parts": parts, "folded": axes[-1:], "fold": fold}
            found = call("reduce_parts", x, operation=operation, **attributes)
            assert found.shape[axes[0]] == parts * fold
            whole = call(operation, x, axes=axes)
            np.testing.assert_allclose(call(operation, found, axes=axes[:1]), whole, rtol=1e-5, atol=1e-6)


def test_which_elements_a_part_has() -> None:
    x = np.arange(24).reshape(4, 6)
    found = call("reduce_parts", x, axes=(0, 1), cut=(0, 1), share=10, parts=3, folded=(1,), fold=2)
    parts = [[[v for v in range(24) if v // 10 == p and v % 6 % 2 == f] for f in (0, 1)] for p in range(3)]
    assert found.reshape(3, 2).tolist() == [[sum(v) for v in part] for part in parts]
    assert call("reduce_parts", x, axes=(1,), cut=(1,), share=6, parts=2).tolist() == [
        [15, 0],
        [51, 0],
        [87, 0],
        [123, 0],
    ]
    assert shape("reduce_parts", x, axes=(0,), cut=(0,), share=2, parts=2, permutation=(1, 0)).strides == (1, 2)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"axes": (0,), "cut": (1,), "share": 9}, "must be among axes"),
        ({"axes": (0,), "cut": (0,), "share": 1, "parts": 3}, "3 parts of 1 elements do not cover 4"),
        ({"axes": (0,), "cut": (0,), "share": 4, "operation": "reduce_mean"}, "no associative reduction"),
        ({"axes": (0,), "cut": (0,), "share": 4, "operation": "relu"}, "no associative reduction"),
        ({"axes": (0,), "cut": (0,), "share": 4, "fold": 0}, "do not cover"),
    ],
)
def test_parts_that_are_none(attributes: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shape("reduce_parts", np.zeros((4, 6), np.float32), **attributes)


def test_means_of_heads() -> None:
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    assert call("head_mean", x, axes=(1,)).tolist() == [[0.5], [64.5]]
    assert call("head_mean", x, axes=(0, 1), share=2).tolist() == [[31.5]]
    assert call("head_mean", np.full((2, 8), np.inf, np.float32), axes=(1,)).tolist() == [[0], [0]]
    assert call("head_mean", np.zeros((3, 0), np.float32), axes=(1,)).tolist() == [[0], [0], [0]]
    for value, head in ((3e30, np.float32(3e30)), (3e38, 0)):  # what is as large, of the other sign, would be infinite
        assert call("head_mean", np.full((1, 2), value, np.float32), axes=(1,), share=1).tolist() == [[head]]
    with pytest.raises(ShapeError, match="needs floats"):
        shape("head_mean", np.zeros((2, 3), np.int32), axes=(1,))
