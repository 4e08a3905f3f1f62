"""The kernels that hold all variants of a register tile: compiled once for a dtype, called by every contraction."""

from __future__ import annotations

import functools

from ..cpu.tile_table import TILE_SLOTS, RegisterTile, tile_slot
from ..kernel import KernelSource

__all__ = ["ROWS_SLOT", "TOUCHED_SLOT", "VECTORS_SLOT", "depthwise_source", "tile_block", "tile_source"]

ROWS_SLOT = tile_slot("rows")
VECTORS_SLOT = tile_slot("vectors")
TOUCHED_SLOT = tile_slot("touched")


def tile_block(name: str = "block") -> list[str]:
    """Statements that make room for an argument block, in which no memory is to be brought into the cache."""
    return [f"{name} = local_int64({len(TILE_SLOTS)})", f"{name}[{TOUCHED_SLOT}] = 0"]


def tile_source(tile: RegisterTile, masked: bool = False) -> KernelSource:
    """Matrix product over panels; its argument block is :data:`mgx_numba.codegen.cpu.tile_table.TILE_SLOTS`.

    With ``masked`` no column past the last one is read, for a right-hand side that was not packed.
    """
    return _source("tile", tile, masked)


def depthwise_source(tile: RegisterTile) -> KernelSource:
    """Product of channels by their own weights, over panels of channels; argument block as for `tile_source`."""
    return _source("depthwise", tile, True)


@functools.lru_cache(maxsize=64)
def _source(kind: str, tile: RegisterTile, masked: bool) -> KernelSource:
    lines = ["def kernel(args, begin, end):", f"    rows = args[{ROWS_SLOT}]", f"    vectors = args[{VECTORS_SLOT}]"]
    for vectors in tile.widths():
        lines.append(f"    if vectors == {vectors}:")
        for index, rows in enumerate(tile.heights if masked else tile.variants()):
            shape = f"{rows}, {vectors}, {tile.lanes}, {tile.split(rows, vectors)}, {int(masked)}"
            lines.append(f"        {'elif' if index else 'if'} rows == {rows}:")
            lines.append(f"            {kind}_{tile.dtype}(args, begin, end, {shape})")
    name = f"{tile.name}_{tile.dtype}_{kind}{'_masked' if masked else ''}_kernel"
    return KernelSource(name, "\n".join(lines) + "\n")
