"""Keep values that a fused kernel quantises and dequantises again in float32."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ..constants import is_constant, uniform_value
from ..instruction import Instruction
from ..module import Module
from ..program import Program
from .base import KERNEL_OPERATORS, Options
from .build import RewriteBuilder
from .match import Match, op, rule, some
from .rewriter import RulePass

_LIMITS = np.iinfo(np.uint8)

_INTEGERS = op("convert", op("convert", some("steps"), bind="x", once=True), bind="wide", once=True)


@rule("requantized", op("convert", op("sub", _INTEGERS, some("zero"), once=True)), exact=False)
def requantized(m: Match, b: RewriteBuilder) -> object:
    """``convert[float](convert[int32](convert[uint8](nearbyint(v) + zero)) - zero)`` -> rounding and clamping in
    float32."""
    if m.wide.shape.type is not Type.int32_type:
        return "the zero point is not subtracted in int32"
    point = uniform_value(m.zero)
    return "the zero point varies" if point is None else _limited_steps(m, b, int(point))


@rule("requantized_without_zero", op("convert", _INTEGERS), exact=False)
def requantized_without_zero(m: Match, b: RewriteBuilder) -> object:
    """The same with a zero point of 0."""
    return "values go by way of another type" if m.wide.shape.type is not Type.int32_type else _limited_steps(m, b, 0)


@rule("requantized_directly", op("convert", op("convert", some("steps"), bind="x", once=True)), exact=False)
def requantized_directly(m: Match, b: RewriteBuilder) -> object:
    """The same with merged conversions."""
    return _limited_steps(m, b, 0)


def _limited_steps(m: Match, b: RewriteBuilder, point: int) -> Instruction | str:
    """Return ``nearbyint(v)`` clamped to the range of steps; NaN becomes the least, as in the conversion to uint8."""
    steps = m.steps
    if tuple(ins.shape.type for ins in (steps, m.x, m.ins)) != (Type.float_type, Type.uint8_type, Type.float_type):
        return "the value is not quantised from float32 to uint8 and back"
    if steps.name == "add":
        steps, added = sorted(steps.inputs, key=is_constant)
        if uniform_value(added) != point:
            return "the zero points differ"
    elif point != 0:
        return "the zero points differ"
    if steps.name != "nearbyint":
        return "the value is not rounded"
    low, high = (b.scalar(limit - point, steps) for limit in (_LIMITS.min, _LIMITS.max))
    least = b.op("where", b.op("greater", steps, low), steps, low)
    return b.op("where", b.op("less", least, high), least, high)


class RewriteRequantization(RulePass):
    """In kernel bodies: clamp in float32 instead of converting to uint8 and back, if nothing else reads the uint8
    value. Between kernels 8-bit values are stored in 8 bits."""

    name = "rewrite_requantization"
    rules = (requantized, requantized_without_zero, requantized_directly)

    def apply(self, program: Program, module: Module, options: Options) -> None:
        for ins in module.named(KERNEL_OPERATORS):
            for body in ins.module_args:
                self.rewrite(body, options)
