"""The kernels that hold all variants of a register tile: compiled once for a dtype, called by every contraction."""

from __future__ import annotations

import functools

from ...kernel import KernelSource
from ...problems.epilogue import Epilogue
from ...statements import kernel_text
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import MATRIX_BLOCK, TILE_BLOCK
from ..records import RecordText
from .epilogue_rows import epilogue_text, kernel_name

THIN = 4
"""Remaining columns for which four rows share a vector; fewer rows in a vector gain nothing, except beside a whole
vector of the same rows."""


def tile_record(block: RecordText) -> list[str]:
    """Return statements that allocate a tile's argument block, with prefetching of epilogue memory disabled."""
    matrix = {"far_lines": 0, "finish": 0, "done": 0, "waiting": 0, "pace": 0} if block.record is MATRIX_BLOCK else {}
    return [block.local(), *block.fill(touched=0, elsewhere=0, **matrix)]


@functools.lru_cache(maxsize=64)
def tile_source(tile: RegisterTile, masked: bool = False) -> KernelSource:
    """Return the kernel for a product over panels; its argument block is a `tile_table.TILE_BLOCK`.

    Args:
        masked: no column past the last is read, for a right-hand side that is not packed.
    """
    block = RecordText(TILE_BLOCK, "args")
    lines = [f"rows = {block.get('rows')}", f"vectors = {block.get('vectors')}"]
    for vectors in tile.widths():
        lines.append(f"if vectors == {vectors}:")
        for index, rows in enumerate(tile.heights if masked else tile.variants()):
            shape = f"{rows}, {vectors}, {tile.lanes}, {tile.split(rows, vectors)}, {int(masked)}"
            lines.append(f"    {'elif' if index else 'if'} rows == {rows}:")
            lines.append(f"        {tile.intrinsic}(args, begin, end, {shape})")
    name = f"{tile.name}_{tile.types.accumulator}_tile{'_masked' if masked else ''}_kernel"
    return cpu_kernel(name, kernel_text(lines))


@functools.lru_cache(maxsize=256)
def epilogue_source(tile: RegisterTile, epilogue: Epilogue, even: int, columns: int, contiguous: bool) -> KernelSource:
    """Return the kernel for a product over panels with an epilogue in registers; its argument block is a
    `tile_table.finish_block`.

    Args:
        even: as in :mod:`mgx_numba.codegen.cpu.microkernels.fused_epilogue`.
        columns: columns of the result; the text depends on how many vectors the last panel fills.
        contiguous: successive terms of a row are contiguous.
    """
    dtype = tile.types.accumulator
    last, missing = divmod(columns % tile.columns, tile.lanes)
    thin = THIN if 0 < missing <= THIN <= tile.lanes // 4 and even and contiguous else 0
    if not thin and last == 1 and 0 < missing <= tile.lanes // 2 and not tile.pairs_rows:
        thin = tile.lanes // 2
    last += missing > 0
    operands = ",".join(f"{operand.dtype} {operand.access}" for operand in epilogue.operands)
    statements, stored = epilogue_text(epilogue, tile.lanes)
    body, result = "\n".join(statements), f"{epilogue.out_dtype(dtype)} {stored}"
    lines = [f"rows = {RecordText(TILE_BLOCK, 'args').get('rows')}"]
    for index, rows in enumerate((tile.rows, tile.tall) if tile.tall else (tile.rows,)):
        shape = f"{rows}, {tile.vectors}, {tile.lanes}, {even}, {last}, {int(missing > 0)}, {thin}"
        lines.append(f"{'elif' if index else 'if'} rows == {rows}:")
        lines.append(f"    {tile.finishing}(args, begin, end, {shape}, {operands!r}, {body!r}, {result!r})")
    return cpu_kernel(f"{tile.name}_{dtype}_{kernel_name('tile', epilogue)}", kernel_text(lines))
