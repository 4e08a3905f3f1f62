"""Selections by size, whatever the sign, by an instruction of AVX512DQ (Intel's manual, "VRANGEPS")."""

from __future__ import annotations

from llvmlite import ir

from .builder import VectorBuilder
from .registers import by_registers, fills_registers
from .target import has

_SMALLER_SIZE, _LARGER_SIZE = 0b0010, 0b0011  # of both absolute values, with the sign of the first operand


def has_ranges(b: VectorBuilder, x: ir.Value) -> bool:
    """Whether the functions of this module are one instruction a register for vectors of this type."""
    return has("avx512dq") and fills_registers(b, x)


def larger_size(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of |x| and |y| with the sign of x, of vectors for which `has_ranges`; y's size where x is NaN."""
    return _range(b, x, y, _LARGER_SIZE)


def smaller_size(b: VectorBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The smaller of |x| and |y| with the sign of x, of vectors for which `has_ranges`; y's size where x is NaN."""
    return _range(b, x, y, _SMALLER_SIZE)


def _range(b: VectorBuilder, x: ir.Value, y: ir.Value, kind: int) -> ir.Value:
    every, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)  # lanes; the current mode

    def emit(p: ir.Value, q: ir.Value) -> ir.Value:
        arguments = [p, q, ir.Constant(ir.IntType(32), kind), p, every, rounding]
        callee = b.function("llvm.x86.avx512.mask.range.ps.512", p.type, [v.type for v in arguments])
        return b.ir.call(callee, arguments)

    return by_registers(b, emit, x, y)
