"""Float32 values that contractions take in 16 bits are rounded once, for all that reads them.

Of a sum that leads both to a product and, past it, to the next sum (a residual stream: He et al., "Deep Residual
Learning", 2015) there would be two forms in memory, and a kernel that makes one of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.types import Type
from ..constants import is_constant
from ..instruction import Instruction, Parameter, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead
from .truncate_float import STORAGE, VIEWS

__all__ = ["RoundOnce"]

MOVED_PAST = frozenset("reshape reshape_lazy flatten squeeze unsqueeze transpose".split())
"""Operators that change how a value is seen, and neither its elements nor their number."""
TAKES = frozenset({"dot", "convolution", "convolution_backwards", "attention"})


class RoundOnce(Pass):
    """``convert[half](x: float)``, ``f(x)`` -> ``f(convert[float](convert[half](x)))`` for a convert that leads to a
    contraction; and ``convert[half](reshape(x))`` -> ``reshape(convert[half](x))``, where what computes ``x`` rounds.

    The former only with ``fast_math``, since ``f`` sees fewer bits. Where ``x`` is beyond what 16 bits hold, the
    contraction has an infinity already. Results of the program keep all bits.
    """

    name = "round_once"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module):
            if ins.name == "convert" and ins.shape.type in STORAGE:
                self._move(module, ins)
        if not options.fast_math:
            return
        order = {ins: k for k, ins in enumerate(module)}
        for ins in order:
            if ins.name == "convert" and ins.module is module and ins.shape.type in STORAGE:
                self._round(module, ins, order)

    def _move(self, module: Module, narrow: Instruction) -> None:
        """Convert before the value is seen otherwise, if nothing else sees it so."""
        views: list[Instruction] = []
        source = narrow.inputs[0]
        while source.name in MOVED_PAST and len(source.users) == 1 and len(source.inputs) == 1:
            views.append(source)
            source = source.inputs[0]
        if not views or source.shape.is_dynamic or source.shape.type is not Type.float_type or _is_given(source):
            return
        self.log.apply(self.name, narrow)
        value = module.insert_instruction(views[-1], narrow.op, [source])
        value.debug_symbols = narrow.debug_symbols
        for view in reversed(views):
            value = module.insert_instruction(narrow, view.op, [value])
            value.debug_symbols = view.debug_symbols
        module.replace_instruction(narrow, value)
        remove_dead(module, [narrow])

    def _round(self, module: Module, narrow: Instruction, order: Mapping[Instruction, int]) -> None:
        (source,) = narrow.inputs
        if source.shape.type is not Type.float_type or _is_given(source):
            return
        users = list(source.users)
        same = [u for u in users if u.name == "convert" and u.shape.type is narrow.shape.type]
        others = [u for u in users if u not in same]
        if not others or any(isinstance(u.op, Return) or u.module is not module for u in users):
            return
        if not any(_leads_to_contraction(u) for u in same):
            return
        first = min(users, key=order.__getitem__)
        rounded = module.insert_instruction(first, narrow.op, [source])
        rounded.debug_symbols = narrow.debug_symbols
        wide = module.insert_instruction(first, "convert", [rounded], target_type=source.shape.type)
        for user in same:
            module.replace_instruction(user, rounded)
            module.remove_instruction(user)
        for user in others:
            module.set_inputs(user, {k: wide for k, i in enumerate(user.inputs) if i is source})


def _is_given(ins: Instruction) -> bool:
    """Whether no kernel computes a value."""
    return isinstance(ins.op, Parameter) or is_constant(ins)


def _leads_to_contraction(ins: Instruction) -> bool:
    return any(u.name in TAKES or (u.name in VIEWS and _leads_to_contraction(u)) for u in ins.users)
