"""Quantisation, 4-bit packing, activations, bit patterns and random numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op

from ..values import normal
from .running import call, onnx_reference, shape


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_quantize_and_back(dtype: type) -> None:
    x = 40 * normal(3, 5)
    scale, zero = np.full(x.shape, 0.25, np.float32), np.full(x.shape, 3, dtype)
    expected = onnx_reference("QuantizeLinear", x, scale[0, :1], zero[0, :1], opset=21)[0]
    quantized = call("quantizelinear", x, scale, zero)
    np.testing.assert_array_equal(quantized, expected)
    back = call("dequantizelinear", quantized, scale, zero)
    np.testing.assert_allclose(back, (expected.astype(np.float32) - 3) * 0.25)


def test_quantize_rounds_half_to_even_and_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 1000, -1000], np.float32)
    one = np.ones(6, np.float32)
    assert call("quantizelinear", x, one).tolist() == [0, 2, 2, 0, 255, 0]
    assert call("quantizelinear", x, one, out_type="int8_type").tolist() == [0, 2, 2, 0, 127, -128]
    fp8 = call("quantizelinear", x, one, out_type="fp8e4m3fn_type").astype(np.float32)
    assert fp8.tolist() == [0.5, 1.5, 2.5, -0.5, 448, -448]


def test_dequantize_of_large_integers_subtracts_exactly() -> None:
    x, zero = np.array([2**24 + 1], np.int32), np.array([2**24], np.int32)
    assert call("dequantizelinear", x, np.ones(1, np.float32), zero).tolist() == [1]
    half = call("dequantizelinear", np.array([200], np.uint8), np.array([2], np.float16))
    assert (half.dtype, half.tolist()) == (np.float16, [400])


def test_quantize_refuses() -> None:
    x = normal(3)
    with pytest.raises(ShapeError, match="scale must be floating"):
        shape("quantizelinear", x, np.ones(3, np.int32))
    with pytest.raises(ShapeError, match="different lengths"):
        shape("quantizelinear", x, np.ones(1, np.float32))
    with pytest.raises(ShapeError, match="zero point"):
        shape("dequantizelinear", np.ones(3, np.int8), x, np.ones(3, np.uint8))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_int4_packing_round_trip(axis: int) -> None:
    rng = np.random.default_rng(0)
    for x in (
        rng.integers(0, 16, (4, 6, 2)).astype(np.uint8),
        rng.integers(-8, 8, (4, 6, 2)).astype(np.int8),
    ):
        packed = call("pack_int4", x, axis=axis)
        assert packed.size == x.size // 2
        np.testing.assert_array_equal(call("unpack_int4", packed, axis=axis), x)
    low, high = np.moveaxis(x, axis, -1)[..., ::2], np.moveaxis(x, axis, -1)[..., 1::2]
    np.testing.assert_array_equal(np.moveaxis(packed, axis, -1), (low & 15) | (high << 4))


def test_int4_saturates_and_refuses_odd_lengths() -> None:
    assert call("pack_int4", np.array([200, 1], np.uint8)).tolist() == [0x1F]
    with pytest.raises(ShapeError, match="even length"):
        shape("pack_int4", np.zeros(3, np.uint8))
    with pytest.raises(ShapeError, match="int8 or uint8"):
        shape("unpack_int4", np.zeros(2, np.int32))


def test_fp4_packing() -> None:
    x = np.array([[0, 0.5, 1, 1.5], [-6, 100, 2.4, -3]], np.float32)
    packed = call("pack_fp4", x)
    assert shape("pack_fp4", x).type is Type.fp4x2_type
    values = make_op("unpack_fp4").compute(shape("unpack_fp4", shape("pack_fp4", x)), [packed])
    assert values.dtype == ml_dtypes.float8_e4m3fn
    assert values.astype(np.float32).tolist() == [[0, 0.5, 1, 1.5], [-6, 6, 2, -3]]


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("affine[alpha=2,beta=1]", lambda x: 2 * x + 1),
        ("hard_sigmoid", lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        ("scaled_tanh[alpha=2,beta=0.5]", lambda x: 2 * np.tanh(0.5 * x)),
        ("softsign", lambda x: x / (1 + np.abs(x))),
        ("thresholded_relu[alpha=0.5]", lambda x: np.where(x > 0.5, x, 0)),
    ],
)
def test_activations(name: str, formula: object) -> None:
    x = 3 * normal(4, 5)
    attributes = dict(a.split("=") for a in name.partition("[")[2].rstrip("]").split(",") if a)
    result = call(name.partition("[")[0], x, **{k: float(v) for k, v in attributes.items()})
    np.testing.assert_allclose(result, formula(x), rtol=1e-6, atol=1e-7)  # type: ignore[operator]


def test_random_uniform_is_the_mersenne_twister() -> None:
    like = np.zeros((100, 100), np.float64)
    x = call("random_uniform", np.array([5489], np.uint64), like)
    assert x[0, 0] == (3499211612 + 581869302 * 2**32) / 2**64
    assert 0 <= x.min() < 0.01 < 0.99 < x.max() < 1
    np.testing.assert_array_equal(x, call("random_uniform", np.array([5489], np.uint64), like))
    assert shape("random_seed").lens == (1,)
    assert call("random_seed", dtype="int32_type").dtype == np.int32


def test_multinomial_takes_the_first_larger_running_sum() -> None:
    sums = np.array([[1, 3, 4], [0, 0, 2]], np.float32)
    numbers = np.array([[0, 0.25, 0.74, 0.76], [0, 0.5, 0.9, 0.1]], np.float32)
    assert call("multinomial", sums, numbers).tolist() == [[0, 1, 1, 2], [2] * 4]
    with pytest.raises(ShapeError, match="int32_type or int64_type"):
        shape("multinomial", sums, numbers, dtype="float_type")
