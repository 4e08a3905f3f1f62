"""Exact remainders in integer arithmetic, without a C library; those of float32 are computed in float64."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.vector import FLOATS, KernelFunction, elementwise

_FRACTION, _BIAS = 52, 1023
"""Mantissa bits and exponent bias of float64."""
_STEP = 64 - _FRACTION - 1
"""Bits by which a remainder of 53 bits is shifted at once: together a 64-bit word."""
_I64, _I32 = ir.IntType(64), ir.IntType(32)


def _parts(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return ``whole`` (int64) and ``exponent`` (int32) with |x| = whole * 2**(exponent - 1075)."""
    bits = b.and_(b.bitcast(x, _I64), _I64((1 << 63) - 1))
    field, fraction = b.trunc(b.lshr(bits, _I64(_FRACTION)), _I32), b.and_(bits, _I64((1 << _FRACTION) - 1))
    subnormal = b.icmp_unsigned("==", field, _I32(0))
    whole = b.select(subnormal, fraction, b.or_(fraction, _I64(1 << _FRACTION)))
    return whole, b.select(subnormal, _I32(1), field)


def _shifted(b: ir.IRBuilder, whole: ir.Value, left: ir.Value, divisor: ir.Value) -> ir.Value:
    """Return whole * 2**left modulo divisor (whole modulo divisor if ``left`` is negative), shifting at most `_STEP`
    bits per iteration. Exponents of float64 differ by up to 2045, and seldom do."""
    first = b.urem(whole, divisor)
    before, head, body, behind = b.block, *(b.append_basic_block() for _ in range(3))
    b.branch(head)
    b.position_at_end(head)
    rest, bits = b.phi(_I64), b.phi(_I32)
    rest.add_incoming(first, before)
    bits.add_incoming(left, before)
    b.cbranch(b.icmp_signed(">", bits, _I32(0)), body, behind)
    b.position_at_end(body)
    step = b.select(b.icmp_signed("<", bits, _I32(_STEP)), bits, _I32(_STEP))
    rest.add_incoming(b.urem(b.shl(rest, b.zext(step, _I64)), divisor), body)
    bits.add_incoming(b.sub(bits, step), body)
    b.branch(head)
    b.position_at_end(behind)
    return rest


def _power_of_two(b: ir.IRBuilder, exponent: ir.Value) -> ir.Value:
    """Return 2**exponent as a normal float64."""
    field = b.zext(b.add(exponent, _I32(_BIAS)), _I64)
    return b.bitcast(b.shl(field, _I64(_FRACTION)), ir.DoubleType())


def _of_finite(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return |x| modulo |y| for finite float64, y not 0."""
    (whole, high), (divisor, low) = _parts(b, x), _parts(b, y)
    divisor = b.select(b.icmp_unsigned("==", divisor, _I64(0)), _I64(1), divisor)
    left = b.sub(high, low)
    rest = _shifted(b, whole, left, divisor)
    exponent = b.sub(low, _I32(_BIAS + _FRACTION))
    half = b.ashr(exponent, _I32(1))  # of both halves the power is normal, and neither product is rounded
    found = b.fmul(b.uitofp(rest, ir.DoubleType()), _power_of_two(b, half))
    return b.select(b.icmp_signed("<", left, _I32(0)), x, b.fmul(found, _power_of_two(b, b.sub(exponent, half))))


def _fmod(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return the remainder with the sign of ``x``; NaN if x is infinite, y is 0, or either is NaN."""
    narrow = b.width(x) == 32
    a, divisor = (b.widen(x), b.widen(y)) if narrow else (x, y)
    lanes = b.lanes(x)
    if lanes:
        rest = b.poison(a.type)
        for lane in range(lanes):
            one = _of_finite(b.ir, b.extract(a, lane), b.extract(divisor, lane))
            rest = b.ir.insert_element(rest, one, _I32(lane))
    else:
        rest = _of_finite(b.ir, a, divisor)
    rest = b.narrow(rest) if narrow else rest  # a multiple of the last bit of x or y that is below y: a float32
    infinite = float("inf")
    signed = b.copysign(b.fabs(rest), x)
    kept = b.select(b.fcmp("==", b.fabs(y), infinite), x, signed)
    fits = b.ir.and_(b.fcmp("<", b.fabs(x), infinite), b.fcmp("!=", y, 0.0))
    return b.select(b.ir.and_(fits, b.fcmp("==", y, y)), kept, float("nan"))


def _mod(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return the remainder with the sign of ``y``, as in the scalar protocol."""
    return _fmod(b, b.add(_fmod(b, x, y), y), y)


def _of(name: str, emit: Callable[[VectorBuilder, ir.Value, ir.Value], ir.Value]) -> KernelFunction:
    return elementwise(name, lambda b, dtype, x, y: emit(b, x, y), 2, FLOATS)


fmod_exact = _of("fmod_exact", _fmod)
mod_exact = _of("mod_exact", _mod)
