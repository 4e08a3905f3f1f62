"""Rounding to 8 bits, the last step of a quantisation.

round_int8(v, ZERO), round_uint8(v, ZERO)
    a vector of float32 rounded to the nearest integers, ties to even, plus ZERO (an integer literal of the result's
    range), saturated; NaN gives 0. One conversion instead of a rounding and a conversion.

With AVX2 alone whole vectors of unsigned bytes are not clamped to the lower limit: numbers below all int32, and NaN,
convert to the least int32, and packing saturates.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from ...lang.builder import VectorBuilder, element_type
from ...lang.vector import Definition, KernelFunction, Values, Vec, constant_int, make_intrinsic
from ...toolchain.numba_core import TypingError, types
from .. import host

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_PACKED = 32
"""Bytes of a 256-bit vector, packed from four vectors of float32."""


def _round(dtype: str) -> KernelFunction:
    name, ends = f"round_{dtype}", np.iinfo(dtype)
    low, high = int(ends.min), int(ends.max)

    def define(v: types.Type, zero: types.Type) -> Definition:
        if not isinstance(v, Vec) or v.dtype != "float32":
            raise TypingError(f"{name}: expected a vector of float32, got {v}")
        point = constant_int(name, "ZERO", zero, low=low, high=high)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b, value = VectorBuilder(builder).strict(), values[0]
            if dtype == "uint8" and v.lanes % _PACKED == 0 and host.has("avx2") and host.host().vector_bits == 256:
                return _packed(b, value, point)
            near = b.first_greater(value, float(low - point))  # the limit where it is NaN
            near = b.select(b.fcmp("<", near, float(high - point)), near, float(high - point))
            wide = b.like(value, _I32)
            whole = b.intrinsic("lrint", [near], wide, overloads=[wide, value.type])
            if point:
                whole = b.iadd(whole, point)
            if low:
                whole = b.select(b.is_nan(value), 0, whole)
            return b.ir.trunc(whole, b.like(value, element_type(dtype)))

        return Vec(dtype, v.lanes)(v, zero), emit

    return make_intrinsic(name, define, literal=True)


def _packed(b: VectorBuilder, value: ir.Value, point: int) -> ir.Value:
    """Return whole vectors of unsigned bytes, each packed from four vectors; ``point`` is 0 to 255."""
    eight, words, octets = ir.VectorType(_I32, 8), ir.VectorType(_I16, 16), ir.VectorType(_I8, _PACKED)

    def call(name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        return b.ir.call(b.function(f"llvm.x86.{name}", result, [a.type for a in arguments]), arguments)

    def integers(start: int) -> ir.Value:
        floats = b.shuffle(value, range(start, start + 8))
        limit = b.constant(floats.type, float(255 - point))
        near = b.select(b.fcmp("<", limit, floats), limit, floats)  # NaN stays
        whole = call("avx.cvt.ps2dq.256", eight, near)
        return b.iadd(whole, point) if point else whole

    parts = []
    for start in range(0, value.type.count, _PACKED):
        pairs = [call("avx2.packssdw", words, integers(at), integers(at + 8)) for at in (start, start + 16)]
        # Halves of vectors are packed on their own: four bytes of each vector, and then the four others of each.
        fours = b.ir.bitcast(call("avx2.packuswb", octets, *pairs), eight)
        parts.append(b.ir.bitcast(b.shuffle(fours, (0, 4, 1, 5, 2, 6, 3, 7)), octets))
    while len(parts) > 1:
        parts = [b.joined(*pair) for pair in zip(parts[::2], parts[1::2])]
    return parts[0]


round_int8, round_uint8 = _round("int8"), _round("uint8")
