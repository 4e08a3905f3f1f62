"""Evenly spaced numbers whose count is known only at run time."""

from __future__ import annotations

import math

import numpy as np

from ..errors import MgxError, ShapeError


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
