"""How attention is cut into tasks and blocks: a function of its shape, evaluated on the host."""

from __future__ import annotations

from ....dataclass import dataclass
from ...problems.attention import AttentionProblem
from ..microkernels.register_tile import RegisterTile

__all__ = ["BUFFER_BYTES", "MOST_QUERIES", "Blocks", "cut_few", "cut_many", "cut_tiles", "record_size"]

BUFFER_BYTES = 32768
"""Stack memory of each of: packed queries, the scores of one step, a panel of values, sums."""
QUERIES = 64
"""Most queries in a task that packs queries."""
MOST_QUERIES = 128
"""Most queries in any task: one that packs keys and values does so once for all of them."""
FEW_KEYS = 4096
"""Most keys in one step of a few queries: long stretches of memory are read faster."""
TASKS_PER_THREAD = 4
"""So many even out heads of different cost; each packs its keys again. No figures kept."""
SPLIT_KEYS = 256
"""Fewest keys that are worth a task of their own."""


@dataclass(frozen=True)
class Blocks:
    """Queries and result columns of one task, keys and features of one step within it, and parts of the keys.

    ``group`` queries, whole panels, go through one step together.
    """

    queries: int
    group: int
    keys: int
    depth: int
    width: int
    splits: int


def cut_many(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Blocks for panels of queries, whose buffers they fit."""
    room = BUFFER_BYTES // problem.itemsize
    heads = problem.batch * problem.heads
    longest = max(problem.depth, problem.width)
    for panels in range(max(1, QUERIES // tile.columns), 0, -1):
        queries = _even(problem.queries, panels * tile.columns, tile.columns)
        if queries * longest <= room and heads * -(-problem.queries // queries) >= TASKS_PER_THREAD * threads:
            break
    width = min(-(-problem.width // tile.columns), room // queries // tile.columns) * tile.columns
    tasks = heads * -(-problem.queries // queries) * -(-problem.width // width)
    splits = _splits(problem, tasks, threads)
    # a causal bound spares panels some of their keys
    group = tile.columns if problem.causal or -(-problem.keys // splits) > room // queries else queries
    most = room // group // tile.rows * tile.rows
    keys = _even(-(-problem.keys // splits), most, tile.rows)
    return Blocks(queries, group, keys, min(problem.depth, room // queries), width, splits)


def cut_tiles(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Blocks for a tile that reads whole matrices: a group is its rows, keys are whole panels of it."""
    room = BUFFER_BYTES // problem.itemsize
    width = -(-problem.width // tile.columns) * tile.columns
    heads = problem.batch * problem.heads
    for limit in range(min(MOST_QUERIES, room // width // tile.rows * tile.rows), 0, -tile.rows):
        queries = _even(problem.queries, limit, tile.rows)
        if heads * -(-problem.queries // queries) >= TASKS_PER_THREAD * threads:
            break
    splits = _splits(problem, heads * -(-problem.queries // queries), threads)
    longest = max(width, 2 * tile.depth(problem.depth))
    most = min(room // tile.rows, 2 * room // longest) // tile.columns * tile.columns
    return Blocks(
        queries, tile.rows, _even(-(-problem.keys // splits), most, tile.columns), problem.depth, width, splits
    )


def cut_few(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Blocks for all queries of a head at a time."""
    room = BUFFER_BYTES // problem.itemsize // problem.queries
    width = min(-(-problem.width // tile.columns), room // tile.columns) * tile.columns
    splits = _splits(problem, problem.batch * problem.heads * -(-problem.width // width), threads)
    # scores have a vector of room after each row
    keys = _even(-(-problem.keys // splits), min(FEW_KEYS, room // tile.lanes * tile.lanes - tile.lanes), tile.lanes)
    return Blocks(problem.queries, problem.queries, keys, problem.depth, width, splits)


def record_size(tile: RegisterTile, problem: AttentionProblem) -> int:
    """Elements that a part of the keys leaves for one query: maximum and total weight in one vector, then the sums."""
    return tile.lanes + -(-problem.width // tile.columns) * tile.columns


def _splits(problem: AttentionProblem, tasks: int, threads: int) -> int:
    """Parts of the keys that give every thread some tasks."""
    if threads == 1 or tasks >= TASKS_PER_THREAD * threads:
        return 1
    parts = min(-(-TASKS_PER_THREAD * threads // tasks), problem.keys // SPLIT_KEYS)
    # no part is left without keys
    return -(-problem.keys // -(-problem.keys // parts)) if parts > 1 else 1


def _even(total: int, limit: int, multiple: int) -> int:
    """Block of at most ``limit`` that cuts ``total`` into nearly equal parts; both are multiples of ``multiple``."""
    parts = -(-total // limit)
    block = -(-total // parts)
    return min(-(-block // multiple) * multiple, limit)
