"""The intrinsics of the register tiles with weights in 16 bits (`stored_table`).

As `tile_float32`, but the right-hand side, its strides and what is brought into the cache of it count in elements of

    tile_stored_float16    float16
    tile_stored_bfloat16   bfloat16
"""

from __future__ import annotations

from typing import ClassVar

from llvmlite import ir

from ...lang.convert import convert
from .. import host
from ..records import Word
from .tile import tile_intrinsic
from .tile_table import PREFETCH_STEPS
from .tile_writer import ProductWriter, constant

__all__ = ["tile_stored_bfloat16", "tile_stored_float16"]

_I16 = ir.IntType(16)


class _StoredWriter(ProductWriter):
    """Never masked: weights are packed."""

    stored: ClassVar[str]

    def pointer_to(self, word: Word) -> ir.Type:
        return _I16.as_pointer() if word.name == "w" else super().pointer_to(word)

    def load_columns(self, pointer: ir.Value, j: int) -> ir.Value:
        bits = ir.VectorType(_I16, self.lanes)
        place = self.ir.bitcast(self.at(pointer, constant(j * self.lanes)), bits.as_pointer())
        return convert(self.b, self.ir.load(place, align=2), self.stored, "float32")

    def _prefetch(self, w: ir.Value, index: ir.Value) -> None:
        ahead = self.at(w, self.ir.mul(self.slot["w_step"], constant(PREFETCH_STEPS)))
        ahead = self.at(ahead, self.slot["elsewhere"])
        for start in range(0, self.vectors * self.lanes, host.CACHE_LINE // 2):
            line = self.ir.bitcast(self.at(ahead, constant(start)), self.element.as_pointer())
            self.prefetch_line(line, write=False)


class _Float16Writer(_StoredWriter):
    stored = "float16"


class _StoredBFloat16Writer(_StoredWriter):
    stored = "bfloat16"


tile_stored_float16 = tile_intrinsic("tile_stored_float16", "float32", _Float16Writer)
tile_stored_bfloat16 = tile_intrinsic("tile_stored_bfloat16", "float32", _StoredBFloat16Writer)
