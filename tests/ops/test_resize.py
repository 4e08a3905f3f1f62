"""Resizing against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.dim import Dim, Scope, evaluate
from mgx_numba.errors import ShapeError
from mgx_numba.ops.resize import COORDINATES, NEAREST, scaled_length

from ..values import normal
from .running import call, onnx_runtime, shape


@pytest.mark.parametrize(
    ("axis", "positions", "weights"),
    [
        (2, np.zeros((4, 2), np.int64), np.zeros((4, 2), np.float32)),
        (0, np.zeros((4, 2), np.int64), np.zeros((2, 4), np.float32)),
        (0, np.zeros((4, 2), np.int32), np.zeros((4, 2), np.float32)),
        (0, np.zeros((4, 2), np.int64), np.zeros((4, 2), np.int64)),
    ],
)
def test_sums_of_windows_refuse(axis: int, positions: np.ndarray, weights: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="window_sum"):
        call("window_sum", normal(5, 6), positions, weights, axis=axis)


def test_sums_of_windows() -> None:
    x, positions, weights = normal(2, 5), np.array([[4, 0], [1, 1], [3, 2]]), np.array([[1, 2], [0.5, 3], [-1, 0]])
    expected = (x[:, positions] * weights).sum(2)
    np.testing.assert_allclose(call("window_sum", x, positions, weights, axis=1), expected, rtol=1e-6)


SPATIAL = [c for c in COORDINATES if c != "tf_half_pixel_for_nn"]


@pytest.mark.parametrize("coordinates", SPATIAL)
@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 0.61, 1.5), (1, 1, 0.45, 1)])
def test_nearest(coordinates: str, nearest: str, scales: tuple) -> None:
    x = normal(1, 2, 5, 4)
    factors = np.array(scales, np.float32)
    expected = onnx_runtime(
        "Resize",
        x,
        None,
        factors,
        opset=19,
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode=nearest,
    )[0]
    result = call("resize", x, scales=scales, nearest_mode=nearest, coordinate_transformation_mode=coordinates)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("coordinates", SPATIAL)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(1, 2, 9, 7), (1, 2, 3, 4), (1, 2, 1, 11)])
def test_interpolation(coordinates: str, mode: str, sizes: tuple) -> None:
    x = normal(1, 2, 5, 4)
    expected = onnx_runtime(
        "Resize", x, None, None, np.array(sizes), opset=19, mode=mode,
        coordinate_transformation_mode=coordinates, cubic_coeff_a=-0.5,
    )[0]  # fmt: skip
    result = call("resize", x, sizes=sizes, mode=mode, coordinate_transformation_mode=coordinates, cubic_coeff_a=-0.5)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_old_nearest_coordinates() -> None:
    x = np.arange(4, dtype=np.float32)
    result = call("resize", x, scales=(2,), coordinate_transformation_mode="tf_half_pixel_for_nn", nearest_mode="floor")
    assert result.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_scale_of_three_fifths_is_exact() -> None:
    x = np.arange(5, dtype=np.float32)
    assert call("resize", x, scales=(0.6,), nearest_mode="floor").tolist() == [0, 2, 3]


def test_sizes_or_scales_as_input() -> None:
    x = normal(2, 3)
    expected = call("resize", x, scales=(2, 1.5), mode="linear")
    np.testing.assert_array_equal(call("resize", x, np.array([2, 1.5], np.float32), mode="linear"), expected)
    by_sizes = call("resize", x, np.array([4, 4]), mode="linear")
    np.testing.assert_array_equal(by_sizes, call("resize", x, sizes=(4, 4), mode="linear"))
    assert shape("resize", x, np.array([4, 4])).is_dynamic


def test_integers_and_refusals() -> None:
    x = np.array([0, 10], np.uint8)
    assert call("resize", x, sizes=(4,), mode="linear").tolist() == [0, 2, 7, 10]
    for attributes, message in (
        ({}, "exactly one"),
        ({"sizes": (1,), "scales": (1.0,)}, "exactly one"),
        ({"sizes": (1, 2)}, "one value for each"),
        ({"scales": (-1.0,)}, "positive"),
        ({"sizes": (1,), "mode": "area"}, "mode is 'area'"),
        ({"sizes": (1,), "nearest_mode": "up"}, "nearest_mode"),
        (
            {"sizes": (1,), "coordinate_transformation_mode": "tf_crop_and_resize"},
            "coordinate_transformation_mode",
        ),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("resize", x, **attributes)


@pytest.mark.parametrize("scale", [1.3, 0.7, 1.7, 2.6, 1 / 3, 1.001, 100.7, 0.013, 1025 / 1024, 2.0, 1.5, 0.25, 7.306])
def test_a_symbolic_length_is_scaled_as_float32_rounds(scale: float) -> None:
    with Scope() as scope:
        n = scope.symbol("n", 0, 1 << 24, 37)
        found = scaled_length(n, scale)
        assert isinstance(found, Dim)
        holds = scope.holds()
    lengths = np.random.default_rng(0).integers(0, 1 << 24, 4000) >> np.arange(4000) % 24
    lengths = [*range(300), *range(65530, 65540), *((1 << k) + d for k in range(25) for d in (-1, 0, 1)), *lengths]
    served = [k for k in map(int, lengths) if k <= 1 << 24 and evaluate(holds, {n: k})]
    assert max(served) >= min(65536, 2**23 / scale) - 1
    for k in served:
        assert evaluate(found, {n: k}) == scaled_length(k, scale), k
