"""Float64 sine, cosine, tangent and their inverses for scalars, without a C library; accuracy as in
`double_exponentials`.

Arguments are reduced modulo pi/2; large ones by the Payne-Hanek method in integers.
"""

from __future__ import annotations

from math import factorial

from llvmlite import ir

from ...lang import math64
from ...lang.builder import VectorBuilder
from .pairs import Pair, add, choose, constant, divide, multiply, negative, ordered_sum, product, root, sum_of, total

__all__ = ["acos", "asin", "atan", "cos", "sin", "tan"]

_DOUBLE, _I64, _WIDE = ir.DoubleType(), ir.IntType(64), ir.IntType(256)
_TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921CFE1DEB1CB129A73E"
    "E88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980FEF2F118B5A0A6D1F6D367ECF27CB09B7"
    "4F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D0856033046FC7B6BAB",
    16,
)
"""2 / pi times 2**1216, rounded down."""
_WORD, _WORDS = 64, 19
"""Bits per word, and number of words; one zero word precedes them."""
_HALF_PI_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
"""pi / 2 as three parts of 33 bits, whose products with integers below 2**20 are exact, and one of 53."""
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)  # pi / 2
_LARGE = 2.0**20
"""Least argument of the Payne-Hanek reduction; below it the quotient is less than 2**20."""
_FRACTION, _BIAS = math64.FRACTION, 1023
"""Mantissa bits and exponent bias of float64."""
_KEPT = 192
"""Bits of 2 / pi that a large argument's 53 bits are multiplied with, starting with the bit worth half a turn. The
remainder is at least 2**-62; about 2**-75 of it is lost."""
_SIN = tuple((-1.0) ** (k // 2) / factorial(k) for k in range(3, 21, 2))
_COS = tuple((-1.0) ** (k // 2) / factorial(k) for k in range(4, 22, 2))
"""Taylor coefficients; for |x| <= pi / 4 the truncation error is below 2**-60."""
_ATAN = tuple((-1.0) ** (k // 2) / k for k in range(3, 23, 2))
"""Taylor coefficients; for |x| <= 1 / 8 the truncation error is below 2**-65."""
_ATAN_QUARTERS = (
    (0.0, 0.0), (0.24497866312686414, 1.0698755618734451e-17), (0.4636476090008061, 2.2698777452961687e-17),
    (0.6435011087932844, 1.5834785051444286e-17), (0.7853981633974483, 3.061616997868383e-17),
)  # fmt: skip
"""Arctangents of 0, 1/4, 1/2, 3/4 and 1."""
_ATAN_CLAMP = 2.0**100
"""Clamp of the arctangent's argument: beyond it the result does not change."""


def _reduced_by_parts(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return r and an integer whose low bits are k, with x = k pi/2 + r, for |x| below `_LARGE`."""
    k, bits = b.magic_round(b.mul(x, 1.0 / _HALF_PI[0]))
    first, second, third, last = (b.mul(k, -part) for part in _HALF_PI_PARTS)  # all but the last one are exact
    r = sum_of(b, b.add(x, first), second)
    for part in (third, last):
        r = add(b, r, Pair(part, b.constant(_DOUBLE, 0.0)))
    return r, bits


def _words_from(b: ir.IRBuilder, start: ir.Value, count: int) -> list[ir.Value]:
    """Return ``count`` words of 2 / pi from word ``start``."""
    known = [_TWO_OVER_PI >> _WORD * k & (1 << _WORD) - 1 for k in reversed(range(_WORDS))]
    words: list[ir.Value] = [_I64(v) for v in (0, *known)]
    for bit in (16, 8, 4, 2, 1):
        wanted = b.icmp_unsigned("!=", b.and_(start, _I64(bit)), _I64(0))
        moved = [*words[bit:], *[_I64(0)] * bit]
        words = [b.select(wanted, far, near) for far, near in zip(moved[: count + bit], words)]
    return words[:count]


def reduced_by_payne_hanek(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return r and an integer whose low bits are k, with x = k pi/2 + r, for finite |x| of at least 2**19."""
    ib = b.ir
    bits = ib.bitcast(x, _I64)
    whole = ib.or_(ib.and_(bits, _I64((1 << _FRACTION) - 1)), _I64(1 << _FRACTION))
    field = ib.and_(ib.lshr(bits, _I64(_FRACTION)), _I64(2 * _BIAS + 1))
    # |x| = whole 2**e with e = field - 1075; bit number e - 1 behind the point of 2 / pi counts half turns.
    first = ib.sub(field, _I64(_BIAS + _FRACTION + 1 - _WORD + 1))
    words = _words_from(ib, ib.lshr(first, _I64(6)), 4)
    window = ib.zext(words[0], _WIDE)
    for word in words[1:]:
        window = ib.or_(ib.shl(window, _WIDE(_WORD)), ib.zext(word, _WIDE))
    window = ib.lshr(ib.shl(window, ib.zext(ib.and_(first, _I64(63)), _WIDE)), _WIDE(256 - _KEPT))
    turns = ib.mul(window, ib.zext(whole, _WIDE))  # quarter turns times 2**(_KEPT - 2), and whole turns above them
    point = _KEPT - 2
    k = ib.trunc(ib.lshr(ib.add(turns, _WIDE(1 << point - 1)), _WIDE(point)), _I64)
    left = ib.shl(ib.sub(turns, ib.shl(ib.zext(k, _WIDE), _WIDE(point))), _WIDE(256 - point))  # a signed part of 2**256
    r = constant(b, 0.0)
    for chunk in range(4):  # 32 bits each, the first of them with the sign
        part = ib.trunc(ib.ashr(left, _WIDE(256 - 32 * (chunk + 1))), _I64)
        part = part if chunk == 0 else ib.and_(part, _I64((1 << 32) - 1))
        r = add(b, r, Pair(b.mul(ib.sitofp(part, _DOUBLE), 2.0 ** (-32 * (chunk + 1))), b.constant(_DOUBLE, 0.0)))
    r = multiply(b, r, constant(b, *_HALF_PI))
    below = ib.icmp_signed("<", bits, _I64(0))
    return choose(b, below, negative(b, r), r), ib.select(below, ib.neg(k), k)


def _reduced(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return r and k with x = k pi/2 + r for finite x."""
    places = [b.reserve(kind) for kind in (_DOUBLE, _DOUBLE, _I64)]
    r, k = _reduced_by_parts(b, x)
    for place, value in zip(places, (*r, k)):
        b.ir.store(value, place)
    with b.ir.if_then(b.fcmp(">=", b.fabs(x), _LARGE), likely=False):
        r, k = reduced_by_payne_hanek(b, x)
        for place, value in zip(places, (*r, k)):
            b.ir.store(value, place)
    hi, lo, k = (b.ir.load(place) for place in places)
    return Pair(hi, lo), k


def _sine_and_cosine(b: VectorBuilder, r: Pair) -> tuple[Pair, Pair]:
    """Return sin(r) and cos(r) for |r| <= pi / 4."""
    z = b.mul(r.hi, r.hi)
    lost = b.fused(b.mul(z, -0.5), r.lo, r.lo)
    sine = Pair(r.hi, b.fused(b.mul(r.hi, z), b.polynomial(z, _SIN), lost))
    square = product(b, r.hi, r.hi)
    one = ordered_sum(b, b.constant(_DOUBLE, 1.0), b.mul(square.hi, -0.5))
    rest = b.fused(square.lo, -0.5, b.fused(b.mul(z, z), b.polynomial(z, _COS), b.mul(b.neg(r.hi), r.lo)))
    return ordered_sum(b, *sine), ordered_sum(b, one.hi, b.add(one.lo, rest))


def _has_bit(b: VectorBuilder, k: ir.Value, bit: int) -> ir.Value:
    return b.icmp("!=", b.and_(k, bit), 0)


def _shifted_sine(b: VectorBuilder, x: ir.Value, ahead: int) -> ir.Value:
    """Return sin(x + ahead * pi/2)."""
    r, k = _reduced(b, x)
    sine, cosine = _sine_and_cosine(b, r)
    k = b.iadd(k, ahead)
    made = total(b, choose(b, _has_bit(b, k, 1), cosine, sine))
    return _nan_unless_finite(b, x, b.select(_has_bit(b, k, 2), b.neg(made), made))


def _nan_unless_finite(b: VectorBuilder, x: ir.Value, made: ir.Value) -> ir.Value:
    return b.select(b.fcmp("<", b.fabs(x), float("inf")), made, float("nan"))


def sin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return sin(x); of a zero the zero with its sign."""
    return b.select(b.fcmp("==", x, 0.0), x, _shifted_sine(b, x, 0))


def cos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return cos(x)."""
    return _shifted_sine(b, x, 1)


def tan(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return tan(x); of a zero the zero with its sign."""
    r, k = _reduced(b, x)
    sine, cosine = _sine_and_cosine(b, r)
    odd = _has_bit(b, k, 1)
    made = total(b, divide(b, choose(b, odd, cosine, sine), choose(b, odd, negative(b, sine), cosine)))
    return b.select(b.fcmp("==", x, 0.0), x, _nan_unless_finite(b, x, made))


def _angle(b: VectorBuilder, y: Pair, x: Pair) -> Pair:
    """Return the angle of the point (x, y), both non-negative and not both 0: the nearest `_ATAN_QUARTERS` plus the
    arctangent of the rest."""
    steep = b.fcmp(">", y.hi, x.hi)
    z = divide(b, choose(b, steep, x, y), choose(b, steep, y, x))
    quarters, bits = b.magic_round(b.mul(z.hi, 4.0))
    place = b.mul(quarters, 0.25)
    above = sum_of(b, z.hi, b.neg(place))
    across = product(b, z.hi, place)
    below = ordered_sum(b, 1.0, across.hi)
    below = Pair(below.hi, b.add(below.lo, b.fused(z.lo, place, across.lo)))
    t = divide(b, ordered_sum(b, above.hi, b.add(above.lo, z.lo)), below)
    square = b.mul(t.hi, t.hi)
    own = Pair(t.hi, b.fused(b.mul(t.hi, square), b.polynomial(square, _ATAN), t.lo))
    known = constant(b, *_ATAN_QUARTERS[0])
    for k, values in enumerate(_ATAN_QUARTERS[1:], 1):
        known = choose(b, b.icmp("==", b.and_(bits, 7), k), constant(b, *values), known)
    made = add(b, known, ordered_sum(b, *own))
    return choose(b, steep, add(b, constant(b, *_HALF_PI), negative(b, made)), made)


def atan(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return arctan(x)."""
    a = b.first_less(b.fabs(x), _ATAN_CLAMP)
    made = total(b, _angle(b, Pair(a, b.constant(_DOUBLE, 0.0)), constant(b, 1.0)))
    return b.copysign(made, x)


def _cofunction(b: VectorBuilder, a: ir.Value) -> Pair:
    """Return sqrt(1 - a**2): cos(arcsin(a)), and sin(arccos(a))."""
    return root(b, multiply(b, sum_of(b, 1.0, b.neg(a)), sum_of(b, 1.0, a)))


def asin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return arcsin(x); NaN for |x| > 1."""
    a = b.fabs(x)
    return b.copysign(total(b, _angle(b, Pair(a, b.constant(_DOUBLE, 0.0)), _cofunction(b, a))), x)


def acos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return arccos(x); NaN for |x| > 1."""
    a = b.fabs(x)
    made = _angle(b, _cofunction(b, a), Pair(a, b.constant(_DOUBLE, 0.0)))
    turned = add(b, constant(b, 2.0 * _HALF_PI[0], 2.0 * _HALF_PI[1]), negative(b, made))
    return total(b, choose(b, b.fcmp("<", x, 0.0), turned, made))
