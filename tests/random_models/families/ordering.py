"""Operators that compare elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .registry import step

__all__ = []


def _comparable(v: Value) -> bool:
    return v.rank > 0 and v.finite and v.type != np.bool_


@step()
def arg(b: Builder) -> Any:
    x = b.tensor(lambda v: _comparable(v) and v.array.size > 0)
    if not _comparable(x) or not x.array.size:
        return None
    op = b.pick(("ArgMax", "ArgMin"))
    last = b.integer(0, 1)
    return b.node(op, [x], axis=b.integer(-x.rank, x.rank - 1), keepdims=b.integer(0, 1), select_last_index=last)


@step()
def top_k(b: Builder) -> Any:
    """Values of any input; places only where no two elements are equal, whose order is free unless sorted by place."""
    x = b.tensor(lambda v: _comparable(v) and v.array.size > 0)
    if not _comparable(x) or not x.array.size:
        return None
    axis = b.integer(0, x.rank - 1)
    k = b.ints([b.integer(0 if b.chance(9) else 1, x.lens[axis])])
    return b.outputs("TopK", [x, k], 2, axis=axis - x.rank if b.chance(3) else axis, largest=b.integer(0, 1), sorted=1)


@step()
def nonzero_places(b: Builder) -> Any:
    """Append NonZero, so that lengths depend on values."""
    x = b.tensor(lambda v: v.rank > 0 and not v.constant)
    if b.outer is not None or not b.chance(3):
        return None
    found = b.node("NonZero", [x], keep=False)
    return b.leaf(found) if found else None
