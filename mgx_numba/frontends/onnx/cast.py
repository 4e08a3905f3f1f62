"""Conversion of element types.

ai.onnx: BitCast Cast CastLike.
"""

from __future__ import annotations

import ml_dtypes

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from .builder import Builder
from .node import Node
from .registry import register
from .tensors import ir_type, is_narrow, narrow_range

ROUND_MODES = ("up", "down", "nearest")
FLOAT8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e4m3fnuz_type, Type.fp8e5m2_type, Type.fp8e5m2fnuz_type})


def cast_to(
    g: Builder, x: Instruction, type: Type, saturate: bool, narrow: str | None = None, mode: str = "up"
) -> Instruction:
    """``x`` in another type; what float8 cannot hold becomes its largest value (``saturate``) or infinity or
    NaN.

    ``narrow`` is the type string of a sub-byte integer type, which ``type`` stores: values wrap to its range. ``mode``
    says how e8m0 is rounded.
    """
    source = x.shape.type
    if source is Type.string_type and type is not source:
        return g.op("parse_number", x, target_type=type)
    if type is Type.string_type and source is not type:
        return g.op("format_number", x)
    if type is Type.fp8e8m0_type and source is not type:
        return _power_of_two(g, x, saturate, mode)
    limits = narrow_range(narrow)
    if narrow is not None and limits is None:
        return float4(g, x, type, narrow)
    if limits is not None:
        return _wrapped(g, x, type, limits, narrow or "")
    if type in FLOAT8 and saturate and source.is_floating and source not in FLOAT8:
        largest = float(ml_dtypes.finfo(type.numpy).max)
        x = g.pointwise("clip", x, g.like(-largest, x), g.like(largest, x))
    return g.op("convert", x, target_type=type) if type != source else g.op("identity", x)


def _power_of_two(g: Builder, x: Instruction, saturate: bool, mode: str) -> Instruction:
    """As float8e8m0, which holds powers of two and NaN: the exponent of the float32, one more if ``mode`` says so.

    ``up`` rounds magnitudes up, ``nearest`` those from the middle on, ``down`` none. The largest power stays with
    ``saturate``, else it becomes NaN; so do NaN and infinities. Signs are dropped; 0 is the smallest power.
    """
    bits = g.op("bit_cast", g.convert(x, Type.float_type), target_type=Type.uint32_type)
    exponent = g.pointwise(
        "bitwise_and", g.pointwise("bitwise_shift_right", bits, g.like(23, bits)), g.like(0xFF, bits)
    )
    if mode != "down":
        fraction, half = g.pointwise("bitwise_and", bits, g.like(0x7FFFFF, bits)), 0
        if mode == "nearest":  # ties go up, but for subnormal numbers
            normal = g.convert(g.pointwise("greater", exponent, g.like(0, bits)), Type.uint32_type)
            fraction, half = g.pointwise("add", fraction, normal), 0x400000
        above = g.pointwise("greater", fraction, g.like(half, bits))
        may = g.pointwise("less", exponent, g.like(0xFE if saturate else 0xFF, bits))
        grows = g.pointwise("logical_and", above, may)
        exponent = g.pointwise("add", exponent, g.convert(grows, Type.uint32_type))
    return g.op("bit_cast", g.convert(exponent, Type.uint8_type), target_type=Type.fp8e8m0_type)


def powers_below(g: Builder, x: Instruction) -> Instruction:
    """Of each positive float32 the largest power of two that is not above it, its exponent's bits; 0 of numbers that
    are not normal."""
    bits = g.op("bit_cast", x, target_type=Type.uint32_type)
    return g.op("bit_cast", g.pointwise("bitwise_and", bits, g.like(0x7F800000, bits)), target_type=Type.float_type)


def nearest_float(g: Builder, x: Instruction, fraction: int, least: int, most: float) -> Instruction:
    """Of each float32 the nearest number of a format with so many bits of ``fraction``, of two the even one.

    ``least`` is the exponent of the format's least normal number, ``most`` its largest number, which what is beyond
    becomes.
    """
    bounded = g.pointwise("clip", x, g.like(-most, x), g.like(most, x))
    power = g.pointwise("max", powers_below(g, g.op("abs", bounded)), g.like(2.0**least, x))
    step = g.pointwise("mul", power, g.like(2.0**-fraction, x))
    return g.pointwise("mul", g.op("nearbyint", g.pointwise("div", bounded, step)), step)


def float4(g: Builder, x: Instruction, type: Type, narrow: str) -> Instruction:
    """The nearest element of float4e2m1, those of equal distance to the even code; beyond 6 it is 6.

    The steps are 0.5 below 2, 1 below 4, then 2. It has no NaN; a NaN becomes -0, as ``ml_dtypes`` has it.
    """
    wide = g.convert(x, Type.float_type)
    near = nearest_float(g, wide, fraction=1, least=0, most=6.0)
    y = g.convert(g.pointwise("where", g.op("isnan", wide), g.like(-0.0, wide), near), type)
    g.parser.narrow[y] = narrow
    return y


def _wrapped(g: Builder, x: Instruction, type: Type, limits: tuple[int, int], narrow: str) -> Instruction:
    low, high = limits
    wide = g.convert(x, Type.int32_type)
    mask = g.like(high - low, wide)
    if low:
        shifted = g.pointwise("bitwise_and", g.pointwise("sub", wide, g.like(low, wide)), mask)
        kept = g.pointwise("add", shifted, g.like(low, wide))
    else:
        kept = g.pointwise("bitwise_and", wide, mask)
    y = g.convert(kept, type)
    g.parser.narrow[y] = narrow
    return y


@register("Cast")
def cast(g: Builder, node: Node, x: Instruction) -> Instruction:
    """To the type numbered ``to``."""
    number = node.get_int("to")
    narrow = g.parser.narrow_name(number) if is_narrow(number) else None
    mode = node.get_choice("round_mode", ROUND_MODES, "up")
    return cast_to(g, x, ir_type(number), node.get_bool("saturate", True), narrow, mode)


@register("CastLike")
def cast_like(g: Builder, node: Node, x: Instruction, like: Instruction) -> Instruction:
    """To the type of the second input."""
    mode = node.get_choice("round_mode", ROUND_MODES, "up")
    return cast_to(g, x, like.shape.type, node.get_bool("saturate", True), g.parser.narrow.get(like), mode)


@register("BitCast")
def bit_cast(g: Builder, node: Node, x: Instruction) -> Instruction:
    """The same bits as another type of equal size."""
    type = ir_type(node.get_int("to"))
    if type.size != x.shape.type.size:
        raise ParseError(f"cannot read {x.shape.type.name} as {type.name}: sizes differ")
    return g.op("bit_cast", x, target_type=type)
