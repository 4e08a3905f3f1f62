"""Name the CPU unit that multiplies in a kernel, from the register tiles that it calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..kernel import KernelSource
from . import host
from .microkernels.amx_table import AMX_TILES
from .microkernels.register_tile import RegisterTile
from .microkernels.tile_table import TILES, WIDE_INTEGERS

_FAMILIES = {
    "amx": "AMX",
    "emulated": "AMX in vector code",
    "avx512bf16": "AVX512-BF16",
    "avx512": "AVX-512",
    "avx2": "AVX2",
    "vnni": "VNNI",
    "neon": "NEON",
    "neondot": "NEON dot products",
    "neonmmla": "NEON I8MM",
    "neonbf16": "NEON BF16",
    "portable": "vectors of 128 bits",
}
"""Unit names by the first part of a tile's name."""


def unit_of(kernels: Sequence[KernelSource]) -> str:
    """Return the unit of the first tile among kernels that call each other; "" where they multiply in vectors of
    one dtype."""
    tiles = _tiles(host.host())
    names = (kernel.name.partition("_tile_")[0] for kernel in kernels if "_tile_" in kernel.name)
    return next((_unit_name(tiles[name]) for name in names if name in tiles and not _plain(tiles[name])), "")


def tile_of_unit(unit: str) -> RegisterTile:
    """Return the tile of a unit that `unit_of` has named."""
    return next(tile for tile in _tiles(host.host()).values() if _unit_name(tile) == unit)


def _unit_name(tile: RegisterTile) -> str:
    """Return a name such as ``AMX bfloat16``, ``AMX float32 in parts``, ``VNNI int8, 256 bits``."""
    family = tile.name.partition("_")[0]
    dtype, form = tile.types.b, tile.packing.b
    if tile.packing.parts > 1:
        dtype += " in parts"
    elif form not in ("", dtype):
        dtype += f" as {form}"
    return f"{_FAMILIES.get(family, family)} {dtype}{f', {tile.bits} bits' if family == 'vnni' else ''}"


@functools.lru_cache(maxsize=8)
def _tiles(cpu: host.Host) -> dict[str, RegisterTile]:
    """Return the tiles that the CPU can run, by the prefix of their kernels' names; the first of several with one
    name."""
    known = [tile for tile in (*AMX_TILES, *TILES) if tile.isa(cpu)]
    return {f"{tile.name}_{tile.types.accumulator}": tile for tile in reversed(known)}


def _plain(tile: RegisterTile) -> bool:
    """Return whether a tile multiplies in vectors of its accumulators' dtype, whatever dtype its operands are stored
    in."""
    return (tile.types.uniform is not None and tile.packing.parts == 1) or tile.name.endswith("_stored")


def units() -> list[str]:
    """Return for each dtype of right operands the unit of the first tile that the CPU can run, as names to print."""
    found: dict[tuple[str, int], str] = {}
    for tile in (*AMX_TILES, *TILES):
        if tile.isa(host.host()) and not tile.name.endswith("_stored") and tile.types.uniform not in WIDE_INTEGERS:
            found.setdefault((tile.types.b, tile.packing.parts), _unit_name(tile))
    return list(found.values())
