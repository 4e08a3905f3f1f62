"""Lowering of ensembles of decision trees on a GPU."""

from __future__ import annotations

from ....codegen.gpu.data.tree_ensemble import trees_launch
from ....graph.instruction import Instruction
from ....ops.tree_ensemble import TreeEnsemble
from ...lowering.lowering import Lowering
from ...lowering.tree_operands import tree_operands
from .table import lowering


@lowering("tree_ensemble")
def lower_tree_ensemble(low: Lowering, ins: Instruction) -> None:
    """Lower the ensemble to one kernel, or to a fallback step."""
    op, found = ins.op, tree_operands(low, ins)
    assert isinstance(op, TreeEnsemble)
    if found is None:
        return
    sizes, operands = found
    out = low.output(ins)
    how = operands["x"].tensor, out.tensor, sizes, op.aggregate, op.missing, low.origin(ins)
    low.launch_all(low.solve(trees_launch, *how), {**operands, "out": out}, ins)
