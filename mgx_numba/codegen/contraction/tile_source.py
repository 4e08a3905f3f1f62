"""The kernel that holds all variants of a register tile: compiled once for a dtype, called by every contraction."""

from __future__ import annotations

from ..cpu.tile_table import RegisterTile
from ..kernel import KernelSource

__all__ = ["ROWS_SLOT", "VECTORS_SLOT", "tile_source"]

ROWS_SLOT = 13
VECTORS_SLOT = 14


def tile_source(tile: RegisterTile, masked: bool = False) -> KernelSource:
    """Kernel over panels whose argument block is :data:`mgx_numba.codegen.cpu.tile.TILE_SLOTS`.

    With ``masked`` no column past the last one is read, for a right-hand side that was not packed.
    """
    lines = ["def kernel(args, begin, end):", f"    rows = args[{ROWS_SLOT}]", f"    vectors = args[{VECTORS_SLOT}]"]
    for vectors in tile.widths():
        lines.append(f"    if vectors == {vectors}:")
        for index, rows in enumerate(tile.heights):
            shape = f"{rows}, {vectors}, {tile.lanes}, {tile.split(rows, vectors)}, {int(masked)}"
            lines.append(f"        {'elif' if index else 'if'} rows == {rows}:")
            lines.append(f"            tile_{tile.dtype}(args, begin, end, {shape})")
    name = f"{tile.name}_{tile.dtype}{'_masked' if masked else ''}_tile_kernel"
    return KernelSource(name, "\n".join(lines) + "\n")
