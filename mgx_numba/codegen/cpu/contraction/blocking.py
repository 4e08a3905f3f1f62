"""Choose the tasks and cache blocks of a contraction from its shape, evaluated on the host, and propose blockings near
the choice for tuning.

For symbolic lengths the costs of blockings are compared at sample lengths. Between samples the same kind of blocking
(`Way`) is kept, with sizes as expressions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....core.dim import (
    Dim,
    Length,
    SampleValues,
    SharedLength,
    any_of,
    ceil_div,
    equal,
    evaluate,
    hint,
    less,
    maximum,
    minimum,
    select,
    symbols_of,
)
from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import FLOAT32
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import declared_tile, matrix_tile, tile_for
from . import blocking_search
from .blocking_search import (
    FOREIGN_CYCLES,
    NEAR_PANELS,
    SHARED_CYCLES,
    SUMS_BYTES,
    TABLE_TAPS,
    BlockSizes,
    Search,
    Steps,
    Way,
    steps_within,
    sums_of,
)

KEPT_COST = 1.05
"""For symbolic lengths: a blocking is kept as lengths grow while its cost is at most this multiple of the best cost.
Costs are rough, and each further kind of blocking makes expressions longer."""
SAMPLE_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
"""Values of a symbolic length at which costs are compared."""
FAR = 1 << 20
"""A length from which other lengths grow in proportion."""
REMEMBERED = 1024
"""Products whose blockings are cached: more than those of a network."""
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


def fit(given: Blocking, tile: RegisterTile, m: Length, n: Length, depth: Length, taps: int) -> Blocking:
    """Return the blocking nearest to ``given`` that the kernels can run.

    ``given`` may hold any integers. The result has whole tiles of rows, accumulators that fit the stack, and steps of
    either taps or channels.
    """
    sums = sums_of(tile)
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
    how = (taps, threads, beside, forming, shared, machine())
    if not any(isinstance(length, Dim) for length in lens):
        return _best(tile, lens, *how)
    lens = tuple(maximum(length, 1) for length in lens)  # an image may have no pixels
    m, n, depth, _ = lens
    place, first = next((k, length) for k, length in enumerate(lens) if isinstance(length, Dim))
    values = SampleValues(list(samples_along(first, symbols_of(lens))))
    own = tuple(sizes for sizes in zip(*map(values.of, lens)) if min(sizes) >= 1)
    found = _best_ways(tile, own, place, *how)
    chosen = [*(found[0][1] if found else Way(1, NEAR_PANELS, 32, 0))]
    for start, way in found[1:]:
        chosen = [select(less(first, start), before, after) for before, after in zip(chosen, way)]
    steps = Steps.of(tile, m, depth, taps)
    made, _ = BlockSizes.of(tile, m, n, steps, Way(*chosen), threads, machine().l2_bytes)
    return _bounded(Blocking(made.rows, made.panels, steps.taps, steps.depth, made.parts), tile, taps, depth)


@functools.lru_cache(maxsize=REMEMBERED)
def _best(tile: RegisterTile, lens: tuple[int, ...], taps: int, *how: Any) -> Blocking:
    """Return the cheapest blocking; see `Search` for the arguments."""
    search = Search(tile, [lens], taps, *how)
    sizes, steps = search.sizes(0, search.cheapest(0))
    return Blocking(sizes.rows, sizes.panels, steps.taps, steps.depth, sizes.parts)


@functools.lru_cache(maxsize=REMEMBERED)
def _best_ways(
    tile: RegisterTile, lens: tuple[tuple[int, ...], ...], place: int, taps: int, *how: Any
) -> list[tuple[int, Way]]:
    """Return from which value on of the length at ``place`` each way is used; see `Search` for the other arguments."""
    if not lens:
        return []
    found: list[tuple[int, int]] = []
    search = Search(tile, lens, taps, *how)
    for number, own in enumerate(lens):
        if found and own[place] <= found[-1][0]:
            continue
        best, costs = search.cheapest(number), search.costs[number]
        if not found or (best != found[-1][1] and costs[found[-1][1]] > KEPT_COST * costs[best]):
            found.append((own[place], best))
    return [(start, search.ways[best]) for start, best in found]


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


def _bounded(made: Blocking, tile: RegisterTile, taps: int, depth: Length) -> Blocking:
    """Return a blocking whose accumulators fit the stack at all lengths."""
    sums = sums_of(tile)
    p_block = minimum(made.panels, sums // max(tile.variants()))
    most = sums // p_block // tile.rows * tile.rows  # tiles write whole blocks of rows
    rows = select(made.steps(taps, depth), minimum(made.rows, most), made.rows)
    return Blocking(maximum(rows, 1), p_block, made.taps, made.depth, made.parts)


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

    The example lengths decide: either order is correct.
    """
    own = hint(blocking.panels), hint(m), panels, depth, taps, hint(groups)
    return bool(blocking_search.groups_inside(tile, *own, machine().l2_bytes))


def odd(length: Length) -> SharedLength:
    """Return ``length`` if it is odd, else the next odd number.

    Rows that are an odd number of cache lines apart fall into different cache sets.
    """
    return length + 1 - length % 2


def _clamp(value: Length, most: Length) -> SharedLength:
    return maximum(1, minimum(value, most))


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
