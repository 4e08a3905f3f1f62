"""How attention is cut into tasks and blocks: a function of its shape, evaluated on the host."""

from __future__ import annotations

from dataclasses import dataclass

from ..cpu.tile_table import RegisterTile
from .problem import AttentionProblem

__all__ = ["BUFFER_BYTES", "Blocks", "cut", "heights"]

BUFFER_BYTES = 65536
"""Stack memory of each of: packed queries, scores, sums."""
PANELS = 2
"""Panels of queries in a task, if there are enough tasks."""
TASKS_PER_THREAD = 3


@dataclass(frozen=True)
class Blocks:
    """Queries and result columns of one task, and the keys and features of one step within it."""

    queries: int
    keys: int
    depth: int
    width: int


def cut(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Blocks whose packed queries, scores and sums fit their buffers."""
    room = BUFFER_BYTES // problem.itemsize
    heads = problem.batch * problem.heads
    for panels in range(PANELS, 0, -1):
        queries = _even(problem.queries, panels * tile.columns, tile.columns)
        if heads * -(-problem.queries // queries) >= TASKS_PER_THREAD * threads:
            break
    padded = -(-queries // tile.columns) * tile.columns
    keys = _even(problem.keys, room // padded // tile.rows * tile.rows, tile.rows)
    width = min(-(-problem.width // tile.columns) * tile.columns, room // padded // tile.columns * tile.columns)
    return Blocks(queries, keys, min(problem.depth, room // padded), width)


def heights(tile: RegisterTile) -> int:
    """Height of the tallest variant of a tile that fits into r rows, in bits 4r to 4r+3."""
    return sum(max(h for h in tile.heights if h <= r) << (4 * r) for r in range(1, tile.rows + 1))


def _even(total: int, limit: int, multiple: int) -> int:
    """Block of at most ``limit`` (a multiple) that cuts ``total`` into nearly equal parts, rounded up to ``multiple``."""
    parts = -(-total // limit)
    block = -(-total // parts)
    return min(-(-block // multiple) * multiple, limit)
