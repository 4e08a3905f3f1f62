"""Decompose quantisation and dequantisation into arithmetic and conversions (ONNX QuantizeLinear, DequantizeLinear)."""

from __future__ import annotations

import numpy as np

from ...core.types import Type, finfo
from ..constants import compact, constant_array, is_constant, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, constant, op, rule
from .rewriter import rule_pass
from .rules.merging import all_finite, merged_product
from .rules.quantized import EIGHT_BITS, INT8

SUMS = frozenset({"quant_dot", "quant_convolution", "quant_convolution_backwards"})
EPILOGUES = frozenset(
    "add sub mul relu clip max min convert nearbyint quantizelinear dequantizelinear"
    " gelu_erf gelu_tanh erf tanh sigmoid silu leaky_relu multibroadcast".split()
)
MOST_OPERATIONS = 32
"""Most operations between sums and their quantisation; a residual block with a projection has two thirds as many."""
EXACT_IN_INT32 = frozenset({Type.int8_type, Type.uint8_type, Type.int16_type, Type.uint16_type, Type.int32_type})


@rule("quantizelinear", op("quantizelinear"), exact=False)
def quantize_products(m: Match, b: RewriteBuilder) -> object:
    """Multiply 8-bit products, or their sums, by the reciprocal of a constant scale, as ONNX Runtime's requantising
    kernels do; a value halfway between two steps may round the other way."""
    x, scale = m.ins.inputs[:2]
    if not _of_products(x):
        return "the values are no products in 8 bits"
    wide = scale.shape.type.compute
    step = b.convert(scale, wide)
    inverse = _inverse(step)
    if inverse is None:
        return "the scale is computed, or has no normal inverse"
    return _quantized(m, b, _times(b, b.convert(x, wide), b.constant(inverse, step.shape)))


@rule("quantizelinear", op("quantizelinear"), exact=True)
def quantize(m: Match, b: RewriteBuilder) -> object:
    """``convert(nearbyint(x / scale) + zero_point)``; the conversion saturates. A value of 8-bit origin gets a single
    factor if the result is the same for each 8-bit number."""
    x, scale = m.ins.inputs[:2]
    wide = scale.shape.type.compute
    value, step = b.convert(x, wide), b.convert(scale, wide)
    requantized = None if m.ins.shape.type.is_floating else _requantized(b, value, step)
    if requantized is not None:
        value = requantized
    elif uniform_value(scale) != 1:
        value = b.op("div", value, step)
    return _quantized(m, b, value)


def _quantized(m: Match, b: RewriteBuilder, value: Instruction) -> Instruction:
    """Return a scaled value rounded, shifted by the zero point and converted."""
    target, wide, zero = m.ins.shape.type, value.shape.type, m.ins.inputs[2:]
    if not target.is_floating:
        value = b.op("nearbyint", value)
    if zero:
        value = b.op("add", value, b.convert(zero[0], wide))
    if target.is_floating:
        limit = float(finfo(target.numpy).max)
        value = b.op("min", b.op("max", value, b.scalar(-limit, value)), b.scalar(limit, value))
    return b.convert(value, target)


def _of_products(value: Instruction) -> bool:
    """Return whether a value is computed from 8-bit products or their sums (and maybe other 8-bit values) by additions,
    factors, limits and activations only."""
    pending, narrow, seen, found = [value], list[Instruction](), {value}, False
    while (pending or (narrow and not found)) and len(seen) <= MOST_OPERATIONS:
        ins = pending.pop() if pending else narrow.pop()
        if ins.name in SUMS:
            found = True
        elif ins.name in EPILOGUES:
            computed = [i for i in ins.inputs if not is_constant(i)]
            found |= ins.name == "mul" and len(computed) > 1
            fresh = [i for i in computed if i not in seen]
            seen.update(fresh)
            pending += [i for i in fresh if i.shape.type not in EIGHT_BITS]
            narrow += [i for i in fresh if i.shape.type in EIGHT_BITS and len(i.users) == 1]
        elif ins.shape.type not in EIGHT_BITS:
            return False
    return found and not pending


def _requantized(b: RewriteBuilder, value: Instruction, step: Instruction) -> Instruction | None:
    """Return ``value / step`` of dequantised 8-bit numbers as one product, if it rounds equally for each of them."""
    divisor = uniform_value(step)
    if value.name != "mul" or value.shape.type is not Type.float_type or divisor is None:
        return None
    computed, constant = sorted(value.inputs, key=is_constant)
    scale, point, held = uniform_value(constant), 0, computed
    while held.name == "convert" and held.shape.type in (Type.float_type, Type.int32_type):
        held = held.inputs[0]
        if held.name == "sub" and held.shape.type is Type.int32_type and uniform_value(held.inputs[1]) is not None:
            point += int(uniform_value(held.inputs[1]) or 0)
            held = held.inputs[0]
    if held.shape.type not in INT8 or scale is None:
        return None
    limits = np.iinfo(held.shape.type.numpy)
    numbers = np.arange(limits.min, limits.max + 1).astype(np.float32) - np.float32(point)
    with np.errstate(all="ignore"):
        factor = np.float32(float(scale) / float(divisor))
        divided = np.rint(numbers * np.float32(scale) / np.float32(divisor))
        alike = np.array_equal(np.rint(numbers * factor), divided)
    return b.op("mul", computed, b.scalar(factor, computed)) if alike else None


def _times(b: RewriteBuilder, value: Instruction, factor: Instruction) -> Instruction:
    """Return ``value * factor`` with the constant factor merged into the factors and addends of ``value``."""
    constants = [k for k, i in enumerate(value.inputs) if is_constant(i)]
    if value.name not in ("add", "mul") or len(constants) != 1 or len(value.users) > 1:
        return b.op("mul", value, factor)
    computed, constant = value.inputs[1 - constants[0]], value.inputs[constants[0]]
    scaled = merged_product(b, constant, factor)
    if isinstance(scaled, str):
        return b.op("mul", value, factor)
    inner = _times(b, computed, factor) if value.name == "add" else computed
    return b.op(value.op, inner, scaled)


def _inverse(scale: Instruction) -> np.ndarray | None:
    """Return the reciprocal of a constant scale, if it is finite and normal; length 1 where the scale repeats."""
    values = constant_array(scale)
    if values is None:
        return None
    small = compact(values)
    with np.errstate(all="ignore"):
        inverse = (1 / small.astype(np.float64)).astype(small.dtype)
    info = np.finfo(small.dtype)
    return inverse if ((np.abs(inverse) >= info.tiny) & (np.abs(inverse) <= info.max)).all() else None


@rule("dequantizelinear", op("dequantizelinear"), exact=False)
def dequantize_sums(m: Match, b: RewriteBuilder) -> object:
    """``convert(x) * scale - convert(zero_point) * scale`` for sums of products; a bias absorbs the constant, see
    `bias_of_sums`."""
    x, scale, *zero = m.ins.inputs
    target = scale.shape.type
    if not zero or x.name not in SUMS or not all(map(is_constant, (scale, *zero))):
        return "the values are no sums of products, or have no constant zero point"
    step = b.convert(scale, target.compute)
    offset = b.op("mul", b.convert(zero[0], target.compute), step)
    if not all_finite(offset):
        return "the zero point times the scale overflows"
    product = b.op("mul", b.convert(x, target.compute), step)
    return b.convert(b.op("sub", product, offset), target)


@rule("dequantizelinear", op("dequantizelinear"), exact=True)
def dequantize(m: Match, b: RewriteBuilder) -> object:
    """``convert(x - zero_point) * scale``, with an integer difference where it is exact."""
    x, scale, *zero = m.ins.inputs
    target = scale.shape.type
    exact = Type.int32_type if x.shape.type in EXACT_IN_INT32 else target.compute
    value: Instruction = b.convert(x, exact)
    if zero:
        value = b.op("sub", value, b.convert(zero[0], exact))
    product = b.op("mul", b.convert(value, target.compute), b.convert(scale, target.compute))
    return b.convert(product, target)


@rule("bias_of_sums", op("add"), exact=False)
def bias_of_sums(m: Match, b: RewriteBuilder) -> object:
    """``convert(x - c) + bias -> convert(x + (bias - c))`` for results of `dequantize` on sums with a zero point."""
    constants = [k for k, i in enumerate(m.ins.inputs) if is_constant(i)]
    if len(constants) != 1:
        return None
    bias, value = m.ins.inputs[constants[0]], m.ins.inputs[1 - constants[0]]
    while value.name == "convert" and value.shape.type.is_floating and len(value.users) == 1:
        value = value.inputs[0]
    if value.name != "sub" or len(value.users) > 1 or not is_constant(value.inputs[1]):
        return None
    product, less = value.inputs
    if product.name != "mul" or product.inputs[0].name != "convert" or product.inputs[0].inputs[0].name not in SUMS:
        return None
    more = b.op("sub", b.convert(bias, less.shape.type), less)
    if not all_finite(more):
        return "the sum of the constants overflows"
    return b.convert(b.op("add", product, more), m.ins.shape.type)


@rule("unpack_constant", op("unpack_int4 unpack_fp4", constant("x")), exact=True)
def unpack(m: Match, b: RewriteBuilder) -> object:
    """Fold the nibbles of a constant."""
    packed = constant_array(m.x)
    return None if packed is None else b.constant(m.ins.op.compute(m.ins.shape, [packed]), m.ins.shape)


RewriteQuantization = rule_pass(
    "rewrite_quantization", quantize_products, quantize, dequantize_sums, dequantize, bias_of_sums, unpack
)
