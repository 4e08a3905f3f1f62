"""Remove instructions whose value is unused, and modules that nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass

SIDE_EFFECTS = frozenset({"capture", "check_context"})
"""Operators that run for their side effects."""


class DeadCodeElimination(Pass):
    """Remove unused instructions and modules. Parameters stay; a module without ``@return`` keeps its last value."""

    name = "dead_code_elimination"

    def run(self, program: Program, options: Options) -> None:
        modules = program.reachable_modules()
        references = Counter(id(body) for module in modules for ins in module.running() for body in ins.module_args)
        for module in reversed(modules):
            _sweep(module, references)
        program.remove_unused_modules()

    def apply(self, program: Program, module: Module, options: Options) -> None:
        self.run(program, options)


def _sweep(module: Module, references: Counter[int]) -> None:
    last = module.last
    for ins in reversed(module):
        if ins.users or ins is last or isinstance(ins.op, (Parameter, Return)) or ins.op.name in SIDE_EFFECTS:
            continue
        bodies = ins.module_args
        module.remove_instruction(ins)
        release(bodies, references)


def release(bodies: Sequence[Module], references: Counter[int]) -> None:
    """Remove the modules of a removed instruction, unless another instruction runs them."""
    for body in bodies:
        references[id(body)] -= 1
        if references[id(body)]:
            continue
        members: list[Instruction] = list(body)
        for ins in reversed(members):
            inner = list(ins.module_args)
            body.remove_instruction(ins)
            release(inner, references)
