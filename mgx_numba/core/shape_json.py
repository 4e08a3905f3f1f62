"""Shapes as short JSON values, for files of the cache folder."""

from __future__ import annotations

from typing import Any

from .shape import DynamicDimension, Shape
from .types import Type

__all__ = ["shape_from_json", "shape_to_json"]


def shape_to_json(s: Shape) -> Any:
    """Return a shape as a JSON value that `shape_from_json` reads: a list of type, lengths and strides where lengths are
    fixed, a list of shapes for a tuple, else a map."""
    if s.type is Type.tuple_type:
        return [shape_to_json(member) for member in s.sub_shapes]
    if s.element is not None:
        return {"type": s.type.name, "element": shape_to_json(s.element)}
    if not s.ranked:
        return {"type": s.type.name}
    if s.is_dynamic:
        return {"type": s.type.name, "dims": [[d.min, d.max, sorted(d.optimals), d.symbol] for d in s.dyn_dims]}
    return [s.type.name, list(s.lens), list(s.strides)]


def shape_from_json(entry: Any) -> Shape:
    """Return the shape of a JSON value that `shape_to_json` gave.

    Raises:
        KeyError, TypeError, ValueError, IndexError: it is another value.
    """
    if isinstance(entry, dict):
        type = Type[entry["type"]]
        if "dims" in entry:
            dims = entry["dims"]
            return Shape.ranged(type, [DynamicDimension(a, b, frozenset(c), symbol) for a, b, c, symbol in dims])
        if "element" not in entry:
            return Shape.unranked(type)
        element = shape_from_json(entry["element"])
        if type is Type.map_type:
            key, value = element.sub_shapes
            return Shape.map(key.type, value.type)
        return Shape.sequence(element) if type is Type.sequence_type else Shape.optional(element)
    if not entry or not isinstance(entry[0], str):
        return Shape.tuple(shape_from_json(member) for member in entry)
    return Shape(Type[entry[0]], entry[1], entry[2])
