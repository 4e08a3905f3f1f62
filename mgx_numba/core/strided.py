"""Strided views: memory positions of a tensor's elements under transposes, slices, broadcasts and reshapes.

Lengths, strides and offsets may be symbolic (`core.dim`). Views record no guards beyond those of the shape rules: a
reshape that is not a view for all lengths is not a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .dim import Dim, Length, SharedLength, ceil_div, exact_quotient, known_equal, known_stretched, typical


class Strided(NamedTuple):
    """Lengths, strides and offset of a view, in elements.

    Its methods return other views of the same memory, with the strides that NumPy would give.
    """

    lens: tuple[SharedLength, ...]
    strides: tuple[SharedLength, ...]
    offset: SharedLength = 0

    def transpose(self, *permutation: int) -> Strided:
        """Return the view with axes in another order."""
        lens, strides = self.lens, self.strides
        return Strided(tuple([lens[p] for p in permutation]), tuple([strides[p] for p in permutation]), self.offset)

    def slice(self, axis: int, start: Length, end: Length, step: int = 1) -> Strided:
        """Return every ``step``-th position of an axis from ``start`` up to, excluding, ``end >= start``.

        A negative step walks down from ``start`` to above ``end``, which may be -1.
        """
        distance = end - start if step > 0 else start - end
        lens, strides = list(self.lens), list(self.strides)
        lens[axis] = ceil_div(distance, abs(step))
        offset = self.offset + start * strides[axis]
        strides[axis] = strides[axis] * step
        return Strided(tuple(lens), tuple(strides), offset)

    def flip(self, *axes: int) -> Strided:
        """Return the view with some axes in reverse order."""
        found = self
        for axis in axes:
            found = found.slice(axis, found.lens[axis] - 1, -1, -1)
        return found

    def broadcast(self, lens: Sequence[Length]) -> Strided:
        """Return the view with new axes in front and axes of length 1 stretched, both with stride 0.

        Raises:
            ValueError: the lengths do not broadcast.
        """
        missing = len(lens) - len(self.lens)
        if missing < 0:
            raise ValueError(f"{len(self.lens)} axes do not broadcast to {len(lens)}")
        strides: list[Length] = [0] * missing
        for own, length, stride in zip(self.lens, lens[missing:], self.strides):
            if known_equal(own, 1) or known_stretched(own, length):
                strides.append(0)
            elif own == length:  # the shape rule has recorded this guard
                strides.append(stride)
            elif own == 1:
                strides.append(0)
            else:
                raise ValueError(f"lengths {list(self.lens)} do not broadcast to {list(lens)}")
        return Strided(tuple(lens), tuple(strides), self.offset)

    def reshape(self, *lens: Length) -> Strided:
        """Return the view with other lengths of the same elements in row-major order.

        Raises:
            ValueError: the reshape requires a copy.
        """
        strides = reshaped(self.lens, self.strides, lens)
        if strides is None:
            raise ValueError(f"lengths {list(self.lens)} cannot be seen as {list(lens)} without a copy")
        return Strided(lens, strides, self.offset)


def reshaped(
    lens: Sequence[Length], strides: Sequence[Length], new_lens: Sequence[Length]
) -> tuple[Length, ...] | None:
    """Return strides for a view with new lengths of the same elements in row-major order; None if it requires a copy.

    With symbolic lengths, a view must be valid for all lengths. The strides are those of ``numpy.reshape(copy=False)``,
    also for axes of length 1 and for empty tensors.
    """
    if len(lens) == len(new_lens) and all(map(known_equal, lens, new_lens)):
        return tuple(strides)
    if not known_equal(_product(lens), _product(new_lens)):
        return None
    if _row_major(lens, strides):
        found, step = [], 1
        for n in reversed(new_lens):
            found.append(step)
            step = step * n if isinstance(n, Dim) or n else step
        return tuple(reversed(found))
    return _split_and_merged(lens, strides, new_lens)


def _split_and_merged(
    lens: Sequence[Length], strides: Sequence[Length], new_lens: Sequence[Length]
) -> tuple[Length, ...] | None:
    """Return strides by NumPy's algorithm: match the shortest runs of old and new axes with equal products."""
    old = [(n, stride) for n, stride in zip(lens, strides) if isinstance(n, Dim) or n != 1]
    found: list[Length] = [0] * len(new_lens)
    i = j = 0  # the runs' first axes
    while i < len(old) and j < len(new_lens):
        end, new_end = i + 1, j + 1
        size, new_size = old[i][0], new_lens[j]
        while not known_equal(size, new_size):
            # A wrong choice only misses a view; equality is proven.
            own, new = typical(size), typical(new_size)
            smaller = new < own or (new == own and exact_quotient(new_size, size) is None)
            if new_end < len(new_lens) and (smaller or end == len(old)):
                new_size, new_end = new_size * new_lens[new_end], new_end + 1
            elif end < len(old):
                size, end = size * old[end][0], end + 1
            else:
                return None
        if not all(known_equal(old[k][1], old[k + 1][0] * old[k + 1][1]) for k in range(i, end - 1)):
            return None
        found[new_end - 1] = old[end - 1][1]
        for k in range(new_end - 1, j, -1):
            found[k - 1] = found[k] * new_lens[k]
        i, j = end, new_end
    if i < len(old) or not all(known_equal(n, 1) for n in new_lens[j:]):
        return None
    for k in range(j, len(new_lens)):
        found[k] = found[j - 1] if j else 1
    return tuple(found)


def _row_major(lens: Sequence[Length], strides: Sequence[Length]) -> bool:
    """Return whether elements are contiguous in row-major order; strides of axes of length 1 are ignored."""
    if any(isinstance(n, int) and n == 0 for n in lens):
        return True
    step: Length = 1
    for n, stride in zip(reversed(lens), reversed(strides)):
        if isinstance(n, int) and n == 1:
            continue
        if not known_equal(stride, step):
            return False
        step = step * n
    return True


def _product(lens: Sequence[Length]) -> Length:
    found: Length = 1
    for n in lens:
        found = found * n
    return found
