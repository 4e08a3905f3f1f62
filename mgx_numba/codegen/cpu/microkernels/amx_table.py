"""The AMX register tiles: registers of 16 rows by 64 bytes, of which four hold the accumulators of 32 rows by 32
columns.

``tdpbf16ps`` adds to 16 x 16 accumulators the products of 16 rows of 32 bfloat16 by as many columns; ``tdpbusd`` and
``tdpbssd`` do the same for 64 bytes. Denormal bfloat16 count as zero. Float32 is multiplied in parts: the number
rounded to bfloat16 and its remainder rounded to bfloat16, together 16 bits. Of their four products the three large ones
are added to the same accumulators, and each part is loaded once from beyond the L1 cache for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from ..host import EMULATED_TILES, Host
from .register_tile import Packing, RegisterTile, TileState, TileTypes

TILE_STEP = 16
"""Words of a row of a tile: 64 bytes."""
PRODUCT_CYCLES = 16
"""Cycles of one product of two tiles (Intel's optimisation manual, chapter on AMX)."""
REACHED = {1: 0.65, 2: 0.64}
"""Fraction of the peak rate that is assumed, by number of parts.

Products of BERT's and ResNet-50's layers reach 1,200 to 1,500 of 2,450 GFLOP/s in bfloat16 on Emerald Rapids. In parts
the cost of accumulators is counted in addition (`gemm_tiles.PARKED_SECONDS`). For 290 convolutions and products of ten
models, choices lose 1.4% of the time with 0.64, 1.6% with 0.53, 2.3% with 0.8 (`bench.choices`, all cores busy, which
makes a product of two tiles 2.4 times as long).
"""
NEAR_BYTES = 131072
"""Bytes of a block of left-hand rows that is read for each panel, from the L2 cache.

Tiles are loaded as fast from there (2,300 GFLOP/s in bfloat16, 2,450 from the L1 cache, Emerald Rapids), and each
further step parks all accumulators: with a quarter of it 3x3 convolutions took 10 to 20% longer.
"""

_STATE = TileState((f"configure_tiles({TILE_STEP})",), ("release_tiles()",))


def _amx(feature: str) -> Callable[[Host], bool]:
    return lambda cpu: {"amx-tile", feature, "avx512bw"} <= cpu.features


def _emulated(cpu: Host) -> bool:
    return EMULATED_TILES in cpu.features and cpu.vector_bits >= 512


def _tiles(name: str, types: TileTypes, feature: str, packing: Packing) -> tuple[RegisterTile, RegisterTile]:
    """Return the tile, and the emulating tile for CPUs without AMX."""
    products = {1: 1, 2: 3}[packing.parts]
    rows = 2 * TILE_STEP

    def tile(prefix: str, isa: Callable[[Host], bool], state: TileState | None) -> RegisterTile:
        return RegisterTile(
            f"{prefix}_{name}_32x2", types, (rows, TILE_STEP), 2, 512, isa, packing=packing, state=state,
            intrinsic=f"tile_{prefix}_{name}", finishes=False, step=TILE_STEP,
            near_depth=NEAR_BYTES // (4 * rows * packing.parts),
            cycles=products * PRODUCT_CYCLES / (TILE_STEP * TILE_STEP * REACHED[packing.parts]),
        )  # fmt: skip

    return tile("amx", _amx(feature), _STATE), tile("emulated", _emulated, None)


AMX_TILES = (
    *_tiles(
        "bfloat16",
        TileTypes("float32", "bfloat16", "float32"),
        "amx-bf16",
        Packing("bfloat16", "bfloat16", k_interleave=2),
    ),
    *_tiles("bfloat16", TileTypes("bfloat16", "bfloat16", "float32"), "amx-bf16", Packing(k_interleave=2)),
    *_tiles(
        "parts",
        TileTypes("float32", "float32", "float32"),
        "amx-bf16",
        Packing("bfloat16", "bfloat16", k_interleave=2, parts=2),
    ),
    *_tiles("uint8", TileTypes("uint8", "int8", "int32"), "amx-int8", Packing(k_interleave=4)),
    *_tiles("int8", TileTypes("int8", "int8", "int32"), "amx-int8", Packing(k_interleave=4)),
)
