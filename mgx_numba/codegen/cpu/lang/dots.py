"""Products of bytes in registers.

add_dot4(sums, u, s)
    each int32 lane of ``sums`` plus the products of the four bytes of that lane in ``u``, unsigned and below 128, and
    in ``s``, signed. With VNNI the bytes of ``u`` may be any.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.builder import VectorBuilder
from ...lang.memory import Definition
from ...lang.vector import Vec, make_intrinsic
from .. import host
from ..microkernels.int8 import MULTIPLY_PAIRS
from ..microkernels.int8_table import has_dot4

__all__ = ["add_dot4"]

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_PAIRS = {
    128: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128"),
    256: ("avx2", "llvm.x86.avx2.pmadd.ub.sw"),
    512: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512"),
}
"""By bits, a CPU's feature and LLVM's name for sums of two products of bytes, which saturate from 2**15 on: two
products of what is below 128 do not reach that."""


def _add_dot4(sums: types.Type, u: types.Type, s: types.Type) -> Definition:
    if not isinstance(sums, Vec) or sums.dtype != "int32" or not sums == u == s:
        raise TypingError(f"add_dot4: expected three vectors of int32 of one length, got {sums}, {u}, {s}")
    lanes = sums.lanes

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        b = VectorBuilder(builder)
        total, left, right = values
        if has_dot4(host.host(), 32 * lanes):
            name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
            return builder.call(b.function(name, total.type, [total.type] * 3), [total, left, right])
        octets, words = ir.VectorType(_I8, 4 * lanes), ir.VectorType(_I16, 2 * lanes)
        left, right = builder.bitcast(left, octets), builder.bitcast(right, octets)
        feature, of_bytes = _PAIRS.get(32 * lanes, ("", ""))
        if feature and host.has(feature):
            pairs = builder.call(b.function(of_bytes, words, [octets] * 2), [left, right])
            of_words = b.function(MULTIPLY_PAIRS[32 * lanes], total.type, [words] * 2)
            return builder.add(total, builder.call(of_words, [pairs, b.constant(words, 1)]))
        wide = ir.VectorType(ir.IntType(32), 4 * lanes)
        products = builder.mul(builder.zext(left, wide), builder.sext(right, wide))
        for k in range(4):
            total = builder.add(total, b.shuffle(products, range(k, 4 * lanes, 4)))
        return total

    return sums(sums, u, s), lower


add_dot4 = make_intrinsic("add_dot4", _add_dot4, 3)
