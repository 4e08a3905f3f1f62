"""The intrinsics of the 8-bit integer register tiles (`int8_table`): a word holds several k of a row or column.

They work like `tile_float32` over int32 words, but each word's elements are multiplied pairwise and their products
added:

    tile_dot4          four unsigned bytes on the left, four signed bytes on the right
    tile_dot4_signed   four signed bytes on either side, with NEON
    tile_dot4_shifted  as tile_dot4, for a left-hand side with 128 added; each panel starts with its column sums
    tile_dot4_lowered  as tile_dot4_signed, for a left-hand side with 128 subtracted; panels as above
    tile_dot2          two int16 on either side
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir

from .. import host
from .tile import tile_intrinsic
from .tile_writer import ProductWriter, Values, constant

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
MULTIPLY_PAIRS = {128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}
"""LLVM's intrinsic for each width in bits: all x86 CPUs have the first, and declared tiles require the others."""


class _DotWriter(ProductWriter):
    """Writes tiles over int32 words; a left-hand row starts at any byte, and its words are contiguous."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left_align = 1
        self.slot["x_step"] = constant(1)  # so that a loop over several k needs no more pointers than rows

    def _sum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ir.add(x, y)


class _NeonWriter(_DotWriter):
    """Multiplies and adds four products by NEON's ``sdot``."""

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        octets = ir.VectorType(_I8, 4 * self.lanes)
        name = f"llvm.aarch64.neon.sdot.v{self.lanes}i32.v{4 * self.lanes}i8"
        return self.call(name, self.vector, [sums, *(self.ir.bitcast(x, octets) for x in (left, right))])


class _QuadWriter(_DotWriter):
    """Multiplies and adds four products; needs VNNI."""

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        return self.call(f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}", self.vector, [sums, left, right])


class _Shifted(_DotWriter):
    """Corrects the accumulators of a shifted left-hand side: new accumulators start at ``-shift * column sum``."""

    shift: ClassVar[int]

    def _multiply(self, panel: ir.Value, w: ir.Value, sums: Values) -> Values:
        start = self.at(w, self.ir.neg(self.slot["w_step"]))
        new = self.ir.icmp_signed("==", self.slot["accumulate"], constant(0))
        factor = self.splat(self.ir.select(new, ir.Constant(_I32, -self.shift), ir.Constant(_I32, 0)))
        taken = [self.ir.mul(self.load_columns(start, j), factor) for j in range(self.vectors)]
        return super()._multiply(panel, w, [self.ir.add(s, taken[i % self.vectors]) for i, s in enumerate(sums)])


class _RaisedWriter(_Shifted, _QuadWriter):
    shift = 128  # makes an unsigned byte of every int8


class _LoweredWriter(_Shifted, _NeonWriter):
    shift = -128  # makes an int8 of every unsigned byte


class _PairWriter(_DotWriter):
    """Multiplies and adds two products, by ``vpmaddwd`` where the CPU has it."""

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        halves = ir.VectorType(_I16, 2 * self.lanes)
        if host.triple().startswith(("x86_64", "i686")):
            pairs = [self.ir.bitcast(x, halves) for x in (left, right)]
            return self.ir.add(sums, self.call(MULTIPLY_PAIRS[32 * self.lanes], self.vector, pairs))
        sixteen = self.b.constant(self.vector, 16)
        low, high = (
            self.ir.mul(*(self.ir.ashr(self.ir.shl(x, sixteen) if part == 0 else x, sixteen) for x in (left, right)))
            for part in (0, 1)
        )
        return self.ir.add(sums, self.ir.add(low, high))


tile_dot4 = tile_intrinsic("tile_dot4", "int32", _QuadWriter)
tile_dot4_signed = tile_intrinsic("tile_dot4_signed", "int32", _NeonWriter)
tile_dot4_shifted = tile_intrinsic("tile_dot4_shifted", "int32", _RaisedWriter)
tile_dot4_lowered = tile_intrinsic("tile_dot4_lowered", "int32", _LoweredWriter)
tile_dot2 = tile_intrinsic("tile_dot2", "int32", _PairWriter)
