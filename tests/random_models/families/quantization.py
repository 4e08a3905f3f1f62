"""Quantisation, and products and convolutions of quantised values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Value
from .convolution import image
from .registry import step

__all__ = []

TYPES = (np.uint8, np.int8)


def _finite(v: Value) -> bool:
    return v.floating and v.finite and v.type != np.float64


def scale_and_zero(b: Builder, lens: tuple[int, ...], type: Any, scale_type: Any) -> tuple[Value, Value | None]:
    scale = b.constant(b.rng.choice([0.0625, 0.1, 0.25, 0.5], lens), scale_type)
    if b.chance(3) and np.dtype(type) == np.uint8:
        return scale, None
    low = 0 if np.dtype(type).kind == "u" else -9
    return scale, b.constant(b.rng.integers(low, 10, lens), type)


def quantized(b: Builder, x: Value, lens: tuple[int, ...], axis: int | None) -> tuple[Value | None, Any, Any]:
    types = (*TYPES, np.int16, np.uint16) if b.opset >= 21 else TYPES
    scale, zero = scale_and_zero(b, lens, b.pick(types), x.type)
    return b.node("QuantizeLinear", [x, scale, zero], axis=axis), scale, zero


@step(2)
def quantize_and_back(b: Builder) -> Any:
    x = b.tensor(_finite)
    if not _finite(x):
        return None
    axis = b.integer(0, x.rank - 1) if x.rank and b.chance(2) else None
    q, scale, zero = quantized(b, x, () if axis is None else (x.lens[axis],), axis)
    return b.node("DequantizeLinear", [q, scale, zero], axis=axis) if q and b.chance(2) else q


@step(2)
def quantize_for_one_reader(b: Builder) -> Any:
    """Quantise a value, often an image, that a second reader reads unquantised; small steps clip the value."""
    x = image(b, _finite) if b.chance(2) else b.tensor(_finite)
    if not _finite(x):
        return None
    x = b.node(b.pick(("Neg", "Relu", "Tanh")), [x]) or x
    scale, zero = scale_and_zero(b, (), b.pick(TYPES), x.type)
    scale = b.constant(scale.array * b.pick((1, 0.125)), x.type)
    q = b.node("QuantizeLinear", [x, scale, zero])
    y = q and b.node("DequantizeLinear", [q, scale, zero])
    return y and b.node(b.pick(("Add", "Sub", "Max")), [x, y])


@step()
def dequantize(b: Builder) -> Any:
    x = b.tensor(lambda v: v.type in (np.uint8, np.int8, np.int32))
    if x.type not in (np.uint8, np.int8, np.int32):
        return None
    scale, zero = scale_and_zero(b, (), x.type, np.float32)
    return b.node("DequantizeLinear", [x, scale, None if x.type == np.int32 else zero])


@step()
def dynamic_quantize(b: Builder) -> Any:
    x = b.tensor(lambda v: v.type == np.float32 and v.finite and v.array.size > 0)
    if x.type != np.float32 or not x.finite or not np.any(x.array):
        return None  # zeros have no scale
    return b.outputs("DynamicQuantizeLinear", [x], 3)


@step()
def quantized_layer(b: Builder) -> Any:
    """A product or convolution between quantisations, as quantisers write it."""
    x = image(b, lambda v: v.type == np.float32 and v.rank == 4 and v.finite)
    if x.type != np.float32 or not x.finite or x.rank != 4:
        return None
    q, scale, zero = quantized(b, x, (), None)
    y = q and b.node("DequantizeLinear", [q, scale, zero])
    out = b.pick((1, 4, 8))
    w = b.constant(b.rng.integers(-127, 128, (out, x.lens[1], 3, 3)), np.int8)
    per_channel = b.chance(2)
    scales = b.constant(b.rng.uniform(0.001, 0.02, (out,) if per_channel else ()), np.float32)
    zeros = b.constant(np.zeros(scales.lens), np.int8)
    weights = b.node("DequantizeLinear", [w, scales, zeros], axis=0 if per_channel else None)
    made = y and weights and b.node("Conv", [y, weights], pads=[1, 1, 1, 1])
    if made and b.chance(2):
        made = b.node("Relu", [made])
    return made and b.node("QuantizeLinear", [made, *scale_and_zero(b, (), b.pick(TYPES), np.float32)])


@step()
def quantized_matmul(b: Builder) -> Any:
    m, k, n = (b.pick((1, 3, 8, 17)) for _ in range(3))
    types = (np.uint8, b.pick(TYPES))
    x, w = (b.new(lens, t) for lens, t in zip(((m, k), (k, n)), types))
    parts = []
    for v in (x, w):
        parts += [v, b.constant(b.pick((0.01, 0.05)), np.float32), b.constant(b.integer(0, 5), v.type)]
    return b.node("QLinearMatMul", [*parts, b.constant(0.1, np.float32), b.constant(b.integer(0, 9), np.uint8)])


@step()
def quantized_convolution(b: Builder) -> Any:
    c, out = b.pick((1, 3, 8)), b.pick((1, 4, 9))
    types = (np.uint8, b.pick(TYPES))
    x, w = (b.new(lens, t) for lens, t in zip(((1, c, 6, 5), (out, c, 3, 3)), types))
    parts = []
    for v in (x, w):
        parts += [v, b.constant(b.pick((0.01, 0.05)), np.float32), b.constant(b.integer(0, 5), v.type)]
    result = [b.constant(0.1, np.float32), b.constant(b.integer(0, 9), np.uint8)]
    bias = [b.constant(b.rng.integers(-99, 100, out), np.int32)] if b.chance(2) else []
    return b.node("QLinearConv", [*parts, *result, *bias], pads=[b.integer(0, 1)] * 4)
