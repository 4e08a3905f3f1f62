"""Float64 error function and GELU for scalars, without a C library; accuracy as in `double_exponentials`."""

from __future__ import annotations

from math import factorial

from llvmlite import ir

from ...lang.builder import VectorBuilder
from .double_exponentials import exponential_parts, raised
from .pairs import (
    Pair,
    add,
    choose,
    constant,
    divide,
    multiply,
    negative,
    ordered_sum,
    product,
    scale,
    sum_of,
    total,
)

__all__ = ["erf", "gelu_erf"]

_DOUBLE = ir.DoubleType()
_TWO_OVER_ROOT_PI = (1.1283791670955126, 1.533545961316588e-17)  # 2 / sqrt(pi)
_ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)  # sqrt(1 / 2)
_ERF = tuple(_TWO_OVER_ROOT_PI[0] * (-1.0) ** k / (factorial(k) * (2 * k + 1)) for k in range(1, 19))
"""Coefficients in x**2 of erf(x) / x without the first term; for |x| <= 1 the truncation error is below 2**-60."""
_SCALED_CENTER = 3.75  # Shepherd and Laframboise's c, see below
_SCALED = (
    1.2375126308378275, -0.14024059858554702, 0.00358541548546369, 0.08227673849015102, -0.10880393014170746,
    0.09230432116019834, -0.05869339859054762, 0.0283622774215156, -0.009746579547619623, 0.0017556258324217529,
    0.00029371359480570737, -0.00029015397928986765, 5.164940777546399e-05, 2.2383912036550678e-05,
    -1.1445049125831309e-05, -9.72849582211122e-07, 1.7534434251106334e-06, -5.826281078800777e-08,
    -2.6114702359900956e-07, 2.4289762925488707e-08, 4.0971223152703005e-08, -4.389284159986328e-09,
    -6.545560212480267e-09, 5.457157304704688e-10, 9.02214970034059e-10, -3.75315827795962e-11, -7.33950500852954e-11,
)  # fmt: skip
"""Coefficients of (1 + 2 a) exp(a**2) erfc(a) in t = (a - c) / (a + c), for a >= 0 (Shepherd and Laframboise,
"Chebyshev approximation of (1 + 2 x) exp(x**2) erfc x in 0 <= x < oo", 1981). First 27 terms of the Chebyshev series,
computed to 100 digits; the truncation error is below 2**-62."""
_FAR = 30.0
"""Argument from which erfc is 0."""
_MIDDLE = 0.75
"""Least argument below which 1/2 - erf/2 loses less than its own rounding."""


def _complement(b: VectorBuilder, a: Pair, square: Pair) -> tuple[Pair, ir.Value]:
    """Return p and n with erfc(a) = p 2**n, for a >= 0 with its square."""
    t = divide(b, add(b, a, constant(b, -_SCALED_CENTER)), add(b, a, constant(b, _SCALED_CENTER)))
    slope = b.polynomial(t.hi, _SCALED[1:])
    grown = add(b, constant(b, _SCALED[0]), multiply(b, t, Pair(slope, b.constant(_DOUBLE, 0.0))))
    share = divide(b, grown, add(b, constant(b, 1.0), scale(b, a, 2.0)))
    p, n = exponential_parts(b, negative(b, square))
    return multiply(b, p, share), n


def _near(b: VectorBuilder, a: ir.Value, square: Pair) -> Pair:
    """Return erf(a) for 0 <= a <= 1 with its square."""
    rest = b.mul(square.hi, b.polynomial(square.hi, _ERF))
    slope = sum_of(b, b.constant(_DOUBLE, _TWO_OVER_ROOT_PI[0]), rest)
    made = product(b, a, slope.hi)
    return ordered_sum(b, made.hi, b.fused(a, b.add(slope.lo, _TWO_OVER_ROOT_PI[1]), made.lo))


def erf(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return erf(x)."""
    a = b.first_less(_FAR, b.fabs(x))
    square = product(b, a, a)
    tail = raised(b, *_complement(b, Pair(a, b.constant(_DOUBLE, 0.0)), square))
    far = add(b, constant(b, 1.0), negative(b, tail))
    return b.copysign(total(b, choose(b, b.fcmp("<", a, 1.0), _near(b, a, square), far)), x)


def gelu_erf(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return x (1 + erf(x / sqrt(2))) / 2."""
    a = b.first_less(1.5 * _FAR, b.fabs(x))
    square = scale(b, product(b, a, a), 0.5)
    side = multiply(b, Pair(a, b.constant(_DOUBLE, 0.0)), constant(b, *_ROOT_HALF))
    p, n = _complement(b, side, square)
    half = scale(b, _near(b, side.hi, square), 0.5)
    positive, one_half = b.fcmp(">", x, 0.0), constant(b, 0.5)
    above = add(b, constant(b, 1.0), negative(b, scale(b, raised(b, p, n), 0.5)))
    near = add(b, one_half, choose(b, positive, half, negative(b, half)))
    share = choose(b, b.fcmp("<", a, _MIDDLE), near, above)
    made = b.fused(x, share.hi, b.mul(x, share.lo))
    below = total(b, raised(b, multiply(b, p, Pair(b.mul(a, -0.5), b.constant(_DOUBLE, 0.0))), n))
    made = b.select(b.fcmp("<", x, -_MIDDLE), below, made)
    made = b.select(b.fcmp("==", x, float("-inf")), float("nan"), b.copysign(made, x))
    return b.select(b.fcmp("==", x, float("inf")), x, made)
