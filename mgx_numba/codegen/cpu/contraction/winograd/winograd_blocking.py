"""Choose the tasks of a Winograd convolution from its shape; evaluated on the host."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from .....core.dim import Length, ceil_div, evaluate, less, maximum, minimum, select, symbols_of
from .....dataclass import dataclass
from .....errors import ShapeError
from ....alternatives import at_lengths, lengths_in
from ....problems.convolution import ConvProblem
from ....problems.element_types import ITEMSIZE
from ...machine import Machine, machine
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import tile_for
from ..blocking import Blocking, samples_along
from ..blocking_search import SUMS_BYTES
from ..macro_kernel import height_table
from ..panels import panel_count
from .form import Form

APART = 4
"""For symbolic lengths: ratio of successive tile counts for which a blocking is computed."""
_FILTER_EIGHTHS = 5
"""Eighths of the L2 cache for the transformed filters of one step of a task."""
_NEAR_BYTES, _NEAR_SHARE = 300 * 1024, 75 / 256
"""Bytes of transformed tiles of a task, and their largest share of the L2 cache, which leave the rest of it to filters
and streaming data."""
_KEPT_BYTES = 2560 * 1024
"""Bytes of a convolution's transformed filters that may still be in the last-level cache from the run before."""
MOST_TILES = 128
"""Most tiles of one task."""
_TILE_COUNTS = (4, 8, 12, 16, 20, 24, 28, 32, 36, 48, 60, 96)
"""Numbers of tiles of a task that are tried beside equal shares: multiples of 4 and of the register tiles' rows."""

# Cycles, fitted to times of convolutions on one thread; `bench.choices` measures the loss of choices based on them.
_INPUT_VECTOR, _INPUT_TILE = 4.5, 80.0
"""Cycles of a vector of one point of a transformed input tile, and of a tile."""
_SPILLED_BYTES = 24.0
"""Bytes a cycle of transformed tiles that leave the L2 cache and come back."""
_ROW, _ROW_MORE, _LEAST_ROW = 1.04, 0.5, 2.7
"""Cost of a register tile in multiply-adds of a vector: for each row, fixed, and at least."""
_PRODUCT = 40.0
"""Cycles of a call of the register tile."""
_OUTPUT_POINT, _OUTPUT_VECTOR, _OUTPUT_PIXEL = 2.2, 3.5, 14.0
"""Cycles of a point of the output transform, and of a vector and a pixel of the result."""
_STORED_POINT = 120.0
"""Cycles of waiting for the first stored filters of a point."""
_FILTER_VECTOR = 2.8
"""Cycles of a vector of a filter transform, for each point."""
_KEPT_RATE, _FAR_RATE, _AHEAD_RATE, _NEAR_RATE = 60.0, 20.0, 14.0, 150.0
"""Bytes a cycle of stored filters: from the last-level cache, from memory, fetched while products run, and re-read from
the L2 cache."""
_OVERLAP = 0.8
"""Fraction of the products' time that overlaps with fetching."""
_PLAIN_RATE, _PLAIN_AHEAD_RATE = 25.0, 9.0
"""Bytes a cycle of filters that a task transforms: from memory, and fetched while products run."""


@dataclass(frozen=True)
class Block:
    """Tiles and weight panels of one task, and tasks of one claim (each claim has its own scratch).

    ``depth`` words of input channels of filters are transformed at a time; 0 if transformed filters are stored.
    """

    tiles: Length
    panels: Length
    grain: Length
    depth: Length


def tiles_of(form: Form, problem: ConvProblem) -> tuple[Any, Any]:
    """Return the tiles of an image along height and width."""
    return -(-problem.out_lens[-2] // form.out), -(-problem.out_lens[-1] // form.out)


@functools.lru_cache(maxsize=1024)
def tile_rows(tile: RegisterTile, count: int) -> tuple[int, ...]:
    """Return the rows of the register tile's variants that cover ``count`` rows, or a few more."""
    heights: list[int] = []
    while count > 0:
        over = count % tile.rows
        tall = tile.tall and 0 < over <= count // tile.rows * (tile.tall - tile.rows)
        heights.append(tile.tall if tall else (height_table(tile) >> (4 * min(count, tile.rows))) & 15)
        count -= heights[-1]
    return tuple(heights)


def best_block(form: Form, problem: ConvProblem, threads: int) -> tuple[Block, float]:
    """Return the cheapest tasks and their estimated cycles."""
    return _best_block(tile_for(problem.types), form, problem, threads, machine())


@functools.lru_cache(maxsize=1024)
def _best_block(
    tile: RegisterTile, form: Form, problem: ConvProblem, threads: int, here: Machine
) -> tuple[Block, float]:
    """Return the result of `best_block` for machine ``here``, whose caches blocks have to fit."""
    panels = panel_count(tile, problem.group_out)
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    most = min(stacked_panels(tile, form), panels)
    splits = {min(-(-panels // split), most) for split in (1, 2, 3, 4, 8, 16)} | {1}
    counts = {min(tiles, n) for n in _TILE_COUNTS}
    counts |= {-(-tiles // share) for share in range(1, 9) if -(-tiles // share) <= MOST_TILES}
    depth = 0 if form.stored else _step(tile, form, problem)
    best, best_cycles = Block(1, 1, 1, depth), math.inf
    whole = _WholeCost(tile, form, problem, here)
    costs = {count: _Cost(whole, count) for count in counts}
    for p_block, count in itertools.product(splits, counts):
        p_blocks, blocks = -(-panels // p_block), problem.groups * -(-tiles // count)
        claim = -(-blocks * p_blocks // threads)
        cost = costs[count]
        inputs = min(blocks, -(-claim // p_blocks) + (1 if claim % p_blocks and claim > p_blocks else 0))
        tasks, share = claim * cost.task(p_block), panels / (p_blocks * p_block)
        if inputs * cost.transform + tasks * share >= best_cycles:  # less than the whole
            continue
        cycles = inputs * cost.inputs(p_block) + (tasks + cost.reading(claim, p_block)) * share
        if cycles < best_cycles:
            best, best_cycles = Block(count, p_block, claim, depth), cycles
    return best, best_cycles


def open_block(
    best: Callable[[ConvProblem], tuple[Block, float]],
    form: Form,
    tile: RegisterTile,
    problem: ConvProblem,
    threads: int,
) -> Block:
    """Return the tasks of a problem of symbolic lengths: the ``best`` for some numbers of tiles, each used up to the
    next number."""
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    found: list[tuple[int, Block]] = []
    for sample in samples_along(tiles, symbols_of(lengths_in(problem))):
        count = evaluate(tiles, sample)
        if found and count < APART * found[-1][0]:
            continue
        with contextlib.suppress(ShapeError):  # an image that is smaller than the kernel
            found.append((max(count, 1), best(at_lengths(problem, sample))[0]))
    first = found[0][1]
    own, p_block = first.tiles, first.panels
    for start, block in found[1:]:
        own, p_block = (
            select(less(tiles, start), before, after) for before, after in ((own, block.tiles), (p_block, block.panels))
        )
    own = maximum(1, minimum(own, tiles))
    tasks = problem.groups * ceil_div(tiles, own) * ceil_div(panel_count(tile, problem.group_out), p_block)
    return Block(own, p_block, maximum(1, ceil_div(tasks, threads)), first.depth)


def given_block(
    form: Form, problem: ConvProblem, tile: RegisterTile, threads: int, blocking: Blocking, most: int
) -> Block:
    """Return the requested tasks, adjusted to fit.

    Args:
        blocking: ``rows`` counts tiles, ``depth`` channels of filters; taps are ignored.
        most: most tiles of a task.
    """
    panels = panel_count(tile, problem.group_out)
    tiles = problem.batch * math.prod(tiles_of(form, problem))
    count = max(1, min(blocking.rows, tiles, most))
    p_block = max(1, min(blocking.panels, panels, stacked_panels(tile, form)))
    tasks = problem.groups * -(-tiles // count) * -(-panels // p_block)
    depth = 0 if form.stored else max(1, min(blocking.depth, _step(tile, form, problem)))
    return Block(count, p_block, max(1, -(-tasks // threads)), depth)


def stacked_panels(tile: RegisterTile, form: Form) -> int:
    """Return the output panels of one tile whose accumulators fit the stack."""
    return SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns * form.out**2)


def _panel_bytes(tile: RegisterTile, form: Form, problem: ConvProblem) -> int:
    return form.points * tile.depth(problem.group_in) * tile.columns * ITEMSIZE[tile.right_word]


def _step(tile: RegisterTile, form: Form, problem: ConvProblem) -> int:
    """Return the words of filter channels that a task transforms at a time, evenly divided into steps."""
    room = _FILTER_EIGHTHS * machine().l2_bytes // 8
    steps = -(-_panel_bytes(tile, form, problem) // room)
    return -(-tile.depth(problem.group_in) // steps)


class _WholeCost:
    """Facts of a convolution on machine ``here`` that are the same for tasks of any number of tiles. Words of integers
    take as long as floats."""

    def __init__(self, tile: RegisterTile, form: Form, problem: ConvProblem, here: Machine) -> None:
        self.tile, self.form = tile, form
        self.points, self.depth = form.points, tile.depth(problem.group_in)
        self.all_panels = panel_count(tile, problem.group_out)
        self.panel_bytes = _panel_bytes(tile, form, problem)
        kept = problem.groups * self.all_panels * self.panel_bytes <= _KEPT_BYTES
        self.rate = _KEPT_RATE if kept else _FAR_RATE
        self.near_bytes = min(_NEAR_BYTES, _NEAR_SHARE * here.l2_bytes)
        self.word_bytes = ITEMSIZE[tile.right_word]
        self.steps = 1 if form.stored else -(-self.depth // _step(tile, form, problem))


class _Cost:
    """Estimated cycles of a task of ``count`` tiles: input transform, products with the output transform, loads."""

    def __init__(self, whole: _WholeCost, count: int) -> None:
        self.whole, self.count = whole, count
        tile, depth = whole.tile, whole.depth
        self.transform = count * (depth / tile.lanes * whole.points * _INPUT_VECTOR + _INPUT_TILE)
        heights = tile_rows(tile, count)
        rows = sum([max(_ROW * height + _ROW_MORE, _LEAST_ROW) for height in heights])
        self.product = rows * depth * tile.vectors / 2 + _PRODUCT * whole.steps * len(heights)

    def inputs(self, panels: int) -> float:
        """Return the cycles of the input transform, which is slower where tiles leave the cache."""
        whole = self.whole
        held = whole.points * self.count * (whole.depth + panels * whole.tile.columns) * whole.word_bytes
        return self.transform + max(0, held - whole.near_bytes) / _SPILLED_BYTES

    def task(self, panels: int) -> float:
        """Return the cycles of products with some panels, the output transform, and the filter transform unless filters
        are stored.

        Stored filters of successive points are fetched during the products before; the first point waits.
        """
        points, form = self.whole.points, self.whole.form
        products = points * panels * self.product
        vectors = panels * self.whole.tile.vectors
        back = self.count * (
            vectors * (_OUTPUT_POINT * points + _OUTPUT_VECTOR * form.out**2) + _OUTPUT_PIXEL * form.out**2
        )
        if form.stored:
            return products + back + _STORED_POINT * points
        return products + back + vectors * self.whole.depth * _FILTER_VECTOR * points

    def reading(self, claim: int, panels: int) -> float:
        """Return the cycles of waiting for filters that are not in the cache.

        Fetching overlaps with products. Stored filters are re-read in each block of tiles.
        """
        whole, size = self.whole, self.whole.panel_bytes
        once = min(claim, -(-whole.all_panels // panels)) * panels
        products = whole.points * once * self.count * whole.depth * whole.tile.vectors / 2
        if whole.form.stored:
            waited = max(0, once * size / _AHEAD_RATE - _OVERLAP * products)
            return once * size / whole.rate + waited + (claim * panels - once) * size / _NEAR_RATE
        share = whole.form.taps**2 / whole.points
        waited = max(0, once * size * share / _PLAIN_AHEAD_RATE - products * min(1, share))
        return once * size * share / _PLAIN_RATE + waited


def winograd_blockings() -> list[Blocking]:
    """Return the blockings that tuning tries: ``rows`` counts output tiles; taps are ignored."""
    # Tiles of a task by doubling, from the rows of a register tile to the most that fit.
    return [Blocking(tiles, panels, 1, 1 << 16) for tiles in (12, 24, 48, 96) for panels in (1, 4, 1 << 16)]
