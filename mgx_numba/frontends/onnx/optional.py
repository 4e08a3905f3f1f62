"""Optionals of which it is known while parsing whether they hold something: what they hold, or nothing.

ai.onnx: Optional OptionalGetElement OptionalHasElement.
"""

from __future__ import annotations

from typing import Any

from ...errors import ShapeError, UnsupportedError
from .builder import Builder
from .node import Node
from .registry import register

__all__ = ["OPTIONAL_OPERATORS"]

OPTIONAL_OPERATORS = frozenset({"Optional", "OptionalGetElement", "OptionalHasElement"})
"""Operators that take whatever an optional may hold, sequences too."""


@register("Optional")
def optional(g: Builder, node: Node, x: Any = None) -> Any:
    """The value itself."""
    if x is None:
        raise UnsupportedError("an optional that holds nothing is not supported as a value")
    return x


@register("OptionalGetElement")
def optional_get_element(g: Builder, node: Node, x: Any = None) -> Any:
    """What an optional holds."""
    if x is None:
        raise ShapeError("the optional holds nothing")
    return x


@register("OptionalHasElement")
def optional_has_element(g: Builder, node: Node, x: Any = None) -> Any:
    """Whether it holds something: a bool without axes."""
    return g.literal(x is not None)
