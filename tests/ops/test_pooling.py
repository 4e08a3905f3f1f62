"""Pooling and local response normalisation against direct formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import ShapeError

from ..values import normal
from .running import call, onnx_reference, shape


def direct(
    x: np.ndarray,
    mode: str,
    lengths: tuple,
    stride: tuple,
    pads: list,
    dilations: tuple,
    include: bool,
    lens: Any,
) -> Any:
    """Compute pooling by its definition, element by element."""
    result = np.zeros((*x.shape[:2], *lens))
    for place in itertools.product(*map(range, lens)):
        values, count = [], 0
        for tap in itertools.product(*map(range, lengths)):
            at = [p * s - a + t * d for p, s, (a, _), t, d in zip(place, stride, pads, tap, dilations)]
            if all(0 <= i < n for i, n in zip(at, x.shape[2:])):
                values.append(x[(slice(None), slice(None), *at)].astype(np.float64))
                count += 1
            elif include and all(-a <= i < n + b for i, n, (a, b) in zip(at, x.shape[2:], pads)):
                count += 1
        if mode == "max":
            cell = np.max(values, axis=0) if values else -np.inf
        elif mode == "lpnorm":
            cell = np.sum(np.abs(values) ** 3, axis=0) ** (1 / 3)
        else:
            cell = np.sum(values, axis=0) / max(count, 1)
        result[(slice(None), slice(None), *place)] = cell
    return result


@pytest.mark.parametrize("mode", ["average", "max", "lpnorm"])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("lens", "lengths", "stride", "padding", "dilations"),
    [
        ((2, 3, 10), (3,), (2,), (1,), (1,)),
        ((1, 2, 7, 6), (3, 2), (2, 3), (1, 0), (1, 1)),
        ((1, 2, 7, 8), (2, 3), (3, 2), (0, 1, 1, 2), (2, 1)),
    ],
)
def test_pooling(
    mode: str,
    include: bool,
    ceil: bool,
    lens: tuple,
    lengths: tuple,
    stride: tuple,
    padding: tuple,
    dilations: tuple,
) -> None:
    x = normal(*lens)
    result = call(
        "pooling", x, mode=mode, lengths=lengths, stride=stride, padding=padding, dilations=dilations,
        ceil_mode=ceil, count_include_pad=include, lp_order=3,
    )  # fmt: skip
    rank = len(lengths)
    pads = list(zip(padding[:rank], padding[-rank:]))
    expected = direct(x, mode, lengths, stride, pads, dilations, include, result.shape[2:])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", range(3, 12))
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling_lengths_are_those_of_onnx(n: int, ceil: bool) -> None:
    x = normal(1, 1, n)
    expected = onnx_reference(
        "MaxPool", x, kernel_shape=(3,), strides=(3,), pads=(1, 1), ceil_mode=int(ceil), opset=22
    )[0]
    result = call("pooling", x, mode="max", lengths=(3,), stride=(3,), padding=(1,), dilations=(1,), ceil_mode=ceil)
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


def test_global_pooling_of_channels_last() -> None:
    x = normal(2, 4, 5, 3).transpose(0, 3, 1, 2)
    for result in (call("pooling", x, lengths=(4, 5)), call("pooling", x, dyn_global=True)):
        np.testing.assert_allclose(result, x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)
    assert shape("pooling", x, lengths=(2, 2)).strides == (36, 1, 12, 3)


def test_pooling_of_integers_and_computed_padding() -> None:
    x = np.array([[[-5, -7, -9]]], np.int8)
    result = call("pooling", x, mode="max", lengths=(2,), stride=(1,), padding_mode="same_upper", dilations=(1,))
    assert result.tolist() == [[[-5, -7, -9]]]


def test_pooling_of_ranges_and_what_it_refuses() -> None:
    x = Shape.dynamic(Type.float_type, [DynamicDimension(1, 4), 3, DynamicDimension(4, 9), 8])
    assert shape("pooling", x, lengths=(3, 3), stride=(2, 2)).dims[2] == DynamicDimension(1, 4)
    assert shape("pooling", x, dyn_global=True).dims[2] == DynamicDimension(1, 1)
    for attributes, message in (
        ({"lengths": (9, 1)}, "does not fit"),
        ({"lengths": (1,)}, "lengths"),
        ({"stride": (0, 1)}, "positive"),
        ({"padding": (1, 2, 3)}, "padding"),
    ):
        with pytest.raises(ShapeError, match=message):
            shape("pooling", normal(1, 1, 4, 4), **attributes)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_lrn(size: int) -> None:
    x = normal(2, 7, 3, 2)
    squares = np.zeros(x.shape)
    for c in range(7):
        squares[:, c] = (x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].astype(np.float64) ** 2).sum(1)
    expected = x / (1.5 + 0.3 / size * squares) ** 0.6
    result = call("lrn", x, size=size, alpha=0.3, beta=0.6, bias=1.5)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="channel axis"):
        shape("lrn", normal(3))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_lrn_of_what_is_not_finite_reaches_its_neighbours_only(value: float) -> None:
    x = normal(1, 12, 2)
    x[0, 4, 0] = value
    with np.errstate(invalid="ignore"):
        found = call("lrn", x, size=3)
    changed = np.flatnonzero(found[0, :, 0] != call("lrn", normal(1, 12, 2), size=3)[0, :, 0])
    assert changed.tolist() == [3, 4, 5]
    assert np.isfinite(call("lrn", normal(1, 12, 2), size=1 << 60)).all()
