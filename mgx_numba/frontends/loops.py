"""Results of the IR's ``loop``, as the frontends' loops give them."""

from __future__ import annotations

from ..graph.instruction import Instruction
from ..graph.module import Module
from .builder import GraphBuilder, rank


def members(g: GraphBuilder, result: Instruction, module: Module) -> list[Instruction]:
    """Return the members of a loop's result; scan outputs of scalars are vectors."""
    values = [g.op("get_tuple_elem", result, index=k) for k in range(len(result.shape.sub_shapes))]
    carried = len(result.inputs) - 2
    for k, element in enumerate(module.results()[1 + carried :], carried):
        if element.shape.rank == 0:
            values[k] = g.squeeze(values[k], [1])
    return values


def as_entered(g: GraphBuilder, value: Instruction, entered: Instruction) -> Instruction:
    """Reshape the value of a carried scalar to a scalar."""
    return g.reshape(value, ()) if entered.shape.rank == 0 and value.shape.ranked and rank(value) != 0 else value
