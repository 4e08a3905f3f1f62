"""The bfloat16 register tiles with float32 accumulators.

With AVX512-BF16 (``vdpbf16ps``) a lane adds two products of bfloat16. The left-hand side is bfloat16, or float32 that
is rounded to nearest even when its rows are packed. Denormal operands and accumulators count as zero. On Zen 5 that is
twice the float32 rate. On Intel's CPUs it is half of it (Sapphire and Emerald Rapids), and these CPUs use AMX tiles.
ARM's ``bfmmla`` (BF16) multiplies matrices of two rows and four columns: an instruction makes four times the products
of float32's ``fmla``. Its rate is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .. import host
from ..host import EMULATED_TILES
from .register_tile import Packing, RegisterTile, TileTypes, avx512, neon


def _fast_bfloat16(cpu: host.Host) -> bool:
    """Return whether the CPU has fast AVX512-BF16, as CPUs with AMX (or emulated AMX) do not."""
    return avx512(cpu) and "avx512bf16" in cpu.features and cpu.features.isdisjoint({"amx-bf16", EMULATED_TILES})


def _neon_bfloat16(cpu: host.Host) -> bool:
    return neon(cpu) and "bf16" in cpu.features


def _tiles(
    name: str,
    heights: tuple[int, ...],
    vectors: int,
    bits: int,
    isa: Callable[[host.Host], bool],
    together: int = 2,
    intrinsic: str = "tile_dot2_bfloat16",
) -> Iterator[RegisterTile]:
    """Yield the tile whose left-hand side has to be rounded, and the tile that reads it in place."""
    for left in ("float32", "bfloat16"):
        packing = Packing("" if left == "bfloat16" else "bfloat16", "bfloat16", k_interleave=together)
        types = TileTypes(left, "bfloat16", "float32")
        yield RegisterTile(name, types, heights, vectors, bits, isa, packing=packing, intrinsic=intrinsic)


BFLOAT16_TILES = (
    *_tiles("avx512bf16_12x2", (12, 8, 4, 2, 1), 2, 512, _fast_bfloat16),
    *_tiles("neonbf16_8x3", (8, 4, 2, 1), 3, 128, _neon_bfloat16, 4, "tile_mmla_bfloat16"),
)
