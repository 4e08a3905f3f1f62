"""Top-k, one-hot, non-zero, unique, ranges, region pooling and box suppression."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from .running import call, onnx_reference, onnx_runtime, shape


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float16])
def test_topk_prefers_low_positions(largest: bool, axis: int, dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 5, (6, 7)).astype(dtype)
    values, index = call("topk", x, k=4, axis=axis, largest=largest)
    expected, position = onnx_reference("TopK", x, np.array([4]), axis=axis, largest=int(largest), outputs=2)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(index, position)


def test_topk_carries_given_positions_and_refuses_too_many() -> None:
    x = np.array([3, 1, 2], np.float32)
    values, index = call("topk", x, np.array([30, 10, 20], np.int32), k=2)
    assert (values.tolist(), index.tolist()) == ([3, 2], [30, 20])
    assert call("topk", x, k=0)[0].shape == (0,)
    with pytest.raises(ShapeError, match="k is 4"):
        shape("topk", x, k=4)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_onehot(axis: int) -> None:
    indices, values = np.array([[0, 2], [-1, 7]]), np.array([5, 9], np.int32)
    result = call("onehot", indices, values, axis=axis, depth=3)
    expected = np.full((2, 2, 3), 5)
    expected[0, 0, 0] = expected[0, 1, 2] = expected[1, 0, 2] = 9
    np.testing.assert_array_equal(result, np.moveaxis(expected, -1, axis))
    np.testing.assert_array_equal(call("onehot", indices, np.int64(3), values, axis=axis), result)
    with pytest.raises(ShapeError, match="two elements"):
        shape("onehot", indices, indices, depth=3)


def test_nonzero_pads_or_not() -> None:
    x = np.array([[1, 0], [0, 3]], np.float32).T
    assert call("nonzero", x).tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]
    assert call("nonzero", x, use_dyn_output=True).tolist() == [[0, 1], [0, 1]]
    assert call("nonzero", np.zeros((2, 2)), use_dyn_output=True).shape == (2, 0)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("sorted", [False, True])
def test_unique(axis: int | None, sorted: bool) -> None:
    x = np.array([[2, 1, 1], [3, 0, 0], [2, 1, 1]], np.float32)
    attributes = {} if axis is None else {"axis": axis}
    result = call("unique", x, axis=axis, sorted=sorted)
    for own, other in zip(result, onnx_runtime("Unique", x, outputs=4, sorted=int(sorted), **attributes)):
        np.testing.assert_array_equal(own, other)
    y, first, inverse, counts = result
    flat = x.reshape(-1) if axis is None else x
    np.testing.assert_array_equal(np.take(y, inverse, axis or 0), flat)
    np.testing.assert_array_equal(np.take(flat, first, axis or 0), y)
    np.testing.assert_array_equal(counts, np.bincount(inverse))
    assert sorted or (np.diff(first) > 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint64, bool, np.str_])
@pytest.mark.parametrize(
    ("lens", "axis"),
    [((40, 3), 0), ((3, 40), 1), ((60, 2, 9), 0), ((2, 30, 1), 1), ((5, 0), 0), ((0, 5), 0), ((1, 4), 0)],
)
def test_distinct_slices_are_those_of_numpy(lens: tuple[int, ...], axis: int, dtype: type) -> None:
    x = np.random.default_rng(prod(lens)).integers(0, 2, lens).astype(dtype)
    if x.dtype.kind == "f":
        x = x * np.where(np.arange(x.size).reshape(lens) % 2, -1, 1).astype(dtype)  # zeros of both signs
        x[x == 1] = np.inf
    wanted = np.unique(x, True, True, True, axis) if x.size else None
    given = x.astype(object) if dtype is np.str_ else x
    found, first, inverse, counts = call("unique", given, axis=axis)
    np.testing.assert_array_equal(found, np.take(given, first, axis))
    np.testing.assert_array_equal(np.take(found, inverse, axis), given)
    assert counts.sum() == lens[axis] and len(first) == len(counts)
    if wanted is not None:
        for a, b in zip((first, inverse, counts), wanted[1:]):
            np.testing.assert_array_equal(a, b.reshape(-1))


def test_slices_with_nan_are_equal_on_request() -> None:
    x = np.array([[np.nan, 1], [0, 2], [np.nan, 1], [np.nan, 3]], np.float32)
    assert call("unique", x, axis=0)[3].tolist() == [1, 2, 1]
    assert call("unique", x, axis=0, equal_nan=False)[3].tolist() == [1] * 4


def test_unique_of_nothing() -> None:
    assert [v.shape for v in call("unique", np.zeros((0,), np.float32))] == [(0,)] * 4


@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 10, 3), (5, 0, -2), (1, 1, 1), (0.0, 1.0, 0.3)])
def test_dynamic_range(start: float, limit: float, delta: float) -> None:
    args = [np.array(v, np.float32) for v in (start, limit, delta)]
    np.testing.assert_allclose(call("dynamic_range", *args), np.arange(start, limit, delta), rtol=1e-6)
    with pytest.raises(ShapeError, match="delta is 0"):
        call("dynamic_range", args[0], args[1], np.array(0, np.float32))


@pytest.mark.parametrize("mode", ["average", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roialign(mode: str, coordinates: str, ratio: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 9, 11)).astype(np.float32)
    rois = np.array([[0, 0, 10, 8], [3, 2, 15, 17], [-4, -3, 2, 6], [5, 5, 5.5, 5.2]], np.float32)
    batch = np.array([0, 1, 1, 0])
    expected = onnx_runtime(
        "RoiAlign", x, rois, batch, mode={"average": "avg", "max": "max"}[mode],
        coordinate_transformation_mode=coordinates, sampling_ratio=ratio, output_height=3, output_width=2,
        spatial_scale=0.7,
    )[0]  # fmt: skip
    result = call(
        "roialign", x, rois, batch, mode=mode, coordinate_transformation_mode=coordinates,
        sampling_ratio=ratio, output_height=3, output_width=2, spatial_scale=0.7,
    )  # fmt: skip
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_roialign_refuses() -> None:
    x, rois = np.zeros((1, 1, 4, 4), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(ShapeError, match="numbers of regions"):
        shape("roialign", x, rois, np.zeros(3, np.int64))
    with pytest.raises(ShapeError, match="image index 1"):
        call("roialign", x, rois, np.ones(2, np.int64))


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.4])
def test_nonmaxsuppression(centre: bool, threshold: float | None) -> None:
    rng = np.random.default_rng(7)
    boxes = rng.uniform(0, 1, (2, 40, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 40)).astype(np.float32)
    args = [boxes, scores, np.array([8]), np.array([0.3], np.float32)]
    if threshold is not None:
        args.append(np.array([threshold], np.float32))
    expected = onnx_runtime("NonMaxSuppression", *args, center_point_box=int(centre))[0]
    found = call("nonmaxsuppression", *args, center_point_box=centre, use_dyn_output=True)
    np.testing.assert_array_equal(found, expected)
    padded = call("nonmaxsuppression", *args, center_point_box=centre)
    assert padded.shape == (2 * 3 * 40, 3)
    np.testing.assert_array_equal(padded[: len(found)], expected)
    assert not padded[len(found) :].any()


@pytest.mark.parametrize("limits", [(), (-1,)])
def test_boxes_whose_score_is_nan_are_never_kept(limits: tuple[int, ...]) -> None:
    """Kernels agree. In ONNX Runtime the order of boxes with a NaN score depends on their positions."""
    scores = np.array([[[0.5, np.nan, 0.9, -np.inf, np.inf, np.nan]]], np.float32)
    corners = np.arange(6, dtype=np.float32)[:, None] * 4 + np.arange(2, dtype=np.float32)
    boxes = np.concatenate([corners, corners + 2], 1)[None]
    inputs = [boxes, scores, np.array([9]), *(np.array([v], np.float32) for v in (0.5, *limits))]
    found = call("nonmaxsuppression", *inputs, use_dyn_output=True)
    assert found[:, 2].tolist() == ([4, 2, 0] if limits else [4, 2, 0, 3])


def test_nonmaxsuppression_keeps_nothing_by_default() -> None:
    boxes, scores = np.zeros((1, 3, 4), np.float32), np.ones((1, 1, 3), np.float32)
    assert call("nonmaxsuppression", boxes, scores, use_dyn_output=True).shape == (0, 3)
    ranges = Shape.dynamic(Type.float_type, [DynamicDimension(1, 2), 3, 4])
    with pytest.raises(ShapeError, match="use_dyn_output"):
        shape("nonmaxsuppression", ranges, Shape.dynamic(Type.float_type, [DynamicDimension(1, 2), 1, 3]))
    with pytest.raises(ShapeError, match="numbers of boxes"):
        shape("nonmaxsuppression", boxes, np.ones((1, 1, 4), np.float32))
