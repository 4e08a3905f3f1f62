"""Matrix products."""

from __future__ import annotations

from ...errors import ParseError, ShapeError
from ...graph.einsum import einsum
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .node import TfNode
from .registry import register


@register("MatMul")
def matmul(g: GraphBuilder, node: TfNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the product of two matrices, each transposed by its attribute."""
    if rank(a) != 2 or rank(b) != 2:
        raise ParseError(f"inputs have {rank(a)} and {rank(b)} dimensions, expected 2")
    return product(g, a, b, node.get_bool("transpose_a"), node.get_bool("transpose_b"))


@register("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(g: GraphBuilder, node: TfNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the product over the last two axes; leading axes broadcast."""
    if rank(a) < 2 or rank(b) < 2:
        raise ParseError(f"inputs have {rank(a)} and {rank(b)} dimensions, expected at least 2")
    y = product(g, a, b, node.get_bool("adj_x"), node.get_bool("adj_y"))
    return g.convert(y, node.get_type("Tout", y.shape.type))


def product(g: GraphBuilder, a: Instruction, b: Instruction, swap_a: bool, swap_b: bool) -> Instruction:
    """Emit ``dot`` with broadcast batch axes; ``swap_a`` and ``swap_b`` transpose the operands."""
    a, b = (g.swap_last(x) if swap else x for x, swap in ((a, swap_a), (b, swap_b)))
    left, right = g.lens(a), g.lens(b)
    if left[-1] != right[-2]:
        raise ShapeError(f"matrices of {list(left[-2:])} and {list(right[-2:])} cannot be multiplied")
    batch = g.outer_lens(left[:-2], right[:-2])
    return g.op("dot", g.broadcast(a, (*batch, *left[-2:])), g.broadcast(b, (*batch, *right[-2:])))


@register("Einsum")
def einsum_node(g: GraphBuilder, node: TfNode, *operands: Instruction) -> Instruction:
    """Emit the node's equation."""
    return einsum(g, node.get_str("equation"), operands, ParseError)
