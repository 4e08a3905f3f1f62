"""Rules that keep values in 8 bits: operators that move or compare elements run before ``dequantizelinear`` and after
``quantizelinear``.

Quantisation with one scale and one zero point for all elements is monotone, so
``max(dequantize(x)) == dequantize(max(x))``. Quantised 8-bit floats have a zero point of 0.
"""

from __future__ import annotations

import math

import numpy as np

from ....core.dim import known_equal
from ....core.types import Type, finfo
from ....ops.pad import PadMode
from ....ops.pooling import PoolingMode
from ...constants import is_constant, uniform_value
from ...instruction import Instruction
from ..base import Options
from ..build import RewriteBuilder
from ..match import Match, op, rule

INT8 = frozenset({Type.int8_type, Type.uint8_type})
PRODUCTS_OF_FLOAT8 = frozenset({Type.fp8e4m3fn_type, Type.fp8e5m2_type})
EIGHT_BITS = INT8 | PRODUCTS_OF_FLOAT8
SHIFT = 128
"""Offset between int8 and uint8 codes."""

VIEWS = "transpose reshape squeeze unsqueeze flatten contiguous multibroadcast slice"
JOINING = frozenset({"reshape", "flatten", "contiguous"})
"""Views that would make a scale that is repeated into one that is not."""
SAME_ELEMENTS = frozenset({"transpose", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "pooling"})
STEPS = 255  # from the smallest to the largest value of 8 bits

Parameters = tuple[float, int, Type]


def multiplies_signed(options: Options) -> bool:
    """Whether the target's kernels multiply left operands in int8."""
    return options.capabilities is not None and options.capabilities.signed_left


def parameters(ins: Instruction) -> Parameters | None:
    """Scale, zero point and 8-bit type of a ``quantizelinear`` or ``dequantizelinear``; None if they differ between
    elements, are computed, or if a difference of 8 bits times the scale is not a normal float32; of floats, if there is
    a zero point."""
    given, scale, *zero = ins.inputs
    type = ins.shape.type if ins.name == "quantizelinear" else given.shape.type
    wide = given.shape.type if ins.name == "quantizelinear" else ins.shape.type
    step, point = uniform_value(scale), uniform_value(zero[0]) if zero else 0
    if type not in EIGHT_BITS or wide is not Type.float_type or step is None or point is None:
        return None
    if type.is_floating and point != 0:
        return None
    step, least = float(step), float(finfo(type.numpy).smallest_subnormal) if type.is_floating else 1.0
    found = step, int(point), type
    if not (step * least >= np.finfo(np.float32).tiny and math.isfinite(np.float32(largest_dequantized(found)))):
        return None
    return found


def largest_dequantized(p: Parameters) -> float:
    """A number that no dequantised one is larger than, whatever the zero point."""
    step, _, type = p
    return step * (float(finfo(type.numpy).max) if type.is_floating else STEPS)


def pair_like(b: RewriteBuilder, name: str, value: Instruction, p: Parameters) -> Instruction:
    """``quantizelinear`` or ``dequantizelinear`` of a value, with the same scale and zero point for all elements."""
    step, point, type = p
    scale = b.scalar(step, value.shape.with_type(Type.float_type))
    if point == 0 and type is not Type.int8_type:
        return b.op(name, value, scale, **({"out_type": type} if name == "quantizelinear" else {}))
    return b.op(name, value, scale, b.scalar(point, value.shape.with_type(type)))


def repeated_element(ins: Instruction) -> Instruction | None:
    """Return the instruction of one element that ``ins`` is or repeats; None if ``ins`` may have several elements."""
    source = ins.inputs[0] if ins.name in ("multibroadcast", "broadcast") else ins
    return source if known_equal(source.shape.elements, 1) else None


@rule("dequantize_view", op(VIEWS, op("dequantizelinear", bind="dq")), exact=True)
def view_of_dequantized(m: Match, b: RewriteBuilder) -> object:
    """``view(dequantize(x)) -> dequantize(view(x))``."""
    x, *given = m.dq.inputs
    if x.shape.type not in EIGHT_BITS:
        return "the values have no 8 bits"
    values = [uniform_value(p) for p in given]
    elements = [repeated_element(p) for p in given]
    several = [p for p, v, element in zip(given, values, elements) if v is None and element is None]
    if len(m.ins.inputs) > 1 or not all(map(is_constant, several)):
        return "the view, or one of several scales or zero points, is computed"
    if m.ins.name in JOINING and several:
        return "the scale varies, and the view joins axes"
    viewed = b.op(m.ins.op, x)
    like = []
    for p, v, element in zip(given, values, elements):
        if v is not None:
            like.append(b.scalar(v, viewed.shape.with_type(p.shape.type)))
        elif element is None:
            like.append(b.op(m.ins.op, p))
        else:  # it may have more axes than the view
            like.append(b.broadcast(b.reshape(element, (1,)), viewed.shape.lens))
    return b.op("dequantizelinear", viewed, *like)


@rule("dequantize_moved", op("pooling pad resize gather relu"), exact=True)
def moved_dequantized(m: Match, b: RewriteBuilder) -> object:
    """``max_pooling(dequantize(x)) -> dequantize(max_pooling(x))``, and so of other operators that choose elements."""
    dq, *rest = m.ins.inputs
    if dq.name != "dequantizelinear":
        return None
    p = parameters(dq)
    if p is None:
        return "the scale or zero point varies, or the values have no 8 bits"
    x, point = dq.inputs[0], p[1]
    if m.ins.name == "relu":
        return pair_like(b, "dequantizelinear", b.op("max", x, b.scalar(point, x.shape)), p)
    attributes = m.ins.op.attributes()
    moved = m.ins.op
    if m.ins.name == "pooling" and attributes["mode"] is not PoolingMode.max:
        return "the pooling is no maximum"
    if m.ins.name == "resize" and (attributes["mode"] != "nearest" or rest):
        return "the resampling interpolates, or its lengths are computed"
    if m.ins.name == "pad" and attributes["mode"] is PadMode.constant:
        if rest or attributes["value"] != 0:
            return "the padding is not 0"
        moved = moved.with_attributes(value=float(point))
    return pair_like(b, "dequantizelinear", b.op(moved, x, *rest), p)


@rule("dequantize_concat", op("concat"), exact=True)
def concat_of_dequantized(m: Match, b: RewriteBuilder) -> object:
    """``concat(dequantize(x), dequantize(y)) -> dequantize(concat(x, y))`` where all have the same parameters."""
    if any(i.name != "dequantizelinear" for i in m.ins.inputs):
        return None
    known = {parameters(i) for i in m.ins.inputs}
    p = known.pop()
    if known or p is None:
        return "scales or zero points differ"
    return pair_like(b, "dequantizelinear", b.op(m.ins.op, *(i.inputs[0] for i in m.ins.inputs)), p)


@rule("requantize", op("quantizelinear"), exact=True)
def same_again(m: Match, b: RewriteBuilder) -> object:
    """``quantize(dequantize(x)) -> x`` with the same parameters."""
    dq = m.ins.inputs[0]
    if dq.name != "dequantizelinear":
        return None
    p = parameters(dq)
    if p is None or parameters(m.ins) != p:
        return "scales or zero points differ"
    if p[2] is Type.fp8e5m2_type and dq.inputs[0].name != "quantizelinear":
        return "there may be infinities, which saturate"
    return dq.inputs[0]


@rule("quantize_view", op("quantizelinear"), exact=True)
def view_then_quantized(m: Match, b: RewriteBuilder) -> object:
    """``quantize(view(x)) -> view(quantize(x))``, so that what computes x quantises it; a maximum is like a view."""
    view = m.ins.inputs[0]
    if view.name == "pooling" and view.op.attributes()["mode"] is not PoolingMode.max:
        return "the pooling is no maximum"
    if view.name not in SAME_ELEMENTS:
        return None
    p = parameters(m.ins)
    if p is None or len(view.users) > 1 or len(view.inputs) > 1 or is_constant(view):
        return "the view is computed or used otherwise, or the scale or zero point varies"
    return b.op(view.op, pair_like(b, "quantizelinear", view.inputs[0], p))


@rule("quantize_concat", op("quantizelinear"), exact=True)
def concat_then_quantized(m: Match, b: RewriteBuilder) -> object:
    """``quantize(concat(x, y)) -> concat(quantize(x), quantize(y))``."""
    joined = m.ins.inputs[0]
    if joined.name != "concat":
        return None
    p = parameters(m.ins)
    if p is None or len(joined.users) > 1:
        return "the concatenation is used otherwise, or the scale or zero point varies"
    return b.op(joined.op, *(pair_like(b, "quantizelinear", i, p) for i in joined.inputs))


@rule("quantize_relu", op("quantizelinear"), exact=True)
def quantized_relu(m: Match, b: RewriteBuilder) -> object:
    """``quantize(relu(x)) -> quantize(x)`` in uint8 without a zero point: what is below 0 saturates."""
    relu = wide = m.ins.inputs[0]
    if wide.name == "convert" and len(wide.users) == 1:
        relu = wide.inputs[0]
    if relu.name != "relu":
        return None
    p = parameters(m.ins)
    if p is None or p[1:] != (0, Type.uint8_type):
        return "the zero point is not the least number, or the scale varies"
    if len(relu.users) > 1:
        return "the values are used otherwise"
    value = relu.inputs[0] if wide is relu else b.op(wide.op, relu.inputs[0])
    return b.op(m.ins.op, value, *m.ins.inputs[1:])


@rule("widened_maximum", op("convert", op("pooling", bind="pool")), exact=True)
def widened_maximum(m: Match, b: RewriteBuilder) -> object:
    """``float(max_pooling(x)) -> max_pooling(float(x))`` of what is quantised next, so that it is before."""
    if any(u.name != "quantizelinear" for u in m.ins.users):
        return None
    if m.pool.op.attributes()["mode"] is not PoolingMode.max or len(m.pool.users) > 1:
        return "the pooling is no maximum, or used otherwise"
    return b.op(m.pool.op, b.op(m.ins.op, m.pool.inputs[0]))


@rule("shifted_pair", op("quantizelinear"), exact=True)
def shifted_pair(m: Match, b: RewriteBuilder) -> object:
    """``dequantize(quantize(x))`` in int8 -> the same in uint8 where all products are multiplied in that; else in uint8
    around its middle -> the same in int8, whose zero point is 0, so that images need no padding by it."""
    p = parameters(m.ins)
    if p is None:
        return None
    step, point, given = p
    if multiplies_signed(m.options):
        type, shift = Type.int8_type, -SHIFT
        if (given, point) != (Type.uint8_type, SHIFT):
            return None
    else:
        type, shift = Type.uint8_type, SHIFT
        if given is not Type.int8_type:
            return None
    users = list(m.ins.users)
    known = {u: parameters(u) for u in users if u.name == "dequantizelinear" and u.inputs[0] is m.ins}
    if len(known) < len(users) or None in known.values():
        return "the quantised values are used otherwise"
    q = pair_like(b, "quantizelinear", m.ins.inputs[0], (step, point + shift, type))
    return {u: pair_like(b, "dequantizelinear", q, (own[0], own[1] + shift, type)) for u, own in known.items() if own}


QUANTIZED_RULES = (
    quantized_relu,
    widened_maximum,
    shifted_pair,
    view_of_dequantized,
    moved_dequantized,
    concat_of_dequantized,
    same_again,
    view_then_quantized,
    concat_then_quantized,
)
