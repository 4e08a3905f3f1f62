"""Float32 sine, cosine and tangent without a C library: the CPU's for ordinary arguments; large arguments are first
reduced modulo pi/2 by the Payne-Hanek method in integers."""

from __future__ import annotations

from llvmlite import ir

from ...lang import math64
from ...lang.builder import VectorBuilder
from .double_angles import reduced_by_payne_hanek

__all__ = ["cos", "sin", "tan"]

_I64, _I32 = ir.IntType(64), ir.IntType(32)


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
                r, k = reduced_by_payne_hanek(b, b.extract(wide, lane))
                angle = b.ir.insert_element(angle, r.hi, _I32(lane))
                count = b.ir.insert_element(count, k, _I32(lane))
        else:
            r, count = reduced_by_payne_hanek(b, wide)
            angle = r.hi
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
