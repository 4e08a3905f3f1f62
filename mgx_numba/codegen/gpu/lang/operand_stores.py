"""What threads store of operands that warpgroups multiply from a block's memory (sm_90a).

Operands lie as boxes do: rows of 128 bytes, whose eight pieces of 16 bytes are exchanged by the row's number, from a
multiple of 1024 bytes on (PTX ISA, "Matrix descriptor", swizzling by 128 bytes). Tensor cores read them by another way
than threads write: PTX ISA, "Proxies", and "membar/fence", ``.proxy.async``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.target import itemsize
from ...lang.vector import describe, make_intrinsic, pointer_dtype
from .mbarriers import shared_address
from .threads import inline, target

__all__ = ["operand_fence", "operand_store"]

_I32 = ir.IntType(32)
_LEAST_CAPABILITY = (9, 0)
"""Compute capability from which on memory is reached by several ways."""
PIECE = 16
"""Bytes of a piece."""
PIECES = 8
"""Of a row, and rows after which the exchange repeats."""


def _check(name: str) -> None:
    if target().capability < _LEAST_CAPABILITY:
        raise TypingError(f"{name}: {target().name} has no such instruction")


def _store(p: types.Type, row: types.Type, piece: types.Type, v: types.Type) -> Any:
    dtype = pointer_dtype("operand_store", p)
    if describe("operand_store", v) != (dtype, PIECE // itemsize(dtype)):
        raise TypingError(f"operand_store: expected {PIECE} bytes of {dtype}, got {v}")

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check("operand_store")
        line, part = (builder.trunc(values[k], _I32) for k in (1, 2))
        swapped = builder.xor(part, builder.and_(line, _I32(PIECES - 1)))
        place = builder.add(builder.mul(line, _I32(PIECES * PIECE)), builder.mul(swapped, _I32(PIECE)))
        words = builder.bitcast(values[3], ir.VectorType(_I32, PIECE // 4))
        operands = [builder.extract_element(words, _I32(k)) for k in range(PIECE // 4)]
        address = builder.add(shared_address(builder, values[0]), place)
        text = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};"
        inline(builder, text, "r,r,r,r,r,~{memory}", ir.VoidType(), [address, *operands], True)
        return context.get_dummy_value()

    return types.void(p, types.int64, types.int64, v), lower


def _fence() -> Any:
    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        _check("operand_fence")
        inline(builder, "fence.proxy.async.shared::cta;", "~{memory}", ir.VoidType(), [], True)
        return context.get_dummy_value()

    return types.void(), lower


operand_store = make_intrinsic("operand_store", _store, 4)
operand_fence = make_intrinsic("operand_fence", _fence, 0)
