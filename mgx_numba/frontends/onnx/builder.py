"""The builder that parser functions of ONNX nodes use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ...graph.folding import Constants
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ..builder import GraphBuilder, is_scalar, rank
from .leniency import Leniency
from .model import Model
from .options import ParseOptions
from .scope import NameScope

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

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
