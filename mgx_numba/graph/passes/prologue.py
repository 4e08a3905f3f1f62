"""Contraction prologues: pointwise operations before a 1x1 convolution that can be computed as it reads its rows."""

from __future__ import annotations

from typing import Any

from ...core.shape import Shape
from ..instruction import Instruction
from .regions import absorb_producers, is_fusable_type

__all__ = ["prologue_of", "varies_over_pixels"]

MOST_COLUMNS = 256
"""Output channels: the prologue is computed again for each block of them. No figures kept."""
MOST_WEIGHTS = 98304
"""Output channels and weights that one task holds as a rule: with more, several tasks would repeat the prologue."""
PLAIN_SOURCES = frozenset({"concat", "layout", "pooling", "reshape", "slice", "transpose", "@param"})
"""What makes the input of a prologue though it is used by nothing else: it could not take the operations itself."""


def varies_over_pixels(shape: Shape) -> bool:
    """Whether a tensor ``[image, channel, *spatial]`` is more than one value repeated in every pixel."""
    return any(s != 0 and n > 1 for n, s in zip(shape.lens[2:], shape.strides[2:]))


def prologue_of(convolution: Instruction, order: dict[Instruction, int]) -> list[Instruction]:
    """Operations that lead to the input of a convolution and are used by nothing else, in program order; maybe none.

    The convolution is a matrix product over the pixels of its input. The operations are over the input's own lengths
    and read one tensor, of the convolution's type, that varies over pixels; all others are repeated in every pixel.
    """
    if convolution.name != "convolution" or not _is_product(convolution):
        return []
    source = convolution.inputs[0].shape

    def accept(ins: Instruction) -> bool:
        if not ins.op.pointwise or ins.module_args or ins.shape.lens != source.lens:
            return False
        return is_fusable_type(ins.shape) and all(is_fusable_type(i.shape) for i in ins.inputs)

    members = [i for i in absorb_producers([convolution], order, accept) if i is not convolution]
    inside = set(members)
    inputs = dict.fromkeys(i for ins in members for i in ins.inputs if i not in inside)
    varying = [i for i in inputs if varies_over_pixels(i.shape)]
    if len(varying) != 1 or varying[0].shape.type is not source.type:
        return []
    alone = all(user in inside for user in varying[0].users)
    return [] if alone and varying[0].name not in PLAIN_SOURCES else members


def _is_product(convolution: Instruction) -> bool:
    op: Any = convolution.op
    x, weights = (i.shape for i in convolution.inputs)
    if 0 in x.lens or 0 in weights.lens or weights.type is not x.type or weights.elements > MOST_WEIGHTS:
        return False
    if any(n != 1 for n in weights.lens[2:]) or weights.lens[0] > MOST_COLUMNS:
        return False
    return op.group == 1 and not any(op.padding) and all(s == 1 for s in op.stride)
