"""A dot or convolution becomes one instruction with the pointwise operations around it: its prologue and epilogue."""

from __future__ import annotations

from collections.abc import Callable

from ...core.types import Type
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .prologue import prologue_of
from .regions import extract, grow, is_fusable_type, order_of

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
            if ins.name not in CONTRACTIONS or ins.module is not module or not is_fusable_type(ins.shape):
                continue
            if ins.shape.type not in (Type.float_type, Type.double_type):
                continue
            before = prologue_of(ins, order)
            region = before + grow([ins], order, _accepts(ins))
            if len(region) > 1:
                position = order[region[-1]]
                for result in extract(program, module, region, make_op("fused_contraction"), "contraction"):
                    order[result] = position


def _accepts(root: Instruction) -> Callable[[Instruction], bool]:
    def accept(ins: Instruction) -> bool:
        if not ins.op.pointwise or ins.module_args or ins.shape.lens != root.shape.lens:
            return False
        return is_fusable_type(ins.shape) and all(is_fusable_type(i.shape) for i in ins.inputs)

    return accept
