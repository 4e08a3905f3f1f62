"""Conversion of element types."""

from __future__ import annotations

from ...core.types import Type, finfo
from ...errors import ParseError
from ...graph.instruction import Instruction
from ...ops.scalar import cast_array
from .builder import Builder, is_scalar
from .node import Node
from .registry import register
from .tensors import ir_type

ROUND_MODES = ("up", "down", "nearest")
BYTES = {
    Type.uint2_type: Type.uint8_type,
    Type.int2_type: Type.int8_type,
    Type.uint4_type: Type.uint8_type,
    Type.int4_type: Type.int8_type,
    Type.fp4e2m1_type: Type.fp8e4m3fn_type,
}
"""The 8-bit type that holds all values of each type smaller than a byte."""
FLOAT8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type})


def cast_to(g: Builder, x: Instruction, type: Type, saturate: bool, mode: str = "up") -> Instruction:
    """Convert ``x`` to another type.

    Args:
        saturate: a value beyond a float8 type's range becomes its largest value; otherwise infinity or NaN.
        mode: rounding to float8e8m0, a member of `ROUND_MODES`.
    """
    source = x.shape.type
    if source is Type.string_type and type is not source:
        return g.op("parse_number", x, target_type=type)
    if type is Type.string_type and source is not type:
        return g.op("format_number", x)
    if type is Type.fp8e8m0_type and source is not type:
        return _power_of_two(g, x, saturate, mode)
    if type in FLOAT8 and saturate and source.is_floating and source not in FLOAT8:
        if source.hosted:  # float8e8m0 has no negative limit
            x = g.convert(x, Type.float_type)
        largest = float(finfo(type.numpy).max)
        x = g.pointwise("clip", x, g.like(-largest, x), g.like(largest, x))
    return g.op("convert", x, target_type=type) if type != source else g.op("identity", x)


def _power_of_two(g: Builder, x: Instruction, saturate: bool, mode: str) -> Instruction:
    """Convert to float8e8m0 (powers of two from 2**-127 to 2**127, and NaN), which is the exponent of the float32.

    ``up`` rounds magnitudes up, ``nearest`` rounds to nearest with ties up, ``down`` truncates. With ``saturate``,
    values beyond a limit, including infinity and 0, become the limit; otherwise NaN. Signs are dropped.
    """
    whole = g.op("bit_cast", g.convert(x, Type.float_type), target_type=Type.uint32_type)
    bits = g.pointwise("bitwise_and", whole, g.like(0x7FFFFFFF, whole))
    exponent = g.pointwise("bitwise_shift_right", bits, g.like(23, bits))
    fraction = g.pointwise("bitwise_and", bits, g.like(0x7FFFFF, bits))
    subnormal = g.pointwise("equal", exponent, g.like(0, bits))
    if mode != "down":  # 2**-127, whose code is 0, is a subnormal float32 with half of the fraction's range
        least, least_subnormal = (0x400000, 0x600000) if mode == "nearest" else (1, 0x400001)
        limit = g.pointwise("where", subnormal, g.like(least_subnormal, bits), g.like(least, bits))
        grows = g.op("not", g.pointwise("less", fraction, limit))
        may = g.pointwise("less", exponent, g.like(0xFE if saturate else 0xFF, bits))
        rounded = g.convert(g.pointwise("logical_and", grows, may), Type.uint32_type)
    else:
        rounded = g.like(0, bits)
    code = g.pointwise("add", exponent, rounded)
    if saturate:
        infinite = g.pointwise("equal", bits, g.like(0x7F800000, bits))
        code = g.pointwise("where", infinite, g.like(0xFE, bits), code)
    else:
        code = g.pointwise("where", g.pointwise("less", bits, g.like(0x400000, bits)), g.like(0xFF, bits), code)
    return g.op("bit_cast", g.convert(code, Type.uint8_type), target_type=Type.fp8e8m0_type)


def powers_below(g: Builder, x: Instruction) -> Instruction:
    """Emit the largest power of two not above each positive float32 (its exponent bits); 0 for non-normal numbers."""
    bits = g.op("bit_cast", x, target_type=Type.uint32_type)
    return g.op("bit_cast", g.pointwise("bitwise_and", bits, g.like(0x7F800000, bits)), target_type=Type.float_type)


def nearest_float(g: Builder, x: Instruction, fraction: int, least: int, most: float) -> Instruction:
    """Round each float32 to the nearest number of a narrow format, ties to even.

    Args:
        fraction: number of fraction bits of the format.
        least: exponent of the format's smallest normal number.
        most: the format's largest number, to which larger values saturate.
    """
    bounded = g.pointwise("clip", x, g.like(-most, x), g.like(most, x))
    power = g.pointwise("max", powers_below(g, g.op("abs", bounded)), g.like(2.0**least, x))
    step = g.pointwise("mul", power, g.like(2.0**-fraction, x))
    return g.pointwise("mul", g.op("nearbyint", g.pointwise("div", bounded, step)), step)


def as_bytes(g: Builder, x: Instruction) -> Instruction:
    """Return ``x`` as an 8-bit type if its type is smaller than a byte, else ``x``; literals are converted at once."""
    if not x.shape.type.is_narrow:
        return x
    kind = BYTES[x.shape.type]
    if x.literal is None or x.literal.array is None:
        return g.convert(x, kind)
    value = cast_array(x.literal.array, kind)
    return g.literal(value.reshape(()) if is_scalar(x) else value)


@register("Cast")
def cast(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the conversion to the type numbered ``to``."""
    number = node.get_int("to")
    mode = node.get_choice("round_mode", ROUND_MODES, "up")
    return cast_to(g, x, ir_type(number), node.get_bool("saturate", True), mode)


@register("CastLike")
def cast_like(g: Builder, node: Node, x: Instruction, like: Instruction) -> Instruction:
    """Emit the conversion to the type of the second input."""
    mode = node.get_choice("round_mode", ROUND_MODES, "up")
    return cast_to(g, x, like.shape.type, node.get_bool("saturate", True), mode)


@register("BitCast")
def bit_cast(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the reinterpretation of the bits as another type of equal size."""
    type = ir_type(node.get_int("to"))
    if type.bits != x.shape.type.bits:
        raise ParseError(f"cannot read {x.shape.type.name} as {type.name}: sizes differ")
    return g.op("bit_cast", x, target_type=type)
