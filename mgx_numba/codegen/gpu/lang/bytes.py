"""Maximum of 8-bit elements, computed as pairs of 16 bits, which GPUs compare two at a time.

Of 16 bits the upper 8 decide the order, so the odd bytes of a word are compared in place.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.vector import Definition, Values, describe, kernel_function, value_type
from ...toolchain.numba_core import TypingError, types

# A word's even and odd bytes.
_LOW, _HIGH = 0x00FF00FF, 0xFF00FF00
_BITS = 8
_WORD = 4
"""Elements per word."""


@kernel_function
def max_bytes(x: types.Type, y: types.Type) -> Definition:
    dtype, lanes = describe("max_bytes", x)
    if dtype not in ("int8", "uint8") or not lanes or lanes % _WORD or y != x:
        raise TypingError(f"max_bytes: expected two vectors of whole words of int8 or uint8, got {x} and {y}")
    signed = dtype == "int8"

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        words = ir.VectorType(ir.IntType(32), lanes // _WORD)
        pairs = ir.VectorType(ir.IntType(16), lanes // 2)

        def same(value: int) -> ir.Constant:
            return ir.Constant(words, [value] * words.count)

        def greater(a: ir.Value, b: ir.Value) -> ir.Value:
            name = "smax" if signed else "umax"
            found = VectorBuilder(builder).intrinsic(name, [builder.bitcast(v, pairs) for v in (a, b)])
            return builder.bitcast(found, words)

        whole = [builder.bitcast(v, words) for v in values]
        odd = builder.and_(greater(*whole), same(_HIGH))
        if signed:
            even = greater(*(builder.shl(v, same(_BITS)) for v in whole))
            even = builder.and_(builder.lshr(even, same(_BITS)), same(_LOW))
        else:
            even = greater(*(builder.and_(v, same(_LOW)) for v in whole))
        return builder.bitcast(builder.or_(even, odd), values[0].type)

    kind = value_type(dtype, lanes)
    return kind(kind, kind), emit
