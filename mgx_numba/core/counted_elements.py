"""Values whose number of elements is known only at run time: counted by a kernel, in memory with room for more, or
evenly spaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import MgxError, ShapeError


def counted_elements(lens: Sequence[int], memory: Any, count: Any) -> Any:
    """Return the elements that there are at the start of ``memory``, with lengths ``lens``: -1 stands for ``count``."""
    length = count.item()
    lens = [length if n < 0 else n for n in lens]
    return memory[: prod(lens)].reshape(lens)


def copied_elements(lens: Sequence[int], memory: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return a copy of `counted_elements`, for memory that is used again."""
    return counted_elements(lens, memory, count).copy()  # type: ignore[no-any-return]


def evenly_spaced(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return ``start, start + delta, ...`` up to before ``limit``, of the dtype of ``start``.

    The arguments have one element each and one dtype.

    Raises:
        MgxError: there is not enough memory.
        ShapeError: the step is 0, or the numbers determine no finite count.
    """
    first, last, step = start.item(), limit.item(), delta.item()
    if step == 0:
        raise ShapeError("dynamic_range: delta is 0")
    count = -((first - last) // step) if isinstance(first, int) else (last - first) / step
    if not math.isfinite(count):
        raise ShapeError(f"dynamic_range: no finite count from {first} to {last} in steps of {step}")
    try:
        if isinstance(first, int):
            return np.arange(first, first + max(0, count) * step, step, dtype=start.dtype)
        return (first + np.arange(max(0, math.ceil(count))) * step).astype(start.dtype)
    except (MemoryError, ValueError, OverflowError) as error:  # of NumPy, beyond its largest sizes
        raise MgxError(f"dynamic_range: not enough memory for {math.ceil(count)} numbers: {error}") from error
