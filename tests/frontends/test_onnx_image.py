"""Sampling of images, against ONNX Runtime, or against equations where it has no kernel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from mgx_numba.errors import ShapeError

from ..values import normal
from .support import FLOAT, assert_like_onnxruntime, make_model, run, single

PADDINGS = ("zeros", "border", "reflection")
TIES = np.array([-1, 1, 0, 0.5, -0.5, 0.25, -0.25, 0.2, -0.2, 0.6, -0.6, 0.8], np.float32)


def grid(*lens: int) -> np.ndarray:
    """Places inside and up to more than an image's length outside, first some halfway between elements."""
    places = np.random.default_rng(0).uniform(-2.5, 2.5, lens).astype(np.float32)
    places.reshape(-1)[: TIES.size] = TIES
    return places


@pytest.mark.parametrize(("mode", "axes"), [("nearest", 2), ("nearest", 3), ("linear", 2), ("linear", 3), ("cubic", 2)])
def test_grid_sample_agrees_with_onnxruntime(mode: str, axes: int) -> None:
    x, places = normal(2, 2, *(4, 5, 3)[:axes]), grid(2, *(3, 7, 2)[:axes], axes)
    for padding, align in itertools.product(PADDINGS, (0, 1)):
        model, feeds = single("GridSample", [x, places], opset=20, mode=mode, padding_mode=padding, align_corners=align)
        assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("padding", PADDINGS)
def test_cubic_samples_of_volumes_are_those_of_planes_where_depth_is_constant(padding: str) -> None:
    plane, places = normal(1, 2, 4, 5), grid(1, 3, 7, 2)
    volume = np.repeat(plane[:, :, None], 3, 2)
    inside = np.concatenate([places, np.zeros((1, 3, 7, 1), np.float32)], 3)[:, None]
    options = {"opset": 20, "mode": "cubic", "padding_mode": padding}
    flat = run(*single("GridSample", [plane, places], **options))[0]
    # at the middle plane itself the weights of its neighbours are 0
    deep = run(*single("GridSample", [volume, inside], **options))[0]
    np.testing.assert_allclose(deep[:, :, 0], flat, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.bool_, np.float16])
def test_samples_of_narrow_images_are_rounded_once(dtype: type, mode: str) -> None:
    levels = 2 if dtype is np.bool_ else 250
    x = np.random.default_rng(0).integers(0, levels, (1, 2, 4, 5)).astype(dtype)
    places = grid(1, 3, 7, 2)
    options = {"opset": 20, "mode": mode, "padding_mode": "border"}
    type = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    result = run(*single("GridSample", [x, places], outputs=(type,), **options))[0]
    wide = run(*single("GridSample", [x.astype(np.float64), places], outputs=(11,), **options))[0]
    if dtype is np.float16:
        np.testing.assert_allclose(result, wide.astype(dtype), rtol=1e-3)
        return
    top = 1 if dtype is np.bool_ else np.iinfo(dtype).max
    low = 0 if dtype is np.bool_ else np.iinfo(dtype).min
    assert (np.abs(result.astype(np.float64) - np.clip(wide, low, top)) <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_samples_infinitely_far_away_are_those_of_the_padding(mode: str) -> None:
    x = normal(1, 1, 4, 5)
    far = np.array([[np.inf, 0], [-np.inf, 0], [0, np.inf], [0, -np.inf], [1e30, 0], [np.nan, np.nan]], np.float32)
    finite = np.clip(far, -50, 50)[:5]
    for padding in ("zeros", "border"):
        options = {"opset": 20, "mode": mode, "padding_mode": padding, "align_corners": 1}
        result = run(*single("GridSample", [x, far[None, None]], **options))[0]
        wanted = run(*single("GridSample", [x, finite[None, None]], **options))[0]
        np.testing.assert_allclose(result[..., :5], wanted, atol=1e-6)
        assert padding != "zeros" or result[..., 5] == 0


@pytest.mark.parametrize(("lens", "out"), [((0, 2, 4, 5), (3, 2)), ((2, 0, 4, 5), (3, 2)), ((2, 2, 4, 5), (0, 2))])
def test_nothing_is_sampled_from_or_to_empty_tensors(lens: tuple[int, ...], out: tuple[int, ...]) -> None:
    places = np.zeros((lens[0], *out, 2), np.float32)
    model, feeds = single("GridSample", [np.zeros(lens, np.float32), places], opset=20, outputs=(FLOAT,))
    assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("lens", "window"),
    [
        ((1, 1, 5, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((2, 3, 7, 4), {"kernel_shape": [3, 2], "strides": [3, 1]}),
        ((2, 2, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 2, 9), {"kernel_shape": [2], "strides": [4]}),
        ((1, 1, 5, 3, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 3]}),
        ((2, 2, 5, 7), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ],
)
def test_unpooling_puts_elements_where_pooling_took_them(
    lens: tuple[int, ...], window: dict[str, Any], constant: bool
) -> None:
    x, shape = normal(*lens) + 5, np.array(lens)
    unpool = {k: v for k, v in window.items() if k != "ceil_mode"}
    nodes = [
        onnx.helper.make_node("MaxPool", ["x"], ["p", "i"], **window),
        onnx.helper.make_node("MaxUnpool", ["p", "i", "s"], ["y"], **unpool),
    ]
    feeds, constants = ({"x": x}, {"s": shape}) if constant else ({"x": x, "s": shape}, {})
    model = make_model(nodes, feeds, {"p": FLOAT, "y": FLOAT}, constants=constants)
    pooled, found = run(model, feeds)
    kept = np.isin(x, pooled)
    np.testing.assert_array_equal(found, np.where(kept, x, 0))
    if "ceil_mode" not in window:  # ONNX Runtime refuses lengths that windows reach beyond
        assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 1, 4, 4), (1, 3, 4, 4), (1, 1, 0, 4)])
def test_lengths_that_unpooling_cannot_have(shape: tuple[int, ...]) -> None:
    inputs = [normal(1, 1, 2, 2), np.array([[[[0, 2], [8, 10]]]]), np.array(shape)]
    model, _ = single("MaxUnpool", inputs, constant=(2,), kernel_shape=[2, 2], strides=[2, 2])
    with pytest.raises(ShapeError, match=r"output_shape is .*, expected \[1, 1\] and 2 lengths of at least 1"):
        run(model, {})


@pytest.mark.parametrize("lens", [(1, 2, 3, 4), (2, 1, 2, 5), (1, 1, 2, 3, 2)])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_of_a_batch_of_one(lens: tuple[int, ...], align: int) -> None:
    """ONNX's function body squeezed a batch of 1; sizes may be constant or an input."""
    axes = len(lens) - 2
    given = [normal(lens[0], axes, axes + 1), np.array(lens)]
    for constant in ((), (1,)):
        model, feeds = single("AffineGrid", given, opset=20, constant=constant, align_corners=align)
        assert_like_onnxruntime(model, feeds)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_of_an_axis_of_one_is_finite(align: int) -> None:
    """ONNX's function body divides by 0 there."""
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    model, feeds = single("AffineGrid", [theta, np.array([1, 1, 1, 2])], opset=20, align_corners=align)
    wanted = [[-1, -1], [1, -1]] if align else [[-0.5, 0], [0.5, 0]]
    np.testing.assert_array_equal(run(model, feeds)[0], np.reshape(wanted, (1, 1, 2, 2)))


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel"])
def test_linear_resizes_read_the_elements_that_onnxruntime_reads(coordinates: str) -> None:
    for sizes, value in itertools.product(((1, 1, 8, 3), (1, 1, 3, 8)), (np.inf, np.nan)):
        for place in range(20):
            x = np.arange(20, dtype=np.float32)
            x[place] = value
            feeds = [x.reshape(1, 1, 4, 5), None, None, np.array(sizes, np.int64)]
            options = {"mode": "linear", "coordinate_transformation_mode": coordinates}
            assert_like_onnxruntime(*single("Resize", feeds, opset=18, constant=[3], **options))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("sizes", [(2, 3, 11, 6), (2, 3, 4, 21)])
def test_integers_are_interpolated_as_floats_and_cut_off(dtype: Any, sizes: tuple[int, ...]) -> None:
    """Sums that are nearly whole numbers may be cut off to either."""
    ends = np.iinfo(np.int8 if dtype is np.int32 else dtype)
    x = np.random.default_rng(1).integers(ends.min, ends.max, (2, 3, 7, 9), dtype, endpoint=True)
    feeds = [x, None, None, np.array(sizes, np.int64)]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model, feeds = single("Resize", feeds, opset=18, constant=[3], outputs=[code], mode="linear")
    session = pytest.importorskip("onnxruntime").InferenceSession(model.SerializeToString())
    (expected,), (found,) = session.run(None, feeds), run(model, feeds)
    assert found.dtype == expected.dtype and np.abs(found.astype(int) - expected.astype(int)).max() <= 1


def test_resized_integers_keep_all_their_digits() -> None:
    x = np.full((1, 1, 4, 5), 2**31 - 1, np.int32)
    feeds = [x, None, None, np.array([1, 1, 7, 8], np.int64)]
    found = run(*single("Resize", feeds, opset=18, constant=[3], outputs=[TensorProto.INT32], mode="linear"))[0]
    assert found.dtype == np.int32 and found.min() >= 2**31 - 130  # weights are numbers of float32


def test_antialiased_resizes_do_not_spread_an_infinity() -> None:
    x = np.arange(40, dtype=np.float32).reshape(1, 1, 4, 10)
    x[..., 0] = np.inf
    sizes = np.array([1, 1, 3, 5], np.int64)
    result = run(*single("Resize", [x, None, None, sizes], opset=18, constant=[3], mode="cubic", antialias=1))[0]
    assert np.isfinite(result[..., 3:]).all() and not np.isfinite(result[..., 0]).any()


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [(2, 3, 5, 40), (2, 3, 23, 4), (2, 3, 2, 3), (2, 3, 60, 1)])
def test_antialiased_resizes_are_those_of_onnxruntime(mode: str, sizes: tuple[int, ...]) -> None:
    """They copied each window and took up to three times as long as ONNX Runtime."""
    x = np.random.default_rng(5).standard_normal((2, 3, 17, 29)).astype(np.float32)
    model, feeds = single(
        "Resize", [x, None, None, np.array(sizes, np.int64)], opset=18, constant=[3], mode=mode, antialias=1
    )
    for spoilt in (0.0, np.inf, np.nan):
        x[1, 1, 5, 7] += spoilt
        assert_like_onnxruntime(model, feeds)


FORMS_OF_RESIZE = [{"mode": "cubic"}, {"mode": "cubic", "exclude_outside": 1}, {"mode": "linear", "exclude_outside": 1}]
FORMS_OF_RESIZE += [{"mode": mode, "antialias": 1} for mode in ("linear", "cubic")]


@pytest.mark.parametrize("form", FORMS_OF_RESIZE, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers_are_rounded_except_by_plain_linear_resizes(dtype: Any, form: dict[str, Any]) -> None:
    """They were truncated: an image of one value came out one less, by weights that add up to nearly 1."""
    rng, ends = np.random.default_rng(2), np.iinfo(dtype if dtype is not np.int32 else np.int16)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for sizes in ((1, 2, 11, 6), (1, 2, 4, 21)):
        for x in (
            rng.integers(ends.min, ends.max, (1, 2, 7, 9), dtype, endpoint=True),
            np.full((1, 2, 7, 9), 7, dtype),
        ):
            feeds = [x, None, None, np.array(sizes, np.int64)]
            model, given = single("Resize", feeds, opset=18, constant=[3], outputs=[code], **form)
            (wanted,) = ReferenceEvaluator(model).run(None, given)
            (found,) = run(model, given)
            assert found.dtype == dtype
            apart = np.abs(
                found.astype(int) - wanted.astype(int)
            )  # sums that are nearly halves may be rounded to either
            assert apart.max() <= 1 and (apart > 0).mean() < 0.05


def test_interpolated_integers_beyond_float32_keep_their_digits() -> None:
    x = np.full((1, 1, 5, 4), 2**30 + 1, np.int32)
    feeds = [x, None, None, np.array([1, 1, 3, 7], np.int64)]
    model, given = single(
        "Resize", feeds, opset=18, constant=[3], outputs=[TensorProto.INT32], mode="linear", antialias=1
    )
    np.testing.assert_array_equal(run(model, given)[0], np.full((1, 1, 3, 7), 2**30 + 1, np.int32))
