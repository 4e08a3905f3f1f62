"""Stores of operands that warpgroups multiply from shared memory (sm_90a).

The layout is that of TMA boxes: 128-byte rows whose eight 16-byte pieces are permuted by the row number, aligned to
1024 bytes (PTX ISA, "Matrix descriptor", 128-byte swizzle). Tensor cores read through the async proxy, so a proxy fence
must follow the stores (PTX ISA, "Proxies"; "membar/fence", ``.proxy.async``).
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import Definition, Values, describe, emits, kernel_function, pointer_dtype
from ...toolchain.numba_core import TypingError, types
from .mbarriers import shared_address
from .threads import effect, elements, expect, target

_I32 = ir.IntType(32)
_LEAST_CAPABILITY = (9, 0)
"""Least compute capability with an async proxy."""
PIECE = 16
"""Bytes per piece."""
PIECES = 8
"""Pieces per row; the swizzle repeats after as many rows."""


def _check(name: str) -> None:
    expect(name, target().capability >= _LEAST_CAPABILITY)


@kernel_function
def operand_store(p: types.Type, row: types.Type, piece: types.Type, v: types.Type) -> Definition:
    dtype = pointer_dtype("operand_store", p)
    if describe("operand_store", v) != (dtype, PIECE // itemsize(dtype)):
        raise TypingError(f"operand_store: expected {PIECE} bytes of {dtype}, got {v}")

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        _check("operand_store")
        line, part = (builder.trunc(values[k], _I32) for k in (1, 2))
        swapped = builder.xor(part, builder.and_(line, _I32(PIECES - 1)))
        place = builder.add(builder.mul(line, _I32(PIECES * PIECE)), builder.mul(swapped, _I32(PIECE)))
        words = builder.bitcast(values[3], ir.VectorType(_I32, PIECE // 4))
        address = builder.add(shared_address(builder, values[0]), place)
        text = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};"
        effect(builder, text, "r,r,r,r,r", [address, *elements(builder, words)])

    return types.void(p, types.int64, types.int64, v), emit


@emits(types.void())
def operand_fence(builder: ir.IRBuilder) -> None:
    _check("operand_fence")
    effect(builder, "fence.proxy.async.shared::cta;")
