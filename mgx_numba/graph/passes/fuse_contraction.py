"""A dot or convolution becomes one instruction with the pointwise operations around it: its prologue and epilogue."""

from __future__ import annotations

from collections.abc import Callable

from ...core.types import Type
from ...ops.base import make_op
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import Options, Pass
from .eliminate_data_type import is_stored_weight
from .prologue import prologue_of
from .regions import extract, grow, is_fusable_type, order_of

__all__ = ["FuseContraction"]

CONTRACTIONS = frozenset({"dot", "convolution", "convolution_backwards", "quant_dot", "quant_convolution"})
TYPES = frozenset({Type.float_type, Type.double_type, Type.int32_type})


class FuseContraction(Pass):
    """``pointwise(...pointwise(dot(a, b), c)...)`` -> ``fused_contraction(a, b, c)`` with those operations inside.

    Only operations over the contraction's own lengths join, and only while a single value leaves the region. Before a
    1x1 convolution, those that make its input join too if `prologue_of` finds that it can compute them on the way. The
    conversion of weights that are stored in 16 bits joins.
    """

    name = "fuse_contraction"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        order = order_of(module)
        for ins in list(module):
            if ins.name not in CONTRACTIONS or ins.module is not module or not is_fusable_type(ins.shape):
                continue
            if ins.shape.type not in TYPES:
                continue
            stored = _stored_weights(module, ins, order)
            before = stored + [i for i in prologue_of(ins, order) if i not in stored]
            region = before + grow([ins], order, _accepts(ins))
            if len(region) > 1:
                position = order[region[-1]]
                for result in extract(program, module, region, make_op("fused_contraction"), "contraction"):
                    order[result] = position


def _stored_weights(module: Module, ins: Instruction, order: dict[Instruction, int]) -> list[Instruction]:
    """The conversion of the right-hand side, if that is a constant in 16 bits: one for this contraction alone."""
    weights = ins.inputs[1]
    if not is_stored_weight(weights):
        return []
    if not weights.single_use:
        weights = module.insert_instruction(ins, weights.op, weights.inputs)
        order[weights] = order[ins]
        module.set_input(ins, 1, weights)
    return [weights]


def _accepts(root: Instruction) -> Callable[[Instruction], bool]:
    def accept(ins: Instruction) -> bool:
        if not ins.op.pointwise or ins.module_args or ins.shape.lens != root.shape.lens:
            return False
        return is_fusable_type(ins.shape) and all(is_fusable_type(i.shape) for i in ins.inputs)

    return accept
