"""Ranges of activations: the choice of each observer, for any order and partition of the values."""

from __future__ import annotations

import numpy as np
import pytest

from mgx_numba.core.types import Type
from mgx_numba.errors import OptionError
from mgx_numba.graph.observers import OBSERVERS, Observer, make_observer


def seen(method: str, *batches: np.ndarray) -> Observer:
    observer = make_observer(method)
    for batch in batches:
        observer.observe(batch)
    return observer


def error(observer: Observer, values: np.ndarray, type: Type = Type.uint8_type) -> float:
    p = observer.parameters(type)
    low, high = np.iinfo(type.numpy).min, np.iinfo(type.numpy).max
    q = np.clip(np.rint(values / np.float32(p.scale)) + p.zero_point, low, high)
    return float(np.mean(((q - p.zero_point) * np.float32(p.scale) - values) ** 2))


@pytest.mark.parametrize("method", OBSERVERS)
def test_order_and_parts_do_not_matter(method: str) -> None:
    rng = np.random.default_rng(3)
    batches = [rng.standard_normal(700).astype(np.float32) * size for size in (0.01, 3, 1, 0.2)]
    one, other = seen(method, *batches), seen(method, *batches[::-1])
    first, second = seen(method, *batches[:1]), seen(method, *batches[1:])
    second.merge(first)
    for observer in (other, second):
        assert observer.parameters().scale == pytest.approx(one.parameters().scale, rel=2e-3)
        assert abs(observer.parameters().zero_point - one.parameters().zero_point) <= 1
        assert observer.seen == one.seen == 2800


@pytest.mark.parametrize("method", OBSERVERS)
@pytest.mark.parametrize("type", [Type.uint8_type, Type.int8_type])
def test_zero_is_exact_and_uniform_values_are_covered(method: str, type: Type) -> None:
    for low, high in ((-1.0, 3.0), (0.0, 5.0), (2.0, 9.0), (-7.0, -1.0), (0.0, 0.0), (1e-30, 1e-30)):
        values = np.linspace(low, high, 4001, dtype=np.float32)
        observer = seen(method, values)
        p = observer.parameters(type)
        assert p.scale > 0 and np.iinfo(type.numpy).min <= p.zero_point <= np.iinfo(type.numpy).max
        assert type is Type.uint8_type or p.zero_point == 0
        width = max(high, 0) - min(low, 0) if type is Type.uint8_type else 2 * max(abs(low), abs(high))
        assert p.scale <= 1.02 * max(width, 0) / 254 + 1e-30 or width < 1e-29
        if method in ("minmax", "mse"):
            assert error(observer, values, type) <= (0.51 * p.scale) ** 2 * 1.1


def test_outliers_are_clipped_where_that_pays() -> None:
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    values[:1] = 1000
    errors = {method: error(seen(method, values), values[1:]) for method in OBSERVERS}
    assert errors["percentile"] < errors["minmax"] / 100
    assert errors["entropy"] < errors["minmax"] / 4 and seen("entropy", values).parameters().clipped > 0
    values[:1] = 6  # few and near: their error is larger than what a finer step wins
    assert seen("mse", values).range()[1] > 4


def test_what_is_not_finite_is_left_out() -> None:
    observer = seen("percentile", np.array([np.nan, 1, np.inf, -2, -np.inf], np.float32), np.zeros((0, 3), np.float32))
    assert observer.range() == (-2.0, 1.0) and (observer.seen, observer.strange) == (2, 3)
    assert make_observer("entropy").parameters().scale == 1
    assert seen("mse", np.float32([np.nan])).parameters().zero_point == 0


def test_unknown_and_different_methods() -> None:
    with pytest.raises(OptionError, match="unknown observer 'max'; known: minmax, percentile"):
        make_observer("max")
    with pytest.raises(OptionError, match="by mse cannot be merged into one by minmax"):
        make_observer("minmax").merge(make_observer("mse"))
