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
from .truncate_float import STORAGE, VIEWS

__all__ = ["RoundOnce"]

TAKES = frozenset({"dot", "convolution", "convolution_backwards", "attention"})


class RoundOnce(Pass):
    """``convert[half](x: float)``, ``f(x)`` -> ``f(convert[float](convert[half](x)))`` for a convert that leads to a
    contraction.

    Only with ``fast_math``, since ``f`` sees fewer bits. Where ``x`` is beyond what 16 bits hold, the contraction has
    an infinity already. Results of the program keep all bits.
    """

    name = "round_once"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        if not options.fast_math:
            return
        order = {ins: k for k, ins in enumerate(module)}
        for ins in order:
            if ins.name == "convert" and ins.module is module and ins.shape.type in STORAGE:
                self._round(module, ins, order)

    def _round(self, module: Module, narrow: Instruction, order: Mapping[Instruction, int]) -> None:
        (source,) = narrow.inputs
        if source.shape.type is not Type.float_type or isinstance(source.op, Parameter) or is_constant(source):
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


def _leads_to_contraction(ins: Instruction) -> bool:
    return any(u.name in TAKES or (u.name in VIEWS and _leads_to_contraction(u)) for u in ins.users)
