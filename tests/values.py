"""Arrays for tests: random, counting and special values, in any memory order. Equal arguments give equal arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = [
    "SPECIAL", "apart", "counting", "digits", "element_strides", "empty_in_order", "in_order", "normal", "small",
    "with_special",
]  # fmt: skip

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def normal(*lens: int, seed: int = 0, dtype: Any = np.float32, scale: float = 1.0, special: bool = False) -> np.ndarray:
    """Normally distributed numbers times ``scale``, of bool their signs; ``special`` puts `SPECIAL` among them."""
    rng = np.random.default_rng(seed)
    values = np.asarray(rng.standard_normal(lens) * scale)
    if special and values.size > len(SPECIAL):
        values = with_special(values, rng, len(SPECIAL))
    return values > 0 if np.dtype(dtype) == np.bool_ else values.astype(dtype)


def with_special(values: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Return a copy with ``count`` elements of `SPECIAL` at random positions, each at least once if ``count``
    suffices."""
    result = np.array(values)
    places = rng.permutation(result.size)[:count]
    result.reshape(-1)[places] = np.resize(SPECIAL, places.size)
    return result


def small(
    dtype: Any, lens: Sequence[int], rng: np.random.Generator, quarters: bool = False, special: bool = False
) -> np.ndarray:
    """Numbers of few digits: integers of at most 6; floats normally distributed or multiples of a quarter, one of six
    of them in `SPECIAL` if that is wanted."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, lens), np.bool_)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(-6 if dtype.kind == "i" else 0, 7, lens), dtype)
    values = np.array(rng.integers(-8, 9, lens) / 4 if quarters else rng.standard_normal(lens), np.float64)
    if special and values.size:
        places = rng.integers(0, values.size, max(1, values.size // 6))
        values.reshape(-1)[places] = rng.choice(SPECIAL, places.size)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def counting(*lens: int, dtype: Any = np.float32) -> np.ndarray:
    """0, 1, 2, ... by rows."""
    return np.arange(np.prod(lens)).reshape(lens).astype(dtype)


def digits(*lens: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Integers from 0 to 99, which any type of at least a byte holds; of bool 0 and 1."""
    return np.random.default_rng(seed).integers(0, 2 if np.dtype(dtype) == np.bool_ else 100, lens).astype(dtype)


def element_strides(array: np.ndarray) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(s // array.itemsize for s in array.strides)


def apart(array: np.ndarray) -> np.ndarray:
    """Return the same values in memory with a gap after each element."""
    return np.stack([array, array], -1)[..., 0]


def in_order(array: np.ndarray, order: Sequence[int] | None = None, gap: int = 0) -> np.ndarray:
    """A copy whose axes lie in memory in ``order``, slowest first, with ``gap`` elements after each row."""
    order = list(range(array.ndim)) if order is None else list(order)
    lens = [array.shape[axis] for axis in order]
    room = np.empty([*lens[:-1], lens[-1] + gap] if lens else [], array.dtype)
    room.view(np.uint8)[...] = 0xA5
    inside = room[..., : lens[-1]] if lens else room
    result = inside.transpose(np.argsort(order))
    result[...] = array
    return result


def empty_in_order(
    lens: Sequence[int], dtype: np.dtype, order: Sequence[int] | None = None, gap: int = 0
) -> np.ndarray:
    """Return an array like `in_order` filled with a pattern, which reveals elements that are never written."""
    array = in_order(np.zeros(lens, dtype), order, gap)
    array[...] = np.frombuffer(b"\xa5" * np.dtype(dtype).itemsize, dtype)[0] if dtype != np.bool_ else True
    return array
