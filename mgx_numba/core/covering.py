"""The shape that covers the values of two shapes, such as those of both branches of an `if`."""

from __future__ import annotations

from .dim import range_of
from .shape import UNBOUNDED, DynamicDimension, Shape


def covering(a: Shape, b: Shape) -> Shape | None:
    """Return a shape that covers values of both shapes: ranges where lengths differ, unranked where ranks differ.

    None if the types differ, or one shape is a tuple.
    """
    if a == b:
        return a
    if a.type is not b.type or a.sub_shapes or b.sub_shapes:
        return None
    if a.element is not None and b.element is not None:
        element = covering(a.element, b.element)
        return None if element is None else Shape.holding(a.type, element)
    if a.rank is None or a.rank != b.rank:
        return Shape.unranked(a.type)
    dims = [x if x == y else _either(x, y) for x, y in zip(a.dims, b.dims)]
    return Shape.dynamic(a.type, dims)


def _either(x: DynamicDimension, y: DynamicDimension) -> DynamicDimension:
    """Return the range that contains two ranges; symbolic lengths count with their ranges."""
    low, high = [range_of(d.min)[0] or 0 for d in (x, y)], [range_of(d.max)[1] for d in (x, y)]
    return DynamicDimension(min(low), max(UNBOUNDED if most is None else most for most in high))
