"""The intrinsics of the ARM register tiles whose products are 2x2 matrices: I8MM and BF16's ``bfmmla``.

They work like `tile_float32`, but the operands, their strides and prefetch distances count words of 64 bits, whose
elements are multiplied pairwise and their products added.

    tile_mmla_int8       eight signed bytes on either side, accumulators in int32
    tile_mmla_uint8      eight unsigned bytes on the left, eight signed bytes on the right, accumulators in int32
    tile_mmla_bfloat16   four bfloat16 on either side, accumulators in float32
    tile_finish_mmla_bfloat16   the same, with an epilogue in registers (`fused_epilogue`)

One instruction adds the products of two rows and two columns to the accumulators of both:

    acc[i, j] += sum over e < 8 (bytes; bfloat16: 4) of left[i, e] * right[j, e]    for i, j in (0, 1)
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir

from ...lang.builder import BFloat16
from .. import host
from ..records import Word
from .fused_epilogue import FinishWriter, finish_intrinsic
from .tile import tile_intrinsic
from .tile_writer import ProductWriter, Values, constant

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_PAIR = ir.VectorType(_I64, 2)
_WORD_BYTES = 8  # half of a NEON register: an operand has two rows


class _MatrixRows(ProductWriter):
    """Writes tiles over words of 64 bits.

    While products are added, an accumulator vector holds two columns of two rows. `_multiply` converts between this
    layout and whole rows. A last row without a partner is multiplied twice; the accumulators of its copy are dropped.
    """

    instruction: ClassVar[str]
    bits: ClassVar[int]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left_align, self.right_bytes = self.bits // 8, _WORD_BYTES
        self.operand = ir.VectorType(BFloat16() if self.bits == 16 else ir.IntType(8), 128 // self.bits)

    def pointer_to(self, word: Word) -> ir.Type:
        return _I64.as_pointer() if word.name in ("x", "zero", "w", "far") else super().pointer_to(word)

    def _multiply(self, panel: ir.Value, w: ir.Value, sums: Values) -> Values:
        size, rows = self.vectors, [sums[i : i + self.vectors] for i in range(0, len(sums), self.vectors)]
        blocks: Values = []
        for upper, lower in zip(rows[::2], [*rows[1::2], rows[-1]]):
            for pair in zip(upper, lower):
                blocks += self._halves(*pair)
        blocks = super()._multiply(panel, w, blocks)
        sums = []
        for i in range(self.rows):
            first = i // 2 * 2 * size
            for j in range(size):
                sums.append(self._halves(*blocks[first + 2 * j : first + 2 * j + 2])[i % 2])
        return sums

    def _halves(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the low halves of two vectors as a vector, and their high halves."""
        low, high = ([k, k + 1, self.lanes + k, self.lanes + k + 1] for k in (0, 2))
        return tuple(self.ir.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, 4), order)) for order in (low, high))

    def _step(self, rows: Values, count: int, state: Values, packed: bool = False) -> Values:
        index, w, *sums = state
        pairs = list(zip(rows[::2], [*rows[1::2], rows[-1]]))
        size = 2 * self.vectors * len(pairs)
        for k in range(count):
            self._prefetch(w, index)
            left = [
                self._word_pair(*(self.ir.load(self.at(row, index), align=self.left_align) for row in pair))
                for pair in pairs
            ]
            for j in range(2 * self.vectors):  # with all columns in registers first, the largest tile would spill
                columns = self._load_pair(self.at(w, constant(2 * j)))
                for i, words in enumerate(left):
                    place = k * size + i * 2 * self.vectors + j
                    sums[place] = self._multiply_add(words, columns, sums[place])
            index = self.ir.add(index, constant(1))
            w = self.at(w, self.slot["w_step"])
        return [index, w, *sums]

    def _load_pair(self, pointer: ir.Value) -> ir.Value:
        return self.ir.load(self.ir.bitcast(pointer, _PAIR.as_pointer()), align=_WORD_BYTES)

    def _word_pair(self, first: ir.Value, second: ir.Value) -> ir.Value:
        vector = ir.Constant(_PAIR, ir.Undefined)
        for k, word in enumerate((first, second)):
            vector = self.ir.insert_element(vector, word, ir.Constant(_I32, k))
        return vector

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        operands = [self.ir.bitcast(x, self.operand) for x in (left, right)]
        return self.call(f"llvm.aarch64.neon.{self.instruction}", self.vector, [sums, *operands])


class _SignedBytes(_MatrixRows):
    instruction, bits = "smmla.v4i32.v16i8", 8

    def _sum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ir.add(x, y)


class _MixedBytes(_SignedBytes):
    instruction = "usmmla.v4i32.v16i8"


class _BFloat16(_MatrixRows):
    instruction, bits = "bfmmla", 16


class _BFloat16Finished(_BFloat16, FinishWriter):
    """Writes the same tiles with an epilogue in registers; never with rows that share a vector (``thin``)."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.line = host.CACHE_LINE // _WORD_BYTES


tile_mmla_int8 = tile_intrinsic("tile_mmla_int8", "int32", _SignedBytes)
tile_mmla_uint8 = tile_intrinsic("tile_mmla_uint8", "int32", _MixedBytes)
tile_mmla_bfloat16 = tile_intrinsic("tile_mmla_bfloat16", "float32", _BFloat16)
tile_finish_mmla_bfloat16 = finish_intrinsic("tile_finish_mmla_bfloat16", "float32", _BFloat16Finished)
