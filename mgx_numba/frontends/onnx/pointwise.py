"""Elementwise arithmetic, comparison and logic."""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...errors import ParseError
from ...graph.instruction import Instruction
from ..handlers import SHARED_BINARY, SHARED_UNARY, binary, unary
from .builder import Builder
from .node import Node
from .registry import register

UNARY = {
    **SHARED_UNARY,
    "BitwiseNot": "bitwise_not",
    "IsNaN": "isnan",
    "Not": "not",
    "Tanh": "tanh",
}

BINARY = {
    **SHARED_BINARY,
    "And": "logical_and",
    "GreaterOrEqual": "greater_or_equal",
    "LessOrEqual": "less_or_equal",
    "Or": "logical_or",
    "Xor": "logical_xor",
}

for _onnx, _op in UNARY.items():
    register(_onnx)(unary(_op))
for _onnx, _op in BINARY.items():
    register(_onnx)(binary(_op))


@register("Sum", "Max", "Min", "Mean")
def variadic(g: Builder, node: Node, *values: Instruction) -> Instruction:
    """Combine any number of inputs from left to right."""
    op = {"Sum": "add", "Mean": "add", "Max": "max", "Min": "min"}[node.op_type]
    if len(values) == 1:
        return g.op("identity", values[0])
    result = g.chain(op, values)
    if node.op_type == "Mean":
        result = g.pointwise("div", result, g.like(len(values), result))
    return result


@register("Mod")
def mod(g: Builder, node: Node, a: Instruction, b: Instruction) -> Instruction:
    """Emit Mod: with ``fmod=1`` the result has the dividend's sign, otherwise the divisor's.

    From operator set 28 on, floats may have infinite divisors, for which the IR's ``mod`` gives NaN.
    """
    if node.get_bool("fmod"):
        return g.pointwise("fmod", a, b)
    if node.opset < 28 or not a.shape.type.is_floating:
        return g.pointwise("mod", a, b)
    rest = g.pointwise("fmod", a, b)
    opposite = g.pointwise("less", g.pointwise("mul", g.op("sign", rest), g.op("sign", b)), g.like(0, rest))
    return g.pointwise("where", opposite, g.pointwise("add", rest, b), rest)


@register("Pow")
def power(g: Builder, node: Node, base: Instruction, exponent: Instruction) -> Instruction:
    """Emit the power in the base's type.

    Integers with a floating exponent are computed in float64, unless the exponent is a constant without fractions.
    """
    type = base.shape.type
    common = type
    if not type.is_floating and not _has_only(g.constants.value(exponent), type):
        wider = max(type, exponent.shape.type, key=lambda t: t.size)
        common = Type.double_type if exponent.shape.type.is_floating else wider
    return g.convert(g.pointwise("pow", g.convert(base, common), g.convert(exponent, common)), type)


def _has_only(values: np.ndarray | None, type: Type) -> bool:
    """Return whether values are known, and all are representable in an integer type."""
    if values is None:
        return False
    limits = np.iinfo(type.numpy)
    return bool(np.all((values >= limits.min) & (values < float(limits.max)) & (values == np.trunc(values))))


@register("Where")
def where(g: Builder, node: Node, condition: Instruction, a: Instruction, b: Instruction) -> Instruction:
    """Emit ``a`` where the condition holds, ``b`` elsewhere."""
    return g.pointwise("where", condition, a, b)


@register("Clip")
def clip(
    g: Builder, node: Node, x: Instruction, low: Instruction | None = None, high: Instruction | None = None
) -> Instruction:
    """Emit Clip: bounds are attributes before operator set 11, inputs from then on.

    Operator set 6 declares the largest float32 numbers as defaults. An absent bound of later sets bounds nothing.
    """
    if node.opset < 11:
        low, high = (
            g.like(node.get_float(name, sign * float(np.finfo(np.float32).max)), x)
            if node.has(name) or (node.opset >= 6 and x.shape.type is Type.float_type)
            else None
            for name, sign in (("min", -1), ("max", 1))
        )
    for bound in (low, high):
        if bound is not None and not bound.shape.is_dynamic and bound.shape.elements != 1:
            raise ParseError(f"bounds must have one element, got {list(bound.shape.lens)}")
    bounds = [b for b in (low, high) if b is not None]
    if not x.shape.is_dynamic:
        bounds = [g.broadcast(g.reshape(b, ()), g.lens(x)) for b in bounds]
    if low is not None and high is not None:
        return g.pointwise("clip", x, *bounds)
    if low is not None:
        return g.pointwise("max", x, *bounds)
    return g.pointwise("min", x, *bounds) if high is not None else g.op("identity", x)


@register("Identity")
def identity(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the input unchanged."""
    return g.op("identity", x) if x.shape.element is None else x


@register("BitShift")
def bit_shift(g: Builder, node: Node, x: Instruction, y: Instruction) -> Instruction:
    """Emit a shift by ``y`` bits in the direction ``direction``."""
    direction = node.get_choice("direction", ("LEFT", "RIGHT"))
    return g.pointwise(f"bitwise_shift_{direction.lower()}", x, y)


@register("IsInf")
def isinf(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit IsInf; ``detect_negative`` and ``detect_positive`` select the infinities that count."""
    negative, positive = node.get_bool("detect_negative", True), node.get_bool("detect_positive", True)
    found = g.op("isinf", x)
    if negative and positive:
        return found
    if not negative and not positive:
        return g.broadcast(g.literal(False), g.lens(x))
    side = g.pointwise("greater" if positive else "less", x, g.like(0, x))
    return g.pointwise("logical_and", found, side)
