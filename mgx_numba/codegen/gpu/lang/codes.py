"""Expansion of 4-bit codes to words of 16-bit floats, for tensor cores of warps (`tensor_cores`).

A float whose last mantissa bit is worth 1 (1024 in float16, 128 in bfloat16) takes the code as its lowest bits.
Subtracting the float and the zero point is exact.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.vector import Definition, KernelFunction, Values, Vec, constant_int, make_intrinsic
from ...toolchain.numba_core import TypingError, types
from .threads import inline

_I32 = ir.IntType(32)
_WORDS, _POINTS = Vec("int32", 4), Vec("int32", 2)
_BITS, _TWO = 4, 8
"""Bits of one code, and of two."""
_MASK, _TWICE = 0x000F000F, 0x00010001
"""Mask of a code in each half of a word, and the multiplier that repeats a half."""
_NUMBERS = {"float16": (ir.HalfType(), 64 - 1024), "bfloat16": (ir.IntType(16), 0)}
"""LLVM type of each dtype, and the summand that divides the exponent's number by 16."""


def _codes(dtype: str) -> KernelFunction:
    name = f"codes_{dtype}"
    element, shifted = _NUMBERS[dtype]

    def define(
        low: types.Type, high: types.Type, word: types.Type, pair: types.Type, points: types.Type, exponents: types.Type
    ) -> Definition:
        if (low, high, points) != (_WORDS, _WORDS, _POINTS) or not isinstance(exponents, types.Integer):
            raise TypingError(f"{name}: expected words, points and exponents, got {(low, high, points, exponents)}")
        k = constant_int(name, "WORD", word, high=3)
        first = 2 * constant_int(name, "PAIR", pair, high=1)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            result = ir.Constant(ir.VectorType(_I32, 4), ir.Undefined)
            magic = values[5] if values[5].type == _I32 else builder.trunc(values[5], _I32)
            for side in (0, 1):
                codes = builder.extract_element(values[side], _I32(k))
                point = builder.extract_element(values[4], _I32(side))
                for step in (0, 1):
                    made = _differences(builder, codes, first + step, point, magic)
                    result = builder.insert_element(result, made, _I32(2 * step + side))
            return result

        return _WORDS(low, high, word, pair, points, exponents), emit

    def _differences(builder: ir.IRBuilder, codes: ir.Value, number: int, point: ir.Value, magic: ir.Value) -> ir.Value:
        pairs = ir.VectorType(element, 2)
        base = builder.or_(builder.mul(point, _I32(_TWICE)), magic)
        if dtype == "float16":  # of two successive codes only the first one is brought down
            place, turned = _BITS * (number % 2), builder.lshr(codes, _I32(number // 2 * _TWO))
            found = builder.or_(builder.and_(turned, _I32(_MASK << place)), magic)
            value, less = builder.bitcast(found, pairs), builder.bitcast(base, pairs)
            if place:
                less = builder.fadd(less, ir.Constant(pairs, [float(shifted)] * 2))
                sixteenth = ir.Constant(pairs, [2.0**-_BITS] * 2)
                exact = ("contract",)  # one instruction, which rounds nothing either
                value = builder.fmul(value, sixteenth, flags=exact)
                return builder.bitcast(builder.fsub(value, less, flags=exact), _I32)
            return builder.bitcast(builder.fsub(value, less), _I32)
        found = builder.or_(builder.and_(builder.lshr(codes, _I32(number * _BITS)), _I32(_MASK)), magic)
        return _bfloat16_differences(builder, found, base)

    return make_intrinsic(name, define, literal=True)


def _bfloat16_differences(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return ``x - y`` of two bfloat16 pairs whose differences are exact."""
    ones, negative = _I32(0x3F803F80), builder.xor(y, _I32(0x80008000 - (1 << 32)))
    return inline(builder, "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [x, ones, negative], _I32)


codes_float16, codes_bfloat16 = _codes("float16"), _codes("bfloat16")
