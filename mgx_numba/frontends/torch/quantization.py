"""Quantisation as PT2E's graphs have it: each pair becomes quantizelinear and dequantizelinear."""

from __future__ import annotations

from typing import Any

from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from .builder import AtenBuilder, rank
from .node import AtenNode
from .registry import register

PREFIX = "quantized_decomposed::"


def _parameters(
    g: AtenBuilder, x: Instruction, scale: Any, zero: Any, quantized: Type, type: Type
) -> tuple[Instruction, Instruction]:
    """Return scale and zero point as instructions with the lengths of ``x``."""
    point = g.value(0 if zero is None else zero, quantized)
    one = g.value(scale, type)
    return g.broadcast(_alone(g, one), g.lens(x)), g.broadcast(_alone(g, point), g.lens(x))


def _alone(g: AtenBuilder, x: Instruction) -> Instruction:
    """Return a one-element tensor as a scalar."""
    return g.reshape(x, ()) if not x.shape.is_dynamic and x.shape.elements == 1 else x


def _along(g: AtenBuilder, value: Any, axis: int, x: Instruction) -> Any:
    """Return a vector of values per channel with axes to broadcast against ``x``."""
    if not isinstance(value, Instruction) or rank(value) != 1:
        return value
    return g.reshape(value, (*(1,) * axis, *g.lens(value), *(1,) * (rank(x) - axis - 1)))


def _limited(g: AtenBuilder, y: Instruction, low: Any, high: Any) -> Instruction:
    """Emit quantised values limited to a range that is narrower than their type's."""
    import numpy as np

    info = np.iinfo(y.shape.type.numpy)
    if low <= info.min and high >= info.max:
        return y
    return g.pointwise("clip", y, g.like(max(low, info.min), y), g.like(min(high, info.max), y))


@register(f"{PREFIX}quantize_per_tensor")
def quantize(
    g: AtenBuilder, node: AtenNode, x: Instruction, scale: Any, zero: Any, low: Any, high: Any, dtype: Any
) -> Instruction:
    """Emit the quantisation by one scale."""
    wide = g.cast(x, Type.float_type)
    if not node.type.is_integral:
        raise UnsupportedError(f"quantisation to {node.type} is not supported")
    y = g.op("quantizelinear", wide, *_parameters(g, x, scale, zero, node.type, Type.float_type))
    return _limited(g, y, low, high)


@register(f"{PREFIX}dequantize_per_tensor")
def dequantize(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    scale: Any,
    zero: Any,
    low: Any,
    high: Any,
    dtype: Any,
    out_dtype: Any = None,
) -> Instruction:
    """Emit the inverse of a quantisation by one scale."""
    y = g.op("dequantizelinear", x, *_parameters(g, x, scale, zero, x.shape.type, Type.float_type))
    return g.cast(y, node.type)


@register(f"{PREFIX}quantize_per_channel")
def quantize_channels(
    g: AtenBuilder, node: AtenNode, x: Instruction, scales: Any, zeros: Any, axis: int, low: Any, high: Any, dtype: Any
) -> Instruction:
    """Emit the quantisation by a scale for each channel."""
    axis = g.axis(axis, rank(x))
    return quantize(g, node, x, _along(g, scales, axis, x), _along(g, zeros, axis, x), low, high, dtype)


@register(f"{PREFIX}dequantize_per_channel")
def dequantize_channels(
    g: AtenBuilder,
    node: AtenNode,
    x: Instruction,
    scales: Any,
    zeros: Any,
    axis: int,
    low: Any,
    high: Any,
    dtype: Any,
    out_dtype: Any = None,
) -> Instruction:
    """Emit the inverse of a quantisation by a scale for each channel."""
    axis = g.axis(axis, rank(x))
    return dequantize(g, node, x, _along(g, scales, axis, x), _along(g, zeros, axis, x), low, high, dtype)
