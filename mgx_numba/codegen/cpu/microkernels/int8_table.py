"""The 8-bit integer register tiles: exact int32 accumulators, which wrap around as NumPy's do.

x86-64: with VNNI (``vpdpbusd``) a lane adds four products of an unsigned by a signed byte. A signed left-hand side is
read with 128 added, and the column sums correct for it. Elsewhere two products of 16-bit integers are added at once
(``vpmaddwd``), to which both operands are widened when they are packed. `RESIDUAL_TILES` keep bytes and take three
instructions for four products instead of four (``vpmaddubsw``, which adds two products in 16 bits).

ARM: DotProd has ``sdot`` for signed bytes. An unsigned left-hand side is read with 128 subtracted, and the column sums
correct for it. I8MM multiplies matrices of two rows and eight columns (``smmla``; ``usmmla`` for unsigned bytes on the
left): a word is eight bytes, and an instruction makes twice the products of ``sdot``. ``ummla`` and ``udot`` have no
use, since right-hand sides are signed.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import host
from .register_tile import Packing, RegisterTile, TileTypes, any_cpu, avx512, neon


def _avx512_vnni(cpu: host.Host) -> bool:
    return avx512(cpu) and "avx512vnni" in cpu.features


def _vnni(cpu: host.Host) -> bool:
    return "avxvnni" in cpu.features or {"avx512vnni", "avx512vl"} <= cpu.features


def has_dot4(cpu: host.Host, bits: int) -> bool:
    """Return whether a CPU adds four products of an unsigned by a signed byte in vectors of ``bits`` bits: by
    ``vpdpbusd``, or ``usdot`` of I8MM."""
    return {512: _avx512_vnni, 256: _vnni, 128: _neon_i8mm}.get(bits, lambda cpu: False)(cpu)


def multiplies_pairs(cpu: host.Host, bits: int) -> bool:
    """Return whether a CPU has ``vpmaddwd`` over vectors of ``bits`` bits."""
    feature = {128: "sse2", 256: "avx2", 512: "avx512bw"}.get(bits)
    return feature in cpu.features


def _avx2(cpu: host.Host) -> bool:
    return "avx2" in cpu.features


def _neon_dot(cpu: host.Host) -> bool:
    return neon(cpu) and "dotprod" in cpu.features


def _neon_i8mm(cpu: host.Host) -> bool:
    return neon(cpu) and "i8mm" in cpu.features


_UNSIGNED, _SIGNED = TileTypes("uint8", "int8", "int32"), TileTypes("int8", "int8", "int32")

_INTRINSICS = {
    Packing(k_interleave=4): "tile_dot4",
    Packing(a="uint8", k_interleave=4, column_sums=True): "tile_dot4_shifted",
    Packing("int16", "int16", k_interleave=2): "tile_dot2",
    Packing(a="int8", k_interleave=4, column_sums=True): "tile_dot4_lowered",
    Packing(k_interleave=8): "tile_mmla_uint8",
    Packing(k_interleave=4, residuals=True): "tile_dot4_residual",
    Packing(a="uint8", k_interleave=4, column_sums=True, residuals=True): "tile_dot4_residual_shifted",
}
_DOT4, _DOT4_SHIFTED, _DOT2, _DOT4_LOWERED, _MMLA, _RESIDUAL, _RESIDUAL_SHIFTED = _INTRINSICS
PAIR_CYCLES = {256: 0.67, 512: 1.0}
"""Cycles of a vector of accumulators, by its bits, for a word of two k: two instructions.

Loops over operands in the L1 cache: 155 GOP/s where float32 takes 104 GFLOP/s (Zen 3). Of 512 bits there are two
instructions a cycle (145 GOP/s for whole products, Emerald Rapids without VNNI)."""
RESIDUAL_CYCLES = {256: 1.03, 512: 1.5}
"""The same for a word of four k with residuals: three instructions (200 and 185 GOP/s)."""


def _intrinsic(types: TileTypes, packing: Packing) -> str:
    """Return the intrinsic of a packing; a signed left-hand side that stays signed has its own."""
    own = {(_SIGNED, _DOT4): "tile_dot4_signed", (_SIGNED, _MMLA): "tile_mmla_int8"}
    return own.get((types, packing), _INTRINSICS[packing])


def _tile(
    name: str,
    types: TileTypes,
    heights: tuple[int, ...],
    vectors: int,
    bits: int,
    isa: Callable[[host.Host], bool],
    packing: Packing,
    tall: int = 0,
    cycles: float = RegisterTile.cycles,
) -> RegisterTile:
    intrinsic = _intrinsic(types, packing)
    return RegisterTile(
        name, types, heights, vectors, bits, isa, tall, packing, intrinsic=intrinsic, finishes=False, cycles=cycles
    )


INT8_TILES = (
    _tile("vnni_8x3", _UNSIGNED, (8, 4, 2, 1), 3, 512, _avx512_vnni, _DOT4, tall=9),
    _tile("vnni_8x3", _SIGNED, (8, 4, 2, 1), 3, 512, _avx512_vnni, _DOT4_SHIFTED, tall=9),
    _tile("vnni_4x3", _UNSIGNED, (4, 2, 1), 3, 256, _vnni, _DOT4),
    _tile("vnni_4x3", _SIGNED, (4, 2, 1), 3, 256, _vnni, _DOT4_SHIFTED),
    _tile("avx512_8x3", _UNSIGNED, (8, 4, 2, 1), 3, 512, avx512, _DOT2, cycles=PAIR_CYCLES[512]),
    _tile("avx512_8x3", _SIGNED, (8, 4, 2, 1), 3, 512, avx512, _DOT2, cycles=PAIR_CYCLES[512]),
    _tile("avx2_6x2", _UNSIGNED, (6, 4, 2, 1), 2, 256, _avx2, _DOT2, cycles=PAIR_CYCLES[256]),
    _tile("avx2_6x2", _SIGNED, (6, 4, 2, 1), 2, 256, _avx2, _DOT2, cycles=PAIR_CYCLES[256]),
    _tile("neonmmla_8x3", _UNSIGNED, (8, 4, 2, 1), 3, 128, _neon_i8mm, _MMLA),
    _tile("neonmmla_8x3", _SIGNED, (8, 4, 2, 1), 3, 128, _neon_i8mm, _MMLA),
    _tile("neondot_8x3", _UNSIGNED, (8, 4, 2, 1), 3, 128, _neon_dot, _DOT4_LOWERED),
    _tile("neondot_8x3", _SIGNED, (8, 4, 2, 1), 3, 128, _neon_dot, _DOT4),
    _tile("portable_4x2", _UNSIGNED, (4, 2, 1), 2, 128, any_cpu, _DOT2),
    _tile("portable_4x2", _SIGNED, (4, 2, 1), 2, 128, any_cpu, _DOT2),
)

RESIDUAL_TILES = tuple(
    _tile(name, types, heights, 2, bits, isa, packing, cycles=RESIDUAL_CYCLES[bits])
    for name, heights, bits, isa in (
        ("avx512_8x2_residual", (8, 4, 2, 1), 512, avx512),
        ("avx2_5x2_residual", (5, 4, 2, 1), 256, _avx2),
    )
    for types, packing in ((_UNSIGNED, _RESIDUAL), (_SIGNED, _RESIDUAL_SHIFTED))
)
"""Tiles for CPUs without VNNI and for constant weights: see `contraction.int8_residual`."""
