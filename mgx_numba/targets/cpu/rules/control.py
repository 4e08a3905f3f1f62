"""Lower operators that run submodules: to steps of the plan, or to host steps with compiled submodules."""

from __future__ import annotations

from ....core.dim import SymbolicLengthError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ...lowering.host_values import has_symbols
from ...lowering.lowering import Lowering
from ...lowering.rules import Body
from ...stages import has_late_lengths
from ..bodies import compiled_body, late_program
from .inlined import inline
from .table import lowering


@lowering("if", "loop", "select_module", dynamic=True, hosted=True)
def lower_control(low: Lowering, ins: Instruction) -> None:
    """Append steps with jumps between them, else a host step that selects and repeats compiled submodules."""
    bodies: dict[Module, Body]
    if ins.name == "select_module" and has_symbols(ins):
        raise SymbolicLengthError("a run selects one of some modules by lengths, which have to be numbers")
    if inline(low, ins):
        return
    if low.resources.later is not None and has_late_lengths(ins):
        examples = {} if low.job.scope is None else low.job.scope.hints()
        bodies = {module: late_program(module, low.resources.later, examples) for module in ins.module_args}
    else:
        bodies = {module: compiled_body(module, low.options, low.lowered) for module in ins.module_args}
    low.host(ins, "values say which submodules run, and how often; what these compute is compiled", bodies)
