"""Pointwise operations on operands whose types and lengths differ."""

from __future__ import annotations

from ...core.types import Type
from ..instruction import Instruction
from .base import MacroBuilder, common_type, macro

NAMES = (
    "add div equal fmod greater less logical_and logical_or logical_xor max min mod mul pow prelu sqdiff sub"
    " bitwise_and bitwise_or bitwise_xor"
).split()


@macro(*NAMES, inputs=(2, 2), broadcasted_axis=None)
def binary(e: MacroBuilder, a: Instruction, b: Instruction, broadcasted_axis: int | None) -> Instruction:
    """Both in their common type and lengths.

    With ``broadcasted_axis`` the axes of ``b`` are laid along those of ``a`` from that one on, as in ONNX
    before opset 7.
    """
    if broadcasted_axis is not None:
        axis = broadcasted_axis + (a.shape.ndim if broadcasted_axis < 0 else 0)
        if not 0 <= axis <= a.shape.ndim - b.shape.ndim:
            raise e.fail(f"broadcasted_axis is {broadcasted_axis} for {b.shape.ndim} and {a.shape.ndim} axes")
        b = e.broadcast_axis(b, axis, a)
    return e.pointwise(e.name, a, b)


@macro("where", inputs=(3, 3))
def where(e: MacroBuilder, condition: Instruction, yes: Instruction, no: Instruction) -> Instruction:
    """Elements of ``yes`` where ``condition`` is true, of ``no`` elsewhere."""
    type = common_type([yes.shape.type, no.shape.type])
    values = (e.convert(condition, Type.bool_type), e.convert(yes, type), e.convert(no, type))
    return e.op("where", *e.same_lens(*values))
