"""How a Winograd convolution is cut into tasks: a function of its shape, evaluated on the host."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..cpu.tile_table import RegisterTile, tile_for
from .blocking import SUMS_BYTES, Blocking
from .pack import panel_count
from .problem import ConvProblem
from .skeleton import height_table

__all__ = ["Block", "best_block", "given_block", "tiles_of"]

_CACHE = 700 * 1024
"""Bytes of a transformed block, or of the weights of one task, beyond which they leave the L2 cache."""
_MOST_TILES = 128
"""Tiles of one task."""


@dataclass(frozen=True)
class Block:
    """Tiles and weight panels of one task, and tasks of one claim (each claim has its own scratch)."""

    tiles: int
    panels: int
    grain: int


def tiles_of(m: int, problem: ConvProblem) -> tuple[int, int]:
    """Tiles of an image along height and width."""
    return -(-problem.out_lens[-2] // m), -(-problem.out_lens[-1] // m)


def best_block(m: int, problem: ConvProblem, threads: int) -> tuple[Block, float]:
    """The cheapest cut into tasks, and its rough cycles."""
    return _best_block(tile_for(problem.dtype), m, problem, threads)


@functools.lru_cache(maxsize=1024)
def _best_block(tile: RegisterTile, m: int, problem: ConvProblem, threads: int) -> tuple[Block, float]:
    panels = panel_count(tile, problem.out_channels)
    tiles = problem.batch * math.prod(tiles_of(m, problem))
    stacked = SUMS_BYTES // (problem.itemsize * tile.columns * m**2)
    best, best_cycles = Block(1, 1, 1), math.inf
    splits = [split for split in (1, 2, 4, 8, 16) if split == 1 or split <= min(panels, 2 * threads)]
    for p_block in {min(-(-panels // split), stacked) for split in splits}:
        for count in {min(tiles, n) for n in (4, 8, 12, 16, 20, 24, 28, 32, 36, 48, 60, 96)}:
            task = _cycles(m, problem, tile, count, p_block)
            tasks = -(-tiles // count) * -(-panels // p_block)
            claim = -(-tasks // threads)
            last = (tiles - (-(-tiles // count) - 1) * count) / count
            cycles = task * (claim if claim < tasks else tasks - 1 + last)
            if cycles < best_cycles:
                best, best_cycles = Block(count, p_block, claim), cycles
    return best, best_cycles


def given_block(m: int, problem: ConvProblem, threads: int, blocking: Blocking) -> Block:
    """A cut that was asked for, made to fit: ``rows`` counts tiles, taps and depth have no meaning."""
    tile = tile_for(problem.dtype)
    panels = panel_count(tile, problem.out_channels)
    tiles = problem.batch * math.prod(tiles_of(m, problem))
    stacked = SUMS_BYTES // (problem.itemsize * tile.columns * m**2)
    count = max(1, min(blocking.rows, tiles, _MOST_TILES))
    p_block = max(1, min(blocking.panels, panels, stacked))
    tasks = -(-tiles // count) * -(-panels // p_block)
    return Block(count, p_block, -(-tasks // threads))


def _cycles(m: int, problem: ConvProblem, tile: RegisterTile, count: int, p_block: int) -> float:
    """Cycles of one task: transforms by vectors, products by tile rows, more where the block leaves the cache."""
    points, depth, size = (m + 2) ** 2, problem.in_channels, problem.itemsize
    rows, left = 0.0, count
    while left:
        height = (height_table(tile) >> (4 * min(left, tile.rows))) & 15
        rows += height * 1.06 + 0.7
        left -= min(left, height)
    products = points * (rows * depth * p_block * tile.vectors / 2 + 40.0 * -(-count // tile.rows))
    into = count * (depth / tile.lanes * points * 3.0 + points * 4)
    back = count * p_block * tile.vectors * points * 3.5
    weights = points * depth * p_block * tile.columns * size / 24
    block = points * count * (depth + p_block * tile.columns) * size
    spilled = max(0, block - _CACHE) / 8
    streamed = weights * (0.6 if points * depth * p_block * tile.columns * size > _CACHE else 0.1)
    return products + streamed + into + back + spilled
