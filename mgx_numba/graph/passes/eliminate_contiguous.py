"""Removal of copies to standard layout that no user needs."""

from __future__ import annotations

from ...errors import MgxError
from ..instruction import Instruction, Return
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .rewriter import remove_dead

__all__ = ["EliminateContiguous"]

NEEDS_STANDARD = frozenset({"reshape_lazy", "as_shape", "load", "bit_cast"})


class EliminateContiguous(Pass):
    """``f(contiguous(x)) -> f(x)`` where the operator takes any strides; results of the module stay standard.

    Args:
        name: operator that copies to standard layout.
    """

    name = "eliminate_contiguous"

    def __init__(self, operator: str = "contiguous") -> None:
        self.operator = operator

    def apply(self, program: Program, module: Module, options: Options) -> None:
        fixed = any(ins.name in NEEDS_STANDARD for ins in module)
        for ins in list(module):
            if ins.name != self.operator or ins is module.last:
                continue
            source = ins.inputs[0]
            if source.shape == ins.shape:
                module.replace_instruction(ins, source)
            else:
                for user in list(ins.users):
                    if _takes_any_layout(user, ins, source, fixed):
                        home = user.module or module
                        for index, value in enumerate(user.inputs):
                            if value is ins:
                                home.set_input(user, index, source)
            remove_dead(module, [ins])


def _takes_any_layout(user: Instruction, old: Instruction, new: Instruction, fixed: bool) -> bool:
    """Whether the operator accepts the value without the copy; ``fixed`` asks for the same result strides too."""
    if isinstance(user.op, Return) or user.module_args or user.name in NEEDS_STANDARD:
        return False
    shapes = [new.shape if i is old else i.shape for i in user.inputs]
    try:
        shape = user.op.compute_shape(shapes, user.module_args)
    except MgxError:
        return False
    if fixed:
        return shape == user.shape
    return shape.lens == user.shape.lens and shape.type is user.shape.type
