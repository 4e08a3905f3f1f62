"""Selections by size, whatever the sign, by an instruction of AVX512DQ (Intel's manual, "VRANGEPS")."""

from __future__ import annotations

from llvmlite import ir

from .builder import VectorBuilder
from .math32 import by_registers, fills_registers
from .target import has

__all__ = ["has_ranges", "larger_size"]

_LARGER_SIZE = 0b0011  # the larger of both absolute values, with the sign of the first operand


def has_ranges(b: VectorBuilder, x: ir.Value) -> bool:
    """Whether `larger_size` is one instruction a register for vectors of this type."""
    return has("avx512dq") and fills_registers(b, x)


def larger_size(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of |x| and |y| with the sign of x, of vectors for which `has_ranges`; y's size where x is NaN."""

    def emit(p: ir.Value, q: ir.Value) -> ir.Value:
        kind, whole = ir.Constant(ir.IntType(32), _LARGER_SIZE), ir.Constant(ir.IntType(16), -1)
        arguments = [p, q, kind, p, whole, ir.Constant(ir.IntType(32), 4)]  # the current rounding mode
        callee = b.function("llvm.x86.avx512.mask.range.ps.512", p.type, [v.type for v in arguments])
        return b.ir.call(callee, arguments)

    return by_registers(b, emit, x, y)
