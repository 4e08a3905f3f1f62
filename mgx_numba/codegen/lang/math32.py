"""Elementary functions on float32 lanes, in float32 arithmetic: those that models use most.

Every function is branch-free and takes a `VectorBuilder` without fast-math flags and a float32 vector or
scalar. `exp` and `log` are within 1 ulp over all float32; the bounds of the others are in `vecmath`. Range
reductions are Cody and Waite's ("Software Manual for the Elementary Functions", 1980).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from llvmlite import ir

from . import polynomials as table
from .builder import VectorBuilder, has_fma
from .ranges import has_ranges, smaller_size
from .registers import REGISTER_LANES, by_registers, fills_registers
from .target import has

_FRACTION = 23  # bits of a float32, by IEEE 754
_EXPONENT_ZERO = -87.3  # its n is -126
_ABOVE_LARGEST = 89.0  # its exponential is above the largest float32, its n is 128
# From here on the tail of the normal distribution is 0 in float32, and that of its approximation by tanh below 2**-126.
_NORMAL_LIMIT = 14.5
_TANH_LIMIT = 9.98
_TANH_ONE = 18.2
"""Tanh of half of it is 1 in float32: 1 - tanh(9.1) is 2.5e-8, less than half an ulp below 1."""
_EIGHT = 8  # float32 lanes of a register of AVX2
# Adding these rounds to integers and to multiples of 1/32, 1/16 and 1/8.
_WHOLE, _FRACTIONS, _SIXTEENTHS, _EIGHTHS = 1.5 * 2.0**23, 1.5 * 2.0**18, 1.5 * 2.0**19, 1.5 * 2.0**20
_EXPONENT_BIAS = 127  # of a float32, by IEEE 754
_LOGIT_LIMIT = 60.0  # the logistic function of any larger number is 1
_SCALE = 32  # from exp(60) to exp(-104), powers of two times 2**-32 are normal
_BEYOND = 104.0  # the power of two next to exp of this is infinity, and next to exp of minus this 0


def _reduce(
    b: VectorBuilder, x: ir.Value, magic: float = _WHOLE, coarse: bool = False
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = n ln 2 + r with |r| <= ln2 / 2: r, n, and an integer whose low 9 bits are n. |x| below 2**20.

    By `_FRACTIONS`, n is a multiple of 1/32, so |r| <= ln2 / 64, and the integer's low bits are 32 n; |x| below 2**15.
    With ``coarse`` r is within 2**-16 for |x| below 128, by one operation less.
    """
    shifted = b.muladd(x, table.LOG2_E, magic)
    n = b.sub(shifted, magic)
    if coarse:
        return b.muladd(n, -math.log(2.0), x), n, b.bits(shifted)
    r = b.muladd(n, -table.LN2_HIGH_32, x)
    return b.muladd(n, -table.LN2_LOW_32, r), n, b.bits(shifted)


def _scale(b: VectorBuilder, p: ir.Value, bits: ir.Value) -> ir.Value:
    """p * 2**n for p near 1 and n (in the low 9 bits of `bits`) from -150 to 128, subnormal results too."""
    n = b.ashr(b.shl(bits, _FRACTION), _FRACTION)
    if has("avx512f", "avx512vl"):
        return b.intrinsic("ldexp", [p], p.type, overloads=[p.type, n.type], extra=[n])
    first = b.ashr(n, 1)
    second = b.isub(n, first)
    powers = [b.from_bits(b.shl(b.iadd(part, 127), _FRACTION)) for part in (first, second)]
    return b.mul(b.mul(p, powers[0]), powers[1])


def _scalef(b: VectorBuilder, p: ir.Value, n: ir.Value) -> ir.Value:
    """p * 2**floor(n) for a float n, subnormal results and infinity too."""
    whole, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)  # every lane; the current mode

    def emit(x: ir.Value, y: ir.Value) -> ir.Value:
        arguments = [x, y, x, whole, rounding]
        callee = b.function("llvm.x86.avx512.mask.scalef.ps.512", x.type, [v.type for v in arguments])
        return b.ir.call(callee, arguments)

    return by_registers(b, emit, p, n)


def _lookup(b: VectorBuilder, index: ir.Value, values: Sequence[float]) -> ir.Value:
    """Return values[i mod 32] for each lane i of an integer vector; ``values`` fills two registers of 16 elements."""
    type_ = ir.VectorType(ir.FloatType(), REGISTER_LANES)
    halves = [[ir.Constant(ir.FloatType(), v) for v in values[k : k + REGISTER_LANES]] for k in (0, REGISTER_LANES)]
    low, high = (ir.Constant(type_, half) for half in halves)

    def emit(places: ir.Value) -> ir.Value:
        callee = b.function("llvm.x86.avx512.vpermi2var.ps.512", type_, [type_, places.type, type_])
        return b.ir.call(callee, [low, places, high])

    return by_registers(b, emit, index)


def _lookup_16(b: VectorBuilder, index: ir.Value, values: Sequence[float]) -> ir.Value:
    """Return values[i mod 16] for each lane i of an integer vector; ``values`` has 16 elements."""
    type_ = ir.VectorType(ir.FloatType(), REGISTER_LANES)
    held = ir.Constant(type_, [ir.Constant(ir.FloatType(), v) for v in values])

    def emit(places: ir.Value) -> ir.Value:
        callee = b.function("llvm.x86.avx512.permvar.sf.512", type_, [type_, places.type])
        return b.ir.call(callee, [held, places])

    return by_registers(b, emit, index)


def _lookup_8(b: VectorBuilder, index: ir.Value, values: Sequence[int]) -> ir.Value:
    """Return values[i mod 8] for each lane i of an integer vector of AVX2 registers; ``values`` has 8 elements."""
    type_ = ir.VectorType(ir.IntType(32), _EIGHT)
    held = ir.Constant(type_, [ir.Constant(ir.IntType(32), v) for v in values])

    def emit(places: ir.Value) -> ir.Value:
        return b.ir.call(b.function("llvm.x86.avx2.permd", type_, [type_, type_]), [held, places])

    return by_registers(b, emit, index, register=_EIGHT)


def _tabulated_power(b: VectorBuilder, bits: ir.Value, r: ir.Value) -> ir.Value:
    """2**f exp(r) for the fraction f of the n of a reduction by `_FRACTIONS`."""
    power = _lookup(b, bits, table.POWERS_32)
    return b.muladd(power, b.mul(r, b.polynomial(r, table.EXPM1_32_SHORT)), power)


def _bounded(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """x between bounds outside of which exp is 0 and infinity; the order of operands lets NaN through."""
    # Whole numbers just outside of the logarithms of the largest and of half of the smallest float32.
    return b.first_less(89.0, b.first_greater(-104.0, x))


def exp(b: VectorBuilder, x: ir.Value) -> ir.Value:
    r, n, bits = _reduce(b, _bounded(b, x))
    p = b.polynomial(r, table.EXP_32)
    return _scalef(b, p, n) if fills_registers(b, x) else _scale(b, p, bits)


def exp_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    if fills_registers(b, x):
        r, n, bits = _reduce(b, _bounded(b, x), _FRACTIONS)
        return _scalef(b, _tabulated_power(b, bits, r), n)
    return _raised(b, x, table.EXP_32_FAST)


def _exp_coarse(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """exp within 2**-13."""
    if fills_registers(b, x):
        r, n, bits = _reduce(b, _bounded(b, x), _FRACTIONS, coarse=True)
        power = _lookup(b, bits, table.POWERS_32)
        return _scalef(b, b.muladd(power, r, power), n)
    return _raised(b, x, table.EXP_32_COARSE, coarse=True)


def _raised(b: VectorBuilder, x: ir.Value, coefficients: Sequence[float], coarse: bool = False) -> ir.Value:
    """exp(x) as 2**(n - 1) times twice a polynomial: infinity where the product overflows, 0 below 2**-125.5, where the
    bits of the power are 0."""
    x = b.first_less(_ABOVE_LARGEST, b.first_greater(_EXPONENT_ZERO, x))
    r, _, bits = _reduce(b, x, _WHOLE + _EXPONENT_BIAS - 1, coarse)
    return b.mul(b.from_bits(b.shl(bits, _FRACTION)), b.polynomial(r, [2.0 * c for c in coefficients]))


def log(b: VectorBuilder, x: ir.Value) -> ir.Value:
    subnormal = b.fcmp("<", x, 2.0**-126)
    bits = b.bits(b.select(subnormal, b.mul(x, 2.0**_FRACTION), x))
    # The exponent for which the mantissa is in [sqrt(1/2), sqrt(2)).
    exponent = b.ashr(b.isub(bits, 0x3F3504F3), _FRACTION)
    f = b.sub(b.from_bits(b.isub(bits, b.shl(exponent, _FRACTION))), 1.0)
    n = b.ir.sitofp(b.isub(exponent, b.select(subnormal, b.coerce(exponent, _FRACTION)[1], 0)), x.type)
    square = b.mul(f, f)
    tail = b.mul(b.mul(square, f), b.polynomial(f, table.LOG_32))
    tail = b.muladd(n, table.LN2_LOW_32, tail)
    result = b.add(f, b.muladd(square, -0.5, tail))
    result = b.muladd(n, table.LN2_HIGH_32, result)
    result = b.select(b.fcmp("==", x, float("inf")), x, result)
    return log_special(b, x, result)


def log_special(b: VectorBuilder, x: ir.Value, result: ir.Value) -> ir.Value:
    """`result` for positive x, -infinity for 0, NaN for negative x and NaN."""
    result = b.select(b.fcmp(">", x, 0.0), result, float("nan"))
    return b.select(b.fcmp("==", x, 0.0), float("-inf"), result)


def tanh(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """1 - 2 / (exp(2 a) + 1) with the sign of x for a = |x| above `TANH_SPLIT`, else x + x**3 P(x**2)."""
    square = b.mul(x, x)
    near = b.muladd(b.mul(square, x), b.polynomial(square, table.TANH_NEAR_32), x)
    power, expm1 = _power_and_expm1(b, x)
    far = b.sub(1.0, b.div(2.0, b.muladd(power, expm1, b.add(power, 1.0))))
    # the near form makes 0 of -0
    return b.copysign(b.select(b.fcmp(">", b.fabs(x), table.TANH_SPLIT), far, near), x)


def tanh_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # tanh(x) = t / (t + 2) with t = expm1(2 |x|)
    power, expm1 = _power_and_expm1(b, x)
    t = b.muladd(power, expm1, b.sub(power, 1.0))
    return b.copysign(b.div(t, b.add(t, 2.0)), x)


def _power_and_expm1(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A power of two p and e, for which exp(2 |x|) = p + p e; for tanh, which rounds to 1 from 9.1 on."""
    r, _, bits = _reduce(b, b.first_less(_TANH_ONE, b.mul(b.fabs(x), 2.0)), _WHOLE + _EXPONENT_BIAS)
    power = b.from_bits(b.shl(bits, _FRACTION))
    return power, b.muladd(b.mul(r, r), b.polynomial(r, table.EXPM1_32), r)


def _one_and_exp_negated(b: VectorBuilder, x: ir.Value, nan: bool) -> ir.Value:
    """1 + exp(-x), infinity from 2**127.5 or 2**128 on; NaN for NaN where ``nan``, else any number.

    The power of two, exact or from a table, and the polynomial meet in the multiply-add that adds 1.
    """
    if fills_registers(b, x):
        x = _bounded(b, x) if nan or not has_ranges(b, x) else smaller_size(b, x, b.coerce(x, _BEYOND)[1])
        r, n, bits = _reduce_negated(b, x, _FRACTIONS)
        power = _scalef(b, _lookup(b, bits, table.POWERS_32), n)
        return b.muladd(power, _of_negated(b, r, (1.0, *table.EXPM1_32_SHORT)), 1.0)
    # At the lower bound n is 128, which makes the power infinity; at the upper one it is a normal number.
    x = b.first_less(87.0, b.first_greater(-88.75, x))
    if has("avx2") and b.lanes(x) > 0 and b.lanes(x) % _EIGHT == 0:
        r, n, bits = _reduce_negated(b, x, _EIGHTHS)
        power = b.from_bits(b.iadd(_lookup_8(b, bits, table.POWERS_8_BITS), b.shl(bits, _FRACTION - 3)))
        return b.muladd(power, _of_negated(b, r, table.EXP_32_SIXTEENTH), 1.0)
    r, _, bits = _reduce_negated(b, x, _WHOLE + _EXPONENT_BIAS)
    return b.muladd(b.from_bits(b.shl(bits, _FRACTION)), _of_negated(b, r, table.EXP_32_FAST), 1.0)


def _reduce_negated(b: VectorBuilder, x: ir.Value, magic: float) -> tuple[ir.Value, ir.Value, ir.Value]:
    """-x = n ln 2 - r: r, n, and an integer whose low bits are n; as `_reduce`."""
    shifted = b.muladd(x, -table.LOG2_E, magic)
    n = b.sub(shifted, magic)
    r = b.muladd(n, table.LN2_HIGH_32, x)
    return b.muladd(n, table.LN2_LOW_32, r), n, b.bits(shifted)


def _of_negated(b: VectorBuilder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """A polynomial in -x."""
    return b.polynomial(x, [-c if k % 2 else c for k, c in enumerate(coefficients)])


def sigmoid(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + exp(-x)), within 1.7 ulp.

    Both terms of the quotient are scaled, so that the denominator is finite where the result is subnormal. What is
    lost of 1 next to a large power of two is added to the smallest term.
    """
    r, _, bits = _reduce_negated(b, b.first_less(_LOGIT_LIMIT, b.first_greater(-_BEYOND, x)), _WHOLE)
    expm1 = b.muladd(b.mul(r, r), _of_negated(b, r, table.EXPM1_32), b.neg(r))
    power = b.from_bits(b.iadd(b.shl(bits, _FRACTION), (_EXPONENT_BIAS - _SCALE) << _FRACTION))
    one = 2.0**-_SCALE
    whole = b.add(power, one)
    lost = b.sub(one, b.sub(whole, power))
    return b.div(one, b.add(whole, b.muladd(power, expm1, lost)))


def sigmoid_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(1.0, _one_and_exp_negated(b, x, nan=True))


def silu_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    return b.div(x, _one_and_exp_negated(b, x, nan=False))


def scaled_silu_coarse(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """y * silu(x)."""
    return b.mul(b.mul(x, y), _reciprocal_coarse(b, b.add(_exp_coarse(b, b.neg(x)), 1.0)))


def _reciprocal_coarse(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """1 / x within 1.5 * 2**-12 (`vrcpps`; `vrcp14ps` within 2**-14) where the processor has an estimate so good."""
    lanes = b.lanes(x)
    if fills_registers(b, x):
        return by_registers(
            b, lambda v: _estimate(b, "avx512.rcp14.ps.512", v, [v, ir.Constant(ir.IntType(16), -1)]), x
        )
    if has("avx") and lanes in (4, 8):
        return _estimate(b, "avx.rcp.ps.256" if lanes == 8 else "sse.rcp.ps", x)
    return b.div(1.0, x)


def _estimate(b: VectorBuilder, name: str, x: ir.Value, more: Sequence[ir.Value] = ()) -> ir.Value:
    """Return the vector that an x86 estimate instruction computes."""
    callee = b.function(f"llvm.x86.{name}", x.type, [x.type, *(v.type for v in more)])
    return b.ir.call(callee, [x, *more])


def erf(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """1 - exp(a P(a) - a) with the sign of x for a = |x| above `ERF_SPLIT`, else x + x Q(x**2)."""
    a = b.first_less(table.ERF_LIMIT, b.fabs(x))
    square = b.mul(a, a)
    near = b.muladd(_high_by_pairs(b, square, table.ERF_NEAR_32, low=2), x, x)
    power = b.muladd(square, _high_by_pairs(b, a, table.ERF_TAIL_32[1:], low=0), b.mul(a, table.ERF_TAIL_32[0] - 1.0))
    r, _, bits = _reduce(b, power, coarse=True)
    tail = b.iadd(b.bits(_high_by_pairs(b, r, table.EXP_32_FAST, low=0)), b.shl(bits, _FRACTION))
    return b.select(b.fcmp(">", a, table.ERF_SPLIT), b.copysign(b.sub(1.0, b.from_bits(tail)), x), near)


def _arc(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The mask of lanes with |x| > `ARC_SPLIT`, and there asin(sqrt((1 - |x|) / 2)), elsewhere asin(|x|).

    NaN for |x| > 1."""
    a = b.fabs(x)
    beyond = b.fcmp(">", a, table.ARC_SPLIT)
    square = b.select(beyond, b.mul(b.sub(1.0, a), 0.5), b.mul(a, a))
    s = b.select(beyond, b.sqrt(square), a)
    return beyond, b.muladd(b.mul(s, square), b.polynomial(square, table.ASIN_32), s)


def asin(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) with the sign of x for |x| > `ARC_SPLIT`, else the polynomial."""
    beyond, arc = _arc(b, x)
    high, low = table.HALF_PI_32
    far = b.add(b.sub(high, b.mul(arc, 2.0)), low)
    return b.copysign(b.select(beyond, far, arc), x)


def acos(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """pi / 2 - asin(x) for |x| <= `ARC_SPLIT`; beyond, 2 asin(sqrt((1 - x) / 2)) or pi - 2 asin(sqrt((1 + x) / 2))."""
    beyond, arc = _arc(b, x)
    below = b.fcmp("<", x, 0.0)
    (high, low), twice = table.HALF_PI_32, b.mul(arc, 2.0)
    near = b.add(b.sub(high, b.copysign(arc, x)), low)
    far = b.select(below, b.add(b.sub(2.0 * high, twice), 2.0 * low), twice)
    return b.select(beyond, far, near)


def _exp_of_sum(b: VectorBuilder, x: ir.Value, low: ir.Value) -> ir.Value:
    """exp(x + low) for a small `low` and x from -87.3 to 0."""
    if fills_registers(b, x):
        r, n, bits = _reduce(b, x, _FRACTIONS)
        return _scalef(b, _tabulated_power(b, bits, b.add(r, low)), n)
    r, _, bits = _reduce(b, x)
    p = b.polynomial(b.add(r, low), table.EXP_32)
    return b.from_bits(b.iadd(b.bits(p), b.shl(bits, _FRACTION)))


def _lost(b: VectorBuilder, x: ir.Value, y: ir.Value | float, product: ir.Value) -> ir.Value:
    """x * y - product, where `product` is x * y rounded: Dekker, "A floating-point technique for extending the
    available precision", 1971, where the CPU cannot round a sum of products once."""
    x, y = b.coerce(x, y)
    if has_fma():
        return b.muladd(x, y, b.neg(product))
    (x_high, x_low), (y_high, y_low) = _halves(b, x), _halves(b, y)
    rest = b.sub(b.mul(x_high, y_high), product)
    return b.add(b.add(b.add(rest, b.mul(x_high, y_low)), b.mul(x_low, y_high)), b.mul(x_low, y_low))


def _halves(b: VectorBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x as a sum of two numbers of at most 12 bits."""
    high = b.from_bits(b.and_(b.bits(x), -4096))
    return high, b.sub(x, high)


def _high_by_pairs(b: VectorBuilder, x: ir.Value, coefficients: Sequence[float], low: int) -> ir.Value:
    """A polynomial whose powers from `low` on are taken in pairs, as one in x**2: their chain is half as long.

    The `low` first powers, whose rounding errors count, are added one by one.
    """
    square = b.mul(x, x)
    pairs = [b.polynomial(x, coefficients[k : k + 2]) for k in range(low, len(coefficients), 2)]
    result = pairs.pop()
    while pairs:
        result = b.muladd(result, square, pairs.pop())
    for coefficient in reversed(coefficients[:low]):
        result = b.muladd(result, x, coefficient)
    return result


def gelu_erf_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # max(x, 0) less |x| times the normal distribution's mass below -|x|: exp(-x**2 / 2) times a smooth function.
    a = b.first_less(_NORMAL_LIMIT, b.fabs(x))
    square = b.mul(a, a)
    tabulated = fills_registers(b, x)
    magic = _SIXTEENTHS if tabulated else _WHOLE
    shifted = b.muladd(square, -table.LOG2_E / 2, magic)
    n = b.sub(shifted, magic)
    # x**2 = r - 2 n ln 2; products with the high part of ln 2 are exact, so x**2 is rounded once.
    r = b.muladd(a, a, b.mul(n, 2 * table.LN2_HIGH_32))
    if not has_fma():
        r = b.add(b.muladd(n, 2 * table.LN2_HIGH_32, square), _lost(b, a, a, square))
    r = b.muladd(n, 2 * table.LN2_LOW_32, r)
    # Far out the polynomial falls as the quotient grows, whose rounding error then all but cancels.
    part = b.div(a, b.add(a, table.NORMAL_TAIL_SCALE))
    smooth = _high_by_pairs(b, b.sub(table.NORMAL_TAIL_CENTER, part), table.NORMAL_TAIL_32, low=2)
    # the difference is NaN for -infinity, of which the product is
    positive = b.sub(x, b.first_less(0.0, x))
    if tabulated:
        power, lost = (_lookup_16(b, b.bits(shifted), values) for values in (table.POWERS_16, table.POWERS_16_LOST))
        growth = b.polynomial(r, [c * (-0.5) ** (k + 1) for k, c in enumerate(table.EXPM1_32_MEDIUM)])
        tail = _scalef(b, b.mul(b.mul(part, power), smooth), n)
        return b.muladd(b.neg(tail), b.muladd(r, growth, lost), b.sub(positive, tail))
    power = b.polynomial(r, [c * (-0.5) ** k for k, c in enumerate(table.EXP_32)])
    tail = _scale(b, b.mul(part, smooth), b.bits(shifted))
    return b.muladd(b.neg(tail), power, positive)


def gelu_tanh_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    # 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)), from the tail of |x|; u = x (c0 + c1 x**2) as a sum of two.
    scale = 2.0 * table.GELU_SCALE
    (c0, c0_low), (c1, c1_low) = _split(scale), _split(table.GELU_CUBIC * scale)
    a = b.first_less(_TANH_LIMIT, b.fabs(x))
    square = b.mul(a, a)
    square_low = _lost(b, a, a, square)
    product = b.mul(square, c1)
    low = _lost(b, square, c1, product)
    low = b.add(low, b.muladd(square_low, c1, b.mul(square, c1_low)))
    inner = b.add(product, c0)
    # what the sum lost, whichever of the two is larger
    part = b.sub(inner, product)
    lost = b.add(b.sub(product, b.sub(inner, part)), b.sub(c0, part))
    low = b.add(b.add(low, lost), c0_low)
    u = b.mul(a, inner)
    u_low = b.muladd(a, low, _lost(b, a, inner, u))
    z = b.select(b.fcmp("<", a, _TANH_LIMIT), _exp_of_sum(b, b.neg(u), b.neg(u_low)), 0.0)
    return b.div(b.mul(x, b.select(b.fcmp("<", x, 0.0), z, 1.0)), b.add(z, 1.0))


def _split(value: float) -> tuple[float, float]:
    """A constant as a sum of two float32 numbers."""
    high = struct.unpack("f", struct.pack("f", value))[0]
    return high, value - high


def softplus_fast(b: VectorBuilder, x: ir.Value) -> ir.Value:
    z = exp_fast(b, b.neg(b.fabs(x)))
    return b.muladd(z, b.polynomial(z, table.LOG1P_32), b.first_greater(0.0, x))


def over_power_075(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y**0.75 from estimates of roots that are within 2**-14; the vectors fill registers of AVX-512."""
    undefined = ir.Constant(ir.VectorType(ir.FloatType(), REGISTER_LANES), ir.Undefined)
    whole = ir.Constant(ir.IntType(16), -1)

    def estimate(v: ir.Value) -> ir.Value:
        """v**-0.5"""
        callee = b.function("llvm.x86.avx512.rsqrt14.ps.512", v.type, [v.type, v.type, whole.type])
        return b.ir.call(callee, [v, undefined, whole])

    def emit(x: ir.Value, y: ir.Value) -> ir.Value:
        root = estimate(y)
        fourth = b.mul(root, estimate(root))
        cube = b.mul(b.mul(fourth, fourth), fourth)
        product = b.mul(y, fourth)
        lost = b.fused(y, fourth, b.neg(product))
        e = b.fused(b.neg(lost), cube, b.fused(b.neg(product), cube, 1.0))
        # (1 - e)**-0.75 to the second order.
        power = b.fused(b.mul(cube, e), b.fused(e, 0.65625, 0.75), cube)
        # Of 0, infinity, what is negative and NaN, the estimate is the value.
        return b.mul(x, b.select(b.is_nan(e), root, power))

    return by_registers(b, emit, x, y)
