"""Lowering of ensembles of decision trees, and of probabilities of support vector machines, on the CPU."""

from __future__ import annotations

from ....codegen.cpu.data.coupling import MOST_CLASSES, coupling_launch
from ....codegen.cpu.data.tree_ensemble import trees_launch
from ....graph.instruction import Instruction
from ....ops.maps import PairwiseCoupling
from ...lowering.lowering import Lowering
from ...lowering.tree_operands import tree_rule
from .table import lowering

lowering("tree_ensemble")(tree_rule(trees_launch, by_threads=True))


@lowering("pairwise_coupling")
def lower_coupling(low: Lowering, ins: Instruction) -> None:
    """Append a kernel; a fallback step for many classes."""
    op = ins.operator(PairwiseCoupling)
    if op.classes > MOST_CLASSES:
        low.host(ins, f"the matrix of {op.classes} classes is too large for the stack")
        return
    x, out = low.input(ins, 0), low.output(ins)
    solution = low.solve(coupling_launch, op.classes, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "out": out}, ins)
