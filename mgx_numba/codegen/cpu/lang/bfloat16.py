"""Rounding to bfloat16 by the CPU's own instruction.

round_bfloat16(v)
    a vector of float32 rounded to nearest even as bfloat16; denormals may become zero. The fastest way that the CPU
    has; ``cast_bfloat16`` keeps denormals.
"""

from __future__ import annotations

from llvmlite import ir

from ...lang.builder import BFloat16, VectorBuilder
from ...lang.convert import convert
from ...lang.vector import Definition, Values, Vec, kernel_function
from ...toolchain.numba_core import TypingError, types
from .. import host

_LANES = 16
"""Lanes of the instruction ``vcvtneps2bf16`` over a 512-bit register."""


def rounded(b: VectorBuilder, value: ir.Value) -> ir.Value:
    """Return a vector of float32 as the bits of bfloat16 in i16, rounded as by `round_bfloat16`."""
    builder, lanes = b.ir, b.lanes(value)
    if not host.has("avx512bf16") or lanes % _LANES or lanes & (lanes - 1):
        return convert(b, value, "float32", "bfloat16")
    part, result = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(16), _LANES)
    instruction = b.function("llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(BFloat16(), _LANES), [part])
    parts = [
        builder.bitcast(builder.call(instruction, [b.shuffle(value, range(k, k + _LANES))]), result)
        for k in range(0, lanes, _LANES)
    ]
    while len(parts) > 1:
        parts = [b.joined(x, y) for x, y in zip(parts[::2], parts[1::2])]
    return parts[0]


@kernel_function
def round_bfloat16(v: types.Type) -> Definition:
    if not isinstance(v, Vec) or v.dtype != "float32":
        raise TypingError(f"round_bfloat16: expected a vector of float32, got {v}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return rounded(VectorBuilder(builder), values[0])

    return Vec("bfloat16", v.lanes)(v), emit
