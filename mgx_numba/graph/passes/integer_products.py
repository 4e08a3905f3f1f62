"""Rewrite contractions of 8-bit integers with zero points as ``quant_dot`` and ``quant_convolution``.

``sum (a - za) * (b - zb) = sum a * b - za * sum (b - zb) - zb * sum a`` holds exactly in int32 that wraps around.

* Kernels need an int8 right-hand side: uint8 ``b`` becomes int8 by subtracting 128 from ``b`` and ``zb``.
* If ``b`` and ``zb`` are constants and ``b - zb`` fits int8, ``b - zb`` replaces ``b``, so the last term is 0.
  If ``za`` is constant too, the second term is a constant for each column.
* Otherwise each term is an operand of the epilogue: one value for each column, and one value for each row.
* A convolution's input is padded with ``za``, so that the terms are the same at its edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dim import known_equal
from ...core.types import Type
from ...ops.window import PaddingMode
from ..constants import compact, constant_array, is_constant, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .match import Match, op, rule
from .rules.quantized import INT8, SHIFT, multiplies_signed

MOST_TAPS = 512
"""Largest window of a depthwise convolution of uint8 by int8: its sums are below 2**24, so float32 holds them."""
MOST_WIDE_TAPS = 2**24 // 255**2
"""Largest window if the weights are differences of 8-bit integers, up to 255."""

Right = tuple[Instruction, Instruction | None]


def shifted_left(x: Instruction, b: RewriteBuilder) -> Instruction:
    """Return ``x + 128`` as uint8; for a ``quantizelinear`` by changing its zero point."""
    if x.name == "quantizelinear":
        value, scale, *zero = x.inputs
        point = b.scalar(SHIFT, x.shape.with_type(Type.int16_type))
        if zero:
            point = b.op("add", b.convert(zero[0], Type.int16_type), point)
        return b.op("quantizelinear", value, scale, b.convert(point, Type.uint8_type))
    return _shifted(x, SHIFT, Type.uint8_type, b)


def _shifted(x: Instruction, by: int, type: Type, b: RewriteBuilder) -> Instruction:
    """Return ``x + by`` as the 8-bit type ``type``."""
    wide = b.convert(x, Type.int16_type)
    return b.convert(b.op("add", wide, b.scalar(by, wide)), type)


def is_depthwise(m: Match, x: Instruction, w: Instruction, most: int = MOST_TAPS) -> bool:
    """Return whether the target has a kernel for this depthwise convolution of integers with at most ``most`` taps."""
    can, (channels, inputs, *taps) = m.options.capabilities, w.shape.lens
    if can is None or not can.depthwise_integers or x.shape.type not in INT8:
        return False
    return known_equal(inputs, 1) and known_equal(channels, x.shape.lens[1]) and math.prod(taps) <= most


def pads_of(padding: Sequence[int], spatial: int) -> tuple[int, ...]:
    """Return the attribute ``pads`` of `pad` that is equivalent to a convolution's ``padding``."""
    before, after = (padding, padding) if len(padding) == spatial else (padding[:spatial], padding[spatial:])
    return (0, 0, *before, 0, 0, *after)


def _left_operand(x: Instruction, zero: Instruction | None, m: Match, b: RewriteBuilder) -> Right:
    """Return the left-hand side, and its zero point in int32, or None for a zero point of 0.

    The left-hand side becomes uint8 where the conversion is free, and where the kernel would otherwise need the column
    sums of a right-hand side that is not constant.
    """
    point = None if zero is None else b.convert(zero, Type.int32_type)
    free = x.name == "quantizelinear" and len(x.users) == 1
    signed = x.shape.type is Type.int8_type and not multiplies_signed(m.options)
    if signed and (free or not is_constant(m.ins.inputs[1])):
        point = _shifted_zero(b, point, SHIFT, x)
        x = shifted_left(x, b)
    return x, _unless_zero(point)


def _right_operand(w: Instruction, zero: Instruction | None, wide: bool, b: RewriteBuilder) -> Right:
    """Return the right-hand side, and its zero point in int32, or None for a zero point of 0.

    The right-hand side is int8, or int16 if ``wide`` allows that and its values need it.
    """
    values, points = constant_array(w), np.zeros((), w.shape.type.numpy) if zero is None else constant_array(zero)
    if values is not None and points is not None:
        exact = _exact(compact(values), points.reshape(()) if points.size == 1 else compact(points), wide)
        if exact is not None:
            type = Type.int8_type if exact.itemsize == 1 else Type.int16_type
            return b.constant(exact, w.shape.with_type(type)), None
    point = None if zero is None else b.convert(zero, Type.int32_type)
    if w.shape.type is Type.int8_type:
        return w, _unless_zero(point)
    if values is None:
        return _shifted(w, -SHIFT, Type.int8_type, b), _unless_zero(_shifted_zero(b, point, -SHIFT, w))
    small = _shifted_bytes(compact(values), -SHIFT)
    return b.constant(small, w.shape.with_type(Type.int8_type)), _unless_zero(_shifted_zero(b, point, -SHIFT, w))


def _exact(values: np.ndarray, points: np.ndarray, wide: bool) -> np.ndarray | None:
    """Return bytes minus their zero points as int8, or as int16 if ``wide`` allows that; None if they do not fit.

    One zero point needs no temporary arrays of 16 bits.
    """
    limits = np.iinfo(np.int8)
    if points.ndim == 0 and values.size:
        point = int(points)
        if limits.min <= int(values.min()) - point and int(values.max()) - point <= limits.max:
            return _shifted_bytes(values, -point)
        return values.astype(np.int16) - points if wide else None
    exact = values.astype(np.int16) - points
    if limits.min <= exact.min(initial=0) and exact.max(initial=0) <= limits.max:
        return exact.astype(np.int8)
    return exact if wide else None


def _shifted_bytes(values: np.ndarray, by: int) -> np.ndarray:
    """Return bytes plus ``by``, as int8: the sums must fit, so that they may be computed modulo 256."""
    return (values.view(np.uint8) + np.uint8(by % 256)).view(np.int8)


def _shifted_zero(b: RewriteBuilder, point: Instruction | None, by: int, operand: Instruction) -> Instruction:
    """Return the zero point ``point`` (int32; None is 0) plus ``by``."""
    if point is None:
        return b.literal(by, Type.int32_type)
    return b.op("add", point, b.scalar(by, point))


def _unless_zero(point: Instruction | None) -> Instruction | None:
    return None if point is None or uniform_value(point) == 0 else point


def _spread(b: RewriteBuilder, value: Instruction, lens: Sequence[int]) -> Instruction:
    """Broadcast ``value`` to ``lens``; a value of one element may have any rank."""
    if known_equal(value.shape.elements, 1) and value.shape.lens != (1,) * len(lens):
        known = uniform_value(value)
        if known is not None:
            value = b.literal(known, value.shape.type)
        value = b.reshape(value, (1,) * len(lens))
    return b.broadcast(value, lens)


def _minus_product(b: RewriteBuilder, sums: Instruction, *factors: Instruction) -> Instruction:
    """Return ``sums`` minus the product of two factors, which broadcast to the lengths of ``sums``."""
    x, y = (_spread(b, f, sums.shape.lens) for f in factors)
    return b.op("sub", sums, b.op("mul", x, y))


def _column_sums(b: RewriteBuilder, w: Instruction, zero: Instruction | None, axes: Sequence[int]) -> Instruction:
    """Return ``sum(w - zero)`` over ``axes`` in int32; the axes stay with length 1."""
    values = constant_array(w)
    count = math.prod(w.shape.lens[a] for a in axes)
    if values is None:
        sums = b.op("reduce_sum", b.convert(w, Type.int32_type), axes=tuple(axes))
    else:
        small = compact(values)
        repeats = count // max(math.prod(small.shape[a] for a in axes), 1)
        sums = b.literal((small.sum(tuple(axes), np.int32, keepdims=True) * np.int64(repeats)).astype(np.int32))
    if zero is None:
        return sums
    lens = b.outer_lens(sums.shape.lens, () if known_equal(zero.shape.elements, 1) else zero.shape.lens)
    return _minus_product(b, b.broadcast(sums, lens), zero, b.number(count, Type.int32_type))


def _zero_points(ins: Instruction) -> list[Instruction | None]:
    """Return the zero points of the left-hand and the right-hand side; None where there is none."""
    return [*ins.inputs[2:]] or [None, None]


def _refusal(m: Match) -> str:
    """Return why the contraction stays as it is; "" if it is rewritten."""
    x, w = m.ins.inputs[:2]
    if m.ins.name.startswith("quant_") and w.shape.type is not Type.uint8_type:
        signed = x.shape.type is w.shape.type is Type.int8_type and not multiplies_signed(m.options)
        if not signed or is_constant(w):
            return "kernels multiply by such a right-hand side"
    empty = any(known_equal(n, 0) for n in (*m.ins.shape.lens, *m.ins.inputs[0].shape.lens))
    return "there are no elements" if empty else ""


@rule("integer_dot", op("integer_dot quant_dot"), exact=True)
def integer_dot(m: Match, b: RewriteBuilder) -> object:
    kept = _refusal(m)
    if kept:
        return kept
    a, w = m.ins.inputs[:2]
    a_zero, w_zero = _zero_points(m.ins)
    w, w_point = _right_operand(w, w_zero, False, b)
    a, a_point = _left_operand(a, a_zero, m, b)
    sums = b.op("quant_dot", a, w)
    rank = sums.shape.ndim
    if a_point is not None:
        sums = _minus_product(b, sums, a_point, _column_sums(b, w, w_point, [rank - 2]))
    if w_point is not None:
        rows = b.op("reduce_sum", b.convert(a, Type.int32_type), axes=(rank - 1,))
        sums = _minus_product(b, sums, w_point, rows)
    return sums


@rule("integer_convolution", op("integer_convolution quant_convolution"), exact=True)
def integer_convolution(m: Match, b: RewriteBuilder) -> object:
    kept = _refusal(m)
    if kept:
        return kept
    attributes = m.ins.op.attributes()
    if attributes["padding_mode"] is not PaddingMode.default_:
        return "the convolution computes its own padding"
    x, w = m.ins.inputs[:2]
    x_zero, w_zero = _zero_points(m.ins)
    w, w_point = _right_operand(w, w_zero, is_depthwise(m, x, w, MOST_WIDE_TAPS), b)
    x, x_point = _left_operand(x, x_zero, m, b)
    if x_point is not None and any(attributes["padding"]):
        pads = pads_of(attributes["padding"], x.shape.ndim - 2)
        known = uniform_value(x_point)
        if known is None:
            x = b.op("pad_with", x, b.convert(x_point, x.shape.type), pads=pads)
        else:
            x = b.op("pad", x, pads=pads, value=float(known))
        attributes["padding"] = (0,) * (2 * (x.shape.ndim - 2))
    sums = b.op("quant_convolution", x, w, **attributes)
    channels = (1, w.shape.lens[0], *(1 for _ in w.shape.lens[2:]))
    if x_point is not None:
        columns = _column_sums(b, w, w_point, range(1, w.shape.ndim))
        sums = _minus_product(b, sums, x_point, b.reshape(columns, channels))
    if w_point is not None:
        by_channel = w_point if known_equal(w_point.shape.elements, 1) else b.reshape(w_point, channels)
        sums = _minus_product(b, sums, by_channel, _window_sums(b, x, w, attributes, sums.shape.lens))
    return sums


def _window_sums(
    b: RewriteBuilder, x: Instruction, w: Instruction, attributes: dict[str, Any], lens: Sequence[int]
) -> Instruction:
    """Return, for each output element of a convolution, the sum of the inputs in its window, in int32.

    With one group the sums are equal for all output channels, so the result has a single channel.
    """
    group, spatial = attributes["group"], x.shape.ndim - 2
    wide = b.convert(x, Type.int32_type)
    if group == 1:
        sums = b.op("reduce_sum", wide, axes=(1,))
    elif w.shape.lens[1] == 1:
        sums = wide
    else:
        parts = b.reshape(wide, (x.shape.lens[0], group, w.shape.lens[1], *x.shape.lens[2:]))
        sums = b.reduce("reduce_sum", parts, [2], keep=False)
    if any(attributes["padding"]):
        sums = b.op("pad", sums, pads=pads_of(attributes["padding"], spatial))
    for axis, taps, stride, dilation in zip(
        range(2, spatial + 2), w.shape.lens[2:], attributes["stride"], attributes["dilation"]
    ):
        reach = (lens[axis] - 1) * stride + 1
        own, *others = (b.slice(sums, axis, t * dilation, t * dilation + reach) for t in range(taps))
        for other in others:
            own = b.op("add", own, other)
        sums = own
        if stride > 1:
            sums = b.op("step", sums, axes=(axis,), steps=(stride,))
    if group in (1, lens[1]):
        return sums
    repeated = b.broadcast(b.unsqueeze(sums, [2]), (lens[0], group, lens[1] // group, *lens[2:]))
    return b.reshape(repeated, lens)


INTEGER_PRODUCTS = (integer_dot, integer_convolution)
