"""Merge a recurrent layer and the instructions for its further results into one instruction."""

from __future__ import annotations

from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder

RECURRENT = frozenset({"rnn", "gru", "lstm"})
LAST = {"rnn_last_hs_output": 1, "rnn_last_cell_output": 2}  # numbers of the results


def last_states(ins: Instruction) -> dict[Instruction, int]:
    """Return the instructions that stand for further results of a recurrent layer, with the result's index."""
    return {user: LAST[user.op.name] for user in ins.users if user.op.name in LAST}


class MergeRnnOutputs(Pass):
    """``lstm`` and its ``rnn_last_hs_output``, ``rnn_last_cell_output`` -> ``recurrent`` and ``get_tuple_elem``.

    Layers whose last states nothing uses stay as they are.
    """

    name = "merge_rnn_outputs"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module.named(RECURRENT):
            found = last_states(ins)
            if not found:
                continue
            from ...ops.rnn import Recurrent, RecurrentBase  # late: `last_states` is read for any program

            layer = ins.operator(RecurrentBase)
            builder = RewriteBuilder(module, ins)
            whole = builder.op(Recurrent.of(layer), *ins.inputs)
            module.replace_instruction(ins, builder.op("get_tuple_elem", whole, index=0))
            for user, position in found.items():
                home = user.module or module
                builder.module, builder.before = home, user
                home.replace_instruction(user, builder.op("get_tuple_elem", whole, index=position))
                home.remove_instruction(user)
            for new in builder.created:
                new.debug_symbols = ins.debug_symbols
            module.remove_instruction(ins)
