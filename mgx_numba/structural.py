"""Equality of values that may hold symbolic lengths (`core.dim`), of which ``==`` asks questions."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["asks_nothing", "same"]


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal for all lengths, such as tuples, shapes or operators with symbolic lengths
    in them; no guard is noted."""
    _depth.value += 1
    try:
        return bool(a == b)
    finally:
        _depth.value -= 1


def asks_nothing() -> bool:
    """Return whether lengths are compared by `same`."""
    return _depth.value > 0
