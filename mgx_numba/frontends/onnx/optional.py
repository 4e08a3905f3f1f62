"""Optionals: values that may be missing. Where it is known while parsing whether one holds something, reading it gives
what it holds.

ai.onnx: Optional OptionalGetElement OptionalHasElement.
"""

from __future__ import annotations

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register
from .sequence import members
from .value_types import declared_shape

__all__ = ["OPTIONAL_OPERATORS"]

OPTIONAL_OPERATORS = frozenset({"Optional", "OptionalGetElement", "OptionalHasElement"})
"""Operators that take whatever an optional may hold, sequences too."""


@register("Optional")
def optional(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """An optional that holds a value, or nothing of the type ``type``."""
    if x is not None:
        return g.op("optional_construct", x)
    if not node.has("type"):
        raise ParseError("there is neither an input nor the attribute 'type'")
    return g.op("optional_construct", element=declared_shape(node.get_type("type")))


@register("OptionalGetElement")
def optional_get_element(g: Builder, node: Node, x: Instruction | None = None) -> Instruction:
    """What an optional holds; a value that is no optional is itself."""
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
    """Whether it holds something: a bool without axes."""
    if x is None or not _is_optional(x):
        return g.literal(x is not None)
    held = members(x)
    return g.op("optional_has_element", x) if held is None else g.literal(bool(held))


def _is_optional(x: Instruction) -> bool:
    return x.shape.type is Type.optional_type
