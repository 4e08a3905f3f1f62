"""The register tiles of float32 by 16-bit weights, which are converted to float32 in registers, exactly.

Weights so take half the memory and bandwidth. One conversion serves all rows of a tile. AVX512-FP16 is not used: its
multiply-adds (``vfmadd231ph``) accumulate in float16, and it has no instruction that adds products of float16 to
float32.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import host
from .register_tile import RegisterTile, TileTypes, avx2, avx512

__all__ = ["STORED_TILES"]


def _tile(name: str, dtype: str, heights: tuple[int, ...], bits: int, isa: Callable[[host.Host], bool]) -> RegisterTile:
    types = TileTypes("float32", dtype, "float32")
    return RegisterTile(name, types, heights, 2, bits, isa, intrinsic=f"tile_stored_{dtype}", finishes=False)


def _avx2_f16c(cpu: host.Host) -> bool:
    return avx2(cpu) and "f16c" in cpu.features


STORED_TILES = (
    _tile("avx512_12x2_stored", "float16", (12, 8, 4, 2, 1), 512, avx512),
    _tile("avx512_12x2_stored", "bfloat16", (12, 8, 4, 2, 1), 512, avx512),
    _tile("avx2_6x2_stored", "float16", (6, 4, 2, 1), 256, _avx2_f16c),
    _tile("avx2_6x2_stored", "bfloat16", (6, 4, 2, 1), 256, avx2),
)
