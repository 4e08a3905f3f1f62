"""Choose the tasks and blocks of attention from its shape; evaluated on the host."""

from __future__ import annotations

from ....core.dim import Length, SharedLength, all_of, ceil_div, less_equal, maximum, minimum, select
from ....dataclass import dataclass
from ...problems.attention import AttentionProblem
from ..microkernels.register_tile import RegisterTile

BUFFER_BYTES = 32768
"""Stack memory (bytes) of each buffer: packed queries, sums, copied keys, and a step of few queries."""
LINE_BYTES = 64
"""Bytes of a cache line."""
STEP_BYTES = 2 * BUFFER_BYTES
"""Stack memory (bytes) of the scores of one step, and of its values in panels."""
QUERIES = 96
"""Most queries of a task that packs queries."""
MOST_QUERIES = 128
"""Most queries of any task: a task that packs keys and values packs them once for all its queries."""
FEW_KEYS = 4096
"""Most keys in one step of a few queries: long runs of memory are read faster."""
TASKS_PER_THREAD = 4
"""Tasks of each thread that balance heads of different cost; each task packs its keys again. No figures kept."""
SPLIT_KEYS = 256
"""Fewest keys for which a separate task pays."""


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
    """Return blocks for panels of queries that fit the buffers."""
    room = BUFFER_BYTES // problem.itemsize
    heads = problem.batch * problem.heads
    panels = ceil_div(problem.width, tile.columns)
    longest = maximum(problem.depth, panels * tile.columns)  # all columns in one task, else scores are computed again
    queries = _even(problem.queries, tile.columns, tile.columns)
    for limit in range(2, max(1, QUERIES // tile.columns) + 1):  # the most panels that fit and give enough tasks
        more = _even(problem.queries, limit * tile.columns, tile.columns)
        enough = less_equal(TASKS_PER_THREAD * threads, heads * ceil_div(problem.queries, more))
        queries = select(all_of(less_equal(more * longest, room), enough), more, queries)
    width = minimum(panels, room // queries // tile.columns) * tile.columns
    tasks = heads * ceil_div(problem.queries, queries) * ceil_div(problem.width, width)
    splits = _splits(problem, tasks, threads)
    part = ceil_div(problem.keys, splits)
    # with a causal bound, small panels skip more keys
    group = tile.columns if problem.causal else queries
    most = STEP_BYTES // problem.itemsize // maximum(score_row(group, problem.itemsize), width)
    if problem.gathered:
        most = minimum(most, room // longest)
    most = most // tile.rows * tile.rows
    keys = _even(part, most, tile.rows)
    return Blocks(queries, group, keys, minimum(problem.depth, room // queries), width, splits)


def gathered_features(tile: RegisterTile, problem: AttentionProblem) -> int:
    """Return the greatest number of features of keys and values for which a copied block of rows fits the buffers."""
    return BUFFER_BYTES // problem.itemsize // tile.rows


def cut_tiles(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Return blocks for a matrix tile: a group is the tile's rows, and keys are whole panels."""
    room = BUFFER_BYTES // problem.itemsize
    width = -(-problem.width // tile.columns) * tile.columns
    heads = problem.batch * problem.heads
    queries = _even(problem.queries, tile.rows, tile.rows)
    for limit in range(2 * tile.rows, min(MOST_QUERIES, room // width // tile.rows * tile.rows) + 1, tile.rows):
        more = _even(problem.queries, limit, tile.rows)
        enough = less_equal(TASKS_PER_THREAD * threads, heads * ceil_div(problem.queries, more))
        queries = select(enough, more, queries)
    splits = _splits(problem, heads * ceil_div(problem.queries, queries), threads)
    longest = max(width, 2 * tile.depth(problem.depth))
    most = min(room // tile.rows, 2 * room // longest) // tile.columns * tile.columns
    return Blocks(
        queries, tile.rows, _even(ceil_div(problem.keys, splits), most, tile.columns), problem.depth, width, splits
    )


def cut_few(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Return blocks for all queries of a head at a time.

    Over a cache (`AttentionProblem.limited`) a task has the queries of one token, and nothing here depends on the
    numbers of tokens and sequences: a token's result has the same bits whatever else is computed beside it.
    """
    cached = problem.limited
    rows = problem.group if cached and not problem.one_position else problem.queries
    rows = minimum(rows, decode_queries(tile))  # all queries, where lengths chose this kernel
    room = BUFFER_BYTES // problem.itemsize // rows
    width = minimum(ceil_div(problem.width, tile.columns), room // tile.columns) * tile.columns
    heads = problem.kv_heads if cached else problem.batch * problem.heads
    splits = _splits(problem, heads * ceil_div(problem.width, width), threads)
    # each row of scores is padded by a vector
    most = minimum(FEW_KEYS, room // tile.lanes * tile.lanes - tile.lanes)
    keys = most if cached else _even(ceil_div(problem.keys, splits), most, tile.lanes)
    queries = 1 if cached and not problem.one_position else rows
    return Blocks(queries, queries, keys, problem.depth, width, splits)


def decode_queries(tile: RegisterTile) -> int:
    """Return the most queries for which lanes are better filled with features: a quarter of a vector."""
    return max(1, tile.lanes // 4)


def score_row(group: Length, itemsize: int) -> SharedLength:
    """Return the elements between the scores of successive keys for a group of queries: an odd number of cache lines.

    A column of scores then lies in all sets of the L1 cache, not in every second or fourth set.
    """
    line = LINE_BYTES // itemsize
    return group + (1 - group // line % 2) * line


def record_size(tile: RegisterTile, problem: AttentionProblem) -> int:
    """Return the elements of a record for one query: maximum and total weight in one vector, then the sums."""
    return tile.lanes + -(-problem.width // tile.columns) * tile.columns


def _splits(problem: AttentionProblem, tasks: int, threads: int) -> SharedLength:
    """Return the parts of the keys that give every thread some tasks."""
    if threads == 1:
        return 1
    parts = maximum(minimum(ceil_div(TASKS_PER_THREAD * threads, tasks), problem.keys // SPLIT_KEYS), 1)
    # no part is without keys, except a single part without any keys
    return maximum(ceil_div(problem.keys, ceil_div(problem.keys, parts)), 1)


def _even(total: int, limit: int, multiple: int) -> int:
    """Return a block of at most ``limit`` that cuts ``total`` into nearly equal parts; both are multiples of
    ``multiple``."""
    parts = ceil_div(total, limit)
    block = ceil_div(total, parts)
    return minimum(maximum(ceil_div(block, multiple), 1) * multiple, limit)
