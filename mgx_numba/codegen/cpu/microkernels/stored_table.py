"""The register tiles of float32 by 16-bit weights, which are converted to float32 in registers, exactly.

Weights so take half the memory and bandwidth. One conversion serves all rows of a tile. AVX512-FP16 is not used: its
multiply-adds (``vfmadd231ph``) accumulate in float16, and it has no instruction that adds products of float16 to
float32. ARM's float16 ``fmla`` accumulates in float16 too, which overflows at 65520. Its ``fmlal`` (FEAT_FHM) adds to
float32, four products an instruction as the float32 ``fmla``: it saves only the conversions, 3 of 27 instructions.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import host
from .register_tile import RegisterTile, TileTypes, avx2, avx512, neon


def _tile(
    name: str, dtype: str, heights: tuple[int, ...], bits: int, isa: Callable[[host.Host], bool], vectors: int = 2
) -> RegisterTile:
    types = TileTypes("float32", dtype, "float32")
    return RegisterTile(name, types, heights, vectors, bits, isa, intrinsic=f"tile_stored_{dtype}", finishes=False)


def _avx2_f16c(cpu: host.Host) -> bool:
    return avx2(cpu) and "f16c" in cpu.features


STORED_TILES = (
    _tile("avx512_12x2_stored", "float16", (12, 8, 4, 2, 1), 512, avx512),
    _tile("avx512_12x2_stored", "bfloat16", (12, 8, 4, 2, 1), 512, avx512),
    _tile("avx2_6x2_stored", "float16", (6, 4, 2, 1), 256, _avx2_f16c),
    _tile("avx2_6x2_stored", "bfloat16", (6, 4, 2, 1), 256, avx2),
    _tile("neon_8x3_stored", "float16", (8, 4, 2, 1), 128, neon, 3),
    _tile("neon_8x3_stored", "bfloat16", (8, 4, 2, 1), 128, neon, 3),
)
