"""Elementwise arithmetic, comparison and logic; greatest common divisors, by a loop."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from ...core.shape import Shape
from ...core.types import Type
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ..handlers import Parser
from ..loops import as_entered, members
from .builder import AtenBuilder
from .log_sums import log_of_sum
from .node import AtenNode
from .registry import register
from .types import Operand, is_number, promoted

OperandT = TypeVar("OperandT", Instruction, Operand)
UNARY = {
    "abs": "abs",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "floor": "floor",
    "log": "log",
    "log2": "log2",
    "neg": "neg",
    "reciprocal": "recip",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
}
"""Operators computed in the result's type."""
BINARY = {
    "__and__": "bitwise_and",
    "__lshift__": "bitwise_shift_left",
    "__or__": "bitwise_or",
    "__rshift__": "bitwise_shift_right",
    "__xor__": "bitwise_xor",
    "bitwise_and": "bitwise_and",
    "bitwise_left_shift": "bitwise_shift_left",
    "bitwise_or": "bitwise_or",
    "bitwise_right_shift": "bitwise_shift_right",
    "bitwise_xor": "bitwise_xor",
    "fmod": "fmod",
    "max.other": "max",
    "maximum": "max",
    "min.other": "min",
    "minimum": "min",
    "mul": "mul",
}
"""Operators of two operands computed in the result's type."""
COMPARISONS = {"eq": "equal", "ge": "greater_or_equal", "gt": "greater", "le": "less_or_equal", "lt": "less"}
LOGIC = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}
_ON_BOOL = {
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
    "mul": "logical_and",
    "max": "logical_or",
    "min": "logical_and",
    "add": "logical_or",
}
"""Operators that compute the same of bool as operators of integers do."""


def _unary(op: str) -> Parser:
    def build(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
        return g.op(op, g.cast(x, node.type))

    return build


def _binary(op: str) -> Parser:
    def build(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
        return combined(g, node.type, op, a, b)

    return build


def combined(g: AtenBuilder, type: Type, op: str, a: Operand, b: Operand) -> Instruction:
    """Emit a binary operator in a type, which may be bool."""
    return g.combined(_ON_BOOL.get(op, op) if type is Type.bool_type else op, type, a, b)


def _comparison(op: str) -> Parser:
    def build(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
        type = promoted([a, b])
        if type is Type.bool_type:
            type = Type.uint8_type
        made = g.pointwise(op, g.value(a, type), g.value(b, type))
        return g.cast(made, node.type)

    return build


def _logic(op: str) -> Parser:
    def build(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
        return g.cast(g.pointwise(op, g.value(a, Type.bool_type), g.value(b, Type.bool_type)), node.type)

    return build


for _name, _op in UNARY.items():
    register(_name)(_unary(_op))
for _name, _op in BINARY.items():
    register(_name)(_binary(_op))
for _name, _op in COMPARISONS.items():
    register(_name)(_comparison(_op))
for _name, _op in LOGIC.items():
    register(_name)(_logic(_op))


@register("ne")
def ne(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit inequality."""
    return g.op("not", _comparison("equal")(g, AtenNode(node.name, node.operator, [Type.bool_type], [0]), a, b))


def scaled(g: AtenBuilder, type: Type, x: OperandT, alpha: Operand) -> OperandT | Instruction:
    """Return ``alpha * x`` in a type; ``x`` itself for a factor of 1."""
    return x if is_number(alpha) and alpha == 1 else g.combined("mul", type, x, alpha)


@register("add")
def add(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand, alpha: Operand = 1) -> Instruction:
    """Emit ``a + alpha * b``."""
    return combined(g, node.type, "add", a, scaled(g, node.type, b, alpha))


@register("sub")
def sub(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand, alpha: Operand = 1) -> Instruction:
    """Emit ``a - alpha * b``."""
    return g.combined("sub", node.type, a, scaled(g, node.type, b, alpha))


@register("div", "true_divide")
def div(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand, rounding_mode: str | None = None) -> Instruction:
    """Emit the quotient; ``rounding_mode`` is ``floor`` or ``trunc``."""
    if rounding_mode == "floor":
        return floor_divide(g, node, a, b)
    made = g.combined("div", node.type, a, b)
    if rounding_mode != "trunc" or not node.type.is_floating:
        return made
    return truncated(g, made)


@register("prims::div")
def prims_div(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit the quotient; of integers it is truncated."""
    return g.combined("div", node.type, a, b)


@register("angle")
def angle(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the angle of real numbers: pi if negative, else 0; NaN stays."""
    x = g.cast(x, node.type)
    found = g.pointwise("where", g.pointwise("less", x, g.like(0, x)), g.like(math.pi, x), g.like(0, x))
    return g.pointwise("where", g.op("isnan", x), x, found)


@register("remainder")
def remainder(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit the remainder of `floor_divide`, which has the sign of ``b``."""
    if not node.type.is_floating:
        return combined(g, node.type, "mod", a, b)
    first, second = g.same_lens(g.value(a, node.type), g.value(b, node.type))
    rest, below = _rest(g, first, second)
    return g.pointwise("where", below, g.pointwise("add", rest, second), rest)


@register("floor_divide")
def floor_divide(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit the quotient rounded down; of floats it is computed from the remainder, as in Python."""
    first, second = g.same_lens(g.value(a, node.type), g.value(b, node.type))
    if not node.type.is_floating:
        return g.divided_down(first, second)
    zero, plain = g.like(0, first), g.pointwise("div", first, second)
    rest, below = _rest(g, first, second)
    exact = g.op("nearbyint", g.pointwise("div", g.pointwise("sub", first, rest), second))
    exact = g.pointwise("where", below, g.pointwise("sub", exact, g.like(1, exact)), exact)
    signed = g.pointwise("where", g.pointwise("equal", exact, zero), g.pointwise("mul", plain, zero), exact)
    return g.pointwise("where", g.pointwise("equal", second, zero), plain, signed)


def _rest(g: AtenBuilder, a: Instruction, b: Instruction) -> tuple[Instruction, Instruction]:
    """Emit the remainder of the quotient rounded towards 0, and whether its sign is not that of ``b``."""
    rest = g.pointwise("fmod", a, b)
    return rest, g.pointwise("less", g.pointwise("mul", rest, g.op("sign", b)), g.like(0, rest))


def truncated(g: AtenBuilder, x: Instruction) -> Instruction:
    """Emit floats rounded towards 0."""
    negative = g.pointwise("less", x, g.like(0, x))
    return g.pointwise("where", negative, g.op("ceil", x), g.op("floor", x))


@register("trunc")
def trunc(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the value rounded towards 0."""
    return truncated(g, x) if x.shape.type.is_floating else x


@register("sign", "sgn")
def sign(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the sign; PyTorch's sign of NaN is 0, that of bool the value."""
    if x.shape.type is Type.bool_type:
        return x
    y = g.op("sign", x)
    return g.pointwise("where", g.op("isnan", x), g.like(0, x), y) if x.shape.type.is_floating else y


@register("round")
def round_(g: AtenBuilder, node: AtenNode, x: Instruction, decimals: int = 0) -> Instruction:
    """Emit the value rounded to the nearest integer, or multiple of a power of ten."""
    if not x.shape.type.is_floating:
        return x
    if decimals == 0:
        return g.op("nearbyint", x)
    factor = 10.0 ** abs(decimals)
    ways = ("mul", "div") if decimals > 0 else ("div", "mul")
    wide = g.combined(ways[0], x.shape.type, x, factor)
    return g.combined(ways[1], x.shape.type, g.op("nearbyint", wide), factor)


@register("pow.Tensor_Scalar")
def pow_number(g: AtenBuilder, node: AtenNode, x: Instruction, exponent: Operand) -> Instruction:
    """Emit a power with a constant exponent; small ones are products, as in PyTorch."""
    base = g.cast(x, node.type)
    if is_number(exponent):
        if exponent == 1:
            return base
        if exponent in (2, 3):
            square_ = g.op("mul", base, base)
            return square_ if exponent == 2 else g.op("mul", square_, base)
        simple = {0.5: "sqrt", -0.5: "rsqrt", -1: "recip"}.get(exponent)  # type: ignore[arg-type]
        if simple is not None and node.type.is_floating:
            return g.op(simple, base)
    return g.combined("pow", node.type, base, exponent)


@register("pow.Tensor_Tensor", "pow.Scalar")
def power(g: AtenBuilder, node: AtenNode, base: Operand, exponent: Operand) -> Instruction:
    """Emit a power."""
    return g.combined("pow", node.type, base, exponent)


@register("logical_not")
def logical_not(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit whether the value is 0."""
    return g.op("not", g.cast(x, Type.bool_type))


@register("bitwise_not")
def bitwise_not(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit the complement of the bits; of bool the negation."""
    return g.op("not" if x.shape.type is Type.bool_type else "bitwise_not", x)


@register("where")
def where(
    g: AtenBuilder, node: AtenNode, condition: Instruction, a: Operand | None = None, b: Operand | None = None
) -> Instruction:
    """Emit ``a`` where the condition holds, ``b`` elsewhere."""
    if a is None or b is None:
        raise UnsupportedError("where with one operand is not supported")
    return g.pointwise("where", g.cast(condition, Type.bool_type), g.value(a, node.type), g.value(b, node.type))


@register("clamp")
def clamp(
    g: AtenBuilder, node: AtenNode, x: Instruction, min: Operand | None = None, max: Operand | None = None
) -> Instruction:
    """Emit the value limited to a range."""
    x = g.cast(x, node.type)
    bounds = [None if b is None else g.value(b, node.type) for b in (min, max)]
    if bounds[0] is not None and bounds[1] is not None:
        return g.pointwise("clip", x, bounds[0], bounds[1])
    if bounds[0] is not None:
        return g.pointwise("max", x, bounds[0])
    return g.pointwise("min", x, bounds[1]) if bounds[1] is not None else x


@register("fmax", "fmin")
def ignoring_nan(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit the greater or the less operand; a NaN counts only beside another."""
    first, second = g.value(a, node.type), g.value(b, node.type)
    both = g.pointwise("max" if node.base == "fmax" else "min", first, second)
    if not node.type.is_floating:
        return both
    other = g.pointwise("where", g.op("isnan", second), first, both)
    return g.pointwise("where", g.op("isnan", first), second, other)


@register("exp2", "expm1", "log1p", "log10", "deg2rad", "rad2deg")
def elementary(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit functions by other elementary functions."""
    x = g.cast(x, node.type)
    if node.base == "exp2":
        return g.pointwise("pow", g.like(2, x), x)
    if node.base == "log10":
        return g.combined("mul", node.type, g.op("log", x), 1 / math.log(10))
    if node.base in ("deg2rad", "rad2deg"):
        return g.combined("mul", node.type, x, math.pi / 180 if node.base == "deg2rad" else 180 / math.pi)
    double = node.type is Type.double_type
    bound, degree = (_SMALL_DOUBLE, 12) if double else (_SMALL, 7)
    small = g.pointwise("less", g.op("abs", x), g.like(bound, x))
    if node.base == "expm1":
        whole = g.pointwise("sub", g.op("exp", x), g.like(1, x))
        signs = [1 / math.factorial(k) for k in range(degree, 0, -1)]
    else:
        whole = g.op("log", g.pointwise("add", x, g.like(1, x)))
        signs = [(-1) ** (k + 1) / k for k in range(degree, 0, -1)]
    series = g.like(signs[0], x)
    for factor in signs[1:]:
        series = g.pointwise("add", g.pointwise("mul", series, x), g.like(factor, x))
    return g.pointwise("where", small, g.pointwise("mul", series, x), whole)


_SMALL = 0.1
"""Magnitude below which exp(x) - 1 and log(1 + x) are Taylor polynomials of degree 7: their relative error is below
0.1**7 / 8 and a few roundings, that of the plain form above it two roundings of 2**-24 / 0.1."""
_SMALL_DOUBLE = 0.05
"""The same in float64, for polynomials of degree 12: below 0.05**12 = 2e-16 and 2**-53 / 0.05 = 2e-15."""


@register("isnan", "isinf")
def is_special(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit whether the value is NaN or infinite; integers are neither."""
    if not x.shape.type.is_floating:
        return g.broadcast(g.literal(False), g.lens(x))
    return g.op(node.base, x)


@register("signbit")
def signbit(g: AtenBuilder, node: AtenNode, x: Instruction) -> Instruction:
    """Emit whether the sign bit is set."""
    if not x.shape.type.is_floating:
        return g.pointwise("less", x, g.like(0, x))
    signed = {2: Type.int16_type, 4: Type.int32_type, 8: Type.int64_type}[x.shape.type.size]
    bits = g.op("bit_cast", x, target_type=signed)
    return g.pointwise("less", bits, g.like(0, bits))


@register("copysign")
def copysign(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit the magnitude of ``a`` with the sign of ``b``."""
    size, sign = g.op("abs", g.value(a, node.type)), signbit(g, node, g.value(b, node.type))
    return g.pointwise("where", sign, g.op("neg", size), size)


@register("addcmul", "addcdiv")
def addc(g: AtenBuilder, node: AtenNode, x: Operand, a: Operand, b: Operand, value: Operand = 1) -> Instruction:
    """Emit ``x + value * a * b``, or the quotient in place of the product."""
    made = g.combined("mul" if node.base == "addcmul" else "div", node.type, a, b)
    return g.combined("add", node.type, x, scaled(g, node.type, made, value))


@register("logaddexp")
def logaddexp(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit ``log(exp(a) + exp(b))`` without overflow."""
    return log_of_sum(g, g.value(a, node.type), g.value(b, node.type))


@register("hypot")
def hypot(g: AtenBuilder, node: AtenNode, a: Operand, b: Operand) -> Instruction:
    """Emit ``sqrt(a**2 + b**2)`` by the ratio of both, whose square does not overflow; an infinity outweighs NaN."""
    a, b = g.same_lens(*(g.op("abs", g.value(x, node.type)) for x in (a, b)))
    most, least = g.pointwise("max", a, b), g.pointwise("min", a, b)
    zero, one = g.like(0, most), g.like(1, most)
    ratio = g.pointwise("div", least, g.pointwise("where", g.pointwise("equal", most, zero), one, most))
    root = g.op("sqrt", g.pointwise("add", g.op("mul", ratio, ratio), one))
    vast = g.op("logical_or", g.op("isinf", a), g.op("isinf", b))
    return g.pointwise("where", vast, g.like(math.inf, most), g.op("mul", most, root))


@register("atan2")
def atan2(g: AtenBuilder, node: AtenNode, y: Operand, x: Operand) -> Instruction:
    """Emit the angle of the point (x, y)."""
    y, x = g.same_lens(g.value(y, node.type), g.value(x, node.type))
    vast = g.op("logical_and", g.op("isinf", x), g.op("isinf", y))
    ratio = g.pointwise("where", vast, g.op("mul", g.op("sign", x), g.op("sign", y)), g.op("div", y, x))
    flat = g.op("atan", ratio)
    left = g.pointwise("less", x, g.like(0, x))
    down = signbit(g, node, y)
    turn = g.pointwise("where", down, g.like(-math.pi, y), g.like(math.pi, y))
    angle = g.pointwise("where", left, g.pointwise("add", flat, turn), flat)
    upright = g.pointwise("equal", x, g.like(0, x))
    nothing = g.op("logical_and", upright, g.pointwise("equal", y, g.like(0, y)))
    half = g.pointwise("where", down, g.like(-math.pi / 2, y), g.like(math.pi / 2, y))
    on_axis = g.pointwise("where", nothing, g.pointwise("where", signbit(g, node, x), turn, y), half)
    return g.pointwise("where", g.op("logical_and", upright, g.op("not", g.op("isnan", y))), on_axis, angle)


_STEPS = 100
"""Most divisions of Euclid's algorithm: 64-bit numbers take at most 91, as Fibonacci numbers do (Lamé)."""


@register("gcd", "prims::gcd")
def gcd(g: AtenBuilder, node: AtenNode, a: Instruction, b: Instruction) -> Instruction:
    """Emit the greatest common divisor, which is not negative, by Euclid's algorithm on all elements at once."""
    carried = g.same_lens(*(g.op("abs", g.cast(x, node.type)) for x in (a, b)))
    inner = g.inner("gcd")
    inner.module.add_parameter("iteration", Shape(Type.int64_type))
    inner.module.add_parameter("condition", Shape(Type.bool_type))
    first, second = (inner.module.add_parameter(f"carried_{k}", x.shape.row_major()) for k, x in enumerate(carried))
    done = inner.pointwise("equal", second, inner.like(0, second))
    divisor = inner.pointwise("where", done, inner.like(1, second), second)
    rest = inner.pointwise("where", done, second, inner.pointwise("fmod", first, divisor))
    inner.module.add_return([_any(inner, rest), inner.pointwise("where", done, first, second), rest])
    start, most = _any(g, carried[1]), g.literal(np.array([_STEPS]))
    scans: tuple[int, ...] = ()
    looped = g.op(
        "loop", most, start, *carried, modules=[inner.module], max_iterations=_STEPS, scan_output_directions=scans
    )
    return as_entered(g, members(g, looped, inner.module)[0], carried[0])


def _any(g: AtenBuilder, x: Instruction) -> Instruction:
    """Emit whether an element differs from 0, as one element."""
    return g.reshape(g.reduce("reduce_any", g.cast(g.flat(x), Type.bool_type), [0], keep=False), (1,))
