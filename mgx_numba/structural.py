"""Equality of values with symbolic lengths (`core.dim`), without the guards that ``==`` would note."""

from __future__ import annotations

import threading


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def same(a: object, b: object) -> bool:
    """Return whether two values (tuples, shapes, operators) are equal for all values of their symbolic lengths.

    No guard is noted.
    """
    _depth.value += 1
    try:
        return bool(a == b)
    finally:
        _depth.value -= 1


def asks_nothing() -> bool:
    """Return whether this thread is inside `same`, where comparing lengths notes no guards."""
    return _depth.value > 0
