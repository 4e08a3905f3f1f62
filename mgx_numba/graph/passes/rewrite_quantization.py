"""Quantisation and dequantisation as arithmetic and conversions (ONNX QuantizeLinear, DequantizeLinear)."""

from __future__ import annotations

import ml_dtypes

from ...core.types import Type
from ..constants import constant_array, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, constant, op, rule
from .rewriter import RulePass

__all__ = ["RewriteQuantization"]

EXACT_IN_INT32 = frozenset({Type.int8_type, Type.uint8_type, Type.int16_type, Type.uint16_type, Type.int32_type})


@rule("quantizelinear", op("quantizelinear"))
def quantize(m: Match, b: RewriteBuilder) -> object:
    """``convert(nearbyint(x / scale) + zero_point)``; the conversion saturates."""
    x, scale, *zero = m.ins.inputs
    target, wide = m.ins.shape.type, scale.shape.type.compute
    value = b.convert(x, wide)
    if uniform_value(scale) != 1:
        value = b.op("div", value, b.convert(scale, wide))
    if not target.is_floating:
        value = b.op("nearbyint", value)
    if zero:
        value = b.op("add", value, b.convert(zero[0], wide))
    if target.is_floating:
        limit = float(ml_dtypes.finfo(target.numpy).max)
        value = b.op("min", b.op("max", value, b.scalar(-limit, value)), b.scalar(limit, value))
    return b.convert(value, target)


@rule("dequantizelinear", op("dequantizelinear"))
def dequantize(m: Match, b: RewriteBuilder) -> object:
    """``convert(x - zero_point) * scale``, the difference in integers where it is exact."""
    x, scale, *zero = m.ins.inputs
    target = scale.shape.type
    exact = Type.int32_type if x.shape.type in EXACT_IN_INT32 else target.compute
    value: Instruction = b.convert(x, exact)
    if zero:
        value = b.op("sub", value, b.convert(zero[0], exact))
    product = b.op("mul", b.convert(value, target.compute), b.convert(scale, target.compute))
    return b.convert(product, target)


@rule("unpack_constant", op("unpack_int4 unpack_fp4", constant("x")))
def unpack(m: Match, b: RewriteBuilder) -> object:
    """The values of a constant's nibbles."""
    packed = constant_array(m.x)
    return None if packed is None else b.constant(m.ins.op.compute(m.ins.shape, [packed]), m.ins.shape)


class RewriteQuantization(RulePass):
    """``quantizelinear`` and ``dequantizelinear`` in primitive operations; constants of 4 bits unpacked."""

    name = "rewrite_quantization"
    rules = (quantize, dequantize, unpack)
