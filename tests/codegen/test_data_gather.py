"""Gather kernels against the operators' NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.copies import indexed_launch
from mgx_numba.codegen.launch import Launch
from mgx_numba.codegen.problems.indexed_copy import gather_copy, gather_elements_copy, gathernd_copy
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import counting, empty_in_order, in_order

from .launching import run_launch, tensor_of

COPIES = {"gather": gather_copy, "gather_elements": gather_elements_copy, "gathernd": gathernd_copy}


def launch_for(
    name: str, attribute: int, x: np.ndarray, indices: np.ndarray, out: np.ndarray, **options: Any
) -> Launch:
    return indexed_launch(COPIES[name](attribute, tensor_of(x), tensor_of(indices), tensor_of(out), **options))


def check(name: str, attribute: int, x: np.ndarray, indices: np.ndarray, gap: int = 0, **orders: Any) -> None:
    key = "batch_dims" if name == "gathernd" else "axis"
    op = make_op(name, **{key: attribute})
    index_shape = Shape(from_numpy(indices.dtype), indices.shape) if indices.ndim else Shape(from_numpy(indices.dtype))
    shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape), index_shape])
    indices = indices if indices.ndim else indices.reshape(1)
    expected = op.compute(shape, [x, indices])
    x = in_order(x, orders.get("x_order"), gap)
    indices = in_order(indices, orders.get("index_order"), gap)
    out = empty_in_order(shape.lens, x.dtype, orders.get("out_order"), gap)
    fault = run_launch(launch_for(name, attribute, x, indices, out), {"x": x, "indices": indices, "out": out})
    assert fault is None
    np.testing.assert_array_equal(out, expected)


def positions(length: int, *lens: int, dtype: Any = np.int64, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-length, length, lens).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index_dtype", [np.int64, np.int32])
def test_gather_along_each_axis(axis: int, index_dtype: Any) -> None:
    x = counting(7, 11, 45)
    check("gather", axis, x, positions(x.shape[axis], 5, 23, dtype=index_dtype))
    check("gather", axis, x, positions(x.shape[axis], 5, 23, dtype=index_dtype), gap=3)


def test_gather_with_a_scalar_index() -> None:
    check("gather", 1, counting(4, 6, 9), np.array(-2))
    check("gather", 0, counting(6), np.array(3, np.int32))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "int32", "float64"])
def test_gather_of_each_width(dtype: str) -> None:
    check("gather", 0, counting(9, 150, dtype=dtype), positions(9, 14))
    check("gather", 1, counting(9, 50, dtype=dtype), positions(50, 14))


def test_gather_in_other_memory_orders() -> None:
    check(
        "gather",
        1,
        counting(5, 6, 7),
        positions(6, 4, 3),
        x_order=(2, 0, 1),
        index_order=(1, 0),
        out_order=(3, 1, 0, 2),
    )
    check("gather", 0, counting(5, 33), positions(5, 21), x_order=(1, 0), out_order=(1, 0))


@pytest.mark.parametrize("cols", [2, 3, 8, 20, 64, 100, 300])
def test_gather_of_short_rows(cols: int, given_machine: Any) -> None:
    for cache in (1 << 30, 0):  # the second time as if tensors were larger than the caches
        given_machine(last_cache_bytes=cache)
        check("gather", 0, counting(19, cols), positions(19, 333))
        check("gather", 1, counting(3, 19, cols), positions(19, 40, 2, dtype=np.int32), gap=1)
        check("gathernd", 1, counting(3, 19, 5, cols), positions(5, 3, 70, 2))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
def test_gather_of_the_same_columns_of_many_rows(dtype: str, given_machine: Any) -> None:
    for cache in (1 << 30, 0):  # the second time as if tensors were larger than the caches
        given_machine(last_cache_bytes=cache)
        check("gather", 1, counting(130, 45, dtype=dtype), positions(45, 23))
        check("gather", 1, counting(70, 45, dtype=dtype), positions(45, 1500, dtype=np.int32))
        check("gather", 2, counting(2, 35, 9, dtype=dtype), positions(9, 3, 700), gap=2)


def test_unchecked_indices_out_of_range_are_clamped() -> None:
    x, indices = counting(4, 20), np.array([20, -21, 2**40, -(2**40), 4, -5])
    for axis in (0, 1):
        length = x.shape[axis]
        wrapped = np.clip(np.where(indices < 0, indices + length, indices), 0, length - 1)
        expected = np.take(x, wrapped, axis)
        out = empty_in_order(expected.shape, x.dtype)
        launch = launch_for("gather", axis, x, indices, out, checked=False)
        assert run_launch(launch, {"x": x, "indices": indices, "out": out}) is None
        np.testing.assert_array_equal(out, expected)


REPORTED: dict[str, tuple[str, int, tuple[int, ...], tuple[int, ...], int]] = {
    "runs": ("gather", 0, (9, 6), (40,), 0),
    "long runs": ("gather", 0, (9, 300), (5,), 0),
    "one element": ("gather", 1, (4, 1), (7,), 1),
    "columns": ("gather", 1, (3, 40), (77,), 1),
    "columns of many rows": ("gather", 1, (130, 45), (23,), 1),
    "vector": ("gather", 0, (33,), (2, 61), 0),
    "elements": ("gather_elements", 1, (6, 5, 37), (6, 9, 20), 1),
    "elements of rows": ("gather_elements", 2, (3, 5, 7), (3, 5, 50), 2),
    "tuples": ("gathernd", 0, (4, 4, 33), (3, 6, 2), 0),
    "tuples of a batch": ("gathernd", 1, (5, 7, 3), (5, 9, 1), 1),
}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("case", REPORTED)
def test_an_index_out_of_range_is_reported(case: str, dtype: Any) -> None:
    name, attribute, lens, index_lens, axis = REPORTED[case]
    x, rng = counting(*lens), np.random.default_rng(3)
    length, signed = lens[axis], np.dtype(dtype).kind == "i"
    legal = rng.integers(-length if signed else 0, length, index_lens).astype(dtype)
    shape = make_op(name, **{"batch_dims" if name == "gathernd" else "axis": attribute}).compute_shape(
        [Shape(from_numpy(x.dtype), lens), Shape(from_numpy(legal.dtype), index_lens)]
    )
    ends = [length, -length - 1, np.iinfo(dtype).max, np.iinfo(dtype).min] if signed else [length, 255]
    for wrong in [None, *ends]:
        indices, out = legal.copy(), empty_in_order(shape.lens, x.dtype)
        if wrong is not None:
            indices.reshape(-1)[rng.integers(indices.size) // index_lens[-1] * index_lens[-1]] = wrong
        fault = run_launch(launch_for(name, attribute, x, indices, out), {"x": x, "indices": indices, "out": out})
        assert fault == (None if wrong is None else (f"axis {axis} of length {length}", wrong))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int) -> None:
    x = counting(6, 5, 37)
    lens = [4, 3, 20]
    lens[axis] = 9
    check("gather_elements", axis, x, positions(x.shape[axis], *lens))
    check(
        "gather_elements",
        axis,
        x,
        positions(x.shape[axis], *lens),
        gap=2,
        x_order=(1, 2, 0),
        out_order=(2, 0, 1),
    )


def test_gathernd() -> None:
    x = counting(4, 5, 33)
    pairs = np.stack([positions(4, 3, 6), positions(5, 3, 6, seed=2)], -1)
    check("gathernd", 0, x, pairs)
    check("gathernd", 0, x, np.concatenate([pairs, positions(33, 3, 6, 1)], -1), gap=1)
    check("gathernd", 0, x, np.array([1, 2, 3]))
    check("gathernd", 1, x, positions(5, 4, 7, 1))
    check("gathernd", 2, x, positions(33, 4, 5, 1))
