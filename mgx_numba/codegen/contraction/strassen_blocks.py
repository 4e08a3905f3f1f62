"""How a product by Strassen's method is cut, and how long it takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from ..cpu.strassen_table import LEFT_PITCH
from ..cpu.tile_table import RegisterTile
from .blocking import Blocking
from .problem import ITEMSIZE
from .roofline import CLOCK
from .strassen_form import PRODUCTS, counts

__all__ = ["Cut", "best_cut", "given_cut", "heights"]

LEAST_DEPTH = 128
"""Shorter sums do not pay for what a product costs besides."""
MOST_DEPTH = 768
"""Longer rows of the left-hand side would not stay in the L1 cache."""
CLAIM_BYTES = 4 << 20
"""Scratch of one thread, at most."""
MOST_PANELS = 8
PAD = 16
"""Rows that a tile may compute past the last one of its block."""
LEFT_COST = {1: 0.05, 2: 0.15, 4: 0.40}
RIGHT_COST = {2: 0.50, 4: 0.80}
"""What sums of so many terms cost the tile that makes them on the side, in parts of the tile's time: those of the
left-hand side mostly instructions, those of the right-hand side mostly waiting for memory."""
TILE_CYCLES, TARGET_CYCLES, LINE_CYCLES, TASK_CYCLES = 40.0, 40.0, 8.0, 10000.0
"""Costs of a tile, of each block of results that it changes, of a cache line of the result, and of a task."""
EFFICIENCY = 0.925


@dataclass(frozen=True)
class Cut:
    """A task computes ``grid`` x ``grid`` blocks of ``rows`` rows and ``panels`` panels; a product's sum is over
    ``depth``. ``by_rows``: threads keep to rows of their own, else to columns."""

    grid: int
    rows: int
    panels: int
    depth: int
    by_rows: bool

    def tasks(self, m: int, panels: int) -> tuple[int, int]:
        """Blocks of tasks along rows and along columns."""
        return -(-m // (self.grid * self.rows)), -(-panels // (self.grid * self.panels))

    def areas(self, tile: RegisterTile) -> tuple[int, int, int]:
        """Elements of one right-hand sum, one left-hand sum, and one panel of one block of the result."""
        right = self.panels * self.depth * tile.columns
        left = max(heights(tile)) * LEFT_PITCH
        line = 64 // ITEMSIZE[tile.dtype]
        return _pad(right, line), _pad(left, line) + 3 * line, (self.rows + PAD) * tile.columns

    def claim(self, tile: RegisterTile) -> int:
        """Elements of scratch that one thread needs."""
        right, left, panel = self.areas(tile)
        return 2 * right + 2 * left + self.grid**2 * self.panels * panel


def heights(tile: RegisterTile) -> tuple[int, ...]:
    """Rows of the tile's variants: most, few, and (where it has one) one more than most."""
    few = max(1, tile.rows // 3)
    return (tile.rows, few, tile.tall) if tile.tall else (tile.rows, few)


@functools.lru_cache(maxsize=256)
def best_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int) -> tuple[Cut | None, float]:
    """The cheapest cut and its seconds; none if the product is too small."""
    panels = -(-n // tile.columns)
    best, least = None, float("inf")
    for cut in _cuts(levels, tile, m, panels, k, threads):
        cost = _seconds(cut, levels, tile, m, panels, k, threads)
        if cost < least:
            best, least = cut, cost
    return best, least


def given_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int, given: Blocking) -> Cut:
    """The cut nearest to ``given`` (rows, panels and depth of a block, parts of the rows) that the kernels can run."""
    grid, panels = 1 << levels, -(-n // tile.columns)
    depths = _depths(tile, k // grid)
    depth = max(d for d in depths if d <= max(given.depth, min(depths)))
    cut = Cut(grid, _clamp(given.rows, m // grid), _clamp(given.panels, panels // grid), depth, given.parts > 1)
    while cut.claim(tile) * ITEMSIZE[tile.dtype] > CLAIM_BYTES and (cut.rows > 1 or cut.panels > 1):
        half_rows = cut.rows > tile.rows * cut.panels or cut.panels == 1
        rows, width = (-(-cut.rows // 2), cut.panels) if half_rows else (cut.rows, -(-cut.panels // 2))
        cut = Cut(grid, rows, width, depth, cut.by_rows)
    return cut


def _depths(tile: RegisterTile, whole: int) -> list[int]:
    """Equal parts of a block's depth that a product can sum over."""
    most = LEFT_PITCH - PAD
    return [d for d in range(tile.lanes, min(whole, most) + 1, tile.lanes) if whole % d == 0]


def _cuts(levels: int, tile: RegisterTile, m: int, panels: int, k: int, threads: int) -> Iterator[Cut]:
    grid = 1 << levels
    depths = [d for d in _depths(tile, k // grid) if LEAST_DEPTH <= d <= MOST_DEPTH][-1:]
    for by_rows in (False, True) if threads > 1 else (False,):
        own_rows = -(-m // (threads if by_rows else 1))
        own_panels = -(-panels // (1 if by_rows else threads))
        for row_parts in (1, 2, 4):
            rows = -(-own_rows // (grid * row_parts))
            for width in sorted({-(-own_panels // (grid * p)) for p in range(1, own_panels + 1)}):
                if width > MOST_PANELS or width < 2 or grid * width > panels + grid - 1 or rows < 2 * tile.rows:
                    continue
                for depth in depths:
                    cut = Cut(grid, rows, width, depth, by_rows)
                    if cut.claim(tile) * ITEMSIZE[tile.dtype] <= CLAIM_BYTES:
                        yield cut


def _seconds(cut: Cut, levels: int, tile: RegisterTile, m: int, panels: int, k: int, threads: int) -> float:
    down, across = cut.tasks(m, panels)
    strips = -(-cut.rows // tile.rows)
    products = PRODUCTS**levels * (k // (cut.grid * cut.depth))
    full = tile.rows * tile.vectors / 2 * cut.depth
    shares = counts(levels)
    targets = sum(terms * share for terms, share in shares.items())
    left = sum(LEFT_COST[terms] * share for terms, share in shares.items())
    right = sum(RIGHT_COST[terms] * share for terms, share in shares.items() if terms > 1)
    tiles = cut.panels * (cut.rows * full / tile.rows + strips * (TILE_CYCLES + targets * TARGET_CYCLES))
    sums = full * (strips * left + cut.panels * tile.vectors * right)
    result = cut.grid**2 * cut.rows * cut.panels * tile.vectors * LINE_CYCLES
    task = products * (tiles + sums) + result + TASK_CYCLES
    return -(-down * across // threads) * task / (EFFICIENCY * CLOCK)


def _clamp(value: int, most: int) -> int:
    return max(1, min(value, most))


def _pad(size: int, line: int) -> int:
    return -(-size // line) * line
