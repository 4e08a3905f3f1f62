"""Choose the kernels that compute an attention problem."""

from __future__ import annotations

from dataclasses import replace

from ....core.dim import is_symbolic, known_equal, known_less_equal, less, less_equal, maximum, preferred, select
from ...launch import Solution
from ...problems.attention import AttentionProblem
from ...problems.element_types import element_types
from ..microkernels.tile_table import tile_for
from .attention_amx import PrefillAttentionAmx, attention_tile, tiles_refusal
from .attention_kernel import (
    AttentionKernel,
    cut_few,
    cut_many,
    cut_tiles,
    decode_queries,
    gathered_features,
    join_launch,
    record_size,
)
from .decode import DecodeAttention
from .flash import PrefillAttention

CACHED_TOKENS = 8
"""Most tokens of a sequence that are computed one by one over a cache: more than a speculative step has by default (5).

A step of SmolLM2, 5 tokens after 600, one thread, takes 0.84 of the time in panels of queries; 5 after 100 take 0.95
(Zen 4).
"""


def plan(problem: AttentionProblem, threads: int = 1, origin: str = "") -> Solution:
    """Return the launches for ``threads`` threads.

    Operands are ``q``, ``k``, ``v``, ``out``, and, where needed, ``mask``, ``limits``, ``sink`` and ``scratch``.

    Args:
        origin: text of the instruction, for readers of the kernels.
    """
    problem = problem.with_grouped_rows()
    tile, matrix = tile_for(element_types(problem.dtype)), attention_tile(problem)
    sized = _with_elements(problem)
    kernel: AttentionKernel
    if matrix and tiles_refusal(problem) is None:
        kernel = PrefillAttentionAmx(problem, cut_tiles(matrix, sized, threads), origin)
    elif _few(problem):
        kernel = DecodeAttention(problem, cut_few(tile, sized, threads), origin)
    else:
        kernel = PrefillAttention(problem, cut_many(tile, sized, threads), origin)
    blocks, launches = kernel.blocks, [kernel.launch()]
    if known_equal(blocks.splits, 1):
        return Solution(tuple(launches))
    rows = problem.batch * problem.heads * problem.queries
    scratch = rows * blocks.splits * record_size(tile, problem) * problem.itemsize
    launches.append(join_launch(problem, blocks, origin))
    return Solution(tuple(launches), select(less(1, blocks.splits), scratch, 0))


def cached_refusal(problem: AttentionProblem) -> str:
    """Return why no kernel reads keys and values of this element type and layout; "" if one does."""
    if not problem.gathered:
        return ""
    return "" if problem.features_contiguous else "features of narrow or paged keys and values lie apart"


def reads_transposed_masks(problem: AttentionProblem) -> bool:
    """Return whether the kernel has queries in its lanes, so that a mask is best contiguous along the queries.

    False for a symbolic number of queries: no constant mask has elements for each query.
    """
    if is_symbolic(problem.queries) or problem.queries == 1 or _few(problem):
        return False
    return tiles_refusal(problem) is not None


def _with_elements(problem: AttentionProblem) -> AttentionProblem:
    """Return the problem with lengths of at least 1, so that it can be cut into blocks where symbolic lengths are 0."""
    lens = problem.batch, problem.queries, problem.keys
    if not any(map(is_symbolic, lens)):
        return problem
    batch, queries, keys = (maximum(n, 1) for n in lens)
    return replace(problem, batch=batch, queries=queries, keys=keys)


def _few(problem: AttentionProblem) -> bool:
    """Return whether lanes are better filled with features: for at most a quarter of a vector of queries.

    Over a cache `CACHED_TOKENS` tokens are computed like one, so that the tokens of a speculative step, or of a batch,
    get the results of steps of their own.
    """
    tile = tile_for(element_types(problem.dtype))
    if problem.gathered and not known_less_equal(
        maximum(problem.depth, problem.width), gathered_features(tile, problem)
    ):
        return True
    few = decode_queries(tile)
    if problem.limited and not problem.one_position and problem.group <= few:
        few = max(few, CACHED_TOKENS)
    return problem.features_contiguous and preferred(less_equal(problem.queries, few))
