"""How a product by Strassen's method is cut, and how long it takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from .....dataclass import dataclass
from ....problems.element_types import ITEMSIZE
from ...microkernels.register_tile import RegisterTile
from ..blocking import Blocking
from .form import PRODUCTS
from .tile_table import INNER, LEFT_PITCH, SIDE_STEPS

__all__ = [
    "LEFT_OPERATIONS",
    "LEFT_PAD",
    "MOST_PIECES",
    "PAD",
    "RIGHT_PANELS",
    "Cut",
    "best_cut",
    "given_cut",
    "heights",
    "left_pieces",
    "next_strip",
]

LEAST_DEPTH = 96
"""Shorter sums do not pay for what a product costs besides."""
MOST_DEPTH = {2: 192, 4: 256}
"""By grid: the right-hand sides of two steps of longer products, at one level blocks themselves among them, would not
stay in the L2 cache beside left-hand sums."""
ALL_CLAIM_BYTES, CLAIM_BYTES = 16 << 20, 4 << 20
"""Scratch of all threads together, at most, and what each may have in any case."""
RIGHT_PANELS = 8
"""Right-hand sums of one step: four quadrants of an outer sum and four sums of them."""
PAD = 16
"""Rows that a tile may compute past the last one of its block."""
RIGHT_PAD = 80
"""Elements after a right-hand sum, so that those of several sums do not fall into the same sets of the cache."""
MOST_PIECES = 16
"""Finer pieces of a right-hand sum do not spread them better."""
HELD_PANELS = 6
"""Panels of the result that an outer product is added to before the next one: so long its left-hand sides stay near."""
LEFT_OPERATIONS = 8
"""Sums of two terms that make all left-hand sides of an outer product."""
LEFT_PAD = 16
"""Elements between left-hand sums in a row."""
LEAST_ROWS = 8
"""A tile of fewer rows takes as long: it waits for its panels."""
TILE_CYCLES, OUTER_CYCLES = 60.0, 40.0
"""Costs of a tile, and of each place of the outer level that it changes."""
SIDE_CYCLES, BEYOND_CYCLES = 1.5, 5.0
"""Costs of a vector of a sum made on the side, and of one made by itself."""
MADE = {2: 1 / 2, 4: 6 / 7}
"""By grid: share of `RIGHT_PANELS` that has to be made, in the mean of a step: blocks themselves are not copied."""
LINE_CYCLES, TASK_CYCLES = 9.0, 10000.0
"""Costs of a cache line of the result, and of a task."""
UNEVEN = {2: 1.03, 4: 1.06}
"""By grid: what is lost besides, and a margin, for tasks are too few to make up for one that is slower."""
EFFICIENCY = 0.92
"""Part of the clock rate that the costs above come to, as measured; a higher one takes this method where a plain
product is faster."""


@dataclass(frozen=True)
class Cut:
    """A task computes ``grid`` x ``grid`` blocks of ``rows`` rows and ``panels`` panels; a product's sum is over
    ``depth``. ``by_rows``: threads keep to rows of their own, else to columns."""

    grid: int
    rows: int
    panels: int
    depth: int
    by_rows: bool

    @property
    def outers(self) -> int:
        """Products of the outer level."""
        return PRODUCTS if self.grid > 2 else 1

    @property
    def together(self) -> int:
        """Left-hand sums that lie beside each other in `LEFT_PITCH` elements."""
        return min(LEFT_PITCH // (self.depth + LEFT_PAD), INNER)

    def tasks(self, m: int, panels: int) -> tuple[int, int]:
        """Blocks of tasks along rows and along columns."""
        return -(-m // (self.grid * self.rows)), -(-panels // (self.grid * self.panels))

    def tiles(self, tile: RegisterTile) -> tuple[int, ...]:
        """Heights of the tiles below each other in a block: `next_strip` in numbers."""
        return _strips_of(self.rows, tuple(heights(tile)))

    def strips(self, tile: RegisterTile) -> int:
        """Tiles below each other in a block."""
        return len(self.tiles(tile))

    def held(self, k: int) -> int:
        """Panels of a block of the result that are summed at the same time."""
        if k > self.grid * self.depth:
            return self.panels
        return -(-self.panels // -(-self.panels // HELD_PANELS))

    def kept(self, k: int) -> int:
        """Outer products whose left-hand sides are kept: this and the next if they are not needed again, else all."""
        return min(2, self.outers * (k // (self.grid * self.depth))) if self.held(k) == self.panels else self.outers

    def left_share(self, tile: RegisterTile, k: int) -> int:
        """Jobs for left-hand sums in a step, so that those of the next outer product are made in time."""
        return -(-self.strips(tile) * LEFT_OPERATIONS * left_pieces(tile) // self.held(k))

    def areas(self, tile: RegisterTile) -> tuple[int, int, int]:
        """Elements of one right-hand sum, the left-hand sums of a strip, and one panel of one block of the result."""
        strip = -(-INNER // self.together) * max(heights(tile)) * LEFT_PITCH
        return self.depth * tile.columns + RIGHT_PAD, strip, (self.rows + PAD) * tile.columns

    def claim(self, tile: RegisterTile, k: int) -> int:
        """Elements of scratch that one thread needs."""
        right, strip, panel = self.areas(tile)
        return 2 * RIGHT_PANELS * right + self.kept(k) * self.strips(tile) * strip + self.grid**2 * self.held(k) * panel


@functools.lru_cache(4096)  # a cut is looked for among many of the same few heights
def _strips_of(rows: int, heights: tuple[int, ...]) -> tuple[int, ...]:
    most, few, *tall = heights
    found, left = [], rows
    while left > 0:
        found.append(tall[0] if tall and 0 < left % most <= left // most else (most if left > few else few))
        left -= found[-1]
    return tuple(found)


def left_pieces(tile: RegisterTile) -> int:
    """Parts of a left-hand sum of a strip: each product makes one of them on the side."""
    return -(-max(heights(tile)) // (tile.lanes // SIDE_STEPS))


def next_strip(tile: RegisterTile, rows_left: str) -> list[str]:
    """Statements: the height of the strip that is next where ``rows_left`` rows are."""
    most, few, *tall = heights(tile)
    lines = [f"rows_left = {rows_left}", f"height = {most} if rows_left > {few} else {few}"]
    if tall:
        lines += [f"over = imod(rows_left, {most})"]
        lines += [f"if over > 0 and over <= idiv(rows_left, {most}):", f"    height = {tall[0]}"]
    return lines


def heights(tile: RegisterTile) -> tuple[int, ...]:
    """Rows of the tile's variants: most, few, and (where it has one) one more than most."""
    few = max(1, tile.rows // 3)
    return (tile.rows, few, tile.tall) if tile.tall else (tile.rows, few)


@functools.lru_cache(maxsize=256)
def best_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int) -> tuple[Cut | None, float]:
    """The cheapest cut and its cycles; none if the product is too small."""
    panels = -(-n // tile.columns)
    best, least = None, float("inf")
    for cut in _cuts(levels, tile, m, panels, k, threads):
        cost = _cycles(cut, tile, m, panels, k, threads)
        if cost < least:
            best, least = cut, cost
    return best, least


def given_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int, given: Blocking) -> Cut:
    """The cut nearest to ``given`` (rows, panels and depth of a block, parts of the rows) that the kernels can run."""
    grid, panels = 1 << levels, -(-n // tile.columns)
    depths = _depths(tile, k // grid)
    depth = max(d for d in depths if d <= max(given.depth, min(depths)))
    cut = Cut(grid, _clamp(given.rows, -(-m // grid)), _clamp(given.panels, -(-panels // grid)), depth, given.parts > 1)
    while cut.claim(tile, k) * ITEMSIZE[tile.dtype] > _most_bytes(threads) and (cut.rows > 1 or cut.panels > 1):
        if cut.rows == 1 or (cut.panels > 1 and cut.panels * tile.columns >= cut.rows):
            cut = Cut(grid, cut.rows, -(-cut.panels // 2), depth, cut.by_rows)
        else:
            cut = Cut(grid, -(-cut.rows // 2), cut.panels, depth, cut.by_rows)
    return cut


def _most_bytes(threads: int) -> int:
    return max(ALL_CLAIM_BYTES // threads, CLAIM_BYTES)


def _depths(tile: RegisterTile, whole: int) -> list[int]:
    """Equal parts of a block's depth that a product can sum over."""
    most = LEFT_PITCH - LEFT_PAD
    return [d for d in range(tile.lanes, min(whole, most) + 1, tile.lanes) if whole % d == 0]


def _cuts(levels: int, tile: RegisterTile, m: int, panels: int, k: int, threads: int) -> Iterator[Cut]:
    grid = 1 << levels
    depths = [d for d in _depths(tile, k // grid) if LEAST_DEPTH <= d <= MOST_DEPTH[grid]]
    for by_rows in (False, True) if threads > 1 else (False,):
        own_rows = -(-m // (threads if by_rows else 1))
        own_panels = -(-panels // (1 if by_rows else threads))
        for row_parts in (1, 2, 4):
            rows = -(-own_rows // (grid * row_parts))
            for column_parts in (1, 2, 3, 4, 6, 8, 12, 16):
                width = -(-own_panels // (grid * column_parts))
                if panels < 2 * grid or grid * width > panels + grid - 1 or rows < 2 * tile.rows:
                    continue
                for depth in depths:
                    cut = Cut(grid, rows, width, depth, by_rows)
                    if cut.claim(tile, k) * ITEMSIZE[tile.dtype] <= _most_bytes(threads):
                        yield cut


def _cycles(cut: Cut, tile: RegisterTile, m: int, panels: int, k: int, threads: int) -> float:
    down, across = cut.tasks(m, panels)
    parts = k // (cut.grid * cut.depth)
    high = sum(max(rows, LEAST_ROWS) for rows in cut.tiles(tile))
    tiles = cut.strips(tile) * (TILE_CYCLES + OUTER_CYCLES * (cut.outers > 1)) + high * tile.vectors / 2 * cut.depth
    room = INNER * cut.strips(tile) * cut.depth // SIDE_STEPS
    lefts = LEFT_OPERATIONS * cut.rows * cut.depth / tile.lanes
    rights = cut.depth * tile.vectors * RIGHT_PANELS * MADE[cut.grid]
    steps = cut.outers * parts * cut.panels
    beside = min(rights, room) * steps
    beyond = max(0, rights - room) * steps + lefts
    in_time = min(lefts, max(0, room - rights) * cut.held(k))
    beside += in_time * (cut.outers * parts - 1)
    beyond += (lefts - in_time) * (cut.outers * parts - 1)
    result = cut.grid**2 * cut.rows * cut.panels * tile.vectors * LINE_CYCLES
    task = steps * INNER * tiles + beside * SIDE_CYCLES + beyond * BEYOND_CYCLES + result + TASK_CYCLES
    return UNEVEN[cut.grid] * -(-down * across // threads) * task


def _clamp(value: int, most: int) -> int:
    return max(1, min(value, most))
