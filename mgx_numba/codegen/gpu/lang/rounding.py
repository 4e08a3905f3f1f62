"""Float32 rounded to 8 bits, as a quantisation ends: to integers without the conversions, which are slow on GPUs; and
pairs of numbers rounded to bfloat16 by one instruction (sm_80 and above).

A number that is small beside 1.5 * 2**23 and added to it leaves its nearest integer in the last bits, ties to even.
Single numbers are converted.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.builder import VectorBuilder, element_type
from ...lang.convert import convert
from ...lang.float8_pairs import has_pairs, to_pairs
from ...lang.vector import constant_int, describe, make_intrinsic, value_type
from .threads import inline, target

__all__ = [
    "rounded_bfloat16", "rounded_int8", "rounded_product_int8", "rounded_product_uint8", "rounded_uint8",
    "saturated_float8_e4m3fn", "saturated_float8_e5m2",
]  # fmt: skip

_LEAST_CAPABILITY = (8, 0)
"""Compute capability from which on there is a conversion to bfloat16."""
_MAGIC = 1.5 * 2**23
"""Its bits end in zeros."""


def _rounded(dtype: str) -> Any:
    name, ends = f"rounded_{dtype}", np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)

    def define(x: types.Type, zero: types.Type) -> Any:
        given, lanes = describe(name, x)
        if given != "float32" or not lanes:
            raise TypingError(f"{name}: expected a vector of float32, got {x}")
        point = constant_int(name, "ZERO", zero, low=low, high=high)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            b, value = VectorBuilder(builder).strict(), values[0]
            near = b.intrinsic("maxnum", [value, low - point])  # the limit where it is NaN
            near = b.intrinsic("minnum", [near, high - point])
            if lanes == 1:  # its bits would be stored from the float's register, which ptxas takes for a conversion
                whole = b.ir.fptosi(b.intrinsic("nearbyint", [near]), b.like(value, ir.IntType(32)))
            else:
                whole = b.bits(b.add(near, _MAGIC))
            code = b.ir.trunc(b.iadd(whole, point), b.like(value, element_type(dtype)))
            return b.select(b.is_nan(value), 0, code) if low else code

        return value_type(dtype, lanes)(x, zero), lower

    return make_intrinsic(name, define, 2, literal=True)


def _rounded_product(dtype: str) -> Any:
    name, ends = f"rounded_product_{dtype}", np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)

    def define(x: types.Type, y: types.Type, zero: types.Type) -> Any:
        given, lanes = describe(name, x)
        if given != "float32" or lanes < 2 or x != y:
            raise TypingError(f"{name}: expected two vectors of float32 of two lanes at least, got {x} and {y}")
        point = constant_int(name, "ZERO", zero, low=low, high=high)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            b = VectorBuilder(builder).strict()
            shifted = b.fused(values[0], values[1], _MAGIC + point)  # whose last bits are the integer
            near = b.intrinsic("maxnum", [shifted, _MAGIC + low])  # the limit where it is NaN
            near = b.intrinsic("minnum", [near, _MAGIC + high])
            code = b.ir.trunc(b.bits(near), b.like(near, element_type(dtype)))
            return b.select(b.is_nan(shifted), 0, code) if low else code

        return value_type(dtype, lanes)(x, y, zero), lower

    return make_intrinsic(name, define, 3, literal=True)


def _saturated(dtype: str) -> Any:
    name, largest = f"saturated_{dtype}", float(ml_dtypes.finfo(dtype).max)

    def define(x: types.Type) -> Any:
        given, lanes = describe(name, x)
        if given != "float32":
            raise TypingError(f"{name}: expected float32, got {x}")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            b = VectorBuilder(builder).strict()
            if has_pairs(dtype):
                return to_pairs(b, values[0], dtype)
            near = b.first_less(largest, b.first_greater(-largest, values[0]))  # lets NaN through
            return convert(b, near, "float32", dtype)

        return value_type(dtype, lanes)(x), lower

    return make_intrinsic(name, define, 1)


def _rounded_bfloat16(x: types.Type) -> Any:
    dtype, lanes = describe("rounded_bfloat16", x)
    if dtype != "float32" or not lanes or lanes % 2:
        raise TypingError(f"rounded_bfloat16: expected pairs of float32, got {x}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        if target().capability < _LEAST_CAPABILITY:
            raise TypingError(f"rounded_bfloat16: {target().name} has no such instruction")
        word = ir.IntType(32)
        words = ir.Constant(ir.VectorType(word, lanes // 2), ir.Undefined)
        for k in range(lanes // 2):
            pair = [builder.extract_element(values[0], word(2 * k + one)) for one in (1, 0)]  # the upper half first
            rounded = inline(builder, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", word, pair, False)
            words = builder.insert_element(words, rounded, word(k))
        return builder.bitcast(words, ir.VectorType(element_type("bfloat16"), lanes))

    return value_type("bfloat16", lanes)(x), lower


rounded_bfloat16 = make_intrinsic("rounded_bfloat16", _rounded_bfloat16, 1)
rounded_int8, rounded_uint8 = _rounded("int8"), _rounded("uint8")
rounded_product_int8, rounded_product_uint8 = _rounded_product("int8"), _rounded_product("uint8")
saturated_float8_e4m3fn, saturated_float8_e5m2 = _saturated("float8_e4m3fn"), _saturated("float8_e5m2")
