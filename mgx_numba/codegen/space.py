"""Iteration spaces: drop, order and merge dimensions until only those that a kernel needs are left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from math import prod
from typing import Any

from ..core.dim import Length, SharedLength, is_symbolic, known_equal, known_less_equal, maximum, typical
from ..dataclass import dataclass


@dataclass(frozen=True)
class Space:
    """Lengths of the merged dimensions (outermost first) and, for each operand, its element strides along them.

    ``axes`` lists, for each merged dimension, its original dimensions, outermost first.
    """

    lens: tuple[SharedLength, ...]
    strides: tuple[tuple[SharedLength, ...], ...]
    axes: tuple[tuple[int, ...], ...] = ()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.lens)

    @property
    def elements(self) -> SharedLength:
        """Points of the space."""
        return prod(self.lens)


def collapse(
    lens: Sequence[Length],
    strides: Sequence[Sequence[Length]],
    order_by: int = -1,
    axes: Sequence[int] | None = None,
) -> Space:
    """Return the smallest iteration space that is equivalent for all lengths.

    Dimensions of length 1 are dropped, and the others are ordered by descending stride of operand ``order_by``.
    Neighbours merge where every operand walks them as one (``stride[i] == stride[i + 1] * lens[i + 1]``). Decisions
    that symbolic lengths leave open are conservative: a dimension that may have length 1 stays, and undecided strides
    are ordered by typical lengths.

    Args:
        lens: lengths of the original dimensions.
        strides: element strides of each operand along them.
        order_by: index of the operand whose memory order is followed.
        axes: only these dimensions (all when ``None``).
    """
    chosen = [a for a in (range(len(lens)) if axes is None else axes) if not known_equal(lens[a], 1)]
    chosen.sort(key=_outermost_first(strides, strides[order_by]))
    merged_lens: list[Length] = []
    merged: list[list[Length]] = [[] for _ in strides]
    merged_axes: list[tuple[int, ...]] = []
    for axis in chosen:
        n = lens[axis]
        if merged_lens and all(known_equal(m[-1], s[axis] * n) for m, s in zip(merged, strides)):
            merged_lens[-1] *= n
            merged_axes[-1] += (axis,)
            for m, s in zip(merged, strides):
                m[-1] = s[axis]
        else:
            merged_lens.append(n)
            merged_axes.append((axis,))
            for m, s in zip(merged, strides):
                m.append(s[axis])
    return Space(tuple(merged_lens), tuple(tuple(m) for m in merged), tuple(merged_axes))


def _outermost_first(strides: Sequence[Sequence[Length]], lead: Sequence[Length]) -> Callable[[int], Any]:
    """Return the key that orders axes by descending stride of one operand, then by the largest stride of all."""
    if not any(is_symbolic(s[a]) for s in strides for a in range(len(lead))):
        return lambda a: (-lead[a], -max((s[a] for s in strides), default=0), a)
    largest = [maximum(*(s[a] for s in strides)) for a in range(len(lead))]

    def order(a: int, b: int) -> int:
        return _order(lead[b], lead[a]) or _order(largest[b], largest[a]) or a - b

    return cmp_to_key(order)


def _order(x: Length, y: Length) -> int:
    """Return -1, 0 or 1: the order of two strides at typical lengths; on a tie, -1 if the first is provably never
    larger."""
    usual = typical(x) - typical(y)
    if usual or x is y:
        return (usual > 0) - (usual < 0)
    return known_less_equal(y, x) - known_less_equal(x, y)
