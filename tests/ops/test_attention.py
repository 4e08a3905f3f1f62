"""Attention, rotary embedding and the key and value cache against direct formulas."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError
from mgx_numba.ops.base import make_op

from ..values import normal
from .running import call, shape


def direct(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, added: np.ndarray | float) -> np.ndarray:
    repeat = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), repeat, 1) for x in (k, v))
    scores = scale * q.astype(np.float64) @ k.swapaxes(2, 3) + added
    e = np.exp(scores - scores.max(3, keepdims=True))
    return e / e.sum(3, keepdims=True) @ v


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
def test_attention_with_shared_heads(heads: tuple) -> None:
    q, k, v = normal(2, heads[0], 5, 8), normal(2, heads[1], 7, 8, seed=1), normal(2, heads[1], 7, 3, seed=2)
    np.testing.assert_allclose(call("attention", q, k, v, scale=0.3), direct(q, k, v, 0.3, 0), rtol=1e-4, atol=1e-6)
    half = call("attention", *(x.astype(np.float16) for x in (q, k, v)), scale=0.3)
    np.testing.assert_allclose(half, direct(q, k, v, 0.3, 0), rtol=2e-2, atol=2e-2)


def test_attention_masks() -> None:
    q, k, v = normal(2, 2, 5, 8), normal(2, 2, 7, 8, seed=1), normal(2, 2, 7, 8, seed=2)
    added = normal(2, 1, 1, 7, seed=3)
    expected = direct(q, k, v, 0.5, added)
    np.testing.assert_allclose(call("attention", q, k, v, added, scale=0.5), expected, rtol=1e-4, atol=1e-5)
    kept = added > 0
    expected = direct(q, k, v, 0.5, np.where(kept, 0, -np.inf))
    np.testing.assert_allclose(call("attention", q, k, v, kept, scale=0.5), expected, rtol=1e-4, atol=1e-5)
    causal = np.where(np.arange(7) <= np.arange(5)[:, None] + 2, 0, -np.inf)
    expected = direct(q, k, v, 0.5, causal)
    np.testing.assert_allclose(call("attention", q, k, v, scale=0.5, causal=True), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lens", [(3, 1, 5, 7), (2, 2, 1, 7)])
def test_masks_repeat_where_their_number_divides_the_batch(lens: tuple[int, ...]) -> None:
    q, k, v = normal(6, 2, 5, 8), normal(6, 2, 7, 8, seed=1), normal(6, 2, 7, 8, seed=2)
    added = normal(*lens, seed=3)
    every = np.concatenate([added] * (6 // lens[0]))
    expected = direct(q, k, v, 0.5, every)
    np.testing.assert_allclose(call("attention", q, k, v, added, scale=0.5), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="do not broadcast"):
        call("attention", q, k, v, normal(4, 1, 5, 7))


def test_rows_that_see_no_key_are_zero() -> None:
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 2, 4), normal(1, 1, 2, 4)
    result = call("attention", q, k, v, causal=True)
    assert not result[0, 0, 0].any()
    assert result[0, 0, 1:].any()
    assert not call("attention", q, k, v, np.zeros((3, 2), bool)).any()
    assert np.isnan(call("attention", q, k, v, np.zeros((3, 2), bool), nan_rows=True)).all()
    assert np.isnan(call("attention", q, k, v, causal=True, nan_rows=True)).any(3).tolist() == [[[True, False, False]]]
    assert call("attention", q, k[:, :, :0], v[:, :, :0]).tolist() == np.zeros((1, 1, 3, 4)).tolist()


def test_attention_refuses_and_counts() -> None:
    q, k, v = normal(1, 4, 3, 8), normal(1, 3, 5, 8), normal(1, 3, 5, 8)
    for args, message in (
        ((q, k, v), "do not divide"),
        ((q, k[:, :2, :, :4], v[:, :2]), "features"),
        ((q, k[:, :2], v[:, :2, :4]), "positions"),
        ((q, k[:, :2], v[:, :2], normal(3, 4)), "broadcast"),
        ((q[0], k[0], v[0]), "4 axes"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("attention", *args)
    ranges = Shape.dynamic(Type.float_type, [1, 4, DynamicDimension(1, 9), 8])
    assert shape("attention", ranges, ranges, ranges) == ranges
    inputs = [Shape(Type.float_type, (1, 2, 3, 4))] * 3
    assert make_op("attention").flops(inputs[0], inputs) == 2 * 9 * (8 + 8 + 5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_rotary_embedding(interleaved: bool, count: int) -> None:
    x, last = normal(2, 2 + 2, count, 8), np.array([[5], [2]], np.int32)
    angle = np.random.default_rng(1).uniform(0, 6, (10, 3))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    result = call("gqa_rotary_embedding", x, last, cos, sin, num_heads=2, kv_num_heads=1, interleaved=interleaved)
    for b in range(2):
        for t in range(count):
            position = t if count > 1 else int(last[b, 0])
            turn = np.exp(1j * angle[position])
            row = x[b, :3, t, :6]
            pairs = row[:, ::2] + 1j * row[:, 1::2] if interleaved else row[:, :3] + 1j * row[:, 3:]
            turned = pairs * turn
            expected = np.empty_like(row)
            if interleaved:
                expected[:, ::2], expected[:, 1::2] = turned.real, turned.imag
            else:
                expected[:, :3], expected[:, 3:] = turned.real, turned.imag
            np.testing.assert_allclose(result[b, :3, t, :6], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result[:, :, :, 6:], x[:, :, :, 6:])
    np.testing.assert_array_equal(result[:, 3:], x[:, 3:])
    with pytest.raises(ShapeError, match="expected"):
        shape("gqa_rotary_embedding", x, last, cos, sin, num_heads=4, kv_num_heads=1)


def test_cache_takes_prompts_and_single_tokens() -> None:
    past, last = normal(2, 3, 6, 4), np.array([4, 9])
    prompt, token = normal(2, 3, 2, 4, seed=1), normal(2, 3, 1, 4, seed=2)
    result = call("concat_past_present", prompt, last, past, kv_num_heads=3)
    np.testing.assert_array_equal(result, np.concatenate([prompt, past[:, :, 2:]], 2))
    result = call("concat_past_present", token, last, past, kv_num_heads=3)
    np.testing.assert_array_equal(result[0, :, 4], token[0, :, 0])
    np.testing.assert_array_equal(result[0, :, [0, 1, 2, 3, 5]], past[0, :, [0, 1, 2, 3, 5]])
    np.testing.assert_array_equal(result[1], past[1])
    with pytest.raises(ShapeError, match="do not fit"):
        shape("concat_past_present", normal(2, 3, 7, 4), last, past)
