"""Kernels for extreme positions, sorted selections and running sums, against the operators' NumPy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.data.argreduce import arg_join_launch, arg_part_launch, arg_parts, argreduce_launch
from mgx_numba.codegen.cpu.data.row_sort import key_dtype, sort_launch, sort_pitch
from mgx_numba.codegen.cpu.data.scan import part_sums_launch, scan_launch, scan_parts
from mgx_numba.codegen.cpu.data.topk import MOST_OF_COLUMNS, is_by_columns, topk_columns_launch, topk_launch
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import empty_in_order, in_order

from .launching import run_launch, tensor_of

GROUPS = 3  # tasks of a sort
ORDERS = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]


def few_values(*lens: int, dtype: Any = np.float32, seed: int = 5) -> np.ndarray:
    """Numbers with many ties."""
    return np.random.default_rng(seed).integers(0, 9, lens).astype(dtype)


def check_arg(x: np.ndarray, axis: int, order: Any = None, gap: int = 0, cut: bool = False) -> None:
    for name in ("argmax", "argmin"):
        for last in (False, True):
            op = make_op(name, axis=axis, select_last_index=last)
            shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)])
            placed = in_order(x, order, gap)
            out = empty_in_order(shape.lens, np.dtype(np.int64), order)
            arguments = name == "argmax", last, axis, tensor_of(placed), tensor_of(out)
            arrays = {"x": placed, "out": out}
            count, kind = arg_parts(*arguments[2:])
            if count > 1:
                arrays |= {"values": np.empty(count, kind.numpy), "places": np.empty(count, np.int64)}
                run_launch(arg_part_launch(*arguments), arrays)
                run_launch(arg_join_launch(*arguments), arrays)
            else:
                run_launch(argreduce_launch(*arguments), arrays)
            assert (count > 1) == cut
            np.testing.assert_array_equal(out, op.compute(shape, [x]))


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_arg_positions_along_each_axis(axis: int, order: tuple[int, ...]) -> None:
    check_arg(few_values(7, 20, 37), axis, order)
    check_arg(few_values(1, 5, 70), axis, order, gap=1)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_arg_positions_of_other_types(dtype: str) -> None:
    check_arg(few_values(3, 100, dtype=dtype), 1)
    check_arg(few_values(30, 40, dtype=dtype), 0)
    for length in (1, 2, 3, 6, 7):
        tiny = few_values(2, 71, length, dtype=dtype)
        if np.issubdtype(tiny.dtype, np.floating):
            tiny[0, ::5, length // 2], tiny[1, ::7] = np.nan, np.inf
        check_arg(tiny, 2)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("lens", [(1100, 3), (3, 1100), (40, 2085), (2, 9, 1030), (33, 9, 70), (5, 0, 7)])
def test_arg_positions_of_long_rows_and_many_columns(lens: tuple[int, ...], streamed: bool, given_machine: Any) -> None:
    if streamed:
        given_machine(last_cache_bytes=0)
    x = few_values(*lens)
    x.reshape(-1)[5::97] = np.nan
    x.reshape(-1)[7::41] = -np.inf
    for axis in range(len(lens)):
        if lens[axis]:
            check_arg(x, axis, gap=axis)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("length", [1023, 1024, 1025, 1300, 4099])
def test_arg_positions_by_blocks_of_a_row(length: int, dtype: str) -> None:
    """The extremes of blocks are found first: equal ones, NaN and infinities may lie in several, and in the last."""
    check_arg(few_values(3, length, dtype=dtype), 1)
    check_arg(few_values(3, length, dtype=dtype), 1, gap=1)
    check_arg(np.zeros((2, length), dtype), 1)
    rng = np.random.default_rng(length)
    for k in range(6):
        x = rng.integers(0, 100, (2, length)).astype(dtype)
        x[0, rng.integers(0, length, 2)] = x[1, length - 1 - k] = 1 if dtype == "bool" else 120
        if np.dtype(dtype).kind == "f":
            x[1, rng.integers(0, length, k)] = [np.nan, np.inf, -np.inf, np.nan, -0.0][:k]
        check_arg(x, 1)


def test_arg_positions_with_nan_and_infinity() -> None:
    x = few_values(4, 90)
    x[0, [30, 60]] = np.nan
    x[1] = -np.inf
    x[2] = np.inf
    x[3, 0] = np.nan
    check_arg(x, 1)
    check_arg(x, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "bool", "int64"])
@pytest.mark.parametrize("lens", [(300,), (2, 5000), (1, 3, 2077)])
def test_arg_positions_of_long_rows_in_parts(lens: tuple[int, ...], dtype: str, given_machine: Any) -> None:
    given_machine(row_part_elements=70)
    x = few_values(*lens, dtype=dtype)
    check_arg(x, len(lens) - 1, gap=1, cut=True)
    check_arg(np.zeros(lens, dtype), len(lens) - 1, cut=True)
    if lens[:-1] in ((), (1, 3)):
        check_arg(x, len(lens) - 1, range(len(lens))[::-1], cut=True)
    if dtype.startswith("float"):
        x[..., [5, 200, 299]] = np.nan
        check_arg(x, len(lens) - 1, cut=True)
        x[...] = -np.inf
        check_arg(x, len(lens) - 1, cut=True)


@pytest.mark.parametrize(("columns", "side_by_side"), [(3, False), (40, False), (64, True)])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_arg_positions_of_few_columns(columns: int, side_by_side: bool, dtype: str) -> None:
    """Lanes were columns, of which most did not exist: 0.1 to 0.8 of ONNX Runtime's speed."""
    x = few_values(4, 50, columns, dtype=dtype)
    check_arg(x, 1)
    launch = argreduce_launch(True, False, 1, tensor_of(x), tensor_of(np.zeros((4, 1, columns), np.int64)))
    assert ("bests" in launch.kernel.text) == side_by_side


def check_topk(x: np.ndarray, k: int, axis: int, order: Any = None) -> None:
    for largest in (True, False):
        op = make_op("topk", k=k, axis=axis, largest=largest)
        shapes = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)]).sub_shapes
        placed = in_order(x, order)
        values = empty_in_order(shapes[0].lens, x.dtype, order)
        positions = empty_in_order(shapes[1].lens, np.dtype(np.int64))
        arrays = {"x": placed, "values": values, "positions": positions}
        tensors = [tensor_of(a) for a in arrays.values()]
        expected = op.compute(Shape.tuple(shapes), [x])
        lens = (GROUPS, 2, sort_pitch(x.shape[axis]))
        scratch = {"keys": np.empty(lens, key_dtype(tensors[0])), "places": np.empty(lens, np.int32)}
        launches = [
            (topk_launch(k, axis, largest, *tensors), {}),
            (sort_launch(k, axis, largest, *tensors, GROUPS), scratch),
        ]
        if k <= MOST_OF_COLUMNS and x.size > x.shape[axis]:
            launches.append((topk_columns_launch(k, axis, largest, *tensors), {}))
        for launch, further in launches:
            values[...], positions[...] = 0, -1
            run_launch(launch, arrays | further)
            np.testing.assert_array_equal(positions, expected[1])
            np.testing.assert_array_equal(values, expected[0])


@pytest.mark.parametrize("k", [1, 5, 33])
def test_topk_along_each_axis(k: int) -> None:
    for axis in range(3):
        for order in ORDERS:
            check_topk(few_values(34, 33, 35), k, axis, order)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "bool", "int64"])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_topk_of_columns(dtype: str, k: int) -> None:
    """Elements of strided rows were read one by one: 0.3 to 0.6 of ONNX Runtime's speed."""
    x = few_values(3, 9, 150, dtype=dtype)
    if x.dtype.kind == "f":
        x[0, ::3, 7:90], x[1, 2:], x[2, :, ::5], x[2, 1::2] = np.nan, -np.inf, np.nan, np.inf
    for order in (None, (0, 2, 1), (1, 0, 2)):
        check_topk(x, k, 1, order)
    check_topk(x[:, :k].copy(), k, 1)


def test_topk_of_strided_or_very_short_rows_is_by_columns() -> None:
    x = tensor_of(np.zeros((300, 4, 90), np.float32))
    assert is_by_columns(1, 1, x) and is_by_columns(MOST_OF_COLUMNS, 0, x)
    assert not is_by_columns(1, 2, x) and not is_by_columns(MOST_OF_COLUMNS + 1, 0, x)
    short = tensor_of(np.zeros((300, 40), np.float32))
    assert is_by_columns(2, 1, short) and not is_by_columns(1, 0, tensor_of(np.zeros(300, np.float32)))
    assert not is_by_columns(1, 0, tensor_of(np.zeros((1100, 2), np.float32)))


@pytest.mark.parametrize("k", [1, 5, 10])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint32", "int64"])
def test_topk_of_integers_by_a_bound(dtype: str, k: int) -> None:
    """Only floats were dealt to groups: 0.3 to 0.7 of ONNX Runtime's speed."""
    limits = np.iinfo(dtype)
    x = np.random.default_rng(k).integers(limits.min, limits.max, (6, 1031), dtype, endpoint=True)
    x[1], x[2], x[3, ::2], x[4] = limits.min, limits.max, limits.max, np.sort(x[4])
    check_topk(x, k, 1)
    kernel = topk_launch(k, 1, True, *(tensor_of(a) for a in (x, x[:, :k].copy(), np.zeros((6, k), np.int64)))).kernel
    assert "bound" in kernel.text


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "uint32", "int64", "uint64", "float16", "float64"])
def test_topk_of_other_types(dtype: str) -> None:
    check_topk(few_values(2, 150, dtype=dtype), 20, 1)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)
def test_topk_of_all_bits(dtype: str) -> None:
    """Numbers of either sign and of all magnitudes, extreme ones, zeros of both signs."""
    x = np.random.default_rng(0).integers(0, 256, (5, 100 * np.dtype(dtype).itemsize), np.uint8).view(dtype)
    if np.issubdtype(x.dtype, np.floating):
        x[0, :5], x[1, 3::7], x[1, 4::7] = [0.0, -0.0, 0.0, -0.0, -np.nan], -0.0, 0.0
    else:
        x[0, [3, 50, 70]] = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    check_topk(x, 100, 1)
    check_topk(x, 3, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_topk_of_short_rows_ranks_all_elements(dtype: str) -> None:
    """Top-k of short rows with equal elements and NaN, for which elements were once inserted one by one."""
    for length, k in ((1, 1), (3, 3), (16, 5), (17, 17), (63, 40)):
        x = few_values(29, length, dtype=dtype)
        if np.issubdtype(x.dtype, np.floating):
            x[3:7] = np.nan
            x[5, ::2], x[6, ::3], x[8] = -np.inf, np.inf, -np.inf
        check_topk(x, k, 1)
        check_topk(x, min(k, 29), 0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("length", [1, 7, 16, 17, 79, 80, 81, 131])
def test_few_elements_are_sorted_by_rank(length: int, dtype: str) -> None:
    """The digits' counters alone took as long as ranking 60 elements: 20 classes of 72 boxes 16 us, ONNX Runtime 9."""
    x = few_values(3, length, dtype=dtype, seed=length)
    if x.dtype.kind == "f":
        x[1, ::3], x[1, 1::5], x[2, ::4] = np.nan, -np.inf, np.inf
    elif x.dtype.kind != "b":
        x[1, ::3], x[2, ::2] = np.iinfo(dtype).max, np.iinfo(dtype).min
    for k in {1, (length + 1) // 2, length}:
        check_topk(x, k, 1)


def test_topk_of_a_whole_sorted_row_and_of_nan() -> None:
    x = np.arange(300, dtype=np.float32)[None]
    check_topk(x, 300, 1)
    check_topk(x[:, ::-1].copy(), 300, 1)
    x = few_values(2, 90)
    x[:, ::7] = np.nan
    x[:, 1::13] = -np.inf
    check_topk(x, 40, 1)


@pytest.mark.parametrize("k", [1, 255, 256, 257])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("length", [1023, 1024, 1030])
def test_topk_of_integers_whose_high_bits_give_a_bound_or_none(length: int, dtype: str, k: int) -> None:
    """Fewer keys are sorted from rows of 1,024 elements and four for each wanted one on."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(length)
    x = rng.integers(limits.min, limits.max, (5, length), dtype, endpoint=True)
    x[1] = rng.integers(0, 3, length)
    x[2, 200:] = x[2, 0]
    x[3] = np.sort(x[3])
    x[4, ::2], x[4, 1::2] = limits.min, limits.max
    check_topk(x, k, 1)


@pytest.mark.parametrize("k", [1, 10, 11, 100, 161, 750])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_topk_of_long_rows(dtype: str, k: int) -> None:
    """Found by a bound, or not: too many ties, infinities and NaN, sorted, in the order that suits least."""
    rng = np.random.default_rng(k)
    x = rng.standard_normal((12, 3001)).astype(dtype)
    x[1] = x[1].round(1)
    x[2] = 0
    x[3, ::5], x[4, ::3], x[4, 1::3] = np.inf, -np.inf, np.inf
    x[5, rng.permutation(3001)[: k // 2]] = np.nan
    x[6, ::2], x[7], x[8, : 3001 - k // 2] = np.nan, np.nan, np.nan
    x[9], x[10] = np.sort(x[9]), np.sort(x[10])[::-1]
    x[11] = -np.abs(x[11])
    check_topk(x, k, 1)
    check_topk(x[:, :173].copy(), min(k, 173), 1)
    check_topk(x[:3, :1200], k, 1, (1, 0))


def running_sums(axis: int, exclusive: bool, reverse: bool, x: np.ndarray, out: np.ndarray) -> int:
    """Write the running sums; the number of parts."""
    tensors, arrays = (tensor_of(x), tensor_of(out)), {"x": x, "out": out}
    parts, wide = scan_parts(axis, *tensors)
    if parts > 1:
        arrays["sums"] = np.empty(parts, wide.numpy)
        run_launch(part_sums_launch(axis, *tensors), arrays)
    run_launch(scan_launch(axis, exclusive, reverse, *tensors), arrays)
    return parts


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(exclusive: bool, reverse: bool) -> None:
    for dtype in ("float32", "float16", "int32", "uint8", "bool", "int64"):
        x = few_values(6, 11, 21, dtype=dtype)
        for axis in range(3):
            for order in ORDERS[: 1 if dtype != "float32" else 3]:
                op = make_op("prefix_scan_sum", axis=axis, exclusive=exclusive, reverse=reverse)
                placed, out = in_order(x, order, 1), empty_in_order(x.shape, x.dtype, order)
                running_sums(axis, exclusive, reverse, placed, out)
                expected = op.compute(Shape(from_numpy(x.dtype), x.shape), [x])
                np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("lens", [(5,), (3, 140), (140, 3), (1, 2085)])
def test_running_sums_of_negative_zeros(lens: tuple[int, ...], given_machine: Any) -> None:
    """A running sum of -0 is -0, an exclusive one +0, as in NumPy and ONNX Runtime. All of them were +0."""
    given_machine(row_part_elements=200)
    x, axis = np.full(lens, -0.0, np.float32), int(np.argmax(lens))
    for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
        for order in (None, range(len(lens))[::-1]):
            placed, out = in_order(x, order, 1), empty_in_order(lens, x.dtype, order)
            running_sums(axis, exclusive, reverse, placed, out)
            op = make_op("prefix_scan_sum", axis=axis, exclusive=exclusive, reverse=reverse)
            for found in (out, op.compute(Shape(from_numpy(x.dtype), lens), [x])):
                np.testing.assert_array_equal(np.signbit(found), np.full(lens, not exclusive))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("lens", [(3, 1100), (1100, 3), (2, 9, 1030), (33, 5, 70), (5, 0, 7), (2085,)])
def test_running_sums_of_long_rows_and_many_columns(
    lens: tuple[int, ...], dtype: str, streamed: bool, given_machine: Any
) -> None:
    if streamed:
        given_machine(last_cache_bytes=0)
    x = few_values(*lens, dtype=dtype)
    if dtype == "float32" and x.size:
        x.reshape(-1)[[5, x.size // 2, x.size - 9]] = [np.inf, np.nan, -np.inf]
    for axis in range(len(lens)):
        for gap in (0, 1):
            for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
                op = make_op("prefix_scan_sum", axis=axis, exclusive=exclusive, reverse=reverse)
                placed, out = in_order(x, None, gap), np.empty_like(x)
                running_sums(axis, exclusive, reverse, placed, out)
                wanted = op.compute(op.compute_shape([Shape(from_numpy(x.dtype), lens)]), [x])
                np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint64", "bool"])
@pytest.mark.parametrize("lens", [(70,), (1000,), (2, 900), (1, 3, 333), (333, 2)])
def test_running_sums_of_long_rows_in_parts(lens: tuple[int, ...], dtype: str, given_machine: Any) -> None:
    given_machine(row_part_elements=30)
    x = few_values(*lens, dtype=dtype)
    if dtype == "float32":
        x.reshape(-1)[[5, x.size // 2, x.size - 9]] = [np.inf, np.nan, -np.inf]
    axis = int(np.argmax(lens))
    op_lens = Shape(from_numpy(x.dtype), lens)
    for order in (None, range(len(lens))[::-1]):
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            op = make_op("prefix_scan_sum", axis=axis, exclusive=exclusive, reverse=reverse)
            placed, out = in_order(x, order, 1), empty_in_order(lens, x.dtype, order)
            parts = running_sums(axis, exclusive, reverse, placed, out)
            assert parts > 1 or order is not None or lens[-1] == 2
            np.testing.assert_array_equal(out, op.compute(op.compute_shape([op_lens]), [x]))
