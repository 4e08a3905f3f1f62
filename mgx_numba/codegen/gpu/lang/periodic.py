"""Float32 sine, cosine and tangent without a C library: the CPU's for ordinary arguments; large arguments are first
reduced modulo pi/2 by the Payne-Hanek method in integers."""

from __future__ import annotations

import math

from llvmlite import ir

from ...lang import math64
from ...lang.builder import VectorBuilder

__all__ = ["cos", "sin", "tan"]

_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDE
"""2 / pi times 2**232, rounded down. Times a float32's 24 bits it has 256; the truncation is below 2**-100 of a
turn."""
_LEAST_EXPONENT = 19
"""Least exponent of reduced arguments: 2**19 is below the arguments for which `math64.large_angle` holds."""
_FRACTION, _BIAS = 23, 127
"""Mantissa bits and exponent bias of float32."""
_POINT = 232 + _FRACTION - _LEAST_EXPONENT
"""Fractional bits of the product after the shift by the exponent minus `_LEAST_EXPONENT`; bits of whole turns beyond
the word are dropped."""
_WIDE, _I64, _I32 = ir.IntType(256), ir.IntType(64), ir.IntType(32)
_DOUBLE = ir.DoubleType()


def _left(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return r (float64, |r| <= pi/4) and the low bits of k (int64) with x = k pi/2 + r, for a float32 of at least
    2**19."""
    bits = b.bitcast(x, _I32)
    whole = b.or_(b.and_(bits, _I32((1 << _FRACTION) - 1)), _I32(1 << _FRACTION))
    exponent = b.and_(b.lshr(bits, _I32(_FRACTION)), _I32(255))
    product = b.mul(b.zext(whole, _WIDE), _WIDE(_TWO_OVER_PI))
    shifted = b.shl(product, b.zext(b.sub(exponent, _I32(_BIAS + _LEAST_EXPONENT)), _WIDE))
    part = b.trunc(b.lshr(shifted, _WIDE(_POINT - 64)), _I64)  # signed: more than half of a turn counts down
    k = b.lshr(b.add(b.trunc(b.lshr(shifted, _WIDE(_POINT - 1)), _I64), _I64(1)), _I64(1))
    r = b.fmul(b.sitofp(part, _DOUBLE), _DOUBLE(math.pi / 2 * 2.0**-64))
    negative = b.icmp_signed("<", bits, _I32(0))
    return b.select(negative, b.fneg(r), r), b.select(negative, b.neg(k), k)


def _turns(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the reduced angle (float64) and the number of quarter turns (int64)."""
    large = math64.large_angle(b, x)
    wide = b.widen(x)
    lanes = b.lanes(x)
    counts_type: ir.Type = ir.VectorType(_I64, lanes) if lanes else _I64
    angles, counts = b.reserve(wide.type), b.reserve(counts_type)
    b.ir.store(wide, angles)
    b.ir.store(ir.Constant(counts_type, [0] * lanes if lanes else 0), counts)
    with b.ir.if_then(b.any(large), likely=False):
        if lanes:
            angle, count = wide, ir.Constant(counts_type, [0] * lanes)
            for lane in range(lanes):
                r, k = _left(b.ir, b.extract(x, lane))
                angle = b.ir.insert_element(angle, r, _I32(lane))
                count = b.ir.insert_element(count, k, _I32(lane))
        else:
            angle, count = _left(b.ir, x)
        b.ir.store(b.ir.select(large, angle, wide), angles)
        b.ir.store(b.ir.select(large, count, ir.Constant(counts_type, [0] * lanes if lanes else 0)), counts)
    return b.ir.load(angles), b.ir.load(counts)


def _has(b: VectorBuilder, count: ir.Value, bit: int) -> ir.Value:
    lanes = b.lanes(count)
    constant = [ir.Constant(count.type, [v] * lanes if lanes else v) for v in (bit, 0)]
    return b.ir.icmp_signed("!=", b.ir.and_(count, constant[0]), constant[1])


def _sine(b: VectorBuilder, x: ir.Value, ahead: int) -> ir.Value:
    """Return sin(x + ahead * pi/2)."""
    angle, count = _turns(b, x)
    if ahead:
        lanes = b.lanes(count)
        count = b.ir.add(count, ir.Constant(count.type, [ahead] * lanes if lanes else ahead))
    value = b.ir.select(_has(b, count, 1), math64.cos_short(b, angle), math64.sin_short(b, angle))
    return b.narrow(b.ir.select(_has(b, count, 2), b.ir.fneg(value), value))


def tan(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return tan(x)."""
    angle, count = _turns(b, x)
    value = math64.tan_short(b, angle)
    return b.narrow(b.ir.select(_has(b, count, 1), b.div(-1.0, value), value))


def sin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return sin(x)."""
    return _sine(b, x, 0)


def cos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return cos(x)."""
    return _sine(b, x, 1)
