"""Rewrite contractions of dequantised values as 8-bit contractions (MIGraphX's ``simplify_qdq``).

``dot(dequantize(x), dequantize(w)) -> dequantize(quant_dot(x, w))`` for constant weights with a scale per column, and
one scale, which may be computed, for the left operand. Integer sums are exact; the left operand's zero point becomes a
constant per column. The left operand is made unsigned for targets that only multiply unsigned by signed. Float8 is
treated likewise where the target multiplies it. Operators that move or compare elements do so in 8 bits
(`rules.quantized`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.types import Type
from ...ops.window import PaddingMode
from ..constants import compact, constant_array, is_constant, uniform_value
from ..instruction import Instruction
from .build import RewriteBuilder
from .integer_products import INTEGER_PRODUCTS, is_depthwise, pads_of, shifted_left
from .match import Match, op, rule
from .rewriter import rule_pass
from .rules.merging import is_kept
from .rules.quantized import INT8, PRODUCTS_OF_FLOAT8, QUANTIZED_RULES, SHIFT, multiplies_signed, repeated_element

INT32 = np.iinfo(np.int32)
FEWEST_CHANNELS = 4
"""Least input channels per group for 8-bit products to gain: as many are multiplied per instruction."""
LEAST_STEP = np.float32(2**-40)
"""Least computed scale that is assumed: its products with the weights' scales have to be normal numbers."""


class _Left(NamedTuple):
    """The left operand in 8 bits, its scale and its zero point."""

    codes: Instruction
    scale: float
    zero: int


class _Right(NamedTuple):
    """Constant weights in int8 without a zero point, or in float8; their scales along the result's axis (length 1 for
    one scale); and the values of the codes."""

    codes: Instruction
    scales: np.ndarray
    values: np.ndarray


def _left(m: Match, b: RewriteBuilder) -> _Left | str:
    """Return the left operand of a matched pair, or the reason why it has no 8-bit form."""
    x, scale, *zero = m.x.inputs
    if not (x.shape.type in INT8 or _is_float8(x, m)) or m.ins.shape.type is not Type.float_type:
        return "the left-hand side is not made of 8-bit numbers, or the result is not float32"
    step = uniform_value(scale)
    point = uniform_value(zero[0]) if zero else 0
    if step is None or point is None:
        return "the left-hand side has several scales or zero points, or computed ones"
    if x.shape.type is not Type.int8_type or multiplies_signed(m.options):
        return _Left(x, float(step), int(point))
    return _Left(shifted_left(x, b), float(step), int(point) + SHIFT)


def _is_float8(ins: Instruction, m: Match) -> bool:
    """Return whether a value has a float8 type that the target multiplies."""
    can = m.options.capabilities
    return ins.shape.type in PRODUCTS_OF_FLOAT8 and can is not None and can.float8_products


def _right(m: Match, b: RewriteBuilder, axis: int) -> _Right | str:
    """Return the weights of a matched pair with scales along ``axis``, or the reason why they have no 8-bit form."""
    w, scale, *zero = m.w.inputs
    if not (w.shape.type in INT8 or _is_float8(w, m)) or not is_constant(w):
        return "the weights are no constant 8-bit numbers"
    if w.shape.type.is_floating != m.x.inputs[0].shape.type.is_floating:
        return "one side is made of integers, the other one of float8"
    values, steps = constant_array(w), constant_array(scale)
    points = constant_array(zero[0]) if zero else np.zeros((1,) * w.shape.ndim, w.shape.type.numpy)
    if values is None or steps is None or points is None:
        return "the weights' scale or zero point is computed"
    others = tuple(a for a in range(w.shape.ndim) if a != axis % w.shape.ndim)
    small = compact(steps)
    if any(small.shape[a] != 1 for a in others):
        return "the weights' scale varies along another axis than that of the result"
    if w.shape.type.is_floating and points.any():
        return "float8 with a zero point"
    if w.shape.type is Type.uint8_type or points.any():
        exact = compact(values).astype(np.int16) - compact(points).astype(np.int16)
        if exact.min(initial=0) < -SHIFT or exact.max(initial=0) >= SHIFT:
            return "weights less their zero point do not fit int8"
        w = b.constant(exact.astype(np.int8), w.shape.with_type(Type.int8_type))
        values = np.broadcast_to(exact, w.shape.lens)
    return _Right(w, small.reshape(-1).astype(np.float32), values)


def _sides(m: Match, b: RewriteBuilder, axis: int) -> tuple[_Right, _Left] | str:
    """Return the results of `_right` and `_left`."""
    right = _right(m, b, axis)
    if isinstance(right, str):
        return right
    left = _left(m, b)
    return left if isinstance(left, str) else (right, left)


def _dequantized(
    b: RewriteBuilder, sums: Instruction, axis: int, scale: np.ndarray, zero: np.ndarray
) -> Instruction | str:
    """Return ``(sums - zero) * scale`` with values along ``axis``."""
    if zero.size and (zero.min() < INT32.min or zero.max() > INT32.max):
        return "a zero point of the sums does not fit int32"
    if not is_kept(scale.astype(np.float32)):
        return "the product of the scales is no normal number"
    axis %= sums.shape.ndim
    lens = sums.shape.lens
    parameters = []
    for values in (scale.astype(np.float32), zero.astype(np.int32)):
        if values.dtype == np.int32 and not values.any():
            continue
        if values.size == 1:
            parameters.append(b.scalar(values[0], sums.shape.with_type(_type(values))))
        else:
            parameters.append(b.op("broadcast", b.literal(values), axis=axis, out_lens=lens))
    return b.op("dequantizelinear", sums, *parameters)


def _type(values: np.ndarray) -> Type:
    return Type.float_type if values.dtype == np.float32 else Type.int32_type


QDQ = (op("dequantizelinear", bind="x"), op("dequantizelinear", bind="w"))


@rule("qdq_dot", op("dot", *QDQ), exact=True)
def quantized_dot(m: Match, b: RewriteBuilder) -> object:
    right = _right(m, b, -1)
    if isinstance(right, str):
        return right
    w, steps, values = right
    if any(n != 1 for n in compact(values).shape[:-2]):
        return "weights differ from matrix to matrix"
    left = _left(m, b)
    if isinstance(left, str):
        return _dot_of_computed_scale(m, b, w, steps) or left
    x, step, point = left
    product = b.op("quant_dot", x, w)
    return _dequantized(b, product, -1, np.float32(step) * steps, _zero(values[(0,) * (values.ndim - 2)].T, point))


def _dot_of_computed_scale(m: Match, b: RewriteBuilder, w: Instruction, steps: np.ndarray) -> Instruction | None:
    """Return the product if the left operand has one computed scale and one zero point; else None."""
    x, *given = m.x.inputs
    elements = [element for element in map(repeated_element, given) if element is not None]
    if len(elements) < len(given) or x.shape.type not in INT8 or m.ins.shape.type is not Type.float_type:
        return None
    if not is_kept(steps * LEAST_STEP):
        return None
    scale, *zero = elements
    points = [zero[0] if zero else b.literal(0, x.shape.type), b.literal(0, Type.int8_type)]
    sums = b.op("integer_dot", x, w, *points)
    scales = [b.broadcast(factor, sums.shape.lens) for factor in (scale, b.literal(steps))]
    return b.op("dequantizelinear", sums, b.op("mul", *scales))


@rule("qdq_convolution", op("convolution", *QDQ), exact=True)
def quantized_convolution(m: Match, b: RewriteBuilder) -> object:
    attributes = m.ins.op.attributes()
    group, padding = attributes["group"], attributes["padding"]
    if attributes["padding_mode"] is not PaddingMode.default_:
        return "the convolution computes its own padding"
    if group > 1 and m.w.shape.lens[1] % FEWEST_CHANNELS and not is_depthwise(m, m.x.inputs[0], m.w):
        return "a group has few input channels"
    sides = _sides(m, b, 0)
    if isinstance(sides, str):
        return sides
    (w, steps, values), (x, step, point) = sides
    if point and any(padding):  # what is beyond the edge is 0, which the zero point stands for
        spatial = x.shape.ndim - 2
        x = b.op("pad", x, pads=pads_of(padding, spatial), value=float(point))
        padding = (0,) * (2 * spatial)
    attributes["padding"] = padding
    product = b.op("quant_convolution", x, w, **attributes)
    return _dequantized(b, product, 1, np.float32(step) * steps, _zero(values, point))


@rule("qdq_convolution_backwards", op("convolution_backwards", *QDQ), exact=True)
def quantized_transposed_convolution(m: Match, b: RewriteBuilder) -> object:
    """Rewrite a transposed convolution whose left operand has no zero point; a zero point's contribution would depend
    on the taps that a result receives."""
    can, attributes = m.options.capabilities, m.ins.op.attributes()
    if can is None or not can.scattered_integers:
        return "the target has no kernel for it"
    if attributes["group"] > 1 or m.ins.shape.is_dynamic:
        return "results are sums in groups, or lengths are not known"
    if attributes["padding_mode"] is not PaddingMode.default_:
        return "the convolution computes its own padding"
    quantized, _, *zero = m.x.inputs
    shifted = quantized.shape.type is Type.int8_type and not multiplies_signed(m.options)
    if shifted or (zero and uniform_value(zero[0]) != 0):
        return "the left-hand side has a zero point, which each tap multiplies by other weights"
    sides = _sides(m, b, 1)
    if isinstance(sides, str):
        return sides
    (w, steps, _), (x, step, _) = sides
    product = b.op("quant_convolution_backwards", x, w, **attributes)
    return _dequantized(b, product, 1, np.float32(step) * steps, np.zeros(0, np.int64))


def _zero(values: np.ndarray, point: int) -> np.ndarray:
    """Return the contribution of the left operand's zero point to the sums, per first index of the weights."""
    if not point:
        return np.zeros(len(values), np.int64)
    return point * values.sum(tuple(range(1, values.ndim)), dtype=np.int64)


SimplifyQdq = rule_pass(
    "simplify_qdq",
    *QUANTIZED_RULES,
    quantized_dot,
    quantized_convolution,
    quantized_transposed_convolution,
    *INTEGER_PRODUCTS,
)
