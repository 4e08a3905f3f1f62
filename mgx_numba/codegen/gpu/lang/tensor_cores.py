"""Products of small matrices by a warp's tensor cores (sm_80 and above).

In 32-bit words the operands of all types are alike: with g = lane // 4 and c = lane % 4, ``a`` has the words (row g,
word c), (g + 8, c), (g, c + 4), (g + 8, c + 4) of 16 rows of 8 words, ``b`` the words c and c + 4 of column g, and the
sums are those of rows g and g + 8, columns 2 c and 2 c + 1: PTX ISA, "Matrix fragments for mma.m16n8k16" (and k8).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError

from ...lang.target import itemsize
from ...lang.vector import Vec, make_intrinsic, pointer_type
from .threads import call, target

__all__ = ["floats_of", "join2", "join4", "mma_bfloat16", "mma_float16", "mma_float32", "pack_words", "words_of"]

_I32, _F32 = ir.IntType(32), ir.FloatType()
_SUMS, _A, _B = Vec("float32", 4), Vec("int32", 4), Vec("int32", 2)
_LEAST_CAPABILITY = (8, 0)
"""Compute capability from which on PTX has these instructions for bfloat16 and TF32."""


def _mma(dtype: str, intrinsic: str) -> Any:
    name = f"mma_{dtype}"

    def define(sums: types.Type, a: types.Type, b: types.Type) -> Any:
        if (sums, a, b) != (_SUMS, _A, _B):
            raise TypingError(f"{name}: expected {_SUMS}, {_A} and {_B}, got {sums}, {a} and {b}")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            if target().capability < _LEAST_CAPABILITY:
                raise TypingError(f"{name}: {target().name} has no such instruction")
            words = [builder.extract_element(v, _I32(k)) for v, n in ((values[1], 4), (values[2], 2)) for k in range(n)]
            if dtype == "float16":
                words = [builder.bitcast(word, ir.VectorType(ir.HalfType(), 2)) for word in words]
            before = [builder.extract_element(values[0], _I32(k)) for k in range(4)]
            made = call(builder, intrinsic, ir.LiteralStructType([_F32] * 4), [*words, *before])
            result = ir.Constant(values[0].type, ir.Undefined)
            for k in range(4):
                result = builder.insert_element(result, builder.extract_value(made, k), _I32(k))
            return result

        return _SUMS(_SUMS, _A, _B), lower

    return make_intrinsic(name, define, 3)


def _seen_as(name: str, dtype: str, element: ir.Type) -> Any:
    def define(p: types.Type) -> Any:
        if not isinstance(p, types.CPointer):
            raise TypingError(f"{name}: expected a pointer, got {p}")

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            return builder.bitcast(values[0], element.as_pointer())

        return pointer_type(dtype)(p), lower

    return make_intrinsic(name, define, 1)


def _join(count: int) -> Any:
    name = f"join{count}"

    def define(*parts: types.Type) -> Any:
        first = parts[0]
        if not isinstance(first, Vec) or not first.lanes or set(parts) != {first}:
            raise TypingError(f"{name}: expected {count} vectors of one dtype and lane count, got {parts}")
        whole = Vec(first.dtype, count * first.lanes)

        def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            result = ir.Constant(ir.VectorType(values[0].type.element, whole.lanes), ir.Undefined)
            for k in range(whole.lanes):
                part, lane = divmod(k, first.lanes)
                result = builder.insert_element(result, builder.extract_element(values[part], _I32(lane)), _I32(k))
            return result

        return whole(*parts), lower

    return make_intrinsic(name, define, count)


def _pack_words(v: types.Type) -> Any:
    if not isinstance(v, Vec) or itemsize(v.dtype) != 2 or v.lanes not in (2, 4, 8):
        raise TypingError(f"pack_words: expected pairs of 16-bit elements, got {v}")
    words = Vec("int32", v.lanes // 2)

    def lower(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        return builder.bitcast(values[0], ir.VectorType(_I32, words.lanes))

    return words(v), lower


pack_words = make_intrinsic("pack_words", _pack_words, 1)
join2, join4 = _join(2), _join(4)
mma_float16 = _mma("float16", "llvm.nvvm.mma.m16n8k16.row.col.f32.f32")
mma_bfloat16 = _mma("bfloat16", "llvm.nvvm.mma.m16n8k16.row.col.bf16")
mma_float32 = _mma("float32", "llvm.nvvm.mma.m16n8k8.row.col.tf32")
words_of = _seen_as("words_of", "int32", _I32)
floats_of = _seen_as("floats_of", "float32", _F32)
