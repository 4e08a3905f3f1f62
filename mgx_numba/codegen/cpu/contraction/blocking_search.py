"""Search for the cheapest tasks and cache blocks of contractions, at many sizes at once; see `blocking`.

A *way* describes a blocking without sizes. Its sizes at given lengths follow from one set of formulas, for numbers,
symbolic lengths and arrays of numbers. The search evaluates all ways at all sizes as arrays ``[size, way]``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....core.dim import Length, any_of, ceil_div, equal, less, less_equal, maximum, minimum, select
from ...problems.element_types import ITEMSIZE
from ..machine import Machine
from ..microkernels.register_tile import RegisterTile

SUMS_BYTES = 65536
"""Stack memory (bytes) for the accumulators of one task."""
TABLE_TAPS = 64
"""Most taps in one step, so that their row offsets fit the table on the stack."""
PANEL_EIGHTHS = 3
"""Eighths of the L2 cache for the weights of one task, which stay there while the rows stream past."""
ROWS_EIGHTHS = 5
"""Eighths of the L2 cache for the left-hand side of one task, which stays there while the panels stream past."""
NEAR_PANELS = 8
"""Most panels of a product's row that one task takes."""
DEPTH = 1024
"""Reduction length above which accumulators are parked in memory between steps, so that rows and panels stay in
cache."""
FOREIGN_CYCLES = 0.1
"""Cycles to fetch a byte that another core wrote."""
SHARED_CYCLES = 0.03
"""Cycles to fetch a byte of weights from beyond the L2 cache, after all cores have read it before."""
TILE_CYCLES, TASK_CYCLES = 60, 300
"""Fixed cycles of a register tile call, and of a task, beside their multiply-adds."""
LOAD_CYCLES = 0.1
"""Cycles to broadcast one left-hand element in a tile, beyond the multiply-adds that use it."""
MEMORY_CYCLES = 0.16
"""Cycles to fetch a byte of weights from memory: 13 GB/s at 2.1 GHz, one thread of Emerald Rapids.

A thread waits for the weights of its first block, and prefetches the other blocks while it multiplies.
Products of 49 to 197 rows with weights in memory take 0.7 to 0.9 of the time with blocks of one or two panels, relative
to eight.
"""
ROW_CYCLES = 40
"""Fixed cycles of each row of a block, beside its vectors, where accumulators are parked for the epilogue.

196 rows by 256 terms in bfloat16, 64 columns at a time, take 134 cycles a row: 32 for the products, 57 for the 4
vectors by the time of 16 (Emerald Rapids).
"""
FORM_CYCLES = 0.6
"""Cycles to convert one word of the left-hand side, or of one of its parts, to the tile's format
(`gemm_tiles.NEAR_SECONDS`)."""
CLEARLY = 0.99
"""A blocking replaces the best so far only if its cost is below this fraction; of equal costs the largest block is
taken."""
KINDS = ((NEAR_PANELS, 4, 2, 1), (32, 16, 8, 4, 2, 1), (0, 1))
"""Most panels of a block, most tiles of rows of a block, and whether row blocks have equal sizes, of all ways."""


Sizes = Any
"""Numbers, symbolic lengths, or arrays of numbers: the formulas below are the same for all three."""


class Way(NamedTuple):
    """A kind of blocking: row parts, most panels and most tiles of rows of a block, and whether row blocks have equal
    sizes."""

    parts: Sizes
    panel_limit: Sizes
    row_limit: Sizes
    equal_rows: Sizes


class Steps(NamedTuple):
    """Taps and words of one step of the reduction, and the number of steps."""

    taps: Sizes
    depth: Sizes
    count: Sizes

    @staticmethod
    def of(tile: RegisterTile, m: Length, depth: Length, taps: int) -> Steps:
        near_depth = tile.near_depth or DEPTH
        whole = any_of(less_equal(m, tile.rows), less_equal(2 * taps * depth, 3 * near_depth))
        tap_block, k_block = min(taps, TABLE_TAPS), depth
        if not isinstance(whole, int) or not whole:
            own_taps, own_depth = steps_within(tile, depth, taps, near_depth)
            tap_block, k_block = select(whole, tap_block, own_taps), select(whole, k_block, own_depth)
        return Steps(tap_block, k_block, ceil_div(taps, tap_block) * ceil_div(depth, k_block))


class BlockSizes(NamedTuple):
    """The parts, rows and panels of a block."""

    parts: Sizes
    rows: Sizes
    panels: Sizes

    @staticmethod
    def of(
        tile: RegisterTile, m: Sizes, n: Sizes, steps: Steps, way: Way, threads: int, l2_bytes: int
    ) -> tuple[BlockSizes, Sizes]:
        """Return the sizes of blocks of kind ``way``, and the rows of a part in whole tiles; lengths may be symbols or
        arrays."""
        panels = _panels(tile, n, steps, way.parts, way.panel_limit, threads, l2_bytes)
        room, sums = ROWS_EIGHTHS * l2_bytes // 8, sums_of(tile)
        most = ceil_div(m, way.parts * tile.rows) * tile.rows
        limit = _maximum(tile.rows, room // (ITEMSIZE[tile.left_word] * tile.packing.parts * steps.depth))
        limit = _minimum(_select(_less(1, steps.count), sums // panels, most), limit)
        whole = limit // tile.rows * tile.rows  # whole tiles unless the cache has less room
        limit = _select(_equal(whole, 0), limit, whole)
        rows = _maximum(1, _minimum(_even(most, way.row_limit * tile.rows, tile.rows), limit))
        even = ceil_div(m, way.parts * ceil_div(m, way.parts * rows))
        return BlockSizes(way.parts, _select(way.equal_rows, even, rows), panels), most


def sums_of(tile: RegisterTile) -> int:
    """Return the rows of accumulators of one panel that fit the stack."""
    return SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)


def _panels(
    tile: RegisterTile, n: Sizes, steps: Steps, parts: Sizes, limit: Sizes, threads: int, l2_bytes: int
) -> Sizes:
    """Return the number of panels of a block."""
    room = PANEL_EIGHTHS * l2_bytes // 8
    near = _maximum(
        1, room // (ITEMSIZE[tile.right_word] * tile.packing.parts * tile.columns * steps.taps * steps.depth)
    )
    return _even(ceil_div(ceil_div(n, tile.columns) * parts, threads), _minimum(limit, near), 1)


def steps_within(tile: RegisterTile, depth: Length, taps: int, limit: int) -> tuple[Length, Length]:
    """Return the taps of equal steps and the words of one step, at most ``limit`` words unless a tile's step is
    longer."""
    deep = less_equal(limit, depth)
    own_depth = select(deep, _even(depth, limit, max(tile.step, 8)), depth)
    if isinstance(deep, int) and deep:
        return 1, own_depth
    own_taps = _even(taps, maximum(1, minimum(limit // maximum(depth, 1), TABLE_TAPS)), 1)
    return select(deep, 1, own_taps), own_depth


class Search:
    """All ways to block contractions of some sizes, with their costs.

    Args:
        lens: rows, columns, words of the reduction and groups of each size.
        taps, beside, forming, shared: see `blocking.cut`.
        of: the machine.
    """

    def __init__(
        self,
        tile: RegisterTile,
        lens: Sequence[tuple[int, ...]],
        taps: int,
        threads: int,
        beside: bool,
        forming: bool,
        shared: bool,
        of: Machine,
    ) -> None:
        several = beside or any(groups % threads for *_, groups in lens)
        self.ways, way = _ways(tuple(d for d in range(threads, 0, -1) if threads % d == 0) if several else (1,))
        own = [Steps.of(tile, m, depth, taps) for m, _, depth, _ in lens]
        m, n, depth, groups = np.array(lens, np.int64).T[:, :, None]
        self._steps = steps = Steps(*np.array(own, np.int64).T[:, :, None])
        self._sizes, most = BlockSizes.of(tile, m, n, steps, way, threads, of.l2_bytes)
        panels = -(-n // tile.columns)
        passes = groups
        if shared:
            inside = groups_inside(tile, self._sizes.panels, m, panels, depth, taps, groups, of.l2_bytes)
            passes = np.where(inside, 1, groups)
        costs = makespan(tile, m, panels, steps, depth, taps, groups, threads, forming)(self._sizes, passes)
        least = np.where(steps.count == 1, max(tile.variants()), np.minimum(most, tile.rows))
        refused = sums_of(tile) < self._sizes.panels * least
        if several and not beside:
            refused = refused | ((groups % threads == 0) & (way.parts != 1))
        self.costs: list[list[float]] = np.where(refused, np.inf, costs).tolist()

    def cheapest(self, number: int) -> int:
        """Return the place in `ways` of the cheapest way for size ``number``, the last one if no way is a candidate."""
        found, limit = len(self.ways) - 1, np.inf
        for place, cost in enumerate(self.costs[number]):
            if cost < limit:
                found, limit = place, cost * CLEARLY
        return found

    def sizes(self, number: int, place: int) -> tuple[BlockSizes, Steps]:
        """Return the sizes and the steps of a way for size ``number``."""
        rows, panels = (int(one[number, place]) for one in self._sizes[1:])
        return BlockSizes(self.ways[place].parts, rows, panels), Steps(*(int(one[number, 0]) for one in self._steps))


@functools.lru_cache(maxsize=64)
def _ways(parts: tuple[int, ...]) -> tuple[list[Way], Way]:
    """Return all ways with these numbers of row parts, the largest blocks first, and the columns of that list."""
    ways = list(itertools.starmap(Way, itertools.product(parts, *KINDS)))
    return ways, Way(*np.array(ways, np.int64).T)


def groups_inside(
    tile: RegisterTile, own: Sizes, m: Sizes, panels: Sizes, depth: Sizes, taps: int, groups: Sizes, l2_bytes: int
) -> Sizes:
    """Return whether all groups with one right-hand side are computed for a block of ``own`` panels before the next
    block.

    A thread then reads its part of the right-hand side once instead of once a group, and re-reads the rows of all
    groups for each block of panels. That pays if a panel block fits the L2 cache, all of them do not, and the traffic
    is less.
    """
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    panel = tile.columns * depth * taps * right
    fits = (panels * panel > PANEL_EIGHTHS * l2_bytes // 8) & (own * panel <= ROWS_EIGHTHS * l2_bytes // 8)
    others = -(-panels // own) - 1
    return fits & ((groups - 1) * panels * panel > others * groups * m * depth * left)


def makespan(
    tile: RegisterTile,
    m: Sizes,
    panels: Sizes,
    steps: Steps,
    depth: Sizes,
    taps: int,
    groups: Sizes,
    threads: int,
    forming: bool = False,
) -> Callable[[BlockSizes, Sizes], Sizes]:
    """Return a function that estimates the cycles until the last thread is done.

    The function takes the sizes of a block, and the number of passes over the weights. It counts multiply-adds, weight
    loads, fixed costs, and data fetched from other cores (weights, and rows written there). If ``forming``, it adds the
    cycles of one thread to convert the rows of all its tasks to the tile's format.
    """
    terms = depth * taps
    most_over, step, tile_rows_each = max(tile.tall - tile.rows, 0), tile.step, tile.rows
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))

    def cycles_of(block: BlockSizes, passes: Sizes) -> Sizes:
        parts, block_rows = block.parts, block.rows
        rows, width = np.minimum(block_rows, m), np.minimum(block.panels, panels)
        tasks = groups * parts * np.maximum(1, -(-m // (block_rows * parts))) * -(-panels // block.panels)
        claim = -(-tasks // threads)
        formed = FORM_CYCLES * tile.packing.parts * claim * rows * terms if forming else 0
        tile_rows, over = np.divmod(rows, tile_rows_each)
        more = over > tile_rows * most_over  # tiles of few rows are bound by weight loads
        tile_rows, rows = tile_rows + more, rows + more
        if step > 1:  # matrix tiles compute whole registers of rows
            rows = -(-rows // step) * step
        work = rows * width * terms * tile.vectors * tile.cycles
        weights = width * terms * tile.columns / 16 * tile.packing.parts
        loads = LOAD_CYCLES * tile_rows * terms * tile_rows_each if step == 1 else 0
        foreign_rows = m * depth * left / parts * (1 - parts / threads)
        own_weights = panels * tile.columns * terms * right * parts / threads
        busy = claim * (work + weights + loads + tile_rows * TILE_CYCLES + TASK_CYCLES)
        if step > 1:
            busy = busy + claim * ROW_CYCLES * np.minimum(block_rows, m)
            busy = np.maximum(busy, MEMORY_CYCLES * passes * own_weights)
        busy = busy + MEMORY_CYCLES * width * tile.columns * steps.depth * steps.taps * right
        busy = busy + groups * FOREIGN_CYCLES * foreign_rows + passes * SHARED_CYCLES * own_weights
        return busy + formed

    return cycles_of


def _even(total: Sizes, limit: Sizes, multiple: int) -> Sizes:
    """Return a block size of at most ``limit`` that cuts ``total`` into nearly equal parts, rounded up to
    ``multiple``."""
    limit = _maximum(limit, 1)
    block = ceil_div(total, _maximum(1, ceil_div(total, limit)))
    return _minimum(ceil_div(block, multiple) * multiple, limit)


def _for_arrays(function: Callable[..., Sizes], lengths: Callable[..., Sizes]) -> Callable[..., Sizes]:
    """Return ``lengths`` for plain and symbolic lengths, and NumPy's function for arrays of numbers."""

    def of(*operands: Sizes) -> Sizes:
        for one in operands:
            if isinstance(one, np.ndarray):
                return function(*operands)
        return lengths(*operands)

    return of


_minimum, _maximum = _for_arrays(np.minimum, minimum), _for_arrays(np.maximum, maximum)
_select, _less, _equal = _for_arrays(np.where, select), _for_arrays(np.less, less), _for_arrays(np.equal, equal)
