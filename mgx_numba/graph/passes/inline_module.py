"""Replace an ``if`` with a constant condition by the chosen branch."""

from __future__ import annotations

from collections import Counter

from ..constants import uniform_value
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import release


class InlineModule(Pass):
    """``if(constant)`` -> the instructions of the branch that it chooses."""

    name = "inline_module"

    def run(self, program: Program, options: Options) -> None:
        super().run(program, options)
        program.remove_unused_modules()

    def apply(self, program: Program, module: Module, options: Options) -> None:
        constant = [i for i in module if i.name == "if" and uniform_value(i.inputs[0]) is not None]
        if not constant:
            return
        references = Counter(id(m) for owner in program.reachable_modules() for i in owner for m in i.module_args)
        for ins in constant:
            condition = uniform_value(ins.inputs[0])
            if ins is module.last or any(references[id(m)] != 1 for m in ins.module_args):
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
