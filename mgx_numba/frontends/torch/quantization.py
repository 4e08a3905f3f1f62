"""Quantisation as PT2E's graphs have it: each pair becomes quantizelinear and dequantizelinear."""

from __future__ import annotations

from typing import Any

from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register
from .types import Operand

PREFIX = "quantized_decomposed::"


def _parameters(
    g: AtenBuilder, x: Instruction, scale: Operand, zero: Operand, quantized: Type, type: Type
) -> tuple[Instruction, Instruction]:
    """Return scale and zero point as instructions with the lengths of ``x``; constants are literals, which make
    products of integers."""
    point = _folded(g, g.value(0 if zero is None else zero, quantized))
    one = _folded(g, g.value(scale, type))
    return g.broadcast(_alone(g, one), g.lens(x)), g.broadcast(_alone(g, point), g.lens(x))


def _folded(g: AtenBuilder, x: Instruction) -> Instruction:
    """Return a constant as a literal."""
    value = g.constants.value(x)
    return x if value is None or x.literal is not None else g.literal(value)


def _alone(g: AtenBuilder, x: Instruction) -> Instruction:
    """Return a one-element tensor as a scalar."""
    return g.reshape(x, ()) if not x.shape.is_dynamic and x.shape.elements == 1 else x


def _along(g: AtenBuilder, value: Operand, axis: int, x: Instruction) -> Operand:
    """Return a vector of values per channel with axes to broadcast against ``x``."""
    if not isinstance(value, Instruction) or rank(value) != 1:
        return value
    return g.reshape(value, (*(1,) * axis, *g.lens(value), *(1,) * (rank(x) - axis - 1)))


def _limited(g: AtenBuilder, y: Instruction, low: int, high: int) -> Instruction:
    """Emit quantised values limited to a range that is narrower than their type's."""
    import numpy as np

    info = np.iinfo(y.shape.type.numpy)
    if low <= info.min and high >= info.max:
        return y
    return g.pointwise("clip", y, g.like(max(low, info.min), y), g.like(min(high, info.max), y))


@register(f"{PREFIX}quantize_per_tensor")
def quantize(
    g: AtenBuilder, node: AtenNode, x: Instruction, scale: Operand, zero: Operand, low: int, high: int, dtype: object
) -> Instruction:
    """Emit the quantisation by one scale."""
    wide = g.cast(x, Type.float_type)
    if not node.type.is_integral:
        raise UnsupportedError(f"quantisation to {node.type} is not supported")
    y = g.op("quantizelinear", wide, *_parameters(g, x, scale, zero, node.type, Type.float_type))
    return _limited(g, y, low, high)


@register(f"{PREFIX}choose_qparams.tensor", f"{PREFIX}choose_qparams_symmetric.tensor")
def choose_parameters(
    g: AtenBuilder, node: AtenNode, x: Instruction, low: int, high: int, eps: float, dtype: object
) -> list[Instruction]:
    """Emit the scale and the zero point of one element each that cover a tensor's range and 0."""
    wide = g.cast(x, Type.float_type)
    axes = list(range(rank(x)))
    zero = g.literal(0, Type.float_type)
    ends = (g.reduce(op, wide, axes, keep=False) if axes else wide for op in ("reduce_min", "reduce_max"))
    least, most = (g.pointwise(op, end, zero) for op, end in zip(("min", "max"), ends))
    symmetric = "symmetric" in node.operator
    if symmetric:
        most = g.pointwise("max", g.op("neg", least), most)
    width = (high - low) / 2 if symmetric else float(high - low)
    reach = most if symmetric else g.op("sub", most, least)
    scale = g.pointwise("max", g.combined("div", Type.float_type, reach, width), g.literal(eps, Type.float_type))
    if symmetric:
        point = g.literal(128 if dtype is Type.uint8_type else 0, Type.int64_type)
    else:
        steps = g.cast(g.op("nearbyint", g.op("div", least, scale)), Type.int64_type)
        point = g.combined("sub", Type.int64_type, low, steps)
        point = g.pointwise("clip", point, g.like(low, point), g.like(high, point))
    return [g.reshape(g.cast(scale, Type.double_type), (1,)), g.reshape(point, (1,))]


@register(f"{PREFIX}dequantize_per_tensor")
def dequantize(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    scale: Operand,
    zero: Operand,
    *_: object,
    out_dtype: Type | None = None,
) -> Instruction:
    """Emit the inverse of a quantisation by one scale."""
    y = g.op("dequantizelinear", x, *_parameters(g, x, scale, zero, x.shape.type, Type.float_type))
    return g.cast(y, node.type)


@register(f"{PREFIX}quantize_per_channel")
def quantize_channels(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    scales: Operand,
    zeros: Operand,
    axis: int,
    *bounds_and_type: Any,
) -> Instruction:
    """Emit the quantisation by a scale for each channel; further arguments are as of `quantize`."""
    axis = g.axis(axis, rank(x))
    return quantize(g, node, x, _along(g, scales, axis, x), _along(g, zeros, axis, x), *bounds_and_type)


@register(f"{PREFIX}dequantize_per_channel")
def dequantize_channels(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    scales: Operand,
    zeros: Operand,
    axis: int,
    *_: object,
    out_dtype: Type | None = None,
) -> Instruction:
    """Emit the inverse of a quantisation by a scale for each channel."""
    axis = g.axis(axis, rank(x))
    return dequantize(g, node, x, _along(g, scales, axis, x), _along(g, zeros, axis, x))
