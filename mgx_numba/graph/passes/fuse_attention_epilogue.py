"""Fuse attention with the quantisation of its result, which is then written in 8 bits only."""

from __future__ import annotations

from ...ops.base import make_op
from ..constants import is_constant, uniform_value
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder
from .regions import extract, is_scalar_literal
from .rewriter import remove_dead
from .rules.quantized import EIGHT_BITS

VIEWS = frozenset("reshape reshape_lazy flatten squeeze unsqueeze transpose contiguous".split())
"""Operators that change the view of a value, not its elements."""


class FuseAttentionEpilogue(Pass):
    """``quantize(view(attention(...)))`` -> ``view(fused_attention(...))``; a quantisation is pointwise operations with
    scalar constants that end in 8 bits."""

    name = "fuse_attention_epilogue"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module):
            if ins.name == "attention" and not ins.shape.is_dynamic:
                views, chain = _followers(ins)
                if not chain:
                    continue
                if any(is_scalar_literal(i) is not None for i in ins.inputs):
                    self.log.refuse(self.name, ins, "an operand is one number")
                    continue
                self.log.apply(self.name, ins)
                _fuse(program, module, ins, views, chain)


def _followers(ins: Instruction) -> tuple[list[Instruction], list[Instruction]]:
    """Return the views of a value with no other users, and the quantising operations after them."""
    views: list[Instruction] = []
    chain: list[Instruction] = []
    count, value = 0, ins
    while len(value.users) == 1:
        (user,) = value.users
        if user.module is not ins.module:
            break
        if user.name in VIEWS and not chain:
            views.append(user)
        elif user.op.pointwise and all(i is value or _is_number(i) for i in user.inputs):
            chain.append(user)
            if user.shape.type in EIGHT_BITS:
                count = len(chain)
        else:
            break
        value = user
    return views, chain[:count]


def _is_number(ins: Instruction) -> bool:
    return is_constant(ins) and uniform_value(ins) is not None


def _fuse(
    program: Program, module: Module, ins: Instruction, views: list[Instruction], chain: list[Instruction]
) -> None:
    b = RewriteBuilder(module, chain[-1])
    value, before = ins, views[-1] if views else ins
    region = [ins]
    for old in chain:
        like = ins.shape
        inputs = [
            value if i is before else b.scalar(uniform_value(i), like.with_type(i.shape.type)) for i in old.inputs
        ]
        value, before = b.op(old.op, *inputs), old
        value.debug_symbols = old.debug_symbols
        region.append(value)
    moved = value
    for view in views:
        moved = b.op(view.op, moved)
        moved.debug_symbols = view.debug_symbols
    module.replace_instruction(chain[-1], moved)
    remove_dead(module, [chain[-1]])
    extract(program, module, region, make_op("fused_attention"), "attention")
