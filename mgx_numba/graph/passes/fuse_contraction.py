"""A dot or convolution becomes one instruction with the pointwise operations around it: its prologue and epilogue."""

from __future__ import annotations

from ...core.types import Type
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .prologue import pointwise_over, prologue_of
from .regions import extract, grow, order_of, unfusable

__all__ = ["FuseContraction"]

CONTRACTIONS = frozenset({"dot", "convolution", "convolution_backwards"})


class FuseContraction(Pass):
    """``pointwise(...pointwise(dot(a, b), c)...)`` -> ``fused_contraction(a, b, c)`` with those operations inside.

    Only operations over the contraction's own lengths join, and only while a single value leaves the region. Before a
    1x1 convolution, those that make its input join too if `prologue_of` finds that it can compute them on the way.
    """

    name = "fuse_contraction"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        for ins in list(module):
            if ins.name not in CONTRACTIONS or ins.module is not module:
                continue
            reason = unfusable(ins)
            if reason is None and ins.shape.type not in (Type.float_type, Type.double_type):
                reason = f"epilogues are computed in float_type and double_type, not in {ins.shape.type.name}"
            if reason is not None:
                self._note(ins, reason)
                continue
            before = prologue_of(ins, order, self._note)
            region = before + grow([ins], order, pointwise_over(ins.shape.lens), note=self._note)
            if len(region) > 1:
                self.log.apply(self.name, ins)
                position = order[region[-1]]
                for result in extract(program, module, region, make_op("fused_contraction"), "contraction"):
                    order[result] = position

    def _note(self, ins: Instruction, reason: str) -> None:
        self.log.refuse(self.name, ins, reason)
