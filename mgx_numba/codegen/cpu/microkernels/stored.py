"""The intrinsics of the register tiles with 16-bit weights (`stored_table`).

They work like `tile_float32`, but the right-hand side, its strides and its prefetch distances count elements of:

    tile_stored_float16    float16
    tile_stored_bfloat16   bfloat16
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir

from ...lang.convert import convert
from ..records import Word
from .tile import tile_intrinsic
from .tile_writer import ProductWriter, constant

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_HALF, _BYTES = ir.VectorType(_I8, 16), ir.VectorType(_I8, 32)
_ZERO = 128  # by definition: vpshufb makes a zero of a byte whose place has the highest bit set


class _StoredWriter(ProductWriter):
    """Writes tiles over 16-bit weights; never masked, as weights are packed."""

    stored: ClassVar[str]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.right_bytes = 2

    def pointer_to(self, word: Word) -> ir.Type:
        return _I16.as_pointer() if word.name == "w" else super().pointer_to(word)

    def load_columns(self, pointer: ir.Value, j: int) -> ir.Value:
        bits = ir.VectorType(_I16, self.lanes)
        place = self.ir.bitcast(self.at(pointer, constant(j * self.lanes)), bits.as_pointer())
        return convert(self.b, self.ir.load(place, align=2), self.stored, "float32")


class _Float16Writer(_StoredWriter):
    stored = "float16"


class _StoredBFloat16Writer(_StoredWriter):
    """Writes tiles over bfloat16 weights.

    In 256-bit vectors one byte shuffle moves eight weights, which are in both halves, behind zeros. To widen and to
    shift takes two instructions, with which products take 4 to 8% more time than in float32 (Zen 5 with AVX2, 128 and
    197 rows by 768x768, 3072x768); with the shuffle 2% at most.
    """

    stored = "bfloat16"

    def write(self) -> None:
        if self.lanes == 8:
            # LLVM makes two other instructions of an order that it knows; it does not know that no panel is negative.
            zero = self.ir.trunc(self.ir.ashr(self.begin, constant(63)), _I8)
            order = ir.Constant(_BYTES, [byte for k in range(8) for byte in (_ZERO, _ZERO, 2 * k, 2 * k + 1)])
            self.order = self.ir.or_(order, self.b.splat(zero, 32))
        super().write()

    def load_columns(self, pointer: ir.Value, j: int) -> ir.Value:
        if self.lanes != 8:
            return super().load_columns(pointer, j)
        place = self.ir.bitcast(self.at(pointer, constant(j * self.lanes)), _HALF.as_pointer())
        twice = ir.Constant(ir.VectorType(ir.IntType(32), 32), [*range(16)] * 2)
        halves = self.ir.shuffle_vector(self.ir.load(place, align=2), ir.Constant(_HALF, ir.Undefined), twice)
        return self.ir.bitcast(self.call("llvm.x86.avx2.pshuf.b", _BYTES, [halves, self.order]), self.vector)


tile_stored_float16 = tile_intrinsic("tile_stored_float16", "float32", _Float16Writer)
tile_stored_bfloat16 = tile_intrinsic("tile_stored_bfloat16", "float32", _StoredBFloat16Writer)
