"""Rounding to 8 bits, the last step of a quantisation.

round_int8(v, low, high, point, wide), round_uint8(v, low, high, point, wide)
    a vector of float32 rounded to the nearest integers, ties to even, plus zero points, saturated; NaN gives 0. One
    conversion instead of a rounding and a conversion. The zero points are given in the result's type (``point``), in
    int16 (``wide``), and as the limits of v (``low`` and ``high``: the type's least and greatest number less the zero
    point), so that kernels compute each form once, before their loops.

With AVX2 alone whole vectors of unsigned bytes are not clamped to the lower limit: numbers below all int32, and NaN,
convert to the least int32, and packing saturates.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.vector import Definition, KernelFunction, Values, Vec, make_intrinsic
from ...toolchain.numba_core import TypingError, types
from .. import host

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_PACKED = 32
"""Bytes of a 256-bit vector, packed from four vectors of float32."""
_BEYOND = float(1 << 15)
"""A number above all int16, to which packing saturates."""
_PAIR_ORDER = (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
"""Lanes of two vectors of int32 in the order in which packing halves of vectors on their own puts them."""


def _round(dtype: str) -> KernelFunction:
    name = f"round_{dtype}"

    def define(v: types.Type, *numbers: types.Type) -> Definition:
        lanes = getattr(v, "lanes", 0)
        wanted = tuple(Vec(type, lanes) for type in ("float32", "float32", "float32", dtype, "int16"))
        if (v, *numbers) != wanted:
            given = ", ".join(map(str, (v, *numbers)))
            raise TypingError(f"{name}: expected {', '.join(map(str, wanted))}, got {given}")

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            b, (value, low, high, point, wide_point) = VectorBuilder(builder).strict(), values
            if dtype == "uint8" and lanes % _PACKED == 0 and host.has("avx2") and host.host().vector_bits == 256:
                return _packed(b, value, wide_point)
            near = b.first_greater(value, low)  # the limit where it is NaN
            near = b.select(b.fcmp("<", near, high), near, high)
            wide = b.like(value, _I32)
            whole = b.ir.trunc(b.intrinsic("lrint", [near], wide, overloads=[wide, value.type]), point.type)
            total = b.iadd(whole, point)
            return b.select(b.is_nan(value), 0, total) if dtype == "int8" else total

        return Vec(dtype, lanes)(v, *numbers), emit

    return make_intrinsic(name, define)


def _packed(b: VectorBuilder, value: ir.Value, points: ir.Value) -> ir.Value:
    """Return whole vectors of unsigned bytes, each packed from four vectors; ``points``: the zero points in int16."""
    eight, words, octets = ir.VectorType(_I32, 8), ir.VectorType(_I16, 16), ir.VectorType(_I8, _PACKED)

    def call(name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        return b.ir.call(b.function(f"llvm.x86.{name}", result, [a.type for a in arguments]), arguments)

    def integers(start: int) -> ir.Value:
        floats = b.shuffle(value, range(start, start + 8))
        limit = b.constant(floats.type, _BEYOND)
        return call("avx.cvt.ps2dq.256", eight, b.select(b.fcmp("<", limit, floats), limit, floats))  # NaN stays

    def sums(start: int) -> ir.Value:
        pair = call("avx2.packssdw", words, integers(start), integers(start + 8))
        own = b.shuffle(points, [start + k for k in _PAIR_ORDER])
        return b.intrinsic("sadd.sat", [pair, own], words, overloads=[words])

    parts = []
    for start in range(0, value.type.count, _PACKED):
        pairs = [sums(at) for at in (start, start + 16)]
        # Halves of vectors are packed on their own: four bytes of each vector, and then the four others of each.
        fours = b.ir.bitcast(call("avx2.packuswb", octets, *pairs), eight)
        parts.append(b.ir.bitcast(b.shuffle(fours, (0, 4, 1, 5, 2, 6, 3, 7)), octets))
    while len(parts) > 1:
        parts = [b.joined(*pair) for pair in zip(parts[::2], parts[1::2])]
    return parts[0]


round_int8, round_uint8 = _round("int8"), _round("uint8")
