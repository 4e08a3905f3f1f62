"""Operators that run submodules: in host steps, with the submodules compiled."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ...lowering.lowering import Lowering
from ...stages import has_late_lengths
from .bodies import CompiledBody, LateBody
from .table import lowering


@lowering("if", "loop", "select_module", dynamic=True, hosted=True)
def lower_control(low: Lowering, ins: Instruction) -> None:
    """A host step that chooses and repeats what compiled submodules compute."""
    later = low.later
    bodies = {
        module: CompiledBody(module, low.options, low.lowered)
        if later is None or not has_late_lengths(module)
        else LateBody(module, later)
        for module in ins.module_args
    }
    low.host(ins, "values say which submodules run, and how often; what these compute is compiled", bodies)
