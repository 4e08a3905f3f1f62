"""Remove instructions whose result is their input."""

from __future__ import annotations

from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead


class EliminateIdentity(Pass):
    """``identity(x) -> x``, and ``capture(x) -> x``."""

    name = "eliminate_identity"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module.named(("identity", "capture")):
            if ins is not module.last:
                module.replace_instruction(ins, ins.inputs[0])
                remove_dead(module, [ins])
