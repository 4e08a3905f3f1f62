"""Conversion of elements between dtypes, as NumPy and ml_dtypes convert, with float to integer saturating.

float16 uses the processor's instructions where it has them, and so do the floats of `narrow_pairs`. Every other
storage float is converted with integer arithmetic: rounded to nearest, ties to even, overflowing to infinity or to NaN
as the format has it (no saturation, as ml_dtypes ``astype``).
"""

from __future__ import annotations

import math

from llvmlite import ir

from ...dataclass import dataclass
from .builder import VectorBuilder, element_type, is_signed
from .narrow_pairs import BFLOAT16_PAIRS, bfloat16_pairs, from_pairs, has_pairs, to_pairs
from .ranges import has_ranges, larger_size
from .target import has

_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_I32 = ir.IntType(32)
_FRACTION, _FRACTION_64 = 23, 52  # bits of a float32 and of a float64, by IEEE 754


@dataclass(frozen=True)
class _Small:
    """A binary float format: `1 + exponent + mantissa` bits; `overflow` is the code of what is too large.

    Codes are without the sign bit. Formats with `one_zero` have no negative zero; its code is their only NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    one_zero: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def end(self) -> float:
        """The middle between the largest number and what would follow it: what is beyond overflows, and itself does if
        the largest code is odd."""
        unit = 2.0 ** ((self.largest >> self.mantissa) - self.bias - self.mantissa)
        return ((1 << self.mantissa) + self.largest % (1 << self.mantissa) + 0.5) * unit


_SMALL = {
    "float16": _Small(5, 10, 15, largest=0x7BFF, overflow=0x7C00, nan=0x7E00),
    "float8_e4m3fn": _Small(4, 3, 7, largest=0x7E, overflow=0x7F, nan=0x7F),
    "float8_e4m3fnuz": _Small(4, 3, 8, largest=0x7F, overflow=0x80, nan=0x80, one_zero=True),
    "float8_e5m2": _Small(5, 2, 15, largest=0x7B, overflow=0x7C, nan=0x7E),
    "float8_e5m2fnuz": _Small(5, 2, 16, largest=0x7F, overflow=0x80, nan=0x80, one_zero=True),
}


def convert(b: VectorBuilder, x: ir.Value, source: str, target: str) -> ir.Value:
    """`x` of dtype `source` as dtype `target`."""
    if source == target:
        return x
    b = b.strict()
    if source in _SMALL or source == "bfloat16":
        return convert(b, _load_storage(b, x, source), "float32", target)
    if target in _SMALL or target == "bfloat16":
        return _store_storage(b, _to_float32(b, x, source, target), target)
    if target == "bool":
        return truth(b, x, source)
    type_ = b.like(x, element_type(target))
    if source in ("float32", "float64"):
        if target == "float64":
            return b.ir.fpext(x, type_)
        if target == "float32":
            return b.ir.fptrunc(x, type_)
        if b.lanes(x) and not has("neon"):
            return _saturated(b, x, target)
        name = "fptosi.sat" if is_signed(target) else "fptoui.sat"
        return b.intrinsic(name, [x], type_, overloads=[type_, x.type])
    if target in ("float32", "float64"):
        return b.ir.sitofp(x, type_) if is_signed(source) else b.ir.uitofp(x, type_)
    wide, own = element_type(target).width, b.width(x)
    if wide == own:
        return x
    if wide < own:
        return b.ir.trunc(x, type_)
    return b.ir.sext(x, type_) if is_signed(source) else b.ir.zext(x, type_)


def _saturated(b: VectorBuilder, x: ir.Value, target: str) -> ir.Value:
    """A vector of float32 or float64 as integers; NaN is 0. LLVM's ``fptosi.sat`` takes six times as long (AVX-512).

    On ARM it is one instruction, and LLVM makes ``fmaxnm`` of these comparisons, which passes a signalling NaN on.
    """
    type_, digits = element_type(target), 1 + (_FRACTION_64 if x.type.element == _DOUBLE else _FRACTION)
    bits = type_.width - is_signed(target)
    low, end = -(2.0**bits) if is_signed(target) else 0.0, 2.0**bits
    high = end - 2.0 ** max(0, bits - digits)  # the last number below the end
    near = b.first_greater(x, low)  # the limit where x is NaN
    near = b.select(b.fcmp("<", near, high), near, high)
    if type_.width == 64:
        whole = _whole_64(b, near, is_signed(target))
    elif target == "uint32":
        upper = b.fcmp(">=", near, 2.0**31)
        whole = b.ir.fptosi(b.sub(near, b.select(upper, b.constant(x.type, 2.0**31), 0.0)), b.like(x, _I32))
        whole = b.select(upper, b.xor(whole, -(1 << 31)), whole)
    else:
        whole = b.ir.fptosi(near, b.like(x, _I32))
    if bits > digits:
        whole = b.select(b.fcmp(">=", x, end), (1 << bits) - 1, whole)
    if low:
        whole = b.select(b.is_nan(x), 0, whole)
    return whole if whole.type.element == type_ else b.ir.trunc(whole, b.like(x, type_))


def _whole_64(b: VectorBuilder, x: ir.Value, signed: bool) -> ir.Value:
    """A vector of floats within the range of 64-bit integers as such integers.

    Without AVX-512 each half of an integer is the last digits of a sum with a large float64.
    """
    wide = b.like(x, ir.IntType(64))
    if has("avx512dq"):
        return b.ir.fptosi(x, wide) if signed else b.ir.fptoui(x, wide)
    x = b.intrinsic("trunc", [x if x.type.element == _DOUBLE else b.widen(x)])
    upper = b.floor(b.mul(x, 2.0**-32))
    lower = b.sub(x, b.mul(upper, 2.0**32))
    # A float64 of this exponent counts in ones; half of it more keeps sums with negative numbers there.
    ones = 2.0**_FRACTION_64
    high = b.shl(b.bits(b.add(upper, 1.5 * ones)), 32)
    return b.or_(high, b.and_(b.bits(b.add(lower, ones)), (1 << 32) - 1))


def truth(b: VectorBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """Bool (i1) of whether each element is nonzero; NaN is."""
    if dtype == "bool":
        return x
    if dtype in ("float32", "float64"):
        return b.fcmp("!=", x, 0.0)
    if dtype in _SMALL or dtype == "bfloat16":
        return truth(b, _load_storage(b, x, dtype), "float32")
    return b.icmp("!=", x, 0)


def nearest(b: VectorBuilder, x: ir.Value, scale: ir.Value, dtype: str, limits: int) -> ir.Value:
    """``x / scale`` of float32 as a float8 dtype and back, times ``scale``, a power of two. ``limits``: 0, or 1 where
    none is beyond the largest number of the dtype, or 2 where none is negative either. With fast math zeros have any
    sign."""
    f, signed_zeros = _SMALL[dtype], not b.fast
    b = b.strict()
    # What is added to x and taken away again rounds it to the last place of the sum, ties to even. That is the one of
    # the result if x times a power of two is taken from x (were it added, the sum might have a higher exponent), or if
    # 1.5 times the power of two below x is added to x of any sign. Subnormals are rounded as the least normal number
    # is. Products are exact unless they overflow, far beyond the largest number; NaN stays NaN.
    factor, normal = 2.0 ** (_FRACTION - f.mantissa), b.mul(scale, 2.0 ** (1 - f.bias))
    if limits == 2:
        near_size, factor = b.first_greater(x, b.mul(normal, 1.5)), -factor
    elif has_ranges(b, x):
        near_size, factor = larger_size(b, x, b.mul(normal, 1.5)), -factor
    else:
        exponent = b.from_bits(b.and_(b.bits(x), 0x7F800000))
        near_size, factor = b.first_greater(exponent, normal), 1.5 * factor
    near = b.muladd(near_size, -factor, b.muladd(near_size, factor, x))
    if not limits:
        beyond = b.fcmp(">=" if f.largest % 2 else ">", b.fabs(x), b.mul(scale, f.end))
        near = b.select(beyond, math.nan if f.overflow == f.nan else b.copysign(math.inf, x), near)
    if f.one_zero or not signed_zeros:
        return near
    return b.from_bits(b.or_(b.bits(near), b.and_(b.bits(x), 0x80000000)))


def _to_float32(b: VectorBuilder, x: ir.Value, source: str, target: str) -> ir.Value:
    """float32 that rounds to the same storage float as `x` does.

    float64 is rounded to odd, so that rounding twice is rounding once; bfloat16 is rounded twice, as in
    ml_dtypes.
    """
    if source != "float64" or target == "bfloat16":
        return convert(b, x, source, "float32")
    near = b.narrow(x)
    back = b.widen(near)
    bits = b.bits(near)
    beyond = b.fcmp(">", b.fabs(back), b.fabs(x))
    truncated = b.isub(bits, b.ir.zext(beyond, bits.type))
    odd = b.select(b.fcmp("==", back, x), bits, b.or_(truncated, 1))
    return b.select(b.is_nan(x), near, b.from_bits(odd))


def _load_storage(b: VectorBuilder, x: ir.Value, dtype: str) -> ir.Value:
    if dtype == "bfloat16":
        return b.from_bits(b.shl(b.ir.zext(x, b.like(x, _I32)), 16))
    if dtype == "float16" and _has_half():
        return b.ir.fpext(b.ir.bitcast(x, b.like(x, _HALF)), b.like(x, _FLOAT))
    return from_pairs(b, x, dtype) if has_pairs(dtype) else _expand(b, x, _SMALL[dtype])


def _store_storage(b: VectorBuilder, x: ir.Value, dtype: str) -> ir.Value:
    if dtype == "bfloat16":
        return bfloat16_pairs(b, x) if has(BFLOAT16_PAIRS) else _round_bfloat16(b, x)
    if dtype == "float16" and _has_half():
        return b.ir.bitcast(b.ir.fptrunc(x, b.like(x, _HALF)), b.like(x, ir.IntType(16)))
    if has_pairs(dtype):
        return _overflowing(b, x, to_pairs(b, x, dtype), _SMALL[dtype])
    return _round_small(b, x, _SMALL[dtype])


def _has_half() -> bool:
    return has("f16c") or has("avx512f") or has("neon")


def _round_bfloat16(b: VectorBuilder, x: ir.Value) -> ir.Value:
    bits = b.bits(x)
    rounded = b.iadd(bits, b.iadd(b.and_(b.lshr(bits, 16), 1), 0x7FFF))
    quiet = b.or_(b.and_(bits, 0x80000000), 0x7FC00000)
    return b.ir.trunc(b.lshr(b.select(b.is_nan(x), quiet, rounded), 16), b.like(x, ir.IntType(16)))


def _overflowing(b: VectorBuilder, x: ir.Value, saturated: ir.Value, f: _Small) -> ir.Value:
    """float32 as a format of 8 bits, of which the saturated codes are there."""
    inside = b.fcmp("<" if f.largest % 2 else "<=", b.fabs(x), f.end)
    sign = b.and_(b.lshr(b.bits(x), 24), 0x80)  # from the last of 32 bits to the last of 8
    beyond = b.select(b.is_nan(x), b.constant(sign.type, f.nan), f.overflow)
    return b.select(inside, saturated, b.ir.trunc(b.or_(sign, beyond), saturated.type))


def _expand(b: VectorBuilder, x: ir.Value, f: _Small) -> ir.Value:
    """Any format of `_SMALL` to float32, exactly."""
    wide = b.ir.zext(x, b.like(x, _I32))
    magnitude = b.and_(wide, (1 << (f.bits - 1)) - 1)
    sign = b.shl(b.lshr(wide, f.bits - 1), 31)
    normal = b.iadd(b.shl(magnitude, _FRACTION - f.mantissa), (127 - f.bias) << _FRACTION)
    # Codes below 2**mantissa are zero and subnormals: an integer times the smallest subnormal.
    small = b.mul(b.ir.sitofp(magnitude, b.like(x, _FLOAT)), 2.0 ** (1 - f.bias - f.mantissa))
    bits = b.select(b.icmp("<", magnitude, 1 << f.mantissa), b.bits(small), normal)
    if f.one_zero:
        bits = b.select(b.icmp("==", wide, f.nan), 0x7FC00000, bits)
    else:
        if f.overflow != f.nan:
            bits = b.select(b.icmp("==", magnitude, f.overflow), 0x7F800000, bits)
        special = b.icmp(">", magnitude, f.overflow - (f.overflow == f.nan))
        bits = b.select(special, 0x7FC00000, bits)
    return b.from_bits(b.or_(bits, sign))


def _round_small(b: VectorBuilder, x: ir.Value, f: _Small) -> ir.Value:
    """float32 to any format of `_SMALL`."""
    bits = b.bits(x)
    magnitude = b.and_(bits, 0x7FFFFFFF)
    dropped = _FRACTION - f.mantissa
    tie = b.and_(b.lshr(magnitude, dropped), 1)
    rounded = b.lshr(b.iadd(b.iadd(magnitude, (1 << (dropped - 1)) - 1), tie), dropped)
    normal = b.isub(rounded, (127 - f.bias) << f.mantissa)
    # Adding a power of two whose last place is the smallest subnormal rounds to a multiple of it.
    power = 24 - f.bias - f.mantissa
    small = b.isub(b.bits(b.add(b.from_bits(magnitude), 2.0**power)), (127 + power) << _FRACTION)
    code = b.select(b.icmp("<", magnitude, (128 - f.bias) << _FRACTION), small, normal)
    code = b.select(b.icmp(">", code, f.largest), f.overflow, code)
    code = b.select(b.icmp(">", magnitude, 0x7F800000), f.nan, code)
    sign = b.shl(b.lshr(bits, 31), f.bits - 1)
    signed = b.or_(code, sign)
    if f.one_zero:
        signed = b.select(b.icmp("==", code, 0), 0, signed)
    return b.ir.trunc(signed, b.like(x, ir.IntType(f.bits)))
