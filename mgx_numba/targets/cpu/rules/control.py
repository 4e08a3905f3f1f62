"""Lower operators that run submodules: to steps of the plan, or to fallback steps with compiled submodules."""

from __future__ import annotations

from ....core.dim import SymbolicLengthError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...data_dependent_split import has_data_dependent_lengths
from ...lowering.fallback_values import has_symbols
from ...lowering.lowering import Lowering
from ...lowering.rules import Body
from ..bodies import compiled_body, data_dependent_program
from .inlined import inline
from .table import lowering


@lowering("if", "if_short", "loop", "select_module", "run_on_target", dynamic=True, hosted=True)
def lower_control(low: Lowering, ins: Instruction) -> None:
    """Append steps with jumps between them, else a fallback step that selects and repeats compiled submodules."""
    bodies: dict[Module, Body]
    if ins.name == "select_module" and has_symbols(ins):
        raise SymbolicLengthError("a run selects one of some modules by lengths, which have to be numbers")
    if ins.name != "run_on_target" and inline(low, ins):
        return
    if low.resources.compile_body is not None and has_data_dependent_lengths(ins, on_host=True):
        compile, outer = low.resources.compile_body, low.job.scope
        loops = ins.name == "loop"
        bodies = {module: data_dependent_program(module, compile, outer, loops) for module in ins.module_args}
    else:
        bodies = {module: compiled_body(module, low.options, low.lowered) for module in ins.module_args}
    low.host(ins, "values say which submodules run, and how often; what these compute is compiled", bodies)
