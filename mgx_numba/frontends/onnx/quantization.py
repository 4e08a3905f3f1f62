"""Linear quantisation."""

from __future__ import annotations

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .builder import Builder, rank
from .cast import BYTES, FLOAT8, as_bytes
from .node import Node
from .registry import MICROSOFT, register
from .tensors import ir_type


def along_axis(g: Builder, value: Instruction, x: Instruction, axis: int, block: int = 0) -> Instruction:
    """Broadcast a scale or zero point to the lengths of ``x``.

    It has one element, one per position of ``axis``, or one per block.

    Raises:
        ShapeError: its lengths fit no form.
    """
    given = g.lens(value)
    if value.shape.elements == 1 and len(given) <= 1:
        one = g.reshape(value, ())
        return g.same_lens(x, one)[1] if x.shape.is_dynamic else g.broadcast(one, g.lens(x))
    lens = g.lens(x)
    if block == 0:
        axis = g.axis(axis, len(lens))
        if len(given) != 1 or given[0] != lens[axis]:
            raise ShapeError(
                f"scale or zero point is {list(given)}, expected one value or {lens[axis]} for axis {axis}"
            )
        return g.op("broadcast", value, axis=axis, out_lens=lens)
    axis = g.axis(axis, len(lens))
    expected = [-(-n // block) if k == axis else n for k, n in enumerate(lens)]
    if list(given) != expected:
        raise ShapeError(
            f"scale or zero point is {list(given)}, expected {expected} for blocks of {block} on axis {axis}"
        )
    wide = [*given[: axis + 1], block, *given[axis + 1 :]]
    merged = [*given[:axis], given[axis] * block, *given[axis + 1 :]]
    repeated = g.reshape(g.broadcast(g.unsqueeze(value, [axis + 1]), wide), merged)
    return g.slice(repeated, axis, 0, lens[axis])


def quantize(
    g: Builder,
    x: Instruction,
    scale: Instruction,
    zero: Instruction | None,
    axis: int = 1,
    block: int = 0,
    type: Type | None = None,
) -> Instruction:
    """Emit ``saturate(round(x / scale) + zero)``."""
    parts = [along_axis(g, v, x, axis, block) for v in (scale, zero) if v is not None]
    return g.op("quantizelinear", x, *parts, out_type=type)


def dequantize(
    g: Builder, x: Instruction, scale: Instruction, zero: Instruction | None, axis: int = 1, block: int = 0
) -> Instruction:
    """Emit ``(x - zero) * scale``."""
    parts = [along_axis(g, v, x, axis, block) for v in (scale, zero) if v is not None]
    return g.op("dequantizelinear", x, *parts)


@register("QuantizeLinear", domain=("", MICROSOFT))
def quantize_linear(
    g: Builder, node: Node, x: Instruction, scale: Instruction, zero: Instruction | None = None
) -> Instruction:
    """Emit QuantizeLinear per tensor, per ``axis``, or in blocks of ``block_size`` along it.

    The zero point or ``output_dtype`` gives the type. The division is computed in the scale's type, or ``precision``.
    """
    scale = _as_numbers(g, scale, node.get_int("precision", 0))
    number = node.get_int("output_dtype", 0)
    type = zero.shape.type if zero is not None else ir_type(number) if number else Type.uint8_type
    if type in FLOAT8 and not node.get_bool("saturate", True):
        return _quantize_float8(g, node, x, scale, type)
    if number and zero is not None and ir_type(number) != type:
        raise ParseError(f"output_dtype is {number}, but the zero point is {type.name}")
    if x.shape.type is Type.int32_type:
        x = g.convert(x, scale.shape.type)
    axis, block = node.get_int("axis", 1), node.get_int("block_size", 0)
    if type is Type.fp4e2m1_type:  # it has no zero points but 0
        scaled = g.op("div", x, g.convert(along_axis(g, scale, x, axis, block), x.shape.type))
        return g.op("convert", scaled, target_type=type)
    if not type.is_narrow:
        return quantize(g, x, scale, zero, axis, block, type)
    y = quantize(g, x, scale, None if zero is None else as_bytes(g, zero), axis, block, BYTES[type])
    low = -(1 << (type.bits - 1)) if type.is_signed else 0
    return g.convert(g.pointwise("clip", y, g.like(low, y), g.like(low + (1 << type.bits) - 1, y)), type)


def _as_numbers(g: Builder, scale: Instruction, precision: int = 0) -> Instruction:
    """Convert a scale to a numeric type; powers of two (float8e8m0) become float32, which holds them exactly."""
    if precision:
        return g.convert(scale, ir_type(precision))
    return g.convert(scale, Type.float_type) if scale.shape.type is Type.fp8e8m0_type else scale


def _quantize_float8(g: Builder, node: Node, x: Instruction, scale: Instruction, type: Type) -> Instruction:
    """Emit quantisation to float8 without saturation: overflow becomes infinity or NaN; the zero point must be 0."""
    wide = along_axis(g, scale, x, node.get_int("axis", 1), node.get_int("block_size", 0))
    return g.convert(g.op("div", g.convert(x, scale.shape.type), wide), type)


@register("DequantizeLinear", domain=("", MICROSOFT))
def dequantize_linear(
    g: Builder, node: Node, x: Instruction, scale: Instruction, zero: Instruction | None = None
) -> Instruction:
    """Emit DequantizeLinear per tensor, per ``axis``, or in blocks of ``block_size`` along it."""
    scale = _as_numbers(g, scale)
    zero = None if zero is None else as_bytes(g, zero)
    y = dequantize(g, as_bytes(g, x), scale, zero, node.get_int("axis", 1), node.get_int("block_size", 0))
    number = node.get_int("output_dtype", 0)
    return g.convert(y, ir_type(number)) if number else y


@register("DynamicQuantizeLinear")
def dynamic_quantize_linear(g: Builder, node: Node, x: Instruction) -> list[Instruction]:
    """Emit quantisation to uint8 by the range of the values, including 0; also the scale and the zero point."""
    return dynamic_quantize(g, x)


def dynamic_quantize(g: Builder, x: Instruction) -> list[Instruction]:
    """Emit DynamicQuantizeLinear: codes, scale and zero point."""
    axes = range(rank(x))
    zero = g.like(0, x)
    low = g.pointwise("min", g.reduce("reduce_min", x, axes, keep=False), zero)
    high = g.pointwise("max", g.reduce("reduce_max", x, axes, keep=False), zero)
    scale = g.pointwise("div", g.pointwise("sub", high, low), g.like(255, x))
    scale = g.pointwise("where", g.pointwise("equal", low, high), g.like(1, x), scale)  # as ONNX Runtime has it
    raw = g.op("neg", g.pointwise("div", low, scale))
    point = g.convert(g.op("nearbyint", g.pointwise("clip", raw, zero, g.like(255, x))), Type.uint8_type)
    return [quantize(g, x, scale, point), scale, point]
