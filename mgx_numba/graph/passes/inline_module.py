"""Replace instructions that run one known submodule by that submodule's instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...ops.control import If, IfShort, RunOnTarget
from ..constants import uniform_value
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .dead_code_elimination import release


class InlineModule(Pass):
    """``if(constant)`` -> the instructions of the branch that it chooses; ``run_on_target`` -> its submodule's.

    ``if_short`` -> the first branch's, where the target's branches cost more than they may save.
    """

    name = "inline_module"

    def run(self, program: Program, options: Options) -> None:
        super().run(program, options)
        program.remove_unused_modules()

    def apply(self, program: Program, module: Module, options: Options) -> None:
        dear = options.capabilities is not None and not options.capabilities.cheap_branches
        constant = [i for i in module.named((If.name, IfShort.name, RunOnTarget.name)) if _chosen(i, dear) is not None]
        if not constant:
            return
        references = Counter(id(m) for owner in program.reachable_modules() for i in owner for m in i.module_args)
        for ins in constant:
            chosen = _chosen(ins, dear)
            if chosen is None or ins is module.last or any(references[id(m)] != 1 for m in ins.module_args):
                continue
            if all(user.name == "get_tuple_elem" for user in ins.users):
                _inline(module, ins, *chosen)
                release(ins.module_args, references)
                module.remove_instruction(ins)


def _chosen(ins: Instruction, dear: bool) -> tuple[Module, Sequence[Instruction]] | None:
    """Return the submodule that an instruction runs, with the values of its parameters; None if that is not known.

    Args:
        dear: whether branches cost more than a shortcut may save.
    """
    if isinstance(ins.op, RunOnTarget):
        return ins.module_args[0], [ins.inputs[k] for k in ins.op.order(ins.module_args[0])]
    condition = uniform_value(ins.inputs[0]) if isinstance(ins.op, If) else None
    if condition is None and dear and isinstance(ins.op, IfShort):
        condition = True
    return None if condition is None else (ins.module_args[0 if condition else 1], ins.inputs[1:])


def _inline(module: Module, ins: Instruction, branch: Module, values: Sequence[Instruction]) -> None:
    """Move a submodule's instructions before the instruction that runs it, and replace the results of that."""
    for parameter, value in zip(branch.parameters(), values):
        branch.replace_instruction(parameter, value)
    results = branch.results()
    for member in list(branch):
        if not member.is_param and not isinstance(member.op, Return):
            module.adopt(member, ins)
    for user in list(ins.users):
        home = user.module or module
        home.replace_instruction(user, results[user.op.attributes()["index"]])
        home.remove_instruction(user)
