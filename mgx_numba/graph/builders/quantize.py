"""Linear quantisation with scales per tensor, per axis or per block."""

from __future__ import annotations

from ...core.types import Type, parse_type
from ...errors import OperatorError
from ..instruction import Instruction
from .base import MacroBuilder, macro


@macro("quantizelinear", inputs=(2, 3), axis=1, block_size=0, output_type="")
def quantizelinear(
    e: MacroBuilder,
    x: Instruction,
    scale: Instruction,
    zero: Instruction | None = None,
    *,
    axis: int,
    block_size: int,
    output_type: str,
) -> Instruction:
    """``saturate(round(x / scale) + zero)`` (ONNX QuantizeLinear); ``output_type`` is a type's name."""
    try:
        wanted = parse_type(output_type) if output_type else None
    except ValueError as error:
        raise OperatorError(f"macro {e.name}: output_type: {error}") from None
    parameters = [_spread(e, x, p, axis, block_size) for p in (scale, zero) if p is not None]
    if not x.shape.type.is_floating:
        x = e.convert(x, scale.shape.type)
    if zero is not None or wanted is None:
        return e.op("quantizelinear", x, *parameters)
    return e.op("quantizelinear", x, *parameters, out_type=wanted)


@macro("dequantizelinear", inputs=(2, 3), axis=1, block_size=0)
def dequantizelinear(
    e: MacroBuilder,
    x: Instruction,
    scale: Instruction,
    zero: Instruction | None = None,
    *,
    axis: int,
    block_size: int,
) -> Instruction:
    """``(x - zero) * scale`` (ONNX DequantizeLinear)."""
    return e.op("dequantizelinear", x, *(_spread(e, x, p, axis, block_size) for p in (scale, zero) if p is not None))


def _spread(e: MacroBuilder, x: Instruction, parameter: Instruction, axis: int, block: int) -> Instruction:
    """A scale or zero point with the lengths of ``x``; it has one value, or one for each place or block."""
    lens = e.lens(x)
    count = e.lens(parameter)
    if parameter.shape.elements == 1:
        return e.broadcast(parameter, lens)
    if not -len(lens) <= axis < len(lens):
        raise e.fail(f"axis is {axis} for {len(lens)} axes")
    axis %= len(lens)
    if not block and len(count) == 1:
        return e.broadcast_axis(parameter, axis, x)
    if len(count) != len(lens):
        raise e.fail(f"scale or zero point has {len(count)} axes, expected 1 or {len(lens)}")
    if not block:
        block = -(-lens[axis] // count[axis])
    if count[axis] != -(-lens[axis] // block):
        raise e.fail(f"{count[axis]} blocks of {block} for length {lens[axis]} of axis {axis}")
    wide = e.broadcast(e.unsqueeze(parameter, [axis + 1]), (*count[: axis + 1], block, *count[axis + 1 :]))
    full = e.reshape(wide, (*count[:axis], count[axis] * block, *count[axis + 1 :]))
    return e.slice(full, axis, 0, lens[axis])


@macro("bias_uint8", inputs=(1, 2))
def bias_uint8(e: MacroBuilder, x: Instruction, zero: Instruction | None = None) -> list[Instruction]:
    """``x`` and its zero point as int8, less 128 if ``x`` is uint8."""
    values = [v for v in (x, zero) if v is not None]
    if x.shape.type is not Type.uint8_type:
        return values
    return [e.convert(e.number("sub", e.convert(v, Type.int16_type), 128), Type.int8_type) for v in values]
