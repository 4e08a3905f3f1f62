"""Integers as Python has them."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["plain_int", "slice_bounds"]


def plain_int(value: Any) -> int:
    """NumPy's integers and truth values as int. What else computes as integers do, such as one that notes what is done
    with it, stays as it is."""
    found: int = int(value) if isinstance(value, (bool, np.integer, np.bool_)) else value
    return found


def slice_bounds(start: int, end: int, length: int, step: int = 1) -> tuple[int, int]:
    """``slice(start, end, step).indices(length)`` without the step, by Python's operators, so that integers that note
    what is done with them do so here, too."""
    low, high = (-1, length - 1) if step < 0 else (0, length)
    begin, after = (min(max(bound + length if bound < 0 else bound, low), high) for bound in (start, end))
    return begin, after
