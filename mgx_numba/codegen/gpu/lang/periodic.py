"""Float32 sine, cosine and tangent without a C library.

The angle is reduced modulo pi/2 in float32: by parts of pi/2 (Cody and Waite) up to `_MANY_TURNS`, beyond it with the
bits of 2/pi that matter (Payne and Hanek). Errors are within one unit in the last place.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ...lang import math64, polynomials
from ...lang.builder import VectorBuilder
from .pairs import Pair, ordered_sum, product, sum_of

__all__ = ["cos", "sin", "tan"]

_I64, _I32, _WIDE = ir.IntType(64), ir.IntType(32), ir.IntType(128)
_MANY_TURNS = 2.0**16
"""Angle from which on 2/pi is multiplied in integers: below it an angle less the first part of its quarter turns is
exact (multiples of 2**-23 below 1), and the parts of pi/2 have bits enough."""
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
"""pi/2 as three float32 numbers: each is the nearest to what the ones before leave."""
_TWO_OVER_PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458E
"""2/pi times 2**218, rounded down."""
_KNOWN, _WORDS = 218, 8
"""Bits of 2/pi, and 32-bit words that hold them. The greatest angle's last bit counts 2**104: it needs 198."""
_WINDOW = 96
"""Bits of 2/pi that the 24 bits of an angle are multiplied with: the first two of the product count quarter turns, the
other 94 are right to 2**-70. No float32 angle is closer to a quarter turn than 2**-30."""
_POINT = 62
"""Bits behind the point of the product's first 64 bits, which count quarter turns."""
_MANTISSA = 23
"""Bits of a float32 mantissa without the leading one: IEEE 754."""
_BIAS = 150
"""What the exponent field of a float32 number exceeds the exponent of its last bit by."""


def _turns(b: VectorBuilder, x: ir.Value) -> tuple[Pair, ir.Value]:
    """Return r and an int32 whose low bits are k, with x = k pi/2 + r and |r| at most about pi/4."""
    k, bits = b.magic_round(b.mul(x, 2.0 / math.pi))
    first, second, third = _HALF_PI
    near, part = b.fused(k, -first, x), product(b, k, -second)  # both are exact
    r = sum_of(b, near, part.hi)
    r = ordered_sum(b, r.hi, b.add(r.lo, b.fused(k, -third, part.lo)))
    size = b.fabs(x)
    many = b.ir.and_(b.fcmp(">=", size, _MANY_TURNS), b.fcmp("<", size, math.inf))
    places = [b.reserve(value.type) for value in (*r, bits)]
    for place, value in zip(places, (*r, bits)):
        b.ir.store(value, place)
    with b.ir.if_then(b.any(many), likely=False):
        for place, value, usual in zip(places, _turns_of_large(b, x), (*r, bits)):
            b.ir.store(b.ir.select(many, value, usual), place)
    hi, lo, bits = (b.ir.load(place) for place in places)
    return Pair(hi, lo), bits


def _turns_of_large(b: VectorBuilder, x: ir.Value) -> list[ir.Value]:
    """Return both parts of r, and k, of finite angles of at least `_MANY_TURNS`, lane by lane."""
    lanes = b.lanes(x)
    if not lanes:
        return list(_of_large(b, x))
    results = [b.poison(b.like(x, kind)) for kind in (ir.FloatType(), ir.FloatType(), _I32)]
    for lane in range(lanes):
        found = _of_large(b, b.extract(x, lane))
        results = [b.ir.insert_element(whole, value, _I32(lane)) for whole, value in zip(results, found)]
    return results


def _of_large(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return both parts of r, and k, of one finite angle of at least `_MANY_TURNS`."""
    ib = b.ir
    bits = b.bits(x)
    whole = ib.or_(ib.and_(bits, _I32((1 << _MANTISSA) - 1)), _I32(1 << _MANTISSA))
    field = ib.and_(ib.lshr(bits, _I32(_MANTISSA)), _I32(255))
    # |x| = whole 2**e with e = field - 150: bits of 2 / pi behind e + 94 count less than the product's last bit.
    behind = ib.sub(_I32(_KNOWN - (_WINDOW - 2) + _BIAS), field)
    window = ib.lshr(_words_from(ib, ib.lshr(behind, _I32(5))), ib.zext(ib.and_(behind, _I32(31)), _WIDE))
    quarters = ib.trunc(ib.lshr(ib.mul(window, ib.zext(whole, _WIDE)), _WIDE(_WINDOW - 64)), _I64)
    k = ib.trunc(ib.lshr(ib.add(quarters, _I64(1 << _POINT - 1)), _I64(_POINT)), _I32)
    angle = b.mul(ib.sitofp(ib.shl(quarters, _I64(64 - _POINT)), ir.DoubleType()), math.pi / 2.0 * 2.0**-64)
    below = ib.icmp_signed("<", bits, _I32(0))
    angle = ib.select(below, ib.fneg(angle), angle)
    hi = b.narrow(angle)
    return hi, b.narrow(b.sub(angle, b.widen(hi))), ib.select(below, ib.neg(k), k)


def _words_from(ib: ir.IRBuilder, start: ir.Value) -> ir.Value:
    """Return four words of 2 / pi, as one number, from word ``start`` (0 to 7, from the last) on."""
    words: list[ir.Value] = [_I32(_TWO_OVER_PI >> 32 * k & (1 << 32) - 1) for k in range(_WORDS)]
    for bit in (4, 2, 1):
        wanted = ib.icmp_unsigned("!=", ib.and_(start, _I32(bit)), _I32(0))
        moved = [*words[bit:], *[_I32(0)] * bit]
        words = [ib.select(wanted, far, near) for far, near in zip(moved, words)][: 4 + bit - 1]
    number = ib.zext(words[3], _WIDE)
    for word in reversed(words[:3]):
        number = ib.or_(ib.shl(number, _WIDE(32)), ib.zext(word, _WIDE))
    return number


def _has(b: VectorBuilder, count: ir.Value, bit: int) -> ir.Value:
    return b.icmp("!=", b.and_(count, bit), 0)


def _sine(b: VectorBuilder, x: ir.Value, ahead: int) -> ir.Value:
    """Return sin(x + ahead * pi/2)."""
    b = b.strict()
    r, count = _turns(b, x)
    z = b.mul(r.hi, r.hi)
    cube = b.mul(z, r.hi)
    sine = b.add(r.hi, b.fused(cube, b.polynomial(z, polynomials.SIN_64_SHORT), r.lo))
    one = ordered_sum(b, 1.0, b.mul(z, -0.5))
    rest = b.fused(r.hi, b.neg(r.lo), one.lo)
    cosine = b.add(one.hi, b.fused(b.mul(z, z), b.polynomial(z, polynomials.COS_64_SHORT), rest))
    if ahead:
        count = b.iadd(count, ahead)
    value = b.ir.select(_has(b, count, 1), cosine, sine)
    return b.ir.select(_has(b, count, 2), b.neg(value), value)


def tan(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return tan(x), divided in float64; of a zero the zero with its sign."""
    b = b.strict()
    r, count = _turns(b, x)
    value = math64.tan_short(b, b.add(b.widen(r.hi), b.widen(r.lo)))
    value = b.narrow(b.ir.select(_has(b, count, 1), b.div(-1.0, value), value))
    return b.select(b.fcmp("==", x, 0.0), x, value)


def sin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return sin(x); of a zero the zero with its sign."""
    return b.select(b.fcmp("==", x, 0.0), x, _sine(b, x, 0))


def cos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return cos(x)."""
    return _sine(b, x, 1)
