"""The intrinsics of the 8-bit integer register tiles (`int8_table`): a word holds several k of a row or column.

They work like `tile_int32`, but the elements of two words are multiplied pairwise and their products added.

    tile_dot4          four unsigned bytes on the left, four signed bytes on the right.
    tile_dot4_signed   four signed bytes on either side, with NEON.
    tile_dot4_shifted  as tile_dot4, for a left-hand side with 128 added; each panel starts with its column sums.
    tile_dot4_lowered  as tile_dot4_signed, for a left-hand side with 128 subtracted; panels as above.
    tile_dot2          two int16 on either side.
    tile_dot4_residual as tile_dot4, for weights whose products fit 16 bits in pairs, and for the residuals of others.
    tile_dot4_residual_shifted  as tile_dot4_shifted, for such weights.
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir

from .. import host
from .multiply_add_steps import BYTES, PAIRS
from .tile import tile_intrinsic
from .tile_table import RESIDUAL_BLOCK, RESIDUAL_PLACES
from .tile_writer import IntegerWriter, Values, constant

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
MULTIPLY_PAIRS = {128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}
MULTIPLY_BYTES = {256: "llvm.x86.avx2.pmadd.ub.sw", 512: "llvm.x86.avx512.pmaddubs.w.512"}
"""LLVM's intrinsics for each width in bits: all x86 CPUs have the first, and declared tiles require the others."""


class _DotWriter(IntegerWriter):
    """Writes tiles over int32 words; a left-hand row starts at any byte, and its words are contiguous."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left_align = 1
        self.slot["x_step"] = constant(1)  # so that a loop over several k needs no more pointers than rows


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

    assembly = PAIRS

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


class _ResidualWriter(_DotWriter):
    """Multiplies four products by ``vpmaddubsw``, which adds two of them in 16 bits, then adds the products of
    residuals.

    A residual is a word of a panel's columns, after its places: a tap, and the number of its word of k in the tap; then
    the same where taps are runs of taps.
    """

    BLOCK = RESIDUAL_BLOCK
    assembly = BYTES

    def _multiply_add(self, left: ir.Value, right: ir.Value, sums: ir.Value) -> ir.Value:
        octets, halves = ir.VectorType(_I8, 4 * self.lanes), ir.VectorType(_I16, 2 * self.lanes)
        operands = [self.ir.bitcast(x, octets) for x in (left, right)]
        pairs = self.call(MULTIPLY_BYTES[32 * self.lanes], halves, operands)
        ones = ir.Constant(halves, [1] * (2 * self.lanes))
        return self.ir.add(sums, self.call(MULTIPLY_PAIRS[32 * self.lanes], self.vector, [pairs, ones]))

    def _multiply(self, panel: ir.Value, w: ir.Value, sums: Values) -> Values:
        sums = super()._multiply(panel, w, sums)
        first = self.at(w, self.slot["first_residual"])
        some = self.ir.icmp_signed("!=", self.slot["first_residual"], constant(0))
        start, stop = (
            self.ir.select(some, self.number(number), constant(0))
            for number in (first, self.at(first, self.slot["last_residual"]))
        )
        residuals = self.at(w, self.slot["residuals"])
        size = self.ir.add(self.slot["w_step"], constant(RESIDUAL_PLACES))

        def one_residual(index: ir.Value, sums: Values) -> Values:
            residual = self.at(residuals, self.ir.mul(index, size))
            place = self.at(residual, self.slot["residual_place"])
            tap, word = self.number(place), self.number(self.at(place, constant(1)))
            rows = self.row_pointers(self.ir.sub(tap, self.slot["skipped_taps"]))
            columns = self.at(residual, constant(RESIDUAL_PLACES))
            right = [self.load_columns(columns, j) for j in range(self.vectors)]
            left = [self.splat(self.ir.load(self.at(row, word), align=self.left_align)) for row in rows]
            cells = [(x, y) for x in left for y in right]
            return [self._multiply_add(*cell, total) for cell, total in zip(cells, sums)]

        return self.loop("residual", start, stop, 1, sums, one_residual)

    def number(self, pointer: ir.Value) -> ir.Value:
        """Load an int32 as int64."""
        return self.ir.sext(self.ir.load(pointer, align=self.align), constant(0).type)


class _RaisedResidualWriter(_Shifted, _ResidualWriter):
    shift = 128


tile_dot4 = tile_intrinsic("tile_dot4", "int32", _QuadWriter)
tile_dot4_signed = tile_intrinsic("tile_dot4_signed", "int32", _NeonWriter)
tile_dot4_shifted = tile_intrinsic("tile_dot4_shifted", "int32", _RaisedWriter)
tile_dot4_lowered = tile_intrinsic("tile_dot4_lowered", "int32", _LoweredWriter)
tile_dot2 = tile_intrinsic("tile_dot2", "int32", _PairWriter)
tile_dot4_residual = tile_intrinsic("tile_dot4_residual", "int32", _ResidualWriter)
tile_dot4_residual_shifted = tile_intrinsic("tile_dot4_residual_shifted", "int32", _RaisedResidualWriter)
