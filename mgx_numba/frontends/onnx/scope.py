"""Names in force while a graph is read: values of this graph, then of those that enclose it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import ParseError

if TYPE_CHECKING:
    from onnx import AttributeProto

    from ...graph.instruction import Instruction

__all__ = ["NameScope"]


class NameScope:
    """Values by name, and the operator set versions in force.

    Attributes:
        opsets: version by domain; a function body has its own.
        attributes: values for attribute references (``ref_attr_name``) inside a function body.
        path: names of the functions being expanded, outermost first.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        outer: NameScope | None = None,
        attributes: Mapping[str, AttributeProto] | None = None,
        path: tuple[str, ...] = (),
    ) -> None:
        self.opsets = opsets
        self.outer = outer
        self.attributes = attributes
        self.path = path
        self._values: dict[str, Instruction | None] = {}

    def inner(self) -> NameScope:
        """NameScope of a subgraph: sees this one's values."""
        return NameScope(self.opsets, self, self.attributes, self.path)

    def define(self, name: str, value: Instruction | None) -> None:
        """Give a name its value.

        Raises:
            ParseError: this graph has already given it one.
        """
        if name in self._values:
            raise ParseError(f"value {name!r} is defined twice")
        self._values[name] = value

    def knows(self, name: str) -> bool:
        """Whether the name has a value here or outside."""
        return name in self._values or (self.outer is not None and self.outer.knows(name))

    def find(self, name: str) -> Instruction | None:
        """Value of a name; ``None`` for the empty name and for a function's absent optional input.

        Raises:
            ParseError: nothing defines it.
        """
        if not name:
            return None
        scope: NameScope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope.outer
        raise ParseError(f"value {name!r} is used, but no input, initializer or earlier node gives it")
