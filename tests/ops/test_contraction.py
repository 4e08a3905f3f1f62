"""Matrix products and convolutions against ONNX's reference and direct formulas."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op

from ..values import normal
from .running import call, onnx_reference, shape


def dyn(*dims: Any) -> Shape:
    return Shape.dynamic(Type.float_type, [d if isinstance(d, int) else DynamicDimension(*d) for d in dims])


def test_dot_of_any_strides() -> None:
    a, b = normal(2, 3, 5, 7), normal(2, 3, 7, 4)
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose(call("dot", a, b), exact, rtol=1e-6)
    np.testing.assert_allclose(call("dot", b.swapaxes(2, 3), a.swapaxes(2, 3)), exact.swapaxes(2, 3), rtol=1e-6)
    same = a[:1].astype(np.float64) @ b
    np.testing.assert_allclose(call("dot", np.broadcast_to(a[:1], a.shape), b), same, rtol=1e-6)
    assert call("dot", normal(2, 0), normal(0, 3)).tolist() == [[0] * 3] * 2
    assert make_op("dot").flops(Shape(Type.float_type, (5, 4)), [Shape(Type.float_type, (5, 7))]) == 280


def test_dot_of_narrow_and_integer_types() -> None:
    ones = np.ones((1, 4096), np.float16)
    assert call("dot", ones, ones.T).tolist() == [[4096]]
    bf16 = np.full((2, 300), 1, ml_dtypes.bfloat16)
    assert call("dot", bf16, bf16.T).dtype == ml_dtypes.bfloat16
    wide = np.array([[2**40 + 1]])
    assert call("dot", wide, wide).tolist() == [[(2**40 + 1) ** 2 % 2**64]]


def test_quant_dot_is_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-128, 128, (5, 3000), np.int8), rng.integers(0, 256, (3000, 4), np.uint8)
    np.testing.assert_array_equal(call("quant_dot", a, b), a.astype(np.int32) @ b.astype(np.int32))
    fp8 = np.ones((2, 64), ml_dtypes.float8_e4m3fn)
    assert call("quant_dot", fp8, fp8.T).tolist() == [[64, 64]] * 2
    with pytest.raises(ShapeError, match="8-bit"):
        shape("quant_dot", normal(2, 2), normal(2, 2))


def test_dot_refuses() -> None:
    for a, b, message in (
        (normal(2, 3), normal(4, 2), "inner lengths"),
        (normal(2, 2, 3), normal(3, 3, 2), "outer lengths"),
        (normal(3), normal(3), "rank"),
        (normal(2, 2), normal(2, 2).astype(np.float64), "types"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("dot", a, b)


def test_dot_of_ranges() -> None:
    assert shape("dot", dyn((1, 4), 2, 3), dyn((1, 8), 3, 5)) == dyn((1, 4), 2, 5)
    with pytest.raises(ShapeError, match="inner"):
        shape("dot", dyn((1, 4), 3), dyn(5, 2))


CONVOLUTIONS = [
    # lengths, weights, padding, stride, dilation, group
    ((2, 3, 9), (4, 3, 3), (1,), (2,), (1,), 1),
    ((2, 4, 7, 8), (6, 2, 3, 2), (1, 0, 2, 1), (2, 1), (1, 2), 2),
    ((1, 4, 6, 6), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 4),
    ((3, 5, 4, 4), (2, 5, 1, 1), (0, 0), (1, 1), (1, 1), 1),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (0, 1, 1), (1, 2, 1), (2, 1, 1), 1),
]


@pytest.mark.parametrize(("lens", "weights", "padding", "stride", "dilation", "group"), CONVOLUTIONS)
def test_convolution(lens: tuple, weights: tuple, padding: tuple, stride: tuple, dilation: tuple, group: int) -> None:
    x, w = normal(*lens), normal(*weights, seed=1)
    pads = padding if len(padding) == 2 * len(stride) else padding * 2
    expected = onnx_reference(
        "Conv", x, w, pads=pads, strides=stride, dilations=dilation, group=group, kernel_shape=weights[2:]
    )[0]
    attributes = {"padding": padding, "stride": stride, "dilation": dilation, "group": group}
    np.testing.assert_allclose(call("convolution", x, w, **attributes), expected, rtol=1e-4, atol=1e-5)
    channels_last = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    np.testing.assert_allclose(call("convolution", channels_last, w, **attributes), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["same_upper", "same_lower"])
def test_convolution_computes_padding(mode: str) -> None:
    x, w = normal(1, 2, 7, 6), normal(3, 2, 4, 3, seed=1)
    expected = onnx_reference("Conv", x, w, auto_pad=mode.upper(), strides=(2, 1), kernel_shape=(4, 3))[0]
    result = call("convolution", x, w, padding_mode=mode, stride=(2, 1))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_convolution_memory_order_is_the_inputs() -> None:
    x, w = normal(2, 6, 6, 3).transpose(0, 3, 1, 2), normal(4, 3, 3, 3).transpose(0, 3, 1, 2)
    assert shape("convolution", x, w).strides == (64, 1, 16, 4)


def test_convolution_of_narrow_types_and_integers() -> None:
    x, w = np.ones((1, 512, 3, 3), np.float16), np.ones((1, 512, 3, 3), np.float16)
    assert call("convolution", x, w).tolist() == [[[[4608]]]]
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (1, 8, 5, 5), np.int8), rng.integers(-128, 128, (4, 8, 3, 3), np.int8)
    expected = onnx_reference("Conv", a.astype(np.float64), b.astype(np.float64))[0]
    np.testing.assert_array_equal(call("quant_convolution", a, b), expected.astype(np.int32))


def test_transposed_convolution_of_integers() -> None:
    rng = np.random.default_rng(1)
    for group, attributes in ((1, {"stride": (2, 2)}), (2, {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)})):
        a = rng.integers(0, 256, (2, 8, 5, 4)).astype(np.uint8)
        b = rng.integers(-128, 128, (8, 3, 2, 2), np.int8)
        exact = call("convolution_backwards", a.astype(np.float64), b.astype(np.float64), group=group, **attributes)
        found = call("quant_convolution_backwards", a, b, group=group, **attributes)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, exact.astype(np.int32))
    with pytest.raises(ShapeError, match="8-bit integers"):
        shape("quant_convolution_backwards", normal(1, 4, 5, 5), normal(4, 2, 3, 3))
    with pytest.raises(ShapeError, match="channels"):
        shape("quant_convolution_backwards", a, b[:4])


def test_convolution_of_ranges() -> None:
    w = normal(4, 3, 3, 3)
    assert shape("convolution", dyn((1, 8), 3, (5, 9), 7), w, stride=(2, 2)) == dyn((1, 8), 4, (2, 4), 3)
    assert shape("convolution", dyn(1, 3, (1, 9), 7), w).dims[2] == DynamicDimension(0, 7)


def test_convolution_refuses() -> None:
    x, w = normal(1, 4, 5, 5), normal(2, 4, 3, 3)
    for attributes, message in (
        ({"group": 2}, "channels"),
        ({"group": 3}, "group 3 does not divide"),
        ({"stride": (1,)}, "stride"),
        ({"dilation": (0, 1)}, "positive"),
        ({"dilation": (3, 3)}, "does not fit"),
        ({"padding": (1, 1, 1)}, "padding"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("convolution", x, w, **attributes)
    assert call("convolution", normal(0, 4, 5, 5), w).shape == (0, 2, 3, 3)


@pytest.mark.parametrize(
    ("lens", "weights", "padding", "stride", "dilation", "group"),
    [
        ((2, 3, 5), (3, 4, 3), (1,), (2,), (1,), 1),
        ((2, 4, 4, 3), (4, 3, 3, 2), (1, 0), (2, 3), (1, 2), 2),
        ((1, 2, 3, 3), (2, 1, 3, 3), (1, 0, 0, 2), (1, 2), (1, 1), 1),
    ],
)
def test_convolution_backwards(
    lens: tuple, weights: tuple, padding: tuple, stride: tuple, dilation: tuple, group: int
) -> None:
    x, w = normal(*lens), normal(*weights, seed=1)
    rank, (n, c), per_group = len(stride), lens[:2], weights[1]
    pads = padding if len(padding) == 2 * rank else padding * 2
    full = [s * (m - 1) + (k - 1) * d + 1 for m, k, s, d in zip(lens[2:], weights[2:], stride, dilation)]
    expected = np.zeros((n, per_group * group, *full), np.float64)
    for channel in range(c):
        g = channel // (c // group)
        for tap in itertools.product(*map(range, weights[2:])):
            for place in itertools.product(*map(range, lens[2:])):
                at = tuple(p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation))
                target = (slice(None), slice(g * per_group, (g + 1) * per_group), *at)
                expected[target] += x[(slice(None), channel, *place)][:, None] * w[(channel, slice(None), *tap)]
    cut = tuple(slice(a, m - b) for m, a, b in zip(full, pads[:rank], pads[rank:]))
    result = call("convolution_backwards", x, w, padding=padding, stride=stride, dilation=dilation, group=group)
    np.testing.assert_allclose(result, expected[(..., *cut)], rtol=1e-4, atol=1e-5)


def test_convolution_backwards_with_same_padding_multiplies_lengths() -> None:
    x, w = normal(1, 2, 5, 4), normal(2, 3, 3, 3)
    assert shape("convolution_backwards", x, w, padding_mode=2, stride=(2, 2)).lens == (1, 3, 10, 8)
    assert call("convolution_backwards", x, w, padding_mode=1, stride=(2, 2)).shape == (1, 3, 10, 8)
    with pytest.raises(ShapeError, match="does not fit"):
        shape("convolution_backwards", normal(1, 2, 1, 1), normal(2, 1, 1, 1), padding=(1, 1))


def test_im2col_rows_are_windows() -> None:
    x, w = normal(1, 2, 5, 4), normal(7, 2, 3, 2)
    columns = call("im2col", x, w, padding=(1, 0), stride=(2, 1))
    product = (columns @ w.reshape(7, -1).T).T.reshape(1, 7, 3, 3)
    np.testing.assert_allclose(product, call("convolution", x, w, padding=(1, 0), stride=(2, 1)), rtol=1e-5, atol=1e-6)
