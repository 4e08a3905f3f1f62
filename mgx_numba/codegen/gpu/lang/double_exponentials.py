"""Float64 exponentials, logarithms and functions made of them, for scalars, without a C library.

Intermediate results are pairs of floats (`pairs`), so that errors are within 2 units in the last place. Series are
Taylor series. Arguments are not NaN; infinities are allowed.
"""

from __future__ import annotations

from math import factorial

from llvmlite import ir

from ...lang import math64, polynomials
from ...lang.builder import VectorBuilder
from ...lang.math32 import log_special
from .pairs import (
    Pair,
    add,
    choose,
    constant,
    divide,
    multiply,
    ordered_sum,
    product,
    root,
    scale,
    sum_of,
    total,
)

__all__ = [
    "acosh", "asinh", "atanh", "cosh", "exponential", "exponential_parts", "log2", "mish", "pow", "raised", "sinh",
    "softplus", "tanh",
]  # fmt: skip

_I64 = ir.IntType(64)
_INFINITY = float("inf")
_LN2 = (0.6931471805599453, 2.3190468138462996e-17)  # log(2)
_LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)  # 1 / log(2)
_TWO_THIRDS = (2.0 / 3.0, 3.700743415417188e-17)  # by definition
_TWO_FIFTHS = (0.4, -2.2204460492503132e-17)  # by definition
_ARTANH = tuple(2.0 / k for k in range(7, 31, 2))
"""Coefficients of 2 artanh(s) = 2 s + s (2/3 s**2 + 2/5 s**4 + ...) for |s| <= `_NEAR`; the truncation error is below
2**-75."""
_NEAR = 0.17157287525380993
"""(sqrt(2) - 1) / (sqrt(2) + 1): the largest s = f / (f + 2) for 1 + f between sqrt(1/2) and sqrt(2)."""
_SINH = tuple(1.0 / factorial(k) for k in range(3, 23, 2))
_COSH = tuple(1.0 / factorial(k) for k in range(2, 22, 2))
"""Taylor coefficients; for |x| <= 1 the truncation error is below 2**-60."""
_MOST, _LEAST = 712.0, -760.0
"""Clamps of exp's argument: above the first exp(x) / 2 is infinite, below the second x exp(x) is 0."""
_LINEAR = 40.0
"""Argument beyond which mish(x) is x or x exp(x): exp(-40) is less than half a unit in the last place of 1."""
_FAR = 2.0**28
"""Argument from which x**2 + 1 rounds to x**2."""


def exponential_parts(b: VectorBuilder, x: Pair) -> tuple[Pair, ir.Value]:
    """Return p and the integer n with exp(x) = p 2**n."""
    hi = b.first_less(_MOST, b.first_greater(_LEAST, x.hi))
    lo = b.select(b.fcmp("==", hi, x.hi), x.lo, 0.0)
    whole, bits = b.magic_round(b.mul(hi, polynomials.LOG2_E))
    r = sum_of(
        b, b.fused(whole, -polynomials.LN2_HIGH_64, hi), b.neg(b.mul(whole, polynomials.LN2_LOW_64))
    )  # the first is exact
    r = ordered_sum(b, r.hi, b.add(r.lo, lo))
    rest = b.fused(b.mul(r.hi, r.hi), b.polynomial(r.hi, polynomials.EXP_64), b.fused(r.lo, r.hi, r.lo))
    one = ordered_sum(b, b.constant(r.hi.type, 1.0), r.hi)
    return ordered_sum(b, one.hi, b.add(one.lo, rest)), b.ashr(b.shl(bits, math64.FRACTION), math64.FRACTION)


def raised(b: VectorBuilder, x: Pair, n: ir.Value) -> Pair:
    """Return x 2**n for |n| <= 1100, in two steps with normal powers of two."""
    half = b.ashr(n, 1)
    return scale(b, scale(b, x, math64.power_of_two(b, half)), math64.power_of_two(b, b.isub(n, half)))


def exponential(b: VectorBuilder, x: Pair) -> Pair:
    """Return exp(x), including 0 and infinity."""
    made = raised(b, *exponential_parts(b, x))
    return Pair(made.hi, b.select(b.fcmp("==", made.hi, _INFINITY), 0.0, made.lo))


def _artanh2(b: VectorBuilder, s: Pair) -> Pair:
    """Return 2 artanh(s) = log((1 + s) / (1 - s)) for |s| <= `_NEAR`."""
    z = multiply(b, s, s)
    high = add(b, constant(b, *_TWO_FIFTHS), product(b, z.hi, b.polynomial(z.hi, _ARTANH)))
    rest = multiply(b, z, add(b, constant(b, *_TWO_THIRDS), multiply(b, z, high)))
    return add(b, scale(b, s, 2.0), multiply(b, s, rest))


def _log_parts(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return log(1 + f) and n (float64) with log(x) = log(1 + f) + n ln 2, for positive finite x."""
    f, n = math64.split(b, x)
    denominator = ordered_sum(b, b.constant(x.type, 2.0), f)
    return _artanh2(b, divide(b, Pair(f, b.constant(x.type, 0.0)), denominator)), n


def _log(b: VectorBuilder, x: Pair) -> Pair:
    """Return log(x) for positive finite x."""
    near, n = _log_parts(b, x.hi)
    far = ordered_sum(b, b.mul(n, polynomials.LN2_HIGH_64), b.mul(n, polynomials.LN2_LOW_64))  # the first is exact
    return add(b, add(b, far, near), Pair(b.div(x.lo, x.hi), b.constant(x.hi.type, 0.0)))


def log2(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return log2(x), exact for powers of two."""
    near, n = _log_parts(b, x)
    made = total(b, add(b, Pair(n, b.constant(x.type, 0.0)), multiply(b, near, constant(b, *_LOG2_E))))
    return log_special(b, x, b.select(b.fcmp("==", x, _INFINITY), x, made))


def pow(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return x**y with the special cases of IEEE 754; x and y may be NaN."""
    a = b.fabs(x)
    logarithm = _log(b, Pair(a, b.constant(x.type, 0.0)))
    exponent, rough = multiply(b, logarithm, Pair(y, b.constant(x.type, 0.0))), b.mul(logarithm.hi, y)
    ends = b.select(b.fcmp("==", a, 0.0), b.mul(y, -_INFINITY), b.mul(y, _INFINITY))
    inside = b.ir.and_(b.fcmp(">", a, 0.0), b.fcmp("<", a, _INFINITY))
    fits = b.ir.and_(inside, b.fcmp("<", b.fabs(rough), -_LEAST))
    beyond = Pair(b.select(inside, rough, ends), b.constant(x.type, 0.0))
    made = exponential(b, choose(b, fits, exponent, beyond))
    result = b.select(b.is_nan(x), x, total(b, made))
    return math64.power_cases(b, x, y, result)


def _odd(b: VectorBuilder, x: ir.Value, rest: ir.Value) -> Pair:
    """Return x + x rest."""
    return Pair(x, b.mul(x, rest))


def _sinh_near(b: VectorBuilder, x: ir.Value) -> Pair:
    z = b.mul(x, x)
    return _odd(b, x, b.mul(z, b.polynomial(z, _SINH)))


def _half_exponential(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return exp(x) / 2 and exp(-x) / 2 for x >= 0."""
    p, n = exponential_parts(b, Pair(x, b.constant(x.type, 0.0)))
    made = raised(b, p, b.isub(n, 1))
    return made, b.div(0.25, made.hi)


def _unless_infinite(b: VectorBuilder, size: ir.Value, made: Pair) -> ir.Value:
    return b.select(b.fcmp("==", size, _INFINITY), size, total(b, made))


def sinh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return sinh(x)."""
    a = b.fabs(x)
    grown, inverse = _half_exponential(b, a)
    far = sum_of(b, grown.hi, b.neg(inverse))
    large = _unless_infinite(b, grown.hi, Pair(far.hi, b.add(far.lo, grown.lo)))
    return b.copysign(b.select(b.fcmp("<", a, 1.0), total(b, _sinh_near(b, a)), large), x)


def cosh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return cosh(x)."""
    grown, inverse = _half_exponential(b, b.fabs(x))
    made = sum_of(b, grown.hi, inverse)
    return _unless_infinite(b, grown.hi, Pair(made.hi, b.add(made.lo, grown.lo)))


def tanh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return tanh(x)."""
    a = b.first_less(20.0, b.fabs(x))  # tanh(20) rounds to 1
    z = b.mul(a, a)
    ordered = _sinh_near(b, a)
    cosine = ordered_sum(b, b.constant(x.type, 1.0), b.mul(z, b.polynomial(z, _COSH)))
    near = total(b, divide(b, ordered_sum(b, ordered.hi, ordered.lo), cosine))
    grown = total(b, exponential(b, Pair(b.mul(a, 2.0), b.constant(x.type, 0.0))))
    far = b.sub(1.0, b.div(2.0, b.add(grown, 1.0)))
    return b.copysign(b.select(b.fcmp("<", a, 0.55), near, far), x)  # tanh(0.55) is 0.5: beyond, nothing cancels


def softplus(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return log(1 + exp(x))."""
    z = exponential(b, Pair(b.neg(b.fabs(x)), b.constant(x.type, 0.0)))
    one = ordered_sum(b, b.constant(x.type, 1.0), z.hi)
    rest = _log(b, Pair(one.hi, b.add(one.lo, z.lo)))
    made = sum_of(b, b.first_greater(0.0, x), rest.hi)
    return _unless_infinite(b, x, Pair(made.hi, b.add(made.lo, rest.lo)))


def mish(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return x tanh(softplus(x)): with z = exp(x) and n = z (z + 2) this is x n / (n + 2), or x z for small z."""
    zero = b.constant(x.type, 0.0)
    p, exponent = exponential_parts(b, Pair(b.first_less(_LINEAR, x), zero))
    z, two = raised(b, p, exponent), constant(b, 2.0)
    n = multiply(b, z, add(b, z, two))
    share = divide(b, n, add(b, n, two))
    made = product(b, x, share.hi)
    near = Pair(made.hi, b.fused(x, share.lo, made.lo))
    far = raised(b, multiply(b, p, Pair(b.first_greater(_LEAST, x), zero)), exponent)
    made = choose(b, b.fcmp("<", x, -_LINEAR), far, near)
    result = b.copysign(_unless_infinite(b, x, made), x)
    return b.select(b.fcmp("==", x, -_INFINITY), float("nan"), result)


def asinh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return arsinh(x): artanh(a / sqrt(a**2 + 1)) if that argument is small, else log(a + sqrt(a**2 + 1))."""
    a = Pair(b.fabs(x), b.constant(x.type, 0.0))
    side = root(b, add(b, product(b, a.hi, a.hi), constant(b, 1.0)))
    near = scale(b, _artanh2(b, divide(b, a, side)), 0.5)
    far = _log_of_sum(b, a, side)
    made = choose(b, b.fcmp("<", a.hi, _NEAR), near, far)
    return b.copysign(_unless_infinite(b, a.hi, made), x)


def acosh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return arcosh(x) = log(x + sqrt((x - 1) (x + 1)))."""
    side = root(b, multiply(b, sum_of(b, x, -1.0), sum_of(b, x, 1.0)))
    made = _unless_infinite(b, x, _log_of_sum(b, Pair(x, b.constant(x.type, 0.0)), side))
    return b.select(b.fcmp(">=", x, 1.0), made, float("nan"))


def _log_of_sum(b: VectorBuilder, x: Pair, side: Pair) -> Pair:
    """Return log(x + side). Beyond `_FAR` both are equal, and ``side`` may have overflowed."""
    large = b.fcmp(">", x.hi, _FAR)
    made = _log(b, choose(b, large, x, add(b, x, side)))
    return add(b, made, choose(b, large, constant(b, *_LN2), constant(b, 0.0)))


def atanh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return artanh(x) = log((1 + a) / (1 - a)) / 2."""
    a = b.fabs(x)
    near = _artanh2(b, Pair(a, b.constant(x.type, 0.0)))
    one = b.constant(x.type, 1.0)
    far = _log(b, divide(b, ordered_sum(b, one, a), ordered_sum(b, one, b.neg(a))))
    made = b.mul(total(b, choose(b, b.fcmp("<", a, _NEAR), near, far)), 0.5)
    made = b.select(b.fcmp("==", a, 1.0), _INFINITY, made)
    return b.copysign(b.select(b.fcmp("<=", a, 1.0), made, float("nan")), x)
