"""Matrix products whose right-hand side is packed, or is read in place where its rows are contiguous.

One kernel serves all sizes, strides and batches. A task is a block of rows by a block of panels of one matrix of the
batch. Inside it each group of tile rows runs over the block's panels, and its sums go through the epilogue while they
are in the L1 cache; a K too long for the cache is cut, the block's sums then stay on the stack between the cuts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..cpu.tile_table import RegisterTile, tile_for
from ..kernel import KernelSource
from ..launch import Launch, Operand
from .problem import Epilogue, GemmProblem
from .text import Arguments, Rows, indent, kernel_name
from .tile_source import ROWS_SLOT, VECTORS_SLOT, tile_source

SUMS_BYTES = 65536
"""Stack memory for the sums of one task."""


@dataclass(frozen=True)
class Blocking:
    """Sizes of a task in rows, panels and k (`depth`, over the whole of K unless it does not fit the cache)."""

    rows: int
    panels: int
    depth: int


def height_table(tile: RegisterTile) -> int:
    """Tile height to take when r rows are left, in bits 4r to 4r+3; a little larger than r where that is cheaper."""
    table = 0
    for left in range(1, tile.rows + 1):
        below = max(h for h in tile.heights if h <= left)
        above = min(h for h in tile.heights if h >= left)
        table |= (below if (left - below) * 3 <= below else above) << (4 * left)
    return table


def run_tile(tile: RegisterTile) -> list[str]:
    """Statements that run ``height`` rows over ``wide`` full panels and ``narrow`` (0 or 1) panels of one vector."""
    lines = [
        f"block[{ROWS_SLOT}] = height",
        f"block[{VECTORS_SLOT}] = {tile.vectors}",
        "call_kernel(args, 0, block, 0, wide)",
    ]
    if tile.vectors > 1:
        lines += ["if narrow:", f"    block[{VECTORS_SLOT}] = 1", "    call_kernel(args, 0, block, wide, wide + 1)"]
    return lines


def gemm_launch(problem: GemmProblem, epilogue: Epilogue, strides, blocking: Blocking) -> Launch:
    tile = tile_for(problem.dtype)
    a = Arguments()
    assert a.callee(tile_source(tile)) == 0
    rows = Rows(epilogue, problem.dtype, tile.lanes)
    a.pointer("x", "x", problem.dtype)
    a.pointer("w", "w", problem.dtype)
    rows.pointers(a)
    NR = tile.columns
    panels = -(-problem.n // NR)
    a.integers(m=problem.m, n=problem.n, k=problem.k, m_block=blocking.rows, p_block=blocking.panels, k_block=blocking.depth,
        m_blocks=-(-problem.m // blocking.rows), n_blocks=-(-panels // blocking.panels), panels=panels,
        x_ld=problem.a_strides[-2], x_step=problem.a_strides[-1], w_step=NR, w_panel=NR * problem.k, out_ld=problem.out_strides[-1],
        keep=int(blocking.depth < problem.k))
    dt = problem.dtype
    L = tile.lanes
    body = f"""
def kernel(args, begin, end):
{chr(10).join(indent(a.lines))}
    block = local_int64(16)
    table = local_int64(16)
    sums = local_{dt}({SUMS_BYTES // problem.itemsize})
    put_pointer(block, 1, table)
    put_pointer(block, 2, x)
    block[5] = 1
    block[7] = x_step
    block[8] = w_step
    block[9] = w_panel
    block[11] = {NR}
    for task in range(begin, end):
        m0 = imod(task, m_blocks) * m_block
        p0 = idiv(task, m_blocks) * p_block
        m1 = imin(m, m0 + m_block)
        wide = imin(panels - p0, p_block)
        sums_ld = wide * {NR}
        n0 = p0 * {NR}
        columns = imin(n - n0, sums_ld)
        narrow = columns <= sums_ld - {NR - L}
        if narrow:
            wide -= 1
        block[10] = sums_ld
        for k0 in range(0, k, k_block):
            depth = imin(k_block, k - k0)
            put_pointer(block, 3, offset(w, p0 * w_panel + k0 * w_step))
            block[6] = depth
            block[12] = k0
            row = m0
            while row < m1:
                left = imin(m1 - row, {tile.rows})
                height = ({height_table(tile)} >> (4 * left)) & 15
                left = imin(left, height)
                for i in range(height):
                    table[i] = imin(i, left - 1) * x_ld
                put_pointer(block, 0, offset(x, row * x_ld + k0 * x_step))
                sums_row = (row - m0) * sums_ld * keep
                put_pointer(block, 4, offset(sums, sums_row))
{chr(10).join(indent(run_tile(tile), 4))}
                if k0 + depth >= k:
                    for i in range(left):
                        out_row = (row + i) * out_ld + n0
{chr(10).join(indent([f"{v}_row = (row + i) * {v}_ld" for v in rows.varying() if v != "out"] + rows.text(), 6))}
                        sums_row += sums_ld
                row += left
"""
    tasks = -(-problem.m // blocking.rows) * -(-panels // blocking.panels)
    return Launch(KernelSource(kernel_name("gemm", epilogue), body), tuple(a.values), tasks, 1, problem.flops)
