"""Choose the tasks and cache blocks of a contraction from its shape; evaluated on the host.

For symbolic lengths the costs of blockings are compared at sample lengths. Between samples the same kind of blocking
(`_Way`) is kept, with sizes as expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ....core.dim import (
    Dim,
    Length,
    any_of,
    ceil_div,
    equal,
    evaluate,
    hint,
    less,
    less_equal,
    maximum,
    minimum,
    select,
    symbols_of,
)
from ....dataclass import dataclass
from ...problems.element_types import ITEMSIZE
from ..machine import Machine, machine
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
KEPT_COST = 1.05
"""For symbolic lengths: a blocking is kept as lengths grow while its cost is at most this multiple of the best cost.
Costs are rough, and each further kind of blocking makes expressions longer."""
SAMPLE_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""Values of a symbolic length at which costs are compared."""
FAR = 1 << 20
"""A length from which other lengths grow in proportion."""
REMEMBERED = 4096
"""Sizes whose blockings are cached: more than the products of a network at all sample lengths."""
CLEARLY = 0.99
"""A blocking replaces the best so far only if its cost is below this fraction; of equal costs the largest block is
taken."""
OPEN_TASKS = 4
"""Tasks of each thread for a symbolic number of lines, so that the last tasks are a small part of the time."""
LINE_FIXED, LINE_SHARE = 0.3, 0.25
"""Overhead of a task of lines, in lines: a fixed cost, and a share of the task for threads that wait at the end."""


@dataclass(frozen=True)
class Blocking:
    """Sizes of one task or step: rows, panels, taps and channels.

    The rows are divided into ``parts`` equal parts. Tasks of one part are numbered consecutively; within a part, tasks
    of one block of panels are.
    """

    rows: Length
    panels: Length
    taps: Length
    depth: Length
    parts: Length = 1

    def row_blocks(self, m: Length) -> Length:
        """Return the number of row blocks in one part; the last blocks of the last part may be empty."""
        return maximum(1, ceil_div(m, self.rows * self.parts))

    def tasks(self, m: Length, panels: Length, groups: Length) -> Length:
        """Return the number of tasks of a contraction of ``m`` rows and ``panels`` weight panels in each of ``groups``
        groups."""
        return groups * self.parts * self.row_blocks(m) * ceil_div(panels, self.panels)

    def steps(self, taps: Length, depth: Length) -> Length:
        """Return the condition that a reduction of ``taps`` by ``depth`` terms is cut into several steps."""
        return any_of(less(self.depth, depth), less(self.taps, taps))


class _Way(NamedTuple):
    """A kind of blocking: row parts, most panels and most tiles of rows of a block, and whether row blocks have equal
    sizes."""

    parts: Any
    panel_limit: Any
    row_limit: Any
    equal_rows: Any


def fit(given: Blocking, tile: RegisterTile, m: Length, n: Length, depth: Length, taps: int) -> Blocking:
    """Return the blocking nearest to ``given`` that the kernels can run.

    ``given`` may hold any integers. The result has whole tiles of rows, accumulators that fit the stack, and steps of
    either taps or channels.
    """
    sums = SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    unit = max(tile.step, 8)
    k_block = minimum(ceil_div(_clamp(given.depth, depth), unit) * unit, depth)
    tap_block = select(equal(k_block, depth), _clamp(given.taps, min(taps, TABLE_TAPS)), 1)
    p_block = _clamp(given.panels, minimum(ceil_div(n, tile.columns), sums // max(tile.variants())))
    m_block = ceil_div(_clamp(given.rows, m), tile.rows) * tile.rows
    several = any_of(less(tap_block, taps), less(k_block, depth))
    m_block = select(several, minimum(m_block, sums // p_block // tile.rows * tile.rows), m_block)
    return Blocking(m_block, p_block, tap_block, k_block, _clamp(given.parts, ceil_div(m, m_block)))


def cut(
    tile: RegisterTile,
    m: Length,
    n: Length,
    depth: Length,
    taps: int,
    groups: Length,
    threads: int,
    given: Blocking | None = None,
    beside: bool = False,
    forming: bool = False,
    shared: bool = False,
) -> Blocking:
    """Return the blocking for ``groups`` products of ``m`` rows, ``n`` columns and ``taps * depth`` terms on
    ``threads`` threads.

    Args:
        given: blocking to use instead of the computed one, adjusted by `fit`.
        beside: groups are adjacent in the rows, so a thread may keep to rows instead of groups.
        forming: each task converts its rows to the tile's format.
        shared: all groups have the same right-hand side (`groups_inside`).
    """
    if given is not None:
        return fit(given, tile, m, n, depth, taps)
    lens = (m, n, depth, groups)
    how = (threads, beside, forming, shared, machine())
    if not any(isinstance(length, Dim) for length in lens):
        return _best(tile, m, n, depth, taps, groups, *how)[1]  # type: ignore[arg-type]
    found: list[tuple[int, _Way]] = []  # least value of the first symbolic length, and the kind of blocking from there
    m, n, depth, groups = lens = tuple(maximum(length, 1) for length in lens)  # an image may have no pixels
    place, first = next((k, length) for k, length in enumerate(lens) if isinstance(length, Dim))
    for sample in samples_along(first, symbols_of(lens)):
        own = [evaluate(length, sample) for length in lens]
        if min(own) < 1 or (found and own[place] <= found[-1][0]):
            continue
        way, _, cost, kind_cost = _best(tile, own[0], own[1], own[2], taps, own[3], *how)
        if not found or (way != found[-1][1] and kind_cost(found[-1][1]) > KEPT_COST * cost):
            found.append((own[place], way))
    chosen = [*(found[0][1] if found else _Way(1, NEAR_PANELS, 32, 0))]
    for start, way in found[1:]:
        chosen = [select(less(first, start), before, after) for before, after in zip(chosen, way)]
    made = _block(tile, m, n, _Steps.of(tile, m, depth, taps), _Way(*chosen), threads)
    return _bounded(made, tile, taps, depth)


def samples_along(length: Dim, symbols: list[Dim]) -> Iterator[dict[Dim, int]]:
    """Yield assignments of the symbols along which ``length`` grows.

    The last symbol of ``length`` grows; its other symbols take their least values, if that leaves any choice. Symbols
    that ``length`` does not contain keep their example values.
    """
    *others, last = symbols_of([length])
    hints = length.scope.hints()
    least = {s: max(s.low or 1, 1) for s in others}
    fixed = {s: hints[s] for s in symbols}
    if evaluate(length, fixed | least) > 0:
        fixed |= least
    for value in dict.fromkeys(values_of(last, length, fixed, SAMPLE_LENGTHS)):
        yield fixed | {last: value}


def values_of(symbol: Dim, length: Dim, others: Mapping[Dim, int], wanted: Sequence[int]) -> list[int]:
    """Return values of ``symbol``, within its range, for which ``length`` is close to each of ``wanted``.

    ``length`` may grow by 1 where the symbol grows by hundreds, as the number of audio frames does.
    """
    low, high = max(symbol.low or 1, 1), symbol.high
    most = FAR if high is None else min(FAR, high)
    step = max(1, most // max(evaluate(length, {**others, symbol: most}), 1)) if most >= max(wanted) else 1
    return [max(low, value * step if high is None else min(value * step, high)) for value in wanted]


class _Steps(NamedTuple):
    """Taps and words of one step of the reduction, and the number of steps."""

    taps: Length
    depth: Length
    count: Any

    @staticmethod
    def of(tile: RegisterTile, m: Length, depth: Length, taps: int) -> _Steps:
        near_depth = tile.near_depth or DEPTH
        whole = any_of(less_equal(m, tile.rows), less_equal(2 * taps * depth, 3 * near_depth))
        tap_block, k_block = min(taps, TABLE_TAPS), depth
        if not isinstance(whole, int) or not whole:
            own_taps, own_depth = steps_within(tile, depth, taps, near_depth)
            tap_block, k_block = select(whole, tap_block, own_taps), select(whole, k_block, own_depth)
        return _Steps(tap_block, k_block, ceil_div(taps, tap_block) * ceil_div(depth, k_block))


def _block(tile: RegisterTile, m: Length, n: Length, steps: _Steps, way: _Way, threads: int) -> Blocking:
    """Return the blocking of kind ``way``."""
    l2_bytes = machine().l2_bytes
    p_block = _panels(tile, n, steps, way.parts, way.panel_limit, threads, l2_bytes)
    most, limit = _most_rows(tile, m, steps, way.parts, p_block, l2_bytes)
    m_block = _rows(tile, most, limit, way.row_limit)
    rows = select(way.equal_rows, _equal_rows(m, way.parts, m_block), m_block)
    return Blocking(rows, p_block, steps.taps, steps.depth, way.parts)


def _panels(
    tile: RegisterTile, n: Length, steps: _Steps, parts: Length, limit: Length, threads: int, l2_bytes: int
) -> Any:
    """Return the number of panels of a block."""
    room = PANEL_EIGHTHS * l2_bytes // 8
    near = maximum(
        1, room // (ITEMSIZE[tile.right_word] * tile.packing.parts * tile.columns * steps.taps * steps.depth)
    )
    return _even(ceil_div(ceil_div(n, tile.columns) * parts, threads), minimum(limit, near), 1)


def _most_rows(
    tile: RegisterTile, m: Length, steps: _Steps, parts: Length, p_block: Length, l2_bytes: int
) -> tuple[Any, Any]:
    """Return the rows of a part, and the most rows of a block: whole tiles unless the cache has less room."""
    room, sums = ROWS_EIGHTHS * l2_bytes // 8, SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    most = ceil_div(m, parts * tile.rows) * tile.rows
    limit = maximum(tile.rows, room // (ITEMSIZE[tile.left_word] * tile.packing.parts * steps.depth))
    limit = minimum(select(less(1, steps.count), sums // p_block, most), limit)
    whole = limit // tile.rows * tile.rows
    return most, select(equal(whole, 0), limit, whole)


def _rows(tile: RegisterTile, most: Length, limit: Length, row_limit: Length) -> Any:
    """Return the rows of a block, at most ``row_limit`` tiles; at least 1, which value ranges may not prove."""
    even = _even(most, row_limit * tile.rows, tile.rows)
    if type(even) is int is type(limit):
        return max(1, min(even, limit))
    return maximum(1, minimum(even, limit))


def _equal_rows(m: Length, parts: Length, m_block: Length) -> Any:
    """Return the rows of a block when ``m`` is divided into equal blocks of at most ``m_block`` rows."""
    if type(m) is int is type(m_block):
        return -(-m // (parts * -(-m // (parts * m_block))))
    return ceil_div(m, parts * ceil_div(m, parts * m_block))


def _bounded(made: Blocking, tile: RegisterTile, taps: int, depth: Length) -> Blocking:
    """Return a blocking whose accumulators fit the stack at all lengths."""
    sums = SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    p_block = minimum(made.panels, sums // max(tile.variants()))
    most = sums // p_block // tile.rows * tile.rows  # tiles write whole blocks of rows
    rows = select(made.steps(taps, depth), minimum(made.rows, most), made.rows)
    return Blocking(maximum(rows, 1), p_block, made.taps, made.depth, made.parts)


@functools.lru_cache(maxsize=REMEMBERED)
def _best(
    tile: RegisterTile,
    m: int,
    n: int,
    depth: int,
    taps: int,
    groups: int,
    threads: int,
    beside: bool,
    forming: bool,
    shared: bool,
    of: Machine,
) -> tuple[_Way, Blocking, float, Callable[[_Way], float]]:
    """Return the cheapest kind of blocking on a machine, its blocking and cost, and a function for the cost of any
    kind.

    The function returns infinity for kinds that are not candidates.
    """
    steps = _Steps.of(tile, m, depth, taps)
    panels = -(-n // tile.columns)
    sums = SUMS_BYTES // (ITEMSIZE[tile.types.accumulator] * tile.columns)
    tallest = max(tile.variants())
    best_way, best, best_cost = _Way(1, 1, 1, 0), Blocking(min(m, tile.rows), 1, steps.taps, steps.depth), float("inf")
    tried: dict[tuple[Length, ...], float] = {}  # few blocks differ in a product of few rows
    cycles_of = _makespan(tile, m, panels, steps, depth, taps, groups, threads)

    for parts in _divisors(threads) if beside or groups % threads else (1,):
        known: list[Length] = []
        for panel_limit in (NEAR_PANELS, 4, 2, 1):
            p_block = _panels(tile, n, steps, parts, panel_limit, threads, of.l2_bytes)
            if p_block in known:
                continue
            known.append(p_block)
            most, limit = _most_rows(tile, m, steps, parts, p_block, of.l2_bytes)
            if sums < p_block * (tallest if steps.count == 1 else min(most, tile.rows)):
                continue
            before: Length = 0
            for row_limit in (32, 16, 8, 4, 2, 1):
                if before and row_limit * tile.rows >= most:  # the same block
                    continue
                m_block = _rows(tile, most, limit, row_limit)
                if m_block == before:
                    continue
                before = m_block
                for equal_rows, rows in enumerate((m_block, _equal_rows(m, parts, m_block))):
                    if (rows, p_block, parts) in tried:
                        continue
                    passes = groups
                    if shared or forming:
                        blocking = Blocking(rows, p_block, steps.taps, steps.depth, parts)
                    if shared and groups_inside(blocking, tile, m, panels, depth, taps, groups):
                        passes = 1
                    cost = cycles_of(rows, p_block, parts, passes)
                    if forming:
                        cost += _forming(blocking, tile, m, panels, depth * taps, groups, threads)
                    tried[rows, p_block, parts] = cost
                    if cost < best_cost * CLEARLY:
                        best_way, best_cost = _Way(parts, panel_limit, row_limit, equal_rows), cost
                        best = Blocking(rows, p_block, steps.taps, steps.depth, parts)

    def kind_cost(way: _Way) -> float:
        p_block = _panels(tile, n, steps, way.parts, way.panel_limit, threads, of.l2_bytes)
        most, limit = _most_rows(tile, m, steps, way.parts, p_block, of.l2_bytes)
        m_block = _rows(tile, most, limit, way.row_limit)
        rows = _equal_rows(m, way.parts, m_block) if way.equal_rows else m_block
        return tried.get((rows, p_block, way.parts), float("inf"))

    return best_way, best, best_cost, kind_cost


def steps_within(tile: RegisterTile, depth: Length, taps: int, limit: int) -> tuple[Length, Length]:
    """Return the taps of equal steps and the words of one step, at most ``limit`` words unless a tile's step is
    longer."""
    deep = less_equal(limit, depth)
    own_depth = select(deep, _even(depth, limit, max(tile.step, 8)), depth)
    if isinstance(deep, int) and deep:
        return 1, own_depth
    own_taps = _even(taps, maximum(1, minimum(limit // maximum(depth, 1), TABLE_TAPS)), 1)
    return select(deep, 1, own_taps), own_depth


def cut_lines(
    tile: RegisterTile, lines: Length, width: Length, channels: int, threads: int, given: Blocking | None = None
) -> Blocking:
    """Return blocks of whole lines of ``width`` pixels and of channels, for a convolution by runs of pixels.

    Args:
        given: blocking to use instead of the computed one, adjusted to fit.
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
    if isinstance(lines, Dim):
        tasks = OPEN_TASKS * threads if threads > 1 else 1
        return Blocking(maximum(1, ceil_div(lines, ceil_div(tasks, parts))) * width, p_block, 1, 1)

    def cost(block: int) -> float:
        return -(-parts * -(-lines // block) // threads) * (block + LINE_FIXED) + LINE_SHARE * block

    sizes = {-(-lines // count) for count in range(1, min(lines, 16 * threads) + 1)} if threads > 1 else {lines}
    return Blocking(min(sizes, key=cost) * width, p_block, 1, 1)


def line_order(pixels: Length, channels: int) -> str:
    """Return the dimension that successive tasks of a depthwise convolution walk first: ``lines`` or ``channels``.

    Threads keep to the same channels where, by the costs of `cut`, they keep to the same columns in the preceding
    product.
    """
    return "lines" if channels * SHARED_CYCLES > hint(pixels) * FOREIGN_CYCLES else "channels"


def groups_inside(
    blocking: Blocking, tile: RegisterTile, m: Length, panels: int, depth: int, taps: int, groups: Length
) -> bool:
    """Return whether all groups with one right-hand side are computed for a block of panels before the next block.

    A thread then reads its part of the right-hand side once instead of once a group, and re-reads the rows of all
    groups for each block of panels. That pays if a panel block fits the L2 cache, all of them do not, and the traffic
    is less.
    """
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    m, groups, own = hint(m), hint(groups), hint(blocking.panels)  # either order is correct
    panel, l2_bytes = tile.columns * depth * taps * right, machine().l2_bytes
    if panels * panel <= PANEL_EIGHTHS * l2_bytes // 8 or own * panel > ROWS_EIGHTHS * l2_bytes // 8:
        return False
    others = -(-panels // own) - 1
    return (groups - 1) * panels * panel > others * groups * m * depth * left


def _makespan(
    tile: RegisterTile, m: int, panels: int, steps: _Steps, depth: int, taps: int, groups: int, threads: int
) -> Callable[[int, int, int, int], float]:
    """Return a function that estimates the cycles until the last thread is done.

    The function takes a block's rows and panels, the number of row parts, and the number of passes over the weights. It
    counts multiply-adds, weight loads, fixed costs, and data fetched from other cores (weights, and rows written
    there).
    """
    terms = depth * taps
    most_over, step, tile_rows_each = max(tile.tall - tile.rows, 0), tile.step, tile.rows
    vectors, cycles, columns, packed_parts = tile.vectors, tile.cycles, tile.columns, tile.packing.parts
    left, right = (ITEMSIZE[word] * packed_parts for word in (tile.left_word, tile.right_word))

    def cycles_of(block_rows: int, block_panels: int, parts: int, passes: int) -> float:
        rows, width = min(block_rows, m), min(block_panels, panels)
        tasks = groups * parts * max(1, -(-m // (block_rows * parts))) * -(-panels // block_panels)
        tile_rows, over = divmod(rows, tile_rows_each)
        if over > tile_rows * most_over:  # tiles of few rows are bound by weight loads
            tile_rows, rows = tile_rows + 1, rows + 1
        if step > 1:  # matrix tiles compute whole registers of rows
            rows = -(-rows // step) * step
        work = rows * width * terms * vectors * cycles
        weights = width * terms * columns / 16 * packed_parts
        loads = LOAD_CYCLES * tile_rows * terms * tile_rows_each if step == 1 else 0
        foreign_rows = m * depth * left / parts * (1 - parts / threads)
        own_weights = panels * columns * terms * right * parts / threads
        busy = -(-tasks // threads) * (work + weights + loads + tile_rows * TILE_CYCLES + TASK_CYCLES)
        if step > 1:
            busy += -(-tasks // threads) * ROW_CYCLES * min(block_rows, m)
            busy = max(busy, MEMORY_CYCLES * passes * own_weights)
        busy += MEMORY_CYCLES * width * columns * steps.depth * steps.taps * right
        return busy + groups * FOREIGN_CYCLES * foreign_rows + passes * SHARED_CYCLES * own_weights

    return cycles_of


def _forming(
    blocking: Blocking, tile: RegisterTile, m: int, panels: int, terms: int, groups: int, threads: int
) -> float:
    """Return the cycles of one thread to convert the rows of all its tasks to the tile's format."""
    tasks = -(-blocking.tasks(m, panels, groups) // threads)
    return FORM_CYCLES * tile.packing.parts * tasks * min(blocking.rows, m) * terms


def odd(length: Length) -> Any:
    """Return ``length`` if it is odd, else the next odd number.

    Rows that are an odd number of cache lines apart fall into different cache sets.
    """
    return length + 1 - length % 2


def _divisors(number: int) -> list[int]:
    """Return all divisors of ``number``, the largest first."""
    return [d for d in range(number, 0, -1) if number % d == 0]


def _clamp(value: Length, most: Length) -> Any:
    return maximum(1, minimum(value, most))


def _even(total: Length, limit: Length, multiple: int) -> Length:
    """Return a block size of at most ``limit`` that cuts ``total`` into nearly equal parts, rounded up to
    ``multiple``."""
    if type(total) is int is type(limit):  # the helpers of symbolic lengths take five times as long
        limit = max(limit, 1)
        block = -(-total // max(1, -(-total // limit)))
        return min(-(-block // multiple) * multiple, limit)
    limit = maximum(limit, 1)
    block = ceil_div(total, maximum(1, ceil_div(total, limit)))
    return minimum(ceil_div(block, multiple) * multiple, limit)
