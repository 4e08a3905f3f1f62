"""Products of bytes in registers.

add_dot4(sums, u, s)
    each int32 lane of ``sums`` plus the products of the lane's four unsigned bytes in ``u`` and signed bytes in ``s``;
    for CPUs with VNNI or I8MM (`has_dot4`)
add_signed_dot4(sums, x, y)
    the same with signed bytes on both sides, those of ``x`` above -128; for any CPU
add_dot2(sums, x, y)
    each int32 lane of ``sums`` plus the products of the lane's two int16 in ``x`` and ``y``; for CPUs with ``vpmaddwd``
    at this vector width (`multiplies_pairs`)
dot2(u, s)
    the sums of pairs of byte products, as twice as many int16; bytes of ``u`` are unsigned and below 128
add_pairs(sums, x, FACTOR)
    each int32 lane of ``sums`` plus FACTOR times the lane's two int16 in ``x``
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...lang.builder import VectorBuilder
from ...lang.vector import Definition, Values, Vec, kernel_function
from ...toolchain.numba_core import TypingError, types
from .. import host
from ..microkernels.int8 import MULTIPLY_PAIRS
from ..microkernels.int8_table import has_dot4, multiplies_pairs

_I8, _I16 = ir.IntType(8), ir.IntType(16)
_PAIRS = {
    128: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128"),
    256: ("avx2", "llvm.x86.avx2.pmadd.ub.sw"),
    512: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512"),
}
"""By vector bits: the CPU feature and LLVM's name for sums of two byte products, which saturate from 2**15. Two
products of numbers below 128 do not reach that, nor does one by 128."""
_SIGNS = {128: ("ssse3", "llvm.x86.ssse3.psign.b.128"), 256: ("avx2", "llvm.x86.avx2.psign.b")}
"""By vector bits: the CPU feature and LLVM's name that give bytes the signs of other bytes, zero where these are
zero."""


_NEON_LANES = 4  # int32 in a register of 128 bits


def _neon_dot(b: VectorBuilder, instruction: str, values: Sequence[ir.Value]) -> ir.Value:
    """Return int32 lanes plus four products of bytes each."""
    sums, *words = values
    octets = ir.VectorType(_I8, 16)
    name = f"llvm.aarch64.neon.{instruction}.v4i32.v16i8"
    return b.ir.call(b.function(name, sums.type, [sums.type, octets, octets]), [
        sums, *(b.ir.bitcast(x, octets) for x in words)
    ])  # fmt: skip


def _products(b: VectorBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return sums of pairs of byte products, the left bytes unsigned and below 128, as int16 in vectors of int32."""
    lanes = left.type.count
    octets, words = ir.VectorType(_I8, 4 * lanes), ir.VectorType(_I16, 2 * lanes)
    left, right = b.ir.bitcast(left, octets), b.ir.bitcast(right, octets)
    feature, of_bytes = _PAIRS.get(32 * lanes, ("", ""))
    if feature and host.has(feature):
        return b.ir.call(b.function(of_bytes, words, [octets] * 2), [left, right])
    wide = ir.VectorType(_I16, 4 * lanes)
    products = b.ir.mul(b.ir.zext(left, wide), b.ir.sext(right, wide))
    return b.ir.add(*(b.shuffle(products, range(k, 4 * lanes, 2)) for k in range(2)))


def _pair_sums(b: VectorBuilder, total: ir.Value, pairs: ir.Value, factor: int) -> ir.Value:
    """Return int32 lanes plus a factor times their two int16."""
    words, lanes = pairs.type, total.type.count
    if multiplies_pairs(host.host(), 32 * lanes):
        return _added_pairs(b, total, pairs, b.constant(words, factor))
    wide = ir.VectorType(ir.IntType(32), 2 * lanes)
    products = b.ir.mul(b.ir.sext(pairs, wide), b.constant(wide, factor))
    for k in range(2):
        total = b.ir.add(total, b.shuffle(products, range(k, 2 * lanes, 2)))
    return total


def _added_pairs(b: VectorBuilder, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return int32 lanes plus the products of their two int16; LLVM fuses the two instructions where the CPU has
    VNNI."""
    name = MULTIPLY_PAIRS[32 * total.type.count]
    return b.ir.add(total, b.ir.call(b.function(name, total.type, [x.type] * 2), [x, y]))


def _signed_products(b: VectorBuilder, left: ir.Value, right: ir.Value) -> ir.Value:
    """Return the result of `_products` for signed bytes: magnitudes of ``right`` times ``left`` with both signs."""
    lanes = left.type.count
    octets = ir.VectorType(_I8, 4 * lanes)
    left, right = b.ir.bitcast(left, octets), b.ir.bitcast(right, octets)
    zero = b.constant(octets, 0)
    below = b.ir.icmp_signed("<", right, zero)
    feature, of_bytes = _SIGNS.get(32 * lanes, ("", ""))
    if feature and host.has(feature):
        signed = b.ir.call(b.function(of_bytes, octets, [octets] * 2), [left, right])
    else:
        signed = b.ir.select(below, b.ir.sub(zero, left), left)
    size = b.ir.select(below, b.ir.sub(zero, right), right)
    words = ir.VectorType(ir.IntType(32), lanes)
    return _products(b, b.ir.bitcast(size, words), b.ir.bitcast(signed, words))


@kernel_function
def add_dot4(sums: types.Type, u: types.Type, s: types.Type) -> Definition:
    if not isinstance(sums, Vec) or sums.dtype != "int32" or not sums == u == s:
        raise TypingError(f"add_dot4: expected three vectors of int32 of one length, got {sums}, {u}, {s}")
    if not has_dot4(host.host(), 32 * sums.lanes):
        raise TypingError(f"add_dot4: this CPU has no vpdpbusd or usdot of {sums.lanes} lanes")
    name = f"llvm.x86.avx512.vpdpbusd.{32 * sums.lanes}"

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        type_ = values[0].type
        if host.has("neon"):
            return _neon_dot(VectorBuilder(builder), "usdot", values)
        return builder.call(VectorBuilder(builder).function(name, type_, [type_] * 3), values)

    return sums(sums, u, s), emit


@kernel_function
def add_signed_dot4(sums: types.Type, x: types.Type, y: types.Type) -> Definition:
    if not isinstance(sums, Vec) or sums.dtype != "int32" or not sums == x == y:
        raise TypingError(f"add_signed_dot4: expected three vectors of int32 of one length, got {sums}, {x}, {y}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        if host.has("dotprod") and sums.lanes == _NEON_LANES:
            return _neon_dot(b, "sdot", values)
        return _pair_sums(b, values[0], _signed_products(b, values[1], values[2]), 1)

    return sums(sums, x, y), emit


@kernel_function
def add_dot2(sums: types.Type, x: types.Type, y: types.Type) -> Definition:
    if not isinstance(sums, Vec) or sums.dtype != "int32" or not sums == x == y:
        raise TypingError(f"add_dot2: expected three vectors of int32 of one length, got {sums}, {x}, {y}")
    if not multiplies_pairs(host.host(), 32 * sums.lanes):
        raise TypingError(f"add_dot2: this CPU has no vpmaddwd of {sums.lanes} lanes")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        b = VectorBuilder(builder)
        halves = ir.VectorType(_I16, 2 * sums.lanes)
        return _added_pairs(b, values[0], *(b.ir.bitcast(x, halves) for x in values[1:]))

    return sums(sums, x, y), emit


@kernel_function
def dot2(u: types.Type, s: types.Type) -> Definition:
    if not isinstance(u, Vec) or u.dtype != "int32" or u != s:
        raise TypingError(f"dot2: expected two vectors of int32 of one length, got {u}, {s}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return _products(VectorBuilder(builder), *values)

    return Vec("int16", 2 * u.lanes)(u, s), emit


@kernel_function
def add_pairs(sums: types.Type, x: types.Type, factor: types.Type) -> Definition:
    wanted = isinstance(sums, Vec) and sums.dtype == "int32" and x == Vec("int16", 2 * sums.lanes)
    if not wanted or not isinstance(factor, types.IntegerLiteral):
        raise TypingError(
            f"add_pairs: expected int32, twice as many int16 and an integer literal, got {sums}, {x}, {factor}"
        )
    value = factor.literal_value

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return _pair_sums(VectorBuilder(builder), values[0], values[1], value)

    return sums(sums, x, factor), emit
