"""The builder that parser functions of ONNX nodes use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.module import Module
from ..builder import GraphBuilder, is_scalar, rank

if TYPE_CHECKING:
    from .parser import GraphParser

__all__ = ["Builder", "is_scalar", "rank"]


class Builder(GraphBuilder):
    """A builder that appends instructions to one module.

    Attributes:
        parser: reads subgraphs and function bodies, and holds the options and the program.
    """

    def __init__(self, module: Module, parser: GraphParser) -> None:
        super().__init__(module, parser.constants)
        self.parser = parser
