"""Elementary functions on float64 lanes.

`exp`, `log`, `sin`, `cos` and `tanh` are good to 2 ulp of float64. The functions named ``*_short`` are good to
2**-28 or better over the float32 range only: they serve float32 results, which then are correct to little more
than half an ulp.
"""

from __future__ import annotations

import math

from llvmlite import ir

from . import polynomials as table
from .builder import VectorBuilder
from .math32 import log_special

FRACTION = 52  # bits of a float64, by IEEE 754
_NORMAL = 54  # a power of two that makes any subnormal a normal number
_MAGIC = 1.5 * 2.0**52  # adding it leaves no room for a fraction, which is rounded to even
_LARGE_ANGLE = 1.0e6  # below, a quarter turn in two parts of a float64 leaves float32 results exact


def _reduce(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x = n ln 2 + r with |r| <= ln2 / 2: r and an integer whose low bits are n."""
    shifted = b.muladd(x, table.LOG2_E, _MAGIC)
    n = b.sub(shifted, _MAGIC)
    r = b.muladd(n, -table.LN2_HIGH_64, x)
    return b.muladd(n, -table.LN2_LOW_64, r), b.bits(shifted)


def power_of_two(b: VectorBuilder, n: ir.Value) -> ir.Value:
    """2**n for an integer vector that holds n in its low 11 bits, n from -1022 to 1023."""
    return b.from_bits(b.iadd(b.shl(n, FRACTION), 1023 << FRACTION))


def exp(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # Whole numbers just outside of the logarithms of the largest and of half of the smallest float64.
    bounded = b.first_less(710.0, b.first_greater(-746.0, x))
    r, bits = _reduce(b, bounded)
    p = b.add(b.muladd(b.mul(r, r), b.polynomial(r, table.EXP_64), r), 1.0)
    n = b.ashr(b.shl(bits, FRACTION), FRACTION)
    # 2**n in two factors: n goes from -1077 to 1025.
    half = b.isub(b.lshr(b.iadd(n, 2048), 1), 1024)
    return b.mul(b.mul(p, power_of_two(b, half)), power_of_two(b, b.isub(n, half)))


def exp_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """exp; results outside e**-708 to e**709 are 0 and infinity."""
    r, bits = _reduce(b, x)
    p = b.add(b.muladd(b.mul(r, r), b.polynomial(r, table.EXP_64_SHORT), r), 1.0)
    scaled = b.mul(p, power_of_two(b, bits))
    # x times a number near the largest is infinity, or NaN.
    scaled = b.select(b.fcmp("<", x, -708.0), 0.0, scaled)
    return b.select(b.fcmp("<=", x, 709.0), scaled, b.mul(x, 1.0e308))  # as above


def split(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x = (1 + f) 2**n for a positive finite x, 1 + f between sqrt(1/2) and sqrt(2): f and n, both as float64."""
    subnormal = b.fcmp("<", x, 2.0**-1022)
    bits = b.bits(b.select(subnormal, b.mul(x, 2.0**_NORMAL), x))
    high = b.isub(bits, 0x3FE6A09E667F3BCD)
    exponent = b.and_(high, 0xFFF << FRACTION)
    f = b.sub(b.from_bits(b.isub(bits, exponent)), 1.0)
    n = _small_to_float(b, b.lshr(exponent, FRACTION))
    return f, b.sub(n, b.select(subnormal, b.coerce(n, float(_NORMAL))[1], 0.0))


def log(b: VectorBuilder, x: ir.Value) -> ir.Value:
    f, n = split(b, x)
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    half_square = b.mul(b.mul(f, f), 0.5)
    rest = b.mul(z, b.polynomial(z, table.LOG_64))
    # log(1 + f) = f - f**2/2 + s (f**2/2 + R), with the low part of n ln 2 added where it is small.
    correction = b.muladd(n, table.LN2_LOW_64, b.mul(s, b.add(half_square, rest)))
    result = b.muladd(n, table.LN2_HIGH_64, b.sub(f, b.sub(half_square, correction)))
    result = b.select(b.fcmp("==", x, float("inf")), x, result)
    return log_special(b, x, result)


def _small_to_float(b: VectorBuilder, n: ir.Value) -> ir.Value:
    """12-bit two's complement integers to float64, without the 64-bit conversion that only AVX-512 has."""
    signed = b.isub(b.xor(n, 0x800), 0x800)
    return b.ir.sitofp(b.ir.trunc(signed, b.like(n, ir.IntType(32))), b.like(n, ir.DoubleType()))


def log2_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.mul(log(b, x), table.LOG2_E)


def sinh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    e = exp_short(b, x)
    large = b.mul(b.sub(e, b.div(1.0, e)), 0.5)
    return _odd_near_zero(b, x, large, 1.0 / 6.0)  # Taylor


def cosh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    e = exp_short(b, b.fabs(x))
    return b.mul(b.add(e, b.div(1.0, e)), 0.5)


def _odd_near_zero(b: VectorBuilder, x: ir.Value, large: ir.Value, cubic: float) -> ir.Value:
    """x + cubic * x**3 below 2**-9, where the formula for `large` cancels."""
    small = b.mul(x, b.muladd(b.mul(x, x), cubic, 1.0))
    return b.select(b.fcmp("<", b.fabs(x), 2.0**-9), small, large)


def asinh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    a = b.fabs(x)
    large = log(b, b.add(a, b.sqrt(b.muladd(a, a, 1.0))))
    return _odd_near_zero(b, x, b.copysign(large, x), -1.0 / 6.0)  # Taylor


def acosh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    root = b.sqrt(b.mul(b.sub(x, 1.0), b.add(x, 1.0)))
    return b.select(b.fcmp(">=", x, 1.0), log(b, b.add(x, root)), float("nan"))


def atanh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    large = b.mul(log(b, b.div(b.add(x, 1.0), b.sub(1.0, x))), 0.5)
    return _odd_near_zero(b, x, large, 1.0 / 3.0)  # Taylor


def atan_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    a = b.fabs(x)
    beyond = b.fcmp(">", a, 1.0)
    z = b.select(beyond, b.div(1.0, a), a)
    near = b.mul(z, b.polynomial(b.mul(z, z), table.ATAN_64))
    return b.copysign(b.select(beyond, b.sub(math.pi / 2.0, near), near), x)


def _quarter_turns(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = k pi/2 + r: sin(r), cos(r), and an integer whose low bits are k. For |x| up to 1e6."""
    k, bits = b.magic_round(b.mul(x, 2.0 / math.pi))
    r = x
    for part in table.HALF_PI:
        r = b.muladd(k, -part, r)
    z = b.mul(r, r)
    sine = b.mul(r, b.polynomial(z, (1.0, *table.SIN_64_SHORT)))
    cosine = b.muladd(b.mul(z, z), b.polynomial(z, table.COS_64_SHORT), b.muladd(z, -0.5, 1.0))
    return sine, cosine, bits


def _by_parity(b: VectorBuilder, k: ir.Value, even: ir.Value, odd: ir.Value) -> ir.Value:
    return b.ir.select(b.icmp("==", b.and_(k, 1), 0), even, odd)


def _flip_sign(b: VectorBuilder, x: ir.Value, k: ir.Value) -> ir.Value:
    """-x where bit 1 of k is set."""
    # The sign is bit 63.
    return b.from_bits(b.xor(b.bits(x), b.shl(b.and_(k, 2), 62)))


def sin_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, k = _quarter_turns(b, x)
    return _flip_sign(b, _by_parity(b, k, sine, cosine), k)


def cos_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, k = _quarter_turns(b, x)
    return _flip_sign(b, _by_parity(b, k, cosine, sine), b.iadd(k, 1))


def tan_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, k = _quarter_turns(b, x)
    numerator, denominator = _by_parity(b, k, sine, cosine), _by_parity(b, k, cosine, sine)
    # tan(r + pi/2) = -cos(r) / sin(r)
    return _flip_sign(b, b.div(numerator, denominator), b.shl(k, 1))


def large_angle(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Bool of the lanes that are too large for `_quarter_turns` and `_exact_turns`; infinities and NaN are not."""
    a = b.fabs(x)
    return b.ir.and_(b.fcmp(">", a, _LARGE_ANGLE), b.fcmp("<", a, float("inf")))


def _exact_turns(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """x = k pi/2 + r: sin(r), cos(r), an integer whose low bits are k, and a bool of the lanes where r may not be exact
    to 2**-78: those of `large_angle`, and those where r is below 2**-20 and x is not."""
    k, bits = b.magic_round(b.mul(x, 2.0 / math.pi))
    first, second, third = table.HALF_PI
    # k has 20 bits, the first two parts have 33 each: their products, and the first difference, are exact.
    near, part = b.muladd(k, -first, x), b.mul(k, second)
    high = b.sub(near, part)
    taken = b.sub(high, near)
    low = b.sub(b.sub(near, b.sub(high, taken)), b.add(part, taken))
    low = b.muladd(k, -third, low)
    r = b.add(high, low)
    rest = b.sub(low, b.sub(r, high))
    z = b.mul(r, r)
    cube = b.mul(z, r)
    tail = b.sub(b.mul(z, b.sub(b.mul(rest, 0.5), b.mul(cube, b.polynomial(z, table.SIN_64[1:])))), rest)
    sine = b.sub(r, b.sub(tail, b.mul(cube, table.SIN_64[0])))
    sine = b.select(b.fcmp("<", b.fabs(x), 2.0**-27), x, sine)  # with the sign of 0
    half = b.mul(z, 0.5)
    head = b.sub(1.0, half)
    tail = b.sub(b.mul(z, b.mul(z, b.polynomial(z, table.COS_64))), b.mul(r, rest))
    cosine = b.add(head, b.add(b.sub(b.sub(1.0, head), half), tail))
    cancelled = b.ir.and_(b.fcmp(">", b.fabs(x), 0.5), b.fcmp("<", b.fabs(r), 2.0**-20))
    return sine, cosine, bits, b.ir.or_(cancelled, large_angle(b, x))


def sin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, k, rare = _exact_turns(b, x)
    return b.per_rare_lane(rare, _flip_sign(b, _by_parity(b, k, sine, cosine), k), "sin", x)


def cos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    sine, cosine, k, rare = _exact_turns(b, x)
    return b.per_rare_lane(rare, _flip_sign(b, _by_parity(b, k, cosine, sine), b.iadd(k, 1)), "cos", x)


def tanh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # Near 0 the difference of 1 and 2 / (exp(2 |x|) + 1) cancels.
    a, square = b.fabs(x), b.mul(x, x)
    near = b.muladd(b.mul(a, square), b.polynomial(square, table.TANH_64), a)
    far = b.sub(1.0, b.div(2.0, b.add(exp(b, b.add(a, a)), 1.0)))
    return b.copysign(b.select(b.fcmp("<", a, table.TANH_SPLIT_64), near, far), x)


def pow_short(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y with the special cases of IEEE 754 `pow`; results outside the float32 range need not be finite."""
    return power_cases(b, x, y, exp_short(b, b.mul(y, log(b, b.fabs(x)))))


def power_cases(b: VectorBuilder, x: ir.Value, y: ir.Value, result: ir.Value) -> ir.Value:
    """x**y with the special cases of IEEE 754 `pow`, of ``result``, which is |x|**y."""
    magnitude = b.fabs(x)
    # 1**y and (-1)**(infinity) are 1, as is x**0; log(1) * infinity would be NaN.
    unit = b.ir.and_(b.fcmp("==", magnitude, 1.0), b.fcmp("==", y, y))
    result = b.select(unit, 1.0, result)
    whole = b.fcmp("==", b.floor(y), y)
    half = b.mul(y, 0.5)
    odd = b.ir.and_(whole, b.fcmp("!=", b.floor(half), half))
    negative = b.icmp("<", b.bits(x), 0)
    invalid = b.ir.and_(b.fcmp("<", x, 0.0), b.ir.and_(b.not_(whole), b.fcmp("!=", magnitude, float("inf"))))
    result = b.select(b.ir.and_(negative, odd), b.neg(result), result)
    result = b.select(invalid, float("nan"), result)
    always_one = b.ir.or_(b.fcmp("==", y, 0.0), b.fcmp("==", x, 1.0))
    return b.select(always_one, 1.0, result)


def gelu_erf_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # x Phi(x); Phi(-|x|) = erfc(a) / 2 = exp(-a**2) erfcx(a) / 2 with a = |x| / sqrt(2)
    a = b.mul(b.fabs(x), table.ROOT_HALF)
    bounded = b.first_less(1.0e3, a)
    u = b.div(b.sub(bounded, 4.0), b.add(bounded, 4.0))
    tail = b.mul(b.mul(exp_short(b, b.neg(b.mul(bounded, bounded))), b.polynomial(u, table.ERFCX_64)), 0.5)
    return b.mul(x, b.select(b.fcmp(">", x, 0.0), b.sub(1.0, tail), tail))


def gelu_tanh_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    scale = -2.0 * table.GELU_SCALE
    inner = b.muladd(b.mul(x, x), table.GELU_CUBIC * scale, scale)
    return b.div(x, b.add(exp_short(b, b.mul(x, inner)), 1.0))


def silu_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(x, b.add(exp_short(b, b.neg(x)), 1.0))


def softplus_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    z = exp_short(b, b.neg(b.fabs(x)))
    return b.muladd(z, b.polynomial(z, table.LOG1P_64), b.first_greater(0.0, x))


def mish_short(b: VectorBuilder, x: ir.Value) -> ir.Value:
    z = exp_short(b, b.first_less(40.0, x))  # beyond, mish is x, and the square of z far from infinity
    n = b.muladd(z, z, b.mul(z, 2.0))
    return b.mul(x, b.div(n, b.add(n, 2.0)))
