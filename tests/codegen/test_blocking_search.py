"""The search for blocks of contractions, against a loop over plain numbers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from mgx_numba.codegen.cpu.contraction import blocking, blocking_search
from mgx_numba.codegen.cpu.contraction.blocking import cut
from mgx_numba.codegen.cpu.contraction.blocking_search import (
    Search,
    Steps,
    sums_of,
)
from mgx_numba.codegen.cpu.machine import machine
from mgx_numba.codegen.cpu.microkernels.amx_table import AMX_TILES
from mgx_numba.codegen.cpu.microkernels.register_tile import RegisterTile
from mgx_numba.codegen.cpu.microkernels.tile_table import tile_for
from mgx_numba.codegen.problems.element_types import ITEMSIZE, element_types

from .symbolic_contracting import symbols

TILES = [tile_for(element_types("float32")), tile_for(element_types("float64")), AMX_TILES[0]]
HOW = [(False, False, False), (True, False, False), (False, True, False), (False, False, True)]
"""Whether groups are adjacent, rows are converted, and groups share weights."""


def _even(total: int, limit: int, multiple: int) -> int:
    limit = max(limit, 1)
    block = -(-total // -(-total // limit))
    return min(-(-block // multiple) * multiple, limit)


def _cost(tile: RegisterTile, lens: tuple[int, ...], taps: int, threads: int, how: Any, block: Any) -> float:
    """Return the cycles of a block of rows and panels in one of some parts."""
    (m, n, depth, groups), (rows, p_block, parts), (_, forming, shared) = lens, block, how
    steps, panels, terms = Steps.of(tile, m, depth, taps), -(-n // tile.columns), depth * taps
    left, right = (ITEMSIZE[word] * tile.packing.parts for word in (tile.left_word, tile.right_word))
    panel, l2_bytes = tile.columns * terms * right, machine().l2_bytes
    passes = groups
    if (
        shared
        and panels * panel > blocking_search.PANEL_EIGHTHS * l2_bytes // 8
        and p_block * panel <= blocking_search.ROWS_EIGHTHS * l2_bytes // 8
    ):
        again = (-(-panels // p_block) - 1) * groups * m * depth * left
        passes = 1 if (groups - 1) * panels * panel > again else groups
    claim = -(-groups * parts * max(1, -(-m // (rows * parts))) * -(-panels // p_block) // threads)
    own, width = min(rows, m), min(p_block, panels)
    high, over = divmod(own, tile.rows)
    if over > high * max(tile.tall - tile.rows, 0):
        high, own = high + 1, own + 1
    own = -(-own // tile.step) * tile.step
    task = own * width * terms * tile.vectors * tile.cycles + width * terms * tile.columns / 16 * tile.packing.parts
    task += blocking_search.LOAD_CYCLES * high * terms * tile.rows if tile.step == 1 else 0
    found = claim * (task + high * blocking_search.TILE_CYCLES + blocking_search.TASK_CYCLES)
    weights = panels * tile.columns * terms * right * parts / threads
    if tile.step > 1:
        found += claim * blocking_search.ROW_CYCLES * min(rows, m)
        found = max(found, blocking_search.MEMORY_CYCLES * passes * weights)
    found += blocking_search.MEMORY_CYCLES * width * tile.columns * steps.depth * steps.taps * right
    found += groups * blocking_search.FOREIGN_CYCLES * m * depth * left / parts * (1 - parts / threads)
    found += passes * blocking_search.SHARED_CYCLES * weights
    formed = blocking_search.FORM_CYCLES * tile.packing.parts * claim * min(rows, m) * terms
    return found + formed if forming else found


def _blocks(tile: RegisterTile, lens: tuple[int, ...], taps: int, threads: int, beside: bool) -> list[tuple[int, ...]]:
    """Return the rows, panels and parts of all candidates."""
    m, n, depth, groups = lens
    steps, l2_bytes, found = Steps.of(tile, m, depth, taps), machine().l2_bytes, []
    near = ITEMSIZE[tile.right_word] * tile.packing.parts * tile.columns * steps.taps * steps.depth
    words = ITEMSIZE[tile.left_word] * tile.packing.parts * steps.depth
    every = [d for d in range(1, threads + 1) if threads % d == 0] if beside or groups % threads else [1]
    for parts, panel_limit, row_limit in itertools.product(every, (8, 4, 2, 1), (32, 16, 8, 4, 2, 1)):
        most_panels = min(panel_limit, max(1, blocking_search.PANEL_EIGHTHS * l2_bytes // 8 // near))
        p_block = _even(-(-(-(-n // tile.columns) * parts) // threads), most_panels, 1)
        most = -(-m // (parts * tile.rows)) * tile.rows
        limit = max(tile.rows, blocking_search.ROWS_EIGHTHS * l2_bytes // 8 // words)
        limit = min(sums_of(tile) // p_block if steps.count > 1 else most, limit)
        limit = limit // tile.rows * tile.rows or limit
        if sums_of(tile) >= p_block * (max(tile.variants()) if steps.count == 1 else min(most, tile.rows)):
            rows = max(1, min(_even(most, row_limit * tile.rows, tile.rows), limit))
            found += [(one, p_block, parts) for one in (rows, -(-m // (parts * -(-m // (parts * rows)))))]
    return found


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.name} {tile.dtype if tile.step == 1 else 'tiles'}")
def test_the_block_costs_hardly_more_than_the_cheapest(tile: RegisterTile, how: Any) -> None:
    rng = random.Random(11)
    for _ in range(60):
        lens = (*(int(2 ** rng.uniform(0, 12)) for _ in range(3)), rng.choice((1, 2, 3, 8, 12)))
        taps, threads = rng.choice((1, 9, 100)), rng.choice((1, 2, 6, 16))
        made = cut(tile, *lens[:3], taps, lens[3], threads, None, *how)
        candidates = _blocks(tile, lens, taps, threads, how[0])
        assert (made.rows, made.panels, made.parts) in candidates
        least = min(_cost(tile, lens, taps, threads, how, block) for block in candidates)
        own = _cost(tile, lens, taps, threads, how, (made.rows, made.panels, made.parts))
        assert own <= least / blocking_search.CLEARLY * (1 + 1e-9), (lens, taps, threads)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_sizes_searched_together_have_the_ways_of_each_alone(how: Any) -> None:
    rng = random.Random(12)
    lens = [(*(int(2 ** rng.uniform(0, 12)) for _ in range(3)), rng.choice((1, 4, 5))) for _ in range(40)]
    together = Search(TILES[0], lens, 9, 4, *how, machine())
    for number, own in enumerate(lens):
        alone = Search(TILES[0], [own], 9, 4, *how, machine())
        assert together.ways[together.cheapest(number)] == alone.ways[alone.cheapest(0)]


def test_symbolic_rows_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sample lengths are costed together, and equal products share the result."""
    made: list[int] = []

    def search(tile: RegisterTile, lens: Any, *how: Any) -> Search:
        made.append(len(lens))
        return Search(tile, lens, *how)

    monkeypatch.setattr(blocking, "Search", search)
    blocking._best_ways.cache_clear()
    _, (rows,) = symbols("rows")
    first, again = (cut(TILES[0], rows, 77, 1234, 1, 1, 2) for _ in range(2))
    assert first == again and made == [len(blocking.SAMPLE_LENGTHS)]
