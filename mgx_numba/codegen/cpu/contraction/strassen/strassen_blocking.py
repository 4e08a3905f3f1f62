"""Encode Strassen's seven products in words that a kernel decodes, choose the blocking of a product, and estimate its
time.


Blocks of a matrix are numbered 0 to 3 by rows. A sum is a first block, plus or minus an optional second block. A
product is added to one or two result blocks in the same way. This form is used at the outer level. The inner level, in
the tiles, uses Winograd's form, which has fewer result additions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from .....core.dim import SharedLength
from .....dataclass import dataclass
from ....problems.element_types import ITEMSIZE
from ...microkernels.register_tile import RegisterTile
from ..blocking import Blocking
from .tile_table import INNER, LEFT_PITCH, SIDE_STEPS

LEAST_DEPTH = 96
"""Least reduction length; shorter reductions do not pay for the fixed cost of a product."""
MOST_DEPTH = {2: 192, 4: 256}
"""Most reduction length, by grid. The right-hand sides of two steps of longer products (at one level including blocks
themselves) would not stay in the L2 cache beside left-hand sums."""
ALL_CLAIM_BYTES, CLAIM_BYTES = 16 << 20, 4 << 20
"""Most scratch (bytes) of all threads together, and the scratch that each thread may have in any case."""
RIGHT_PANELS = 8
"""Right-hand sums of one step: four quadrants of an outer sum and four sums of quadrants."""
PAD = 16
"""Rows that a tile may compute past the last row of its block."""
RIGHT_PAD = 80
"""Padding (elements) after a right-hand sum, so that successive sums do not fall into the same cache sets."""
MOST_PIECES = 16
"""Most pieces of a right-hand sum; finer pieces do not spread the work better."""
HELD_PANELS = 6
"""Panels of the result that an outer product is added to before the next outer product, while its left-hand sides stay
in cache."""
LEFT_OPERATIONS = 8
"""Sums of two terms that make all left-hand sides of an outer product."""
LEFT_PAD = 16
"""Padding (elements) between left-hand sums in a row."""
LEAST_ROWS = 8
"""Rows below which a tile gets no faster, as it waits for its panels; fewer for a register tile that has fewer rows
(AVX2: 6 rows of 2 vectors, whose 12 sums keep the units busy)."""
TILE_CYCLES, OUTER_CYCLES = 60.0, 40.0
"""Cycles of a tile, and of each place of the outer level that it updates."""
SIDE_CYCLES, BEYOND_CYCLES = 1.5, 5.0
"""Cycles of a vector of a sum made beside a product, and of one made by itself."""
MADE = {2: 1 / 2, 4: 6 / 7}
"""Mean share of `RIGHT_PANELS` that has to be computed in a step, by grid: blocks themselves are not copied."""
LINE_CYCLES, TASK_CYCLES = 9.0, 10000.0
"""Cycles of a cache line of the result, and of a task."""
UNEVEN = {2: 1.03, 4: 1.06}
"""Factor for other losses and a margin, by grid: tasks are too few to balance a slow task."""


@dataclass(frozen=True)
class Cut:
    """The blocking: a task computes ``grid`` x ``grid`` blocks of ``rows`` rows and ``panels`` panels, with products of
    reduction length ``depth``.

    ``by_rows``: threads keep to the same rows, else to the same columns.
    """

    grid: int
    rows: int
    panels: int
    depth: int
    by_rows: bool

    @property
    def outers(self) -> int:
        """Return the number of products of the outer level."""
        return PRODUCTS if self.grid > 2 else 1

    @property
    def together(self) -> int:
        """Return the number of adjacent left-hand sums in `LEFT_PITCH` elements."""
        return min(LEFT_PITCH // (self.depth + LEFT_PAD), INNER)

    def tasks(self, m: int, panels: int) -> tuple[int, int]:
        """Return the number of task blocks along rows and along columns."""
        return -(-m // (self.grid * self.rows)), -(-panels // (self.grid * self.panels))

    def tiles(self, tile: RegisterTile) -> tuple[int, ...]:
        """Return the heights of the tiles from top to bottom of a block, as `next_strip` chooses them."""
        return _strips_of(self.rows, heights(tile))

    def strips(self, tile: RegisterTile) -> int:
        """Return the number of tiles from top to bottom of a block."""
        return len(self.tiles(tile))

    def held(self, k: int) -> int:
        """Return the panels of a result block that are accumulated at the same time."""
        if k > self.grid * self.depth:
            return self.panels
        return -(-self.panels // -(-self.panels // HELD_PANELS))

    def kept(self, k: int) -> int:
        """Return the outer products whose left-hand sides are kept: the current and the next if none is needed again,
        else all."""
        return min(2, self.outers * (k // (self.grid * self.depth))) if self.held(k) == self.panels else self.outers

    def left_share(self, tile: RegisterTile, k: int) -> int:
        """Return the jobs for left-hand sums in a step such that the sums of the next outer product are ready in
        time."""
        return -(-self.strips(tile) * LEFT_OPERATIONS * left_pieces(tile) // self.held(k))

    def areas(self, tile: RegisterTile) -> tuple[int, int, int]:
        """Return the elements of a right-hand sum, of a strip's left-hand sums, and of a panel of a result block."""
        strip = -(-INNER // self.together) * max(heights(tile)) * LEFT_PITCH
        return self.depth * tile.columns + RIGHT_PAD, strip, (self.rows + PAD) * tile.columns

    def claim(self, tile: RegisterTile, k: int) -> int:
        """Return the elements of scratch that one thread needs."""
        right, strip, panel = self.areas(tile)
        return 2 * RIGHT_PANELS * right + self.kept(k) * self.strips(tile) * strip + self.grid**2 * self.held(k) * panel


@functools.lru_cache(4096)  # many candidate blockings have the same few heights
def _strips_of(rows: int, heights: tuple[int, ...]) -> tuple[int, ...]:
    most, few, *tall = heights
    found, left = [], rows
    while left > 0:
        found.append(tall[0] if tall and 0 < left % most <= left // most else (most if left > few else few))
        left -= found[-1]
    return tuple(found)


@functools.lru_cache(4096)
def _paid_rows(rows: int, heights: tuple[int, ...], least: int) -> int:
    """Return the rows that the tiles of a block cost, of which each costs ``least`` or more."""
    return sum([max(height, least) for height in _strips_of(rows, heights)])


def left_pieces(tile: RegisterTile) -> int:
    """Return the number of pieces of a strip's left-hand sum; each product makes one piece on the side."""
    return -(-max(heights(tile)) // (tile.lanes // SIDE_STEPS))


def next_strip(tile: RegisterTile, rows_left: str) -> list[str]:
    """Return statements that choose the height of the next strip for ``rows_left`` remaining rows."""
    most, few, *tall = heights(tile)
    lines = [f"rows_left = {rows_left}", f"height = {most} if rows_left > {few} else {few}"]
    if tall:
        lines += [f"over = imod(rows_left, {most})"]
        lines += [f"if over > 0 and over <= idiv(rows_left, {most}):", f"    height = {tall[0]}"]
    return lines


def heights(tile: RegisterTile) -> tuple[int, ...]:
    """Return the rows of the tile's variants: most, few, and (if it has a tall variant) one more than most."""
    few = max(1, tile.rows // 3)
    return (tile.rows, few, tile.tall) if tile.tall else (tile.rows, few)


def has_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int) -> bool:
    """Return whether there is a blocking for one thread: whether the product is large enough."""
    return next(_cuts(levels, tile, m, -(-n // tile.columns), k, 1), None) is not None


@functools.lru_cache(maxsize=256)
def best_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int) -> tuple[Cut | None, float]:
    """Return the cheapest blocking and its cycles; None if the product is too small."""
    panels = -(-n // tile.columns)
    best, least = None, float("inf")
    for cut in _cuts(levels, tile, m, panels, k, threads):
        cost = _cycles(cut, tile, m, panels, k, threads)
        if cost < least:
            best, least = cut, cost
    return best, least


def given_cut(levels: int, tile: RegisterTile, m: int, n: int, k: int, threads: int, given: Blocking) -> Cut:
    """Return the valid blocking nearest to ``given`` (rows, panels and depth of a block, parts of the rows)."""
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
    """Return the reduction lengths of a product that divide a block's depth evenly."""
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
    strips = cut.strips(tile)
    high = _paid_rows(cut.rows, heights(tile), min(LEAST_ROWS, tile.rows))
    tiles = strips * (TILE_CYCLES + OUTER_CYCLES * (cut.outers > 1)) + high * tile.vectors / 2 * cut.depth
    room = INNER * strips * cut.depth // SIDE_STEPS
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


def _clamp(value: SharedLength, most: int) -> int:
    return max(1, min(value, most))


Sum = tuple[tuple[int, int], ...]
"""Block and sign (1: subtracted) of each term."""

# Strassen's form.
_LEFT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 0)), ((0, 0),), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (0, 1)), ((1, 0), (3, 1)),
)  # fmt: skip
# Strassen's form.
_RIGHT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((0, 0),), ((1, 0), (3, 1)), ((2, 0), (0, 1)), ((3, 0),), ((0, 0), (1, 0)), ((2, 0), (3, 0)),
)  # fmt: skip
# Strassen's form.
_RESULT: tuple[Sum, ...] = (
    ((0, 0), (3, 0)), ((2, 0), (3, 1)), ((1, 0), (3, 0)), ((0, 0), (2, 0)), ((1, 0), (0, 1)), ((3, 0),), ((0, 0),),
)  # fmt: skip
PRODUCTS = len(_RESULT)


def _word(sums: tuple[Sum, ...]) -> int:
    """Return the word of ``sums``, six bits a product: first block (2), whether there is a second block (1), second
    block (2), its sign (1)."""
    word = 0
    for r, ((block, _), *rest) in enumerate(sums):
        second, sign = rest[0] if rest else (0, 0)
        word |= (block | len(rest) << 2 | second << 3 | sign << 5) << (6 * r)
    return word


def _marks(products: range) -> int:
    """Return a word of four bits a product: the result blocks that no earlier product, in this order, is added to."""
    word, seen = 0, set()
    for r in products:
        for block, _ in _RESULT[r]:
            word |= (block not in seen) << (4 * r + block)
            seen.add(block)
    return word


LEFT, RIGHT, RESULT = _word(_LEFT), _word(_RIGHT), _word(_RESULT)
FIRST, LAST = _marks(range(PRODUCTS)), _marks(range(PRODUCTS - 1, -1, -1))
