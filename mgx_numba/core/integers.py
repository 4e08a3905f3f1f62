"""Integer helpers for plain, NumPy and symbolic integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .dim import Dim, Length, less, maximum, minimum, select

_PLAIN = frozenset((int, Dim))
"""Types that `plain_int` leaves as they are."""


def plain_int(value: Any) -> int:
    """Convert NumPy integers and truth values to int; return other integer-like objects, such as `Dim`, unchanged."""
    found: int = int(value) if isinstance(value, (bool, np.integer, np.bool_)) else value
    return found


def plain_ints(values: Sequence[object]) -> tuple[Any, ...]:
    """Return the results of `plain_int` for a sequence."""
    if _PLAIN.issuperset(map(type, values)):
        return tuple(values)
    return tuple(map(plain_int, values))


def slice_bounds(start: int, end: int, length: int, step: int = 1) -> tuple[int, int]:
    """Return start and end of ``slice(start, end, step).indices(length)``, also for symbolic integers, without a guard.

    It uses Python's operators only, so integers that record operations record these.
    """
    low, high = (-1, length - 1) if step < 0 else (0, length)
    if any(isinstance(one, Dim) for one in (start, end, length)):
        return tuple([_clipped(bound, length, low, high) for bound in (start, end)])  # type: ignore[return-value]
    begin, after = (min(max(bound + length if bound < 0 else bound, low), high) for bound in (start, end))
    return begin, after


LONGEST = 1 << 62
"""Upper bound of axis lengths: a shape has fewer bytes (`shape.MAX_BYTES`). Models write the largest int64 for "to the
end"."""


def _clipped(bound: Length, length: Length, low: Length, high: Length) -> Length:
    """Return a slice bound as a position from ``low`` to ``high``."""
    if not isinstance(bound, Dim) and abs(bound) >= LONGEST:
        return high if bound > 0 else low
    position = select(less(bound, 0), bound + length, bound)
    found: Length = minimum(maximum(position, low), high)
    return found
