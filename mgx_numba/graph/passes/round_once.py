"""Round float32 values whose views are rounded to 16 bits in the kernel that computes them."""

from __future__ import annotations

from ...core.types import Type
from ..constants import is_given
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead
from .storage_types import STORAGE

MOVED_PAST = frozenset("reshape reshape_lazy flatten squeeze unsqueeze transpose".split())
"""Operators that change the view of a value, not its elements."""


class RoundOnce(Pass):
    """``convert[half](reshape(x))`` -> ``reshape(convert[half](x))``, if nothing else reads ``x`` or the view."""

    name = "round_once"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module):
            if ins.name == "convert" and ins.shape.type in STORAGE:
                self._move(module, ins)

    def _move(self, module: Module, narrow: Instruction) -> None:
        """Move a conversion before the views of its operand, if nothing else reads these."""
        views: list[Instruction] = []
        source = narrow.inputs[0]
        while source.name in MOVED_PAST and len(source.users) == 1 and len(source.inputs) == 1:
            views.append(source)
            source = source.inputs[0]
        if not views or source.shape.is_dynamic or source.shape.type is not Type.float_type or is_given(source):
            return
        self.log.apply(self.name, narrow)
        value = module.insert_instruction(views[-1], narrow.op, [source])
        value.debug_symbols = narrow.debug_symbols
        for view in reversed(views):
            value = module.insert_instruction(narrow, view.op, [value])
            value.debug_symbols = view.debug_symbols
        module.replace_instruction(narrow, value)
        remove_dead(module, [narrow])
