"""The rule table that the modules of this package fill."""

from __future__ import annotations

from ....core.dim import SymbolicLengthError
from ....graph.instruction import Instruction
from ...lowering.rules import RuleTable
from ...lowering.view_operators import VIEWS

RULES = RuleTable(VIEWS)
lowering = RULES.lowering


def needs_numbers(ins: Instruction, what: str) -> None:
    """Raise `SymbolicLengthError` if an instruction has symbolic lengths, which its kernels do not support."""
    if any(shape.symbolic for value in (ins, *ins.inputs) for shape in value.shape.flatten()):
        raise SymbolicLengthError(f"{what} of symbolic lengths has no kernel on a GPU")
