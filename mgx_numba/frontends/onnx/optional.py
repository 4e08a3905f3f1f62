"""Optionals: values that may be absent. An optional whose state is known at parse time costs nothing to read."""

from __future__ import annotations

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register
from .sequence import members
from .tensors import declared_shape

OPTIONAL_OPERATORS = frozenset({"Optional", "OptionalGetElement", "OptionalHasElement"})
"""Operators that accept any value that an optional may hold, including sequences."""


@register("Optional")
def optional(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """Emit an optional that holds a value, or is empty and of the type ``type``."""
    if x is not None:
        return g.op("optional_construct", x)
    if not node.has("type"):
        raise ParseError("there is neither an input nor the attribute 'type'")
    return g.op("optional_construct", element=declared_shape(node.get_type("type")))


@register("OptionalGetElement")
def optional_get_element(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """Emit the value of an optional; a value that is not an optional is returned unchanged."""
    if x is None:
        raise ShapeError("the optional holds nothing")
    if not _is_optional(x):
        return x
    held = members(x)
    if held is not None and not held:
        raise ShapeError("the optional holds nothing")
    return g.op("optional_get_element", x) if held is None else held[0]


@register("OptionalHasElement")
def optional_has_element(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """Emit whether an optional holds a value: a bool scalar."""
    if x is None or not _is_optional(x):
        return g.literal(x is not None)
    held = members(x)
    return g.op("optional_has_element", x) if held is None else g.literal(bool(held))


def _is_optional(x: Instruction) -> bool:
    return x.shape.type is Type.optional_type
