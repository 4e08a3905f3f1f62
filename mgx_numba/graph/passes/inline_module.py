"""Replace an ``if`` with a constant condition by the chosen branch.

An ``if_short`` becomes its first branch where the target's branches cost more than they may save.
"""

from __future__ import annotations

from collections import Counter

from ...ops.control import If, IfShort
from ..constants import uniform_value
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import release


class InlineModule(Pass):
    """``if(constant)`` -> the instructions of the branch that it chooses; ``if_short`` -> those of the first."""

    name = "inline_module"

    def run(self, program: Program, options: Options) -> None:
        super().run(program, options)
        program.remove_unused_modules()

    def apply(self, program: Program, module: Module, options: Options) -> None:
        dear = options.capabilities is not None and not options.capabilities.cheap_branches
        chosen = {}
        for ins in module:
            if isinstance(ins.op, If):
                value = uniform_value(ins.inputs[0])
                chosen[ins] = True if value is None and dear and isinstance(ins.op, IfShort) else value
        if all(value is None for value in chosen.values()):
            return
        references = Counter(id(m) for owner in program.reachable_modules() for i in owner for m in i.module_args)
        for ins, condition in chosen.items():
            if condition is None or ins is module.last or any(references[id(m)] != 1 for m in ins.module_args):
                continue
            branch = ins.module_args[0 if condition else 1]
            if all(user.name == "get_tuple_elem" for user in ins.users):
                _inline(module, ins, branch)
                release(ins.module_args, references)
                module.remove_instruction(ins)


def _inline(module: Module, ins: Instruction, branch: Module) -> None:
    """Move a branch's instructions before its ``if`` and replace the ``if``'s results."""
    parameters = branch.parameters()
    for parameter, value in zip(parameters, ins.inputs[1:]):
        branch.replace_instruction(parameter, value)
    results = branch.results()
    for member in list(branch):
        if not member.is_param and not isinstance(member.op, Return):
            module.adopt(member, ins)
    for user in list(ins.users):
        home = user.module or module
        home.replace_instruction(user, results[user.op.attributes()["index"]])
        home.remove_instruction(user)
