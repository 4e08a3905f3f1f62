"""Shapes of all kinds as JSON values, for this package's own files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..json_types import JsonArray
from .dim import Dim
from .shape import DynamicDimension, Shape
from .types import Type

Codec = Callable[[Any], Any]


def _plain(length: Any) -> int:
    if isinstance(length, Dim):
        raise TypeError(f"the length {length} is a number only when the program runs")
    return int(length)


def shape_to_json(shape: Shape, length: Codec = _plain) -> list[object]:
    """Return a shape as JSON values; ``length`` encodes each length and stride."""
    if shape.type is Type.tuple_type:
        return [[shape_to_json(member, length) for member in shape.sub_shapes]]
    if shape.element is not None:
        return [shape.type.name, shape_to_json(shape.element, length)]
    if not shape.ranked:
        return [shape.type.name]
    if not shape.is_dynamic:
        return [shape.type.name, list(map(length, shape.lens)), list(map(length, shape.strides))]
    dims = [[length(d.min), length(d.max), sorted(d.optimals), d.symbol] for d in shape.dyn_dims]
    return [shape.type.name, dims, None]


def shape_from_json(written: JsonArray, length: Codec = _plain) -> Shape:
    """Return the shape that `shape_to_json` encoded; ``length`` decodes each length and stride."""
    if len(written) == 1 and isinstance(written[0], list):
        return Shape.tuple([shape_from_json(member, length) for member in written[0]])
    type = Type[written[0]]
    if len(written) == 1:
        return Shape.unranked(type)
    if len(written) == 2:
        element = shape_from_json(written[1], length)
        if type is Type.map_type:
            key, value = element.sub_shapes
            return Shape.map(key.type, value.type)
        return Shape.sequence(element) if type is Type.sequence_type else Shape.optional(element)
    if written[2] is not None:
        return Shape(type, map(length, written[1]), map(length, written[2]))
    dims = [DynamicDimension(length(a), length(b), frozenset(best), symbol) for a, b, best, symbol in written[1]]
    return Shape.ranged(type, dims)
