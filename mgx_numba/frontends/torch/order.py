"""Sorting and searching."""

from __future__ import annotations

from typing import Any

from ...core.types import Type
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register


def _both(g: AtenBuilder, x: Instruction, k: Any, dim: int, largest: bool) -> list[Instruction]:
    if rank(x) == 0:
        return [x, g.literal(0, Type.int64_type)]
    type = x.shape.type
    wide = g.cast(x, Type.uint8_type) if type is Type.bool_type else x
    both = g.op("topk", wide, k=k, axis=g.axis(dim, rank(x)), largest=largest)
    return [g.cast(g.op("get_tuple_elem", both, index=0), type), g.op("get_tuple_elem", both, index=1)]


@register("topk")
def topk(
    g: AtenBuilder, node: AtenNode, x: Instruction, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Instruction]:
    """Emit the largest or smallest elements of an axis and their positions."""
    return _both(g, x, k, dim, largest)


@register("sort")
def sort(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = -1, descending: bool = False) -> list[Instruction]:
    """Emit the elements of an axis in order, and their positions; equal elements keep their order."""
    length = 1 if rank(x) == 0 else g.lens(x)[g.axis(dim, rank(x))]
    return _both(g, x, length, dim, descending)


@register("sort.stable")
def sort_stable(
    g: AtenBuilder, node: AtenNode, x: Instruction, stable: Any = None, dim: int = -1, descending: bool = False
) -> list[Instruction]:
    """Emit the elements of an axis in order, and their positions."""
    return sort(g, node, x, dim, descending)


@register("argsort")
def argsort(g: AtenBuilder, node: AtenNode, x: Instruction, dim: int = -1, descending: bool = False) -> Instruction:
    """Emit the positions of the elements of an axis in order."""
    return sort(g, node, x, dim, descending)[1]


@register("argsort.stable")
def argsort_stable(
    g: AtenBuilder, node: AtenNode, x: Instruction, stable: bool = True, dim: int = -1, descending: bool = False
) -> Instruction:
    """Emit the positions of the elements of an axis in order."""
    return sort(g, node, x, dim, descending)[1]


@register("kthvalue")
def kthvalue(
    g: AtenBuilder, node: AtenNode, x: Instruction, k: int, dim: int = -1, keepdim: bool = False
) -> list[Instruction]:
    """Emit the k-th smallest element of an axis and its position."""
    axis = g.axis(dim, max(rank(x), 1))
    found = [v if rank(v) == 0 else g.slice(v, axis, k - 1, k) for v in _both(g, x, k, dim, False)]
    return found if keepdim or rank(x) == 0 else [g.squeeze(v, [axis]) for v in found]


@register("searchsorted.Tensor", "bucketize.Tensor")
def search(
    g: AtenBuilder,
    node: AtenNode,
    a: Instruction,
    b: Instruction,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Instruction:
    """Emit the number of boundaries below each value; with ``right`` also of equal ones."""
    bounds, values = (a, b) if node.base == "searchsorted" else (b, a)
    above = right or side == "right"
    if rank(bounds) == 1:
        aligned = bounds
        wide = g.unsqueeze(values, [rank(values)])
    else:
        aligned = g.unsqueeze(bounds, [rank(bounds) - 1])
        wide = g.unsqueeze(values, [rank(values)])
    from .types import promoted

    type = promoted([bounds, values])
    op = "less_or_equal" if above else "less"
    below = g.pointwise(op, g.cast(aligned, type), g.cast(wide, type))
    count = g.reduce("reduce_sum", g.cast(below, Type.int64_type), [rank(below) - 1], keep=False)
    return g.cast(count, node.type)
