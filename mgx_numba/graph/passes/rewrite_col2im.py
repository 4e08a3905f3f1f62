"""Rewrite ``col2im`` as a transpose where nothing is added."""

from __future__ import annotations

from ...ops.col2im import Col2Im
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .build import RewriteBuilder


class RewriteCol2Im(Pass):
    """``col2im(x)`` -> a transpose of ``x`` where windows lie side by side."""

    name = "rewrite_col2im"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in list(module.named(frozenset({Col2Im.name}))):
            op, b = ins.operator(Col2Im), RewriteBuilder(module, ins)
            if op.apart:
                module.replace_instruction(ins, _rearranged(b, ins, op))
                self.log.apply(self.name, ins)


def _rearranged(b: RewriteBuilder, ins: Instruction, op: Col2Im) -> Instruction:
    rank, lens = len(op.size), ins.shape.lens
    apart = b.reshape(ins.inputs[0], (*lens[:2], *op.kernel, *op.steps))
    order = (0, 1, *(axis for k in range(rank) for axis in (2 + rank + k, 2 + k)))
    return b.reshape(b.transpose(apart, order), lens)
