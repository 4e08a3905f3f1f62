"""Padding and resizing kernels against the operators' NumPy meaning."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.cpu.data.pad import pad_launch, remap_launch
from mgx_numba.codegen.cpu.data.resize import resize_launch, window_sum_launch
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.ops.base import make_op
from tests.values import empty_in_order, in_order, normal

from .launching import run_launch, tensor_of

values = functools.partial(normal, scale=50, seed=3)

NCHW, NHWC = (0, 1, 2, 3), (0, 2, 3, 1)


def check_pad(
    x: np.ndarray,
    pads: Sequence[int],
    mode: str = "constant",
    value: float = 0.0,
    order: Any = None,
    gap: int = 0,
) -> None:
    op = make_op("pad", mode=mode, pads=pads, value=value)
    shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)])
    expected = op.compute(shape, [x])
    x = in_order(x, order, gap)
    out = empty_in_order(shape.lens, x.dtype, order, gap)
    if mode == "constant":
        launch, tables = pad_launch(pads[: x.ndim], op.filling(from_numpy(x.dtype)), tensor_of(x), tensor_of(out)), {}
    else:
        pairs = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
        at = {a: op.positions(x.shape[a], *pair) for a, pair in enumerate(pairs) if any(pair)}
        launch, tables = remap_launch("pad_kernel", at, tensor_of(x), tensor_of(out))
    run_launch(launch, {"x": x, "out": out, **tables})
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_pad_modes(mode: str, order: tuple[int, ...]) -> None:
    check_pad(values(2, 5, 9, 20), (0, 0, 1, 2, 0, 0, 3, 4), mode, -1.5, order)
    check_pad(values(2, 20, 9, 5), (1, 2, 0, 0, 0, 3, 1, 0), mode, 2.0, order, gap=3)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "float64"])
def test_repeated_rows_and_images(mode: str, dtype: str) -> None:
    """Rows are copied but for their ends: short and long ones, and with a few channels inside of the columns."""
    check_pad(values(2, 9000, dtype=dtype), (0, 5, 0, 7), mode)
    check_pad(values(3, 4, 2, dtype=dtype), (0, 1, 1, 0, 2, 1), mode)
    check_pad(values(2, 3, 7, 11, dtype=dtype), (0, 0, 3, 4, 0, 0, 2, 1), mode, order=NHWC)
    check_pad(values(2, 7, 11, 3, dtype=dtype), (0, 0, 3, 0, 0, 2, 1, 0), mode)
    check_pad(values(4, 5, 3, dtype=dtype), (2, 0, 0, 0, 0, 0), mode, gap=2)


def test_pad_with_negative_amounts_cuts() -> None:
    check_pad(values(8, 40), (-2, -5, 3, -6), value=7)
    check_pad(values(8, 40), (1, -25, -4, 30), value=7)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "int64", "float64"])
def test_pad_each_width(dtype: str) -> None:
    check_pad(values(3, 50, dtype=dtype), (1, 2, 0, 40), value=1)


def test_pad_beyond_the_other_side() -> None:
    check_pad(values(4, 6), (0, -10, 0, 10), value=3)
    check_pad(values(3, 70), (0, 40, 0, -60), value=3)


def check_resize(x: np.ndarray, order: Any = None, gap: int = 0, **attributes: Any) -> None:
    op = make_op("resize", **attributes)
    shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)])
    expected = op.compute(shape, [x])
    x = in_order(x, order, gap)
    out = empty_in_order(shape.lens, x.dtype, order, gap)
    launch, tables = resize_launch(op, tensor_of(x), tensor_of(out))
    run_launch(launch, {"x": x, "out": out, **tables})
    if attributes.get("mode", "nearest") == "nearest":
        np.testing.assert_array_equal(out, expected)
    else:
        rough = 1e-2 if x.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(out.astype(np.float64), expected.astype(np.float64), rtol=rough, atol=50 * rough)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_resize_modes(mode: str, order: tuple[int, ...]) -> None:
    check_resize(values(2, 19, 7, 10), order, mode=mode, scales=(1, 1, 2, 2.5))
    check_resize(values(1, 35, 8, 9), order, mode=mode, sizes=(1, 35, 5, 23), gap=2)


def test_resize_coordinates() -> None:
    for rule in ("asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"):
        check_resize(values(1, 3, 6, 7), NHWC, mode="linear", sizes=(1, 3, 11, 4), coordinate_transformation_mode=rule)


def test_resize_one_and_three_axes() -> None:
    check_resize(values(2, 3, 17), mode="linear", sizes=(2, 3, 40))
    check_resize(values(2, 17, 3), mode="cubic", sizes=(2, 30, 3))
    volume = values(1, 18, 4, 5, 6)
    for order in ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1)):
        check_resize(volume, order, mode="linear", scales=(1, 1, 2, 1.5, 2))


def check_window_sum(x: np.ndarray, axis: int, out: int, taps: int, order: Any = None, gap: int = 0) -> None:
    rng = np.random.default_rng(out)
    positions, weights = rng.integers(0, x.shape[axis], (out, taps)), rng.standard_normal((out, taps))
    op, types = make_op("window_sum", axis=axis), (x.dtype, np.dtype(np.int64), np.dtype(np.float64))
    shapes = zip(types, (x.shape, positions.shape, weights.shape), strict=True)
    shape = op.compute_shape([Shape(from_numpy(dtype), lens) for dtype, lens in shapes])
    expected = op.compute(shape, [x, positions, weights])
    x, found = in_order(x, order, gap), empty_in_order(shape.lens, x.dtype, order, gap)
    launch, tables = window_sum_launch(axis, positions, weights, tensor_of(x), tensor_of(found))
    run_launch(launch, {"x": x, "out": found, **tables})
    rough = 1e-2 if x.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=rough, atol=200 * rough)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_sums_of_windows(order: tuple[int, ...], dtype: str) -> None:
    x = values(2, 5, 9, 70, dtype=dtype)
    for axis, out, taps in ((3, 37, 7), (3, 200, 1), (2, 3, 11), (1, 40, 2), (0, 1, 3)):
        check_window_sum(x, axis, out, taps, order)
        check_window_sum(x, axis, out, taps, order, gap=3)


def test_sums_of_windows_of_vectors_and_of_nothing() -> None:
    check_window_sum(values(50), 0, 17, 4)
    check_window_sum(values(3, 5000), 1, 4500, 3)
    check_window_sum(values(1, 1), 0, 33, 300)
    check_window_sum(values(0, 6), 1, 4, 2)
    check_window_sum(values(5, 6), 1, 4, 0)
    check_window_sum(values(5, 6), 1, 0, 2)
    check_window_sum(values(5, 6), 0, 0, 2)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_resize_other_floats(dtype: str) -> None:
    check_resize(values(1, 20, 6, 7, dtype=dtype), NHWC, mode="linear", scales=(1, 1, 2, 2))
    check_resize(values(1, 20, 6, 7, dtype=dtype), NCHW, mode="linear", scales=(1, 1, 2, 2))


@pytest.mark.parametrize("lens", [(1, 1), (3, 2), (5, 33), (2, 900), (3, 4100), (2, 9001)], ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_lines(mode: str, lens: tuple[int, int]) -> None:
    """Enlarged, reduced so little that a line is worth while and so much that it is not, in one part and in several."""
    for out in ((lens[0] * 2, lens[1] * 2), (7, lens[1] + 5), (1, -(-lens[1] // 3)), (4, -(-lens[1] // 70)), (3, 20)):
        check_resize(values(2, 2, *lens), mode=mode, sizes=(2, 2, *out))
    check_resize(values(lens[1], 3), (1, 0), mode=mode, sizes=(lens[1] + 3, 3), gap=1)
    check_resize(values(lens[1], 3), mode=mode, sizes=(lens[1] + 3, 3))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_rows_whose_tasks_would_read_more_than_a_line_holds(mode: str) -> None:
    check_resize(values(3, 90010), mode=mode, sizes=(2, 30010))
    check_resize(values(1, 80001), mode=mode, scales=(1, 0.3), coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("order", [NCHW, NHWC], ids=["nchw", "nhwc"])
def test_resize_of_infinity_and_nan(mode: str, order: tuple[int, ...]) -> None:
    x = values(2, 3, 20, 37)
    x[0, 0, 3, 5], x[0, 1, 0, 0], x[1, 2, 19, 36], x[1, 1, 4, 4:6] = np.nan, np.inf, -np.inf, [np.inf, -np.inf]
    with np.errstate(invalid="ignore"):
        check_resize(x, order, mode=mode, sizes=(2, 3, 31, 45))
        check_resize(x, order, mode=mode, scales=(1, 1, 2, 2), coordinate_transformation_mode="align_corners")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("width", [32, 33, 47, 64, 71])
def test_resize_of_rows_that_are_read_in_place(mode: str, width: int) -> None:
    """Rows of several planes are kept or read once; no vector reaches behind the end of its row."""
    for height, wide in ((14, 2 * width), (7, width + 9), (3, width // 2), (4, 1), (1, 2), (9, width)):
        check_resize(values(5, 3, 7, width), mode=mode, sizes=(5, 3, height, wide))
        x = values(5, 3, 7, width)
        op = make_op("resize", mode=mode, sizes=(5, 3, height, wide))
        shape = op.compute_shape([Shape(from_numpy(x.dtype), x.shape)])
        _, tables = resize_launch(op, tensor_of(x), tensor_of(np.empty(shape.lens, x.dtype)))
        if "low" in tables and "high" not in tables:
            assert tables["low"].min() >= 0 and tables["low"].max() + 2 * host.lanes("float32") <= width


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_few_elements_of_long_rows(mode: str) -> None:
    for lens, out in (((3, 900), (3, 1)), ((4, 1000), (2, 2)), ((5, 800), (10, 1)), ((2, 3, 700), (4, 5, 3))):
        x = values(2, *lens)
        check_resize(x, mode=mode, sizes=(2, *out))
        check_resize(x, mode=mode, sizes=(2, *out), coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_volumes_of_long_rows(mode: str) -> None:
    for sizes in ((2, 1, 9, 6, 70), (2, 1, 2, 5, 40), (2, 1, 4, 3, 20)):
        check_resize(values(2, 1, 4, 5, 35), mode=mode, sizes=sizes)


def test_resize_of_rows_too_long_to_be_kept_whole() -> None:
    for width in (9000, 17001):
        check_resize(values(2, 3, width), mode="linear", sizes=(2, 5, width + 60))
        check_resize(values(2, 3, width // 2), mode="cubic", sizes=(2, 7, width))


def test_resize_to_nothing() -> None:
    check_resize(values(2, 3, 4, 5), mode="linear", sizes=(2, 3, 0, 5))
    check_resize(values(0, 3, 4, 5), mode="linear", sizes=(0, 3, 8, 10))


def test_resize_past_the_caches(given_machine: Any) -> None:
    given_machine(last_cache_bytes=0)
    for order in (NCHW, NHWC):
        check_resize(values(2, 3, 9, 37), order, mode="linear", sizes=(2, 3, 18, 75))
