"""How a contraction is cut into tasks and cache blocks: a function of its shape, evaluated on the host."""

from __future__ import annotations

from ....dataclass import dataclass
from ...problems.element_types import ITEMSIZE
from ..machine import machine
from ..microkernels.register_tile import RegisterTile

__all__ = [
    "NEAR_PANELS",
    "SUMS_BYTES",
    "TABLE_TAPS",
    "Blocking",
    "cut",
    "cut_lines",
    "fit",
    "groups_inside",
    "line_order",
    "steps_within",
]

SUMS_BYTES = 65536
"""Stack memory for the sums of one task."""
TABLE_TAPS = 64
"""Most taps in one step: those whose row offsets fit the table on the stack."""
PANEL_EIGHTHS = 3
"""Part of the L2 cache for the weights of one task, which stay there while its rows pass."""
ROWS_EIGHTHS = 5
"""Part of the L2 cache for the left-hand side of one task, which stays there while the panels pass."""
NEAR_PANELS = 8
"""Panels of a product's row that one task takes, at most."""
DEPTH = 1024
"""Reduction length from which the sums are worth parking, so that rows and panels stay near."""
FOREIGN_CYCLES = 0.1
"""Cycles to fetch a byte that another core wrote."""
SHARED_CYCLES = 0.03
"""Cycles to fetch a byte of the weights, which all cores have read before, from beyond the L2 cache."""


TILE_CYCLES, TASK_CYCLES = 60, 300
"""Cycles of a call of the register tile and of a task besides their multiply-adds."""
LOAD_CYCLES = 0.1
"""Cycles of a row's element that a tile broadcasts, beyond those of the multiply-adds that it is used in."""
MEMORY_CYCLES = 0.16
"""Cycles to fetch a byte of the weights from memory: 13 GB/s at 2.1 GHz, one thread of Emerald Rapids. Tiles that read
whole matrices wait for those of a thread's first block, and ask for the others while they multiply: products of 49 to
197 rows over weights from memory take 0.7 to 0.9 of the time with blocks of one or two panels that they take with
eight."""
ROW_CYCLES = 40
"""Cycles of a row of a block besides those of its vectors, where sums are parked for the epilogue: 196 rows by 256
terms in bfloat16, 64 columns at a time, take 134, of which the products are 32 and the 4 vectors, by the time of 16,
57 (Emerald Rapids)."""
FORM_CYCLES = 0.6
"""Cycles to bring a word of the left-hand side, or of a part of it, into the form (`gemm_tiles.NEAR_SECONDS`)."""
CLEARLY = 0.99
"""Part of the least cost so far that another blocking must be below, so that of equal ones the largest is taken."""
LINE_FIXED, LINE_SHARE = 0.3, 0.25
"""Cost of a task of lines, in lines: besides its own, and of what the threads that end first wait for."""


@dataclass(frozen=True)
class Blocking:
    """Rows, panels, taps and channels of one task or step.

    Tasks are numbered so that all those of one of ``parts`` equal parts of the rows are neighbours; within a part
    those of one block of panels are.
    """

    rows: int
    panels: int
    taps: int
    depth: int
    parts: int = 1

    def row_blocks(self, m: int) -> int:
        """Blocks of rows in one part; the last ones of the last part may be empty."""
        return max(1, -(-m // (self.rows * self.parts)))

    def tasks(self, m: int, panels: int, groups: int) -> int:
        """Number of tasks of a contraction of ``m`` rows and ``panels`` weight panels in each group."""
        return groups * self.parts * self.row_blocks(m) * -(-panels // self.panels)


def fit(given: Blocking, tile: RegisterTile, m: int, n: int, depth: int, taps: int) -> Blocking:
    """The blocking nearest to ``given``, which may hold any integers, that the kernels can run: whole tiles of rows,
    sums that fit the stack, and steps of either taps or channels."""
    sums = SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    unit = max(tile.step, 8)
    k_block = min(-(-_clamp(given.depth, depth) // unit) * unit, depth)
    tap_block = _clamp(given.taps, min(taps, TABLE_TAPS)) if k_block == depth else 1
    p_block = _clamp(given.panels, min(-(-n // tile.columns), sums // max(tile.variants())))
    m_block = -(-_clamp(given.rows, m) // tile.rows) * tile.rows
    if tap_block < taps or k_block < depth:
        m_block = min(m_block, sums // p_block // tile.rows * tile.rows)
    return Blocking(m_block, p_block, tap_block, k_block, _clamp(given.parts, -(-m // m_block)))


def cut(
    tile: RegisterTile,
    m: int,
    n: int,
    depth: int,
    taps: int,
    groups: int,
    threads: int,
    given: Blocking | None = None,
    beside: bool = False,
    forming: bool = False,
    shared: bool = False,
) -> Blocking:
    """Blocks for ``groups`` products of ``m`` rows, ``n`` columns and ``taps * depth`` terms on ``threads`` threads.

    ``given`` ones, made to `fit`, are taken in place of the computed ones. ``beside`` says that the groups lie beside
    each other in the rows, so that a thread may rather keep to rows than to groups; ``forming`` that each task brings
    its rows into the tile's form; ``shared`` that all groups have one right-hand side (`groups_inside`).
    """
    if given is not None:
        return fit(given, tile, m, n, depth, taps)
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    panels = -(-n // tile.columns)
    sums = SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    near_depth = tile.near_depth or DEPTH
    if m <= tile.rows or taps * depth <= 1.5 * near_depth:
        tap_block, k_block = min(taps, TABLE_TAPS), depth
    else:
        tap_block, k_block = steps_within(tile, depth, taps, near_depth)
    steps = -(-taps // tap_block) * -(-depth // k_block)
    panel_bytes, row_bytes = (eighths * machine().l2_bytes // 8 for eighths in (PANEL_EIGHTHS, ROWS_EIGHTHS))
    near = max(1, panel_bytes // (right * tile.columns * tap_block * k_block))
    tallest = max(tile.variants())
    best, best_cost = Blocking(min(m, tile.rows), 1, tap_block, k_block), float("inf")
    tried: set[tuple[int, int, int]] = set()  # a product of few rows has few
    for parts in _divisors(threads) if beside or groups % threads else (1,):
        most = -(-m // (parts * tile.rows)) * tile.rows
        for panel_limit in (NEAR_PANELS, 4, 2, 1):
            p_block = _even(-(-panels * parts // threads), min(panel_limit, near), 1)
            most_rows = min(sums // p_block if steps > 1 else most, max(tile.rows, row_bytes // (left * k_block)))
            if sums < p_block * (tallest if steps == 1 else min(most, tile.rows)):
                continue
            for row_limit in (32, 16, 8, 4, 2, 1):
                m_block = min(
                    _even(most, row_limit * tile.rows, tile.rows), most_rows // tile.rows * tile.rows or most_rows
                )
                blocks = -(-m // (parts * m_block))
                for rows in (m_block, -(-m // (parts * blocks))):
                    if (rows, p_block, parts) in tried:
                        continue
                    tried.add((rows, p_block, parts))
                    blocking = Blocking(rows, p_block, tap_block, k_block, parts)
                    inside = shared and groups_inside(blocking, tile, m, panels, depth, taps, groups)
                    cost = _makespan(blocking, tile, m, panels, depth, taps, groups, threads, 1 if inside else groups)
                    if forming:
                        cost += _forming(blocking, tile, m, panels, depth * taps, groups, threads)
                    if cost < best_cost * CLEARLY:
                        best, best_cost = blocking, cost
    return best


def steps_within(tile: RegisterTile, depth: int, taps: int, limit: int) -> tuple[int, int]:
    """Taps of equal steps, and words of one, of at most ``limit`` words if a step of the tile has not more."""
    if depth >= limit:
        return 1, _even(depth, limit, max(tile.step, 8))
    return _even(taps, max(1, min(limit // depth, TABLE_TAPS)), 1), depth


def cut_lines(
    tile: RegisterTile, lines: int, width: int, channels: int, threads: int, given: Blocking | None = None
) -> Blocking:
    """Blocks of whole lines of ``width`` pixels, and of channels, for a convolution by runs of pixels.

    ``given`` blocks are made to fit.
    """
    panels = -(-channels // tile.columns)
    if given is not None:
        block = _clamp(round(given.rows / width), lines)
        return Blocking(block * width, _clamp(given.panels, panels), 1, 1)
    parts = -(-panels // NEAR_PANELS)
    if line_order(lines * width, channels) == "lines":
        parts = min(-(-parts // threads) * threads, panels)
    p_block = -(-panels // parts)
    parts = -(-panels // p_block)

    def cost(block: int) -> float:
        return -(-parts * -(-lines // block) // threads) * (block + LINE_FIXED) + LINE_SHARE * block

    sizes = {-(-lines // count) for count in range(1, min(lines, 16 * threads) + 1)} if threads > 1 else {lines}
    return Blocking(min(sizes, key=cost) * width, p_block, 1, 1)


def line_order(pixels: int, channels: int) -> str:
    """What successive tasks of a depthwise product walk first, ``lines`` or ``channels``.

    Threads keep to channels of their own where, by the costs of `cut`, they keep to columns in the product before it.
    """
    return "lines" if channels * SHARED_CYCLES > pixels * FOREIGN_CYCLES else "channels"


def groups_inside(
    blocking: Blocking, tile: RegisterTile, m: int, panels: int, depth: int, taps: int, groups: int
) -> bool:
    """Whether groups with one right-hand side are all computed for a block of panels before the next block is.

    A thread then reads its part of the right-hand side once instead of for each group, and the rows of all groups for
    each block of panels: where the L2 cache holds such a block, not all of them, and that is less.
    """
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    panel, l2_bytes = tile.columns * depth * taps * right, machine().l2_bytes
    if panels * panel <= PANEL_EIGHTHS * l2_bytes // 8 or blocking.panels * panel > ROWS_EIGHTHS * l2_bytes // 8:
        return False
    others = -(-panels // blocking.panels) - 1
    return (groups - 1) * panels * panel > others * groups * m * depth * left


def _makespan(
    blocking: Blocking,
    tile: RegisterTile,
    m: int,
    panels: int,
    depth: int,
    taps: int,
    groups: int,
    threads: int,
    passes: int,
) -> float:
    """Rough cycles until the last of ``threads`` threads is done: multiply-adds, loads of weights, which it reads in so
    many ``passes``, fixed costs, and what comes from other cores: these weights, and rows that were written there."""
    rows, width = min(blocking.rows, m), min(blocking.panels, panels)
    terms = depth * taps
    tasks = blocking.tasks(m, panels, groups)
    tile_rows, over = divmod(rows, tile.rows)
    if over > tile_rows * max(tile.tall - tile.rows, 0):  # tiles of few rows, which wait for the weights
        tile_rows, rows = tile_rows + 1, rows + 1
    if tile.step > 1:  # whole registers of rows
        rows = -(-rows // tile.step) * tile.step
    work = rows * width * terms * tile.vectors * tile.cycles
    weights = width * terms * tile.columns / 16 * tile.packing.parts
    loads = LOAD_CYCLES * tile_rows * terms * tile.rows if tile.step == 1 else 0
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    foreign_rows = m * depth * left / blocking.parts * (1 - blocking.parts / threads)
    own_weights = panels * tile.columns * terms * right * blocking.parts / threads
    busy = -(-tasks // threads) * (work + weights + loads + tile_rows * TILE_CYCLES + TASK_CYCLES)
    if tile.step > 1:
        busy += -(-tasks // threads) * ROW_CYCLES * min(blocking.rows, m)
        first = width * tile.columns * blocking.depth * blocking.taps * right
        busy = max(busy, MEMORY_CYCLES * passes * own_weights) + MEMORY_CYCLES * first
    return busy + groups * FOREIGN_CYCLES * foreign_rows + passes * SHARED_CYCLES * own_weights


def _forming(
    blocking: Blocking, tile: RegisterTile, m: int, panels: int, terms: int, groups: int, threads: int
) -> float:
    """Cycles of a thread to bring the rows of all its tasks into the tile's form."""
    tasks = -(-blocking.tasks(m, panels, groups) // threads)
    return FORM_CYCLES * tile.packing.parts * tasks * min(blocking.rows, m) * terms


def _divisors(number: int) -> list[int]:
    """All divisors, the largest first."""
    return [d for d in range(number, 0, -1) if number % d == 0]


def _clamp(value: int, most: int) -> int:
    return max(1, min(value, most))


def _even(total: int, limit: int, multiple: int) -> int:
    """Block of at most ``limit`` that cuts ``total`` into nearly equal parts, rounded up to ``multiple``."""
    parts = -(-total // max(limit, 1))
    block = -(-total // parts)
    return min(-(-block // multiple) * multiple, max(limit, 1))
