"""Lengths: broadcasting, ranges of dynamic shapes, and reshapes as views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from ..core.dim import Dim, SharedLength, known_equal, known_stretched, range_of
from ..core.shape import UNBOUNDED, DynamicDimension, Shape, common_lens, common_range, find_permutation
from ..core.strided import reshaped

if TYPE_CHECKING:
    from .base import Operator


def any_dynamic(shapes: Sequence[Shape]) -> bool:
    """Return whether some shape is dynamic."""
    return any(s.is_dynamic for s in shapes)


def map_dim(dim: DynamicDimension, f: Callable[[int], int]) -> DynamicDimension:
    """Return the range of a non-decreasing ``f(n)`` for ``n`` in a range."""
    return DynamicDimension(f(dim.min), f(dim.max), frozenset(f(n) for n in dim.optimals))


def meet_dim(op: Operator, what: str, *dims: DynamicDimension) -> DynamicDimension:
    """Return the intersection of ranges.

    Raises:
        ShapeError: it is empty; ``what`` names the compared axis.
    """
    found = common_range(dims)
    if found is None:
        raise op.fail(f"{what} differ: {' and '.join(map(str, dims))}")
    return found


def may_be(dim: DynamicDimension, length: int) -> bool:
    """Return whether a range contains a length; for symbolic lengths, equality is a guard."""
    return dim.min == length if dim.is_fixed else dim.min <= length <= dim.max


def broadcast_lens(op: Operator, *lens: Sequence[int]) -> tuple[int, ...]:
    """Return the common lengths of tensors under NumPy's broadcasting rule.

    Raises:
        ShapeError: some axis has two lengths other than 1.
    """
    try:
        return common_lens(*lens)
    except ValueError:
        listed = " and ".join(str(list(n)) for n in lens)
        rank = max(map(len, lens))
        columns = zip(*((1,) * (rank - len(n)) + tuple(n) for n in lens))
        axis, wide = next((k, found) for k, column in enumerate(columns) if len(found := {*column} - {1}) > 1)
        raise op.fail(f"{listed} do not broadcast: axis {axis} would be {sorted(wide, key=str)}") from None


_ONE = DynamicDimension(1, 1)


def broadcast_dim(op: Operator, a: DynamicDimension, b: DynamicDimension) -> DynamicDimension:
    """Return the range of one axis under the broadcasting rule.

    Raises:
        ShapeError: no pair of lengths from the two ranges broadcasts.
    """
    if isinstance(a.min, Dim) or isinstance(b.min, Dim):
        return _broadcast_symbolic(op, a, b)
    if a.min == a.max == 1:
        return b
    if a is b or b.min == b.max == 1 or a == b:
        return a
    if 1 not in range(a.min, a.max + 1) and 1 not in range(b.min, b.max + 1):
        return meet_dim(op, "lengths to broadcast", a, b)
    if a.min > 1:
        return a
    if b.min > 1:
        return b
    return DynamicDimension(min(a.min, b.min), max(a.max, b.max))


def _broadcast_symbolic(op: Operator, a: DynamicDimension, b: DynamicDimension) -> DynamicDimension:
    """Return `broadcast_dim` where one of the two is a symbolic length; combined with a range it counts as a range."""
    if a.is_fixed and b.is_fixed:
        (length,) = broadcast_lens(op, (a.min,), (b.min,))
        return DynamicDimension(length, length)
    ends = [range_of(n) for d in (a, b) for n in (d.min, d.max)]
    highest = [UNBOUNDED if high is None else high for _, high in ends]
    return DynamicDimension(min(low or 0 for low, _ in ends), max(highest))


def broadcast_dims(op: Operator, *shapes: Shape) -> tuple[DynamicDimension, ...]:
    """Return the common ranges of dynamic shapes under the broadcasting rule."""
    rank = max([s.ndim for s in shapes])
    result, *others = ((_ONE,) * (rank - len(s.dims)) + s.dims for s in shapes)
    for dims in others:
        result = tuple([broadcast_dim(op, a, b) for a, b in zip(result, dims)])
    return result


def broadcast_shape(op: Operator, shape: Shape, lens: Sequence[int]) -> Shape:
    """Return ``shape`` broadcast to ``lens``: stride 0 on every new or stretched axis.

    Raises:
        ShapeError: an axis of a length other than 1 would change, or the rank would shrink.
    """
    missing = len(lens) - shape.ndim
    if missing < 0:
        raise op.fail(f"{shape.ndim} axes of {list(shape.lens)} cannot become {len(lens)} axes {list(lens)}")
    strides = [0] * missing
    for old, new, stride in zip(shape.lens, lens[missing:], shape.strides):
        if known_stretched(old, new):
            strides.append(0)
        elif not known_equal(old, 1) and old == new:
            strides.append(stride)
        elif old == 1:
            strides.append(stride if known_equal(new, 1) else 0)
        else:
            raise op.fail(f"lengths {list(shape.lens)} do not broadcast to {list(lens)}")
    return Shape.view(shape.type, lens, strides)


def packed_like(shape: Shape, lens: Sequence[int]) -> Shape:
    """Return a packed shape of other lengths in the memory order of ``shape``; row-major if ``shape`` is broadcast."""
    if len(lens) != shape.ndim or shape.broadcasted:
        return Shape(shape.type, lens)
    return Shape.from_permutation(shape.type, lens, find_permutation([shape]))


def view_strides(shape: Shape, lens: Sequence[SharedLength]) -> tuple[SharedLength, ...] | None:
    """Return the strides of a view with lengths ``lens`` of the same elements in order; None if that needs a copy.

    Axes whose strides are contiguous form one run of memory. A run can be split into new axes; a new axis cannot span
    two runs.
    """
    if shape.symbolic or any(isinstance(n, Dim) for n in lens):
        return reshaped(shape.lens, shape.strides, lens)
    if prod(lens) != shape.elements:
        return None
    if shape.elements == 0:
        return Shape(shape.type, lens).strides
    runs: list[list[int]] = []
    for n, stride in zip(shape.lens, shape.strides):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * stride:
            runs[-1] = [runs[-1][0] * n, stride]
        else:
            runs.append([n, stride])
    strides = [0] * len(lens)
    axis = len(lens) - 1
    for length, stride in reversed(runs):
        inside = 1
        while inside < length:
            if axis < 0:
                return None
            if lens[axis] == 1:
                strides[axis] = inside * stride
            else:
                strides[axis] = inside * stride
                inside *= lens[axis]
            axis -= 1
        if inside != length:
            return None
    outer = max((n * s for n, s in zip(lens[axis + 1 :], strides[axis + 1 :])), default=1)
    for rest in range(axis, -1, -1):
        strides[rest] = outer
    return tuple(strides)
