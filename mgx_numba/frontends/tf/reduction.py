"""Reductions and scans along axes."""

from __future__ import annotations

from ...core.types import Type
from ...graph.instruction import Instruction
from ..builder import GraphBuilder, rank
from .node import TfNode
from .registry import register


@register("All", "Any", "Max", "Mean", "Min", "Prod", "Sum")
def reduce(g: GraphBuilder, node: TfNode, x: Instruction, axes: Instruction) -> Instruction:
    """Emit a reduction over constant axes; with ``keep_dims`` reduced axes have length 1."""
    found = g.axes(g.ints(axes, "reduction_indices"), rank(x), "input 'reduction_indices'")
    return g.reduce(f"reduce_{node.op_type.lower()}", x, found, node.get_bool("keep_dims"))


@register("ArgMax", "ArgMin")
def arg_reduce(g: GraphBuilder, node: TfNode, x: Instruction, axis: Instruction) -> Instruction:
    """Emit the position of the first extreme element along an axis, which is removed."""
    along = g.axis(g.int_value(axis, "dimension"), rank(x), "input 'dimension'")
    y = g.squeeze(g.op(node.op_type.lower(), x, axis=along), [along])
    return g.convert(y, node.get_type("output_type", Type.int64_type))


@register("Cumsum")
def cumsum(g: GraphBuilder, node: TfNode, x: Instruction, axis: Instruction) -> Instruction:
    """Emit the running sum; ``exclusive`` excludes the element itself, ``reverse`` starts at the end."""
    return g.op(
        "prefix_scan_sum",
        x,
        axis=g.axis(g.int_value(axis, "axis"), rank(x), "input 'axis'"),
        exclusive=node.get_bool("exclusive"),
        reverse=node.get_bool("reverse"),
    )
