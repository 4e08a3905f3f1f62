"""Propose blockings near a solver's own for tuning: rows and panels halved and doubled, other depths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ....core.dim import Length
from ...problems.convolution import ConvProblem
from ...problems.element_types import FLOAT32
from ...problems.gemm import GemmProblem
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import declared_tile, matrix_tile, tile_for
from .blocking import Blocking, cut, cut_lines, fit
from .blocking_search import NEAR_PANELS, SUMS_BYTES, steps_within

_LONG_SUM = 512
"""Reduction length from which other step depths are tried."""


def nearby_blockings(problem: GemmProblem | ConvProblem, threads: int) -> list[Blocking]:
    """Return blockings near the choice of `blocking.cut`."""
    tile = matrix_tile(problem.types) if declared_tile(problem.types) is None else tile_for(problem.types)
    assert tile is not None
    if isinstance(problem, GemmProblem):
        m, n, depth, taps, groups = problem.m, problem.n, max(tile.depth(problem.k), 1), 1, problem.batch_count
    else:
        pixels = problem.in_pixels if problem.transposed else problem.out_pixels
        m, n, depth, taps, groups = (
            problem.batch * pixels, problem.group_out, problem.group_in, problem.taps, problem.groups,
        )  # fmt: skip
    beside = isinstance(problem, ConvProblem)
    base = fit(cut(tile, m, n, depth, taps, groups, threads, beside=beside), tile, m, n, depth, taps)
    scaled = _scaled(base)
    if depth * taps >= _LONG_SUM:
        whole = dataclasses.replace(base, depth=depth, taps=taps)
        scaled[4:4] = [whole, *(dataclasses.replace(base, depth=d, taps=1) for d in (256, 512) if d < depth)]
    fitted = (fit(b, tile, m, n, depth, taps) for b in scaled)
    return [b for b in fitted if b != base]


def matrix_blockings(
    tile: RegisterTile,
    m: Length,
    n: int,
    depth: int,
    taps: int,
    groups: int,
    threads: int,
    forming: bool = False,
    shared: bool = False,
) -> list[Blocking]:
    """Return blockings near the choice of `blocking.cut`, with the same arguments, for matrix tiles.

    Steps of half and a quarter of the tile's ``near_depth`` keep a block of rows in the L1 cache while panels pass, or
    a panel while rows do. Threads may share columns, so that each reads its part of the weights, or rows.
    """
    computed = cut(tile, m, n, depth, taps, groups, threads, forming=forming, shared=shared)
    base = fit(computed, tile, m, n, depth, taps)
    panels, sums = -(-n // tile.columns), SUMS_BYTES // (4 * tile.columns)

    def steps(share: int, **other: int) -> Blocking:
        tap_block, k_block = steps_within(tile, depth, taps, tile.near_depth // share)
        return dataclasses.replace(base, taps=tap_block, depth=k_block, **other)

    found = [steps(2), steps(4), dataclasses.replace(base, taps=taps, depth=depth)]
    if threads > 1:
        parts = threads if base.parts == 1 else 1
        share = -(-panels * parts // threads)
        rows = -(-m // parts)
        found.append(dataclasses.replace(base, rows=rows, panels=min(share, NEAR_PANELS), parts=parts))
    if depth * taps > tile.near_depth // 4:
        found += [steps(4, rows=sums, panels=1), steps(2, rows=sums, panels=1), steps(1)]
    scaled = _scaled(base)
    found += [*scaled[2:4], *scaled[:2], *scaled[4:]]
    fitted = (fit(b, tile, m, n, depth, taps) for b in found)
    return [b for b in fitted if b != base]


def line_blockings(problem: ConvProblem, threads: int) -> list[Blocking]:
    """Return blockings near the choice of `blocking.cut_lines`: whole lines of pixels."""
    tile, width = tile_for(problem.types if problem.types.uniform else FLOAT32), problem.out_lens[-1]
    lines = problem.batch * problem.out_pixels // width

    def near(given: Blocking | None = None) -> Blocking:
        return cut_lines(tile, lines, width, problem.out_channels, threads, given)

    base = near()
    return [b for b in map(near, _scaled(base)) if b != base]


def _scaled(base: Blocking) -> list[Blocking]:
    scales: Sequence[tuple[float, float]] = ((2, 1), (0.5, 1), (1, 2), (1, 0.5), (2, 0.5), (0.5, 2), (4, 1), (0.25, 1))
    return [
        dataclasses.replace(base, rows=max(1, int(base.rows * r)), panels=max(1, int(base.panels * p)))
        for r, p in scales
    ]
