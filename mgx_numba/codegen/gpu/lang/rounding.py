"""Rounding of float32 to 8 bits at the end of a quantisation, without the slow conversion instructions.

Adding 1.5 * 2**23 to a small number leaves its nearest integer (ties to even) in the last mantissa bits. Scalars use
conversion instructions. GELU of float16 values times a factor is computed in float16 pairs, with two thirds of the
instructions: within 1.5e-3 up to 4, and one unit in the last place beyond, like a few roundings to float16.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from llvmlite import ir

from ...lang.builder import VectorBuilder, element_type
from ...lang.convert import convert
from ...lang.narrow_pairs import has_pairs, to_pairs
from ...lang.vector import Definition, KernelFunction, Values, describe, make_intrinsic, value_type
from ...toolchain.numba_core import TypingError, types
from .quick import gelu_erf_of_bytes
from .threads import inline, target

_MAGIC = 1.5 * 2**23
"""Rounding constant of float32; its mantissa ends in zeros."""
_HALF_MAGIC = 1.5 * 2**10
"""Rounding constant of float16."""
_HALF_CAPABILITY = (8, 0)
"""Least compute capability with a maximum of float16 pairs; tanh is older."""
_NORMAL_16 = 0.80025, 0.0347
"""Coefficients a, b of the normal distribution function as (1 + tanh(x (a + b x^2))) / 2, fitted to minimise the
largest error of x times it: 2.9e-4."""
_FAR_16 = -60000.0
"""Lower clamp of float16, because -infinity times 0 is NaN. With factors beyond 24,000 it also replaces halves of -5
times them, where the distribution function is not quite 0."""


def _expect_vectors(name: str, least: int, given: tuple[types.Type, ...]) -> int:
    """Return the lanes of operands, which must be equal vectors of at least ``least`` float32."""
    dtype, lanes = describe(name, given[0])
    if dtype != "float32" or lanes < least or any(x != given[0] for x in given):
        found = ", ".join(map(str, given))
        raise TypingError(f"{name}: expected vectors of float32 of {least} or more lanes, all of as many, got {found}")
    return lanes


def _rounded(dtype: str) -> KernelFunction:
    name, ends = f"rounded_{dtype}", np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)

    def define(x: types.Type, zero: types.Type) -> Definition:
        lanes = _expect_vectors(name, 1, (x, zero))

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b, (value, point) = VectorBuilder(builder).strict(), values
            near = b.intrinsic("maxnum", [value, b.sub(low, point)])  # the limit where it is NaN
            near = b.intrinsic("minnum", [near, b.sub(high, point)])
            wide = b.like(value, ir.IntType(32))
            if lanes == 1:  # its bits would be stored from the float's register, which ptxas takes for a conversion
                whole = b.ir.fptosi(b.intrinsic("nearbyint", [near]), wide)
            else:
                whole = b.bits(b.add(near, _MAGIC))
            code = b.ir.trunc(b.iadd(whole, b.ir.fptosi(point, wide)), b.like(value, element_type(dtype)))
            return b.select(b.is_nan(value), 0, code) if low else code

        return value_type(dtype, lanes)(x, zero), emit

    return make_intrinsic(name, define)


def _rounded_product(dtype: str) -> KernelFunction:
    name = f"rounded_product_{dtype}"

    def define(x: types.Type, y: types.Type, zero: types.Type) -> Definition:
        lanes = _expect_vectors(name, 2, (x, y, zero))

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return _product(VectorBuilder(builder).strict(), dtype, *values)

        return value_type(dtype, lanes)(x, y, zero), emit

    return make_intrinsic(name, define)


def _product(b: VectorBuilder, dtype: str, x: ir.Value, y: ir.Value, zero: ir.Value) -> ir.Value:
    """Emit ``rounded_product``."""
    ends = np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)
    shifted = b.fused(x, y, b.add(zero, _MAGIC))  # whose last bits are the integer
    near = b.intrinsic("maxnum", [shifted, _MAGIC + low])  # the limit where it is NaN
    near = b.intrinsic("minnum", [near, _MAGIC + high])
    code = b.ir.trunc(b.bits(near), b.like(near, element_type(dtype)))
    return b.select(b.is_nan(shifted), 0, code) if low else code


def _gelu_product(dtype: str) -> KernelFunction:
    name, whole = f"gelu_erf_product_{dtype}", dtype in ("int8", "uint8")

    def define(*given: types.Type) -> Definition:
        lanes = _expect_vectors(name, 2, given)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b, arch = VectorBuilder(builder).strict(), target()
            if arch.nvidia and arch.capability >= _HALF_CAPABILITY and (whole or has_pairs(dtype)):
                return _gelu_pairs(b, dtype, lanes, *values)
            x = gelu_erf_of_bytes(builder, values[0])
            return _product(b, dtype, x, *values[1:]) if whole else _saturate(b, dtype, b.mul(x, values[1]))

        return value_type(dtype, lanes)(*given), emit

    return make_intrinsic(name, define, 2 + whole)


def _gelu_pairs(b: VectorBuilder, dtype: str, lanes: int, x: ir.Value, y: ir.Value, *zero: ir.Value) -> ir.Value:
    """Emit ``gelu(x) * y`` in float16 pairs, rounded to 8 bits."""
    builder, whole = b.ir, bool(zero)
    word, byte = ir.IntType(32), ir.IntType(8)
    halves = b.mul(x, b.mul(y, 0.5))
    shift = b.add(zero[0], _HALF_MAGIC) if whole else None
    made = b.poison(ir.VectorType(byte, lanes))
    for k in range(0, lanes, 2):
        own = [builder.extract_element(v, word(n)) for v in (x, halves) for n in (k, k + 1)]
        if shift is not None:
            own += [builder.extract_element(shift, word(n)) for n in (k, k + 1)]
            pair = inline(builder, _pair_text(dtype), f"=r,{','.join('f' * 6)}", own, word)
            lane = builder.bitcast(pair, ir.VectorType(byte, 4))
            codes = [builder.extract_element(lane, word(n)) for n in (0, 2)]
        else:
            pair = inline(builder, _pair_text(dtype), f"=h,{','.join('f' * 4)}", own, ir.IntType(16))
            lane = builder.bitcast(pair, ir.VectorType(byte, 2))
            codes = [builder.extract_element(lane, word(n)) for n in (0, 1)]
        for n, code in enumerate(codes):
            made = builder.insert_element(made, code, word(k + n))
    return made


def _pair_text(dtype: str) -> str:
    """Return the PTX of two results from two arguments, their halves times the factor and, for integers, the zero
    point."""
    center, slope = _NORMAL_16
    numbers = {"center": center, "slope": slope, "far": _FAR_16}
    limited = "max.NaN.f16x2" if dtype.startswith("float8") else "max.f16x2"
    lines = [
        "cvt.rn.f16x2.f32 x, $2, $1",
        "cvt.rn.f16x2.f32 r, $4, $3",
        "mul.rn.f16x2 s, x, x",
        "fma.rn.f16x2 s, s, slope, center",
        "mul.rn.f16x2 s, s, x",
        "tanh.approx.f16x2 t, s",
    ]
    if dtype == "int8":  # NaN is as what has no mass
        numbers["none"] = -1.0
        lines.append("max.f16x2 t, t, none")
    lines += [f"{limited} r, r, far", "fma.rn.f16x2 r, r, t, r"]
    if dtype in ("int8", "uint8"):
        ends = np.iinfo(dtype)
        numbers |= {"low": _HALF_MAGIC + int(ends.min), "high": _HALF_MAGIC + int(ends.max)}
        lines += [
            "cvt.rn.f16x2.f32 s, $6, $5",
            "add.rn.f16x2 r, r, s",
            "max.f16x2 r, r, low",
            "min.f16x2 $0, r, high",
        ]
    else:
        lines.append(f"cvt.rn.satfinite.{dtype.removeprefix('float8_').removesuffix('fn')}x2.f16x2 $0, r")
    constants = [f"mov.b32 {name}, {_pair_of(number)}" for name, number in numbers.items()]
    lines = [f".reg .b32 x, r, s, t, {', '.join(numbers)}", *constants, *lines]
    return f"{{ {' '.join(f'{line};' for line in lines)} }}"


def _pair_of(number: float) -> str:
    """Return a PTX word of two equal float16."""
    bits = int(np.float16(number).view(np.uint16))
    return f"0x{bits:04x}{bits:04x}"


def _saturated(dtype: str) -> KernelFunction:
    name = f"saturated_{dtype}"

    def define(x: types.Type) -> Definition:
        given, lanes = describe(name, x)
        if given != "float32":
            raise TypingError(f"{name}: expected float32, got {x}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return _saturate(VectorBuilder(builder).strict(), dtype, values[0])

        return value_type(dtype, lanes)(x), emit

    return make_intrinsic(name, define)


def _saturate(b: VectorBuilder, dtype: str, x: ir.Value) -> ir.Value:
    """Emit ``saturated``."""
    if has_pairs(dtype):
        return to_pairs(b, x, dtype)
    largest = float(ml_dtypes.finfo(dtype).max)
    return convert(b, b.first_less(largest, b.first_greater(-largest, x)), "float32", dtype)  # lets NaN through


rounded_int8, rounded_uint8 = _rounded("int8"), _rounded("uint8")
rounded_product_int8, rounded_product_uint8 = _rounded_product("int8"), _rounded_product("uint8")
gelu_erf_product_int8, gelu_erf_product_uint8 = _gelu_product("int8"), _gelu_product("uint8")
gelu_erf_product_float8_e4m3fn = _gelu_product("float8_e4m3fn")
gelu_erf_product_float8_e5m2 = _gelu_product("float8_e5m2")
saturated_float8_e4m3fn, saturated_float8_e5m2 = _saturated("float8_e4m3fn"), _saturated("float8_e5m2")
