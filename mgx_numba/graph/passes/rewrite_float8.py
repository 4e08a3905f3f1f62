"""Rewrite quantisation to float8 and back, for targets that only store float8."""

from __future__ import annotations

import math

from ...ops.dot import FP8
from ...ops.quantize import NearestFloat8
from ..instruction import Instruction
from .build import RewriteBuilder
from .eliminate_data_type import copies
from .match import Match, op, rule
from .rewriter import rule_pass
from .rules.quantized import Parameters, parameters


@rule("nearest_float8", op("dequantizelinear"), exact=True)
def nearest_float8(m: Match, b: RewriteBuilder) -> object:
    """``dequantize(quantize(x))`` as one operation, if the scale is a power of two, so that scaling is exact and
    unnecessary. Operators between the two that move elements then move float32."""
    can, p = m.options.capabilities, parameters(m.ins)
    if p is None or p[2] not in FP8 or can is None or can.float8_products:
        return "the values are no float8, their scale varies, or the target multiplies float8"
    fraction, exponent = math.frexp(p[0])
    if fraction != 0.5:
        return "the scale is no power of two"
    if exponent - 1 not in NearestFloat8.exponents(p[2]):
        return "the scale is so large that what values are multiplied by to round them makes infinity of them"
    near = NearestFloat8(target_type=p[2], exponent=exponent - 1)
    return _widened(m.ins.inputs[0], p, near, b, {}) or "the values are not only quantised and moved before"


def _widened(
    value: Instruction, p: Parameters, near: NearestFloat8, b: RewriteBuilder, made: dict[Instruction, Instruction]
) -> Instruction | None:
    """Return a float8 value dequantised to float32; None if it is not a moved value that was quantised with ``p``."""
    if value in made:
        return made[value]
    if value.name == "quantizelinear" and parameters(value) == p:
        made[value] = b.op(near, value.inputs[0])
    elif (value.op.view or copies(value)) and value.inputs and not value.module_args:
        inputs = []
        for given in value.inputs:
            wide = _widened(given, p, near, b, made) if given.shape.type is p[2] else given
            if wide is None:
                return None
            inputs.append(wide)
        made[value] = b.op(value.op, *inputs)
    return made.get(value)


RewriteFloat8 = rule_pass("rewrite_float8", nearest_float8)
