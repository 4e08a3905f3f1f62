"""Narrow floats by instructions that convert two at once (PTX ISA, "cvt"): NVIDIA's of float8 to and from float32, from
Ada on, and of float32 to bfloat16, from Ampere on."""

from __future__ import annotations

from llvmlite import ir

from .builder import VectorBuilder
from .target import has

FLOAT8_PAIRS, BFLOAT16_PAIRS = "fp8-pairs", "bf16-pairs"
"""Features of a processor that has the instructions."""
_KINDS = {"float8_e4m3fn": "e4m3x2", "float8_e5m2": "e5m2x2"}
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_BYTES, _HALVES = ir.VectorType(ir.IntType(8), 2), ir.VectorType(ir.HalfType(), 2)
_SHORTS = ir.VectorType(_I16, 2)


def has_pairs(dtype: str) -> bool:
    """Whether the processor that is lowered for converts elements of a dtype so."""
    return dtype in _KINDS and has(FLOAT8_PAIRS)


def from_pairs(b: VectorBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """``x``, int8 lanes or a scalar, as float32, exactly."""
    result = b.poison(b.like(x, ir.FloatType()))
    for k, (low, high) in _pairs(b, x):
        pair = b.ir.bitcast(_two(b, low, high, _BYTES), _I16)
        kind = ir.FunctionType(_I32, [_I16])
        made = b.ir.call(ir.InlineAsm(kind, f"cvt.rn.f16x2.{_KINDS[dtype]} $0, $1;", "=r,h", False), [pair])
        wide = b.ir.fpext(b.ir.bitcast(made, _HALVES), ir.VectorType(ir.FloatType(), 2))
        result = _put(b, result, k, wide)
    return result


def to_pairs(b: VectorBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """``x``, float32 lanes or a scalar, as int8: rounded to nearest even, what is too large to the largest number, NaN
    to NaN."""
    result = b.poison(b.like(x, ir.IntType(8)))
    for k, (low, high) in _pairs(b, x):
        kind = ir.FunctionType(_I16, [low.type, low.type])
        text = f"cvt.rn.satfinite.{_KINDS[dtype]}.f32 $0, $2, $1;"
        made = b.ir.call(ir.InlineAsm(kind, text, "=h,f,f", False), [low, high])
        result = _put(b, result, k, b.ir.bitcast(made, _BYTES))
    return result


def bfloat16_pairs(b: VectorBuilder, x: ir.Value) -> ir.Value:
    """Return float32 lanes, or a scalar, rounded to the bits of bfloat16: to nearest even, NaN to a quiet NaN."""
    result = b.poison(b.like(x, _I16))
    for k, (low, high) in _pairs(b, x):
        kind = ir.FunctionType(_I32, [low.type, low.type])
        made = b.ir.call(ir.InlineAsm(kind, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", False), [low, high])
        result = _put(b, result, k, b.ir.bitcast(made, _SHORTS))
    return result


def _pairs(b: VectorBuilder, x: ir.Value) -> list[tuple[int, tuple[ir.Value, ir.Value]]]:
    """The lanes by twos with the number of the first one; a single one, or a scalar, is there twice."""
    if not b.lanes(x):
        return [(0, (x, x))]
    own = [b.extract(x, k) for k in range(b.lanes(x))]
    return [(k, (own[k], own[min(k + 1, len(own) - 1)])) for k in range(0, len(own), 2)]


def _two(b: VectorBuilder, low: ir.Value, high: ir.Value, kind: ir.VectorType) -> ir.Value:
    single = b.ir.insert_element(b.poison(kind), low, ir.Constant(_I32, 0))
    return b.ir.insert_element(single, high, ir.Constant(_I32, 1))


def _put(b: VectorBuilder, result: ir.Value, first: int, pair: ir.Value) -> ir.Value:
    """Both lanes of a pair, from lane ``first`` on; of a scalar the first one."""
    if not b.lanes(result):
        return b.extract(pair, 0)
    for k in range(min(2, b.lanes(result) - first)):
        result = b.ir.insert_element(result, b.extract(pair, k), ir.Constant(_I32, first + k))
    return result
