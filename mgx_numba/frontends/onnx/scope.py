"""Scopes of names while a graph is read: values of this graph, then of enclosing graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import ParseError

if TYPE_CHECKING:
    from onnx import AttributeProto

    from ...graph.instruction import Instruction


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
        """Return the scope of a subgraph, which sees this scope's values."""
        return NameScope(self.opsets, self, self.attributes, self.path)

    def define(self, name: str, value: Instruction | None) -> None:
        """Define the value of a name.

        Raises:
            ParseError: this graph has already defined the name.
        """
        if name in self._values:
            raise ParseError(f"value {name!r} is defined twice")
        self._values[name] = value

    def knows(self, name: str) -> bool:
        """Return whether the name is defined in this scope or an outer scope."""
        return name in self._values or (self.outer is not None and self.outer.knows(name))

    def find(self, name: str) -> Instruction | None:
        """Return the value of a name; ``None`` for the empty name and for a function's absent optional input.

        Raises:
            ParseError: the name is undefined.
        """
        if not name:
            return None
        scope: NameScope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope.outer
        raise ParseError(f"value {name!r} is used, but no input, initializer or earlier node gives it")
