"""The intrinsics of the bfloat16 register tiles (`bfloat16_table`): a word holds two k of a row or column.

tile_dot2_bfloat16          two bfloat16 on either side, accumulators in float32
tile_finish_dot2_bfloat16   the same, with an epilogue in registers (`fused_epilogue`)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...lang.builder import BFloat16
from .fused_epilogue import FinishWriter, finish_intrinsic
from .tile import tile_intrinsic
from .tile_writer import ProductWriter


class _Pairs(ProductWriter):
    """Writes tiles over bfloat16 pairs. Words are loaded as float32; a left-hand row starts at any bfloat16. Needs
    AVX512-BF16."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left_align = 2

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        pairs = ir.VectorType(BFloat16(), 2 * self.lanes)
        operands = [self.ir.bitcast(x, pairs) for x in (left, right)]
        return self.call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}", self.vector, [sums, *operands])


class _PairsFinished(_Pairs, FinishWriter):
    """Writes the same tiles with an epilogue in registers."""


tile_dot2_bfloat16 = tile_intrinsic("tile_dot2_bfloat16", "float32", _Pairs)
tile_finish_dot2_bfloat16 = finish_intrinsic("tile_finish_dot2_bfloat16", "float32", _PairsFinished)
