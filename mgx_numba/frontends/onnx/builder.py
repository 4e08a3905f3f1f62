"""The builder that parser functions of ONNX nodes use, and the scopes of names while a graph is read: values of this
graph, then of enclosing graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ...errors import ParseError
from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ..builder import GraphBuilder, is_scalar, rank
from .leniency import Leniency
from .model import Model
from .options import ParseOptions

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

__all__ = ["Builder", "GraphReader", "is_scalar", "rank"]


class GraphReader(Protocol):
    """The parser as parser functions of nodes see it; `parser.GraphParser` implements it and documents its members."""

    model: Model
    options: ParseOptions
    program: Program
    constants: Constants
    settled: Module | None
    leniency: Leniency

    def beside(self, model: Model, program: Program) -> GraphReader:
        """See `GraphParser.beside`."""

    def read_into(self, module: Module, inputs: Sequence[Instruction]) -> list[Instruction]:
        """See `GraphParser.read_into`."""

    def subgraph(
        self, g: Builder, graph: GraphProto, scope: NameScope, module: Module, inputs: Mapping[str, Instruction]
    ) -> list[Instruction]:
        """See `GraphParser.subgraph`."""

    def parse_nodes(self, g: Builder, nodes: Sequence[NodeProto], scope: NameScope, graph: str) -> None:
        """See `GraphParser.parse_nodes`."""

    def literal(self, g: Builder, tensor: object, initializer: int | None = None) -> Instruction:
        """See `GraphParser.literal`."""


class Builder(GraphBuilder):
    """A builder that appends instructions to one module.

    Attributes:
        parser: reads subgraphs and function bodies, and holds the options and the program.
    """

    def __init__(self, module: Module, parser: GraphReader) -> None:
        super().__init__(module, parser.constants)
        self.parser = parser


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
