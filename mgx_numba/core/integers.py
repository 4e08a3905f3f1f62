"""Integers as Python has them."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["plain_int"]


def plain_int(value: Any) -> int:
    """NumPy's integers and truth values as int. What else computes as integers do, such as one that notes what is done
    with it, stays as it is."""
    found: int = int(value) if isinstance(value, (bool, np.integer, np.bool_)) else value
    return found
