"""The kernels that hold all variants of a register tile: compiled once for a dtype, called by every contraction."""

from __future__ import annotations

import functools

from ..cpu.tile_table import RegisterTile
from ..kernel import KernelSource

__all__ = ["ROWS_SLOT", "VECTORS_SLOT", "depthwise_source", "tile_source"]

ROWS_SLOT = 13
VECTORS_SLOT = 14


def tile_source(tile: RegisterTile, masked: bool = False) -> KernelSource:
    """Matrix product over panels; its argument block is :data:`mgx_numba.codegen.cpu.tile.TILE_SLOTS`.

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
        for index, rows in enumerate(tile.heights):
            shape = f"{rows}, {vectors}, {tile.lanes}, {tile.split(rows, vectors)}, {int(masked)}"
            lines.append(f"        {'elif' if index else 'if'} rows == {rows}:")
            lines.append(f"            {kind}_{tile.dtype}(args, begin, end, {shape})")
    name = f"{tile.name}_{tile.dtype}_{kind}{'_masked' if masked else ''}_kernel"
    return KernelSource(name, "\n".join(lines) + "\n")
