"""Sums of products over named axes.

ai.onnx: Einsum.
"""

from __future__ import annotations

from ...errors import ParseError
from ...graph.einsum import einsum
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register


@register("Einsum")
def einsum_node(g: Builder, node: Node, *operands: Instruction) -> Instruction:
    """Emit the node's equation."""
    return einsum(g, node.get_str("equation"), operands, ParseError)
