"""How a Winograd convolution is cut into tasks: a function of its shape, evaluated on the host."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from ....problems.convolution import ConvProblem
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import tile_for
from ..blocking import SUMS_BYTES, Blocking
from ..macro_kernel import height_table
from ..pack import panel_count
from .form import Form

__all__ = ["Block", "best_block", "given_block", "tile_rows", "tiles_of"]

_FILTER_BYTES = 640 * 1024
"""Transformed filters of one step of a task, which are to stay in the L2 cache."""
_NEAR_BYTES = 300 * 1024
"""Transformed tiles of a task, which leave the L2 cache to filters and to what comes and goes."""
_KEPT_BYTES = 2560 * 1024
"""Transformed filters of a convolution that may still be in the last cache from the run before."""
_MOST_TILES = 128
"""Tiles of one task."""


@dataclass(frozen=True)
class Block:
    """Tiles and weight panels of one task, and tasks of one claim (each claim has its own scratch).

    ``depth`` input channels of filters are transformed at a time; 0 if all are stored as transformed.
    """

    tiles: int
    panels: int
    grain: int
    depth: int


def tiles_of(form: Form, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of an image along height and width."""
    return -(-problem.out_lens[-2] // form.out), -(-problem.out_lens[-1] // form.out)


def tile_rows(tile: RegisterTile, count: int) -> list[int]:
    """Rows of the register tile's variants that take ``count`` rows, or a few more."""
    heights: list[int] = []
    while count > 0:
        over = count % tile.rows
        tall = tile.tall and 0 < over <= count // tile.rows * (tile.tall - tile.rows)
        heights.append(tile.tall if tall else (height_table(tile) >> (4 * min(count, tile.rows))) & 15)
        count -= heights[-1]
    return heights


def best_block(form: Form, problem: ConvProblem, threads: int) -> tuple[Block, float]:
    """The cheapest cut into tasks, and its rough cycles."""
    return _best_block(tile_for(problem.types), form, problem, threads)


@functools.lru_cache(maxsize=1024)
def _best_block(tile: RegisterTile, form: Form, problem: ConvProblem, threads: int) -> tuple[Block, float]:
    panels = panel_count(tile, problem.group_out)
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    most = min(_stacked(tile, form, problem), panels)
    splits = {min(-(-panels // split), most) for split in (1, 2, 3, 4, 8, 16)} | {1}
    counts = {min(tiles, n) for n in (4, 8, 12, 16, 20, 24, 28, 32, 36, 48, 60, 96)}
    counts |= {-(-tiles // share) for share in range(1, 9) if -(-tiles // share) <= _MOST_TILES}
    depth = 0 if form.stored else _step(tile, form, problem)
    best, best_cycles = Block(1, 1, 1, depth), math.inf
    for p_block, count in itertools.product(splits, counts):
        p_blocks, blocks = -(-panels // p_block), problem.groups * -(-tiles // count)
        claim = -(-blocks * p_blocks // threads)
        cost = _Cost(tile, form, problem, count)
        cycles = min(blocks, -(-claim // p_blocks) + (1 if claim % p_blocks and claim > p_blocks else 0)) * cost.inputs(
            p_block
        )
        cycles += (claim * cost.task(p_block) + cost.reading(claim, p_block)) * (panels / (p_blocks * p_block))
        if cycles < best_cycles:
            best, best_cycles = Block(count, p_block, claim, depth), cycles
    return best, best_cycles


def given_block(form: Form, problem: ConvProblem, threads: int, blocking: Blocking) -> Block:
    """A cut that was asked for, made to fit: ``rows`` counts tiles, ``depth`` channels of filters, taps have no
    meaning."""
    tile = tile_for(problem.types)
    panels = panel_count(tile, problem.group_out)
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    count = max(1, min(blocking.rows, tiles, _MOST_TILES))
    p_block = max(1, min(blocking.panels, panels, _stacked(tile, form, problem)))
    tasks = problem.groups * -(-tiles // count) * -(-panels // p_block)
    depth = 0 if form.stored else max(1, min(blocking.depth, _step(tile, form, problem)))
    return Block(count, p_block, max(1, -(-tasks // threads)), depth)


def _stacked(tile: RegisterTile, form: Form, problem: ConvProblem) -> int:
    """Panels of outputs of one tile that fit the memory for sums."""
    return SUMS_BYTES // (problem.itemsize * tile.columns * form.out**2)


def _panel_bytes(tile: RegisterTile, form: Form, problem: ConvProblem) -> int:
    return form.points * problem.group_in * tile.columns * problem.itemsize


def _step(tile: RegisterTile, form: Form, problem: ConvProblem) -> int:
    """Channels of filters that a task transforms at a time, evenly many in each step."""
    steps = -(-_panel_bytes(tile, form, problem) // _FILTER_BYTES)
    return -(-problem.group_in // steps)


@dataclass(frozen=True)
class _Cost:
    """Rough cycles of the parts of one task of ``count`` tiles."""

    tile: RegisterTile
    form: Form
    problem: ConvProblem
    count: int

    def inputs(self, panels: int) -> float:
        """Transforming the tiles, which is slower where they leave the cache."""
        form, depth = self.form, self.problem.group_in
        held = form.points * self.count * (depth + panels * self.tile.columns) * self.problem.itemsize
        return self.count * (depth / self.tile.lanes * form.points * 4.5 + 80) + max(0, held - _NEAR_BYTES) / 24

    def task(self, panels: int) -> float:
        """Products with some panels, the way back, and transforming filters unless they are stored.

        Stored filters of a point that follow each other are fetched while those before are multiplied; the first are
        waited for.
        """
        tile, form, depth = self.tile, self.form, self.problem.group_in
        heights = tile_rows(tile, self.count)
        rows = sum(max(1.04 * height + 0.5, 2.7) for height in heights)
        steps = 1 if form.stored else -(-depth // _step(tile, form, self.problem))
        products = form.points * panels * (rows * depth * tile.vectors / 2 + 40.0 * steps * len(heights))
        vectors = panels * tile.vectors
        back = self.count * (vectors * (2.2 * form.points + 3.5 * form.out**2) + 14.0 * form.out**2)
        if form.stored:
            return products + back + 120.0 * form.points
        return products + back + vectors * depth * 2.8 * form.points

    def reading(self, claim: int, panels: int) -> float:
        """Waiting for filters that were not in the cache, as far as products do not take as long as fetching them, and
        for stored ones again in each block of tiles."""
        tile, form = self.tile, self.form
        all_panels = panel_count(tile, self.problem.group_out)
        once = min(claim, -(-all_panels // panels)) * panels
        size = _panel_bytes(tile, form, self.problem)
        products = form.points * once * self.count * self.problem.group_in * tile.vectors / 2
        if form.stored:
            rate = 60 if self.problem.groups * all_panels * size <= _KEPT_BYTES else 20
            return once * size / rate + max(0, once * size / 14 - 0.8 * products) + (claim * panels - once) * size / 150
        share = form.taps**2 / form.points
        return once * size * share / 25 + max(0, once * size * share / 9 - products * min(1, share))


def winograd_blockings() -> list[Blocking]:
    """What tuning tries: ``rows`` counts output tiles; taps have no meaning."""
    return [Blocking(tiles, panels, 1, 1 << 16) for tiles in (12, 24, 48, 96) for panels in (1, 4, 1 << 16)]
