"""The register tiles that contractions are made of, declared in one line each; the host's best one by predicate.

A tile computes ``rows`` x ``vectors * lanes`` results of a matrix product in registers. Its variants of fewer rows
serve the last rows of a matrix and products of few rows. Needs llvmlite, never Numba.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from .. import host

__all__ = [
    "FMA_CHAINS",
    "PREFETCH_STEPS",
    "TILES",
    "TILE_SLOTS",
    "TILE_TABLE_ROWS",
    "RegisterTile",
    "finish_slots",
    "tile_for",
    "tile_slot",
]

FMA_CHAINS = 8
"""Independent multiply-add chains that hide the latency of the FMA units (4 cycles on two units, or better)."""

PREFETCH_STEPS = 32
"""How many k ahead the right-hand side is prefetched: about 4 KiB of a packed panel."""

TILE_SLOTS = (
    "x",  # pointer: left-hand side
    "offsets",  # pointer to int64 [taps][TILE_TABLE_ROWS]: element offset of each row from x, negative for zero
    "zero",  # pointer to as many zeros as one row reads
    "w",  # pointer: first panel
    "acc",  # pointer: first row of accumulators
    "taps",
    "depth",  # k of one tap
    "x_step",  # elements from one k to the next on the left
    "w_step",  # elements from one k to the next on the right
    "w_panel",  # elements from one panel to the next
    "acc_row",  # elements from one row of accumulators to the next
    "acc_panel",  # columns of a panel: elements from one panel's accumulators to the next's
    "accumulate",  # whether acc holds sums to add to
    "rows",  # selects the variant
    "vectors",  # selects the variant
    "columns",  # (masked variants) columns that exist from panel 0 on; none is read past them
    "touched",  # (products) how many of the following two places to bring into the cache: none, one or both
    "written",  # pointer: where the result's first row for panel 0 will be stored
    "written_row",  # elements from one row of the result to the next
    "read",  # pointer: first row, for panel 0, of what the epilogue reads
    "read_row",
    "elsewhere",  # (products) elements from the right-hand side to what is brought into the cache in its place
)
"""Words of the argument block of a tile kernel."""

FINISH_SLOTS = (
    "x_row",  # (even variants, several tiles) elements from one row of the left-hand side to the next
    "tiles",  # blocks of rows below each other; several only if all rows lie ``x_row`` apart
    "last",  # whether panel ``end`` has missing columns and is to be computed, too
    "finish",  # whether the sums go through the epilogue; else they are stored in acc
    "far",  # pointer: the right-hand side of the next task or step, which is brought near meanwhile
    "far_panels",  # how many panels that are
    "stream",  # parts of ``taps * depth`` cache lines that calls before this one have brought near
    "out",  # pointer: the result's first row, for panel 0
    "out_row",  # elements from one row of the result to the next
)
"""Words that follow in the argument block of a tile that finishes; then pointer and row stride of each operand."""

TILE_TABLE_ROWS = 16
"""Row length of the offsets table, at least the rows of the tallest tile."""


@dataclass(frozen=True)
class RegisterTile:
    """One declared tile: the most rows and vectors of accumulators that it holds, and the row counts of its variants.

    ``bits`` is the width of its vector registers. A variant of ``tall`` rows (0: there is none) takes a row of the
    remainder along where a matrix has several blocks of ``rows``. Constant right-hand sides are packed for it in
    panels of ``columns`` columns, each panel K-major.
    """

    name: str
    dtype: str
    heights: tuple[int, ...]
    vectors: int
    bits: int
    fits: Callable[[], bool]
    tall: int = 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.heights[0]

    @property
    def lanes(self) -> int:
        return self.bits // (8 * host.itemsize(self.dtype))

    @property
    def columns(self) -> int:
        """Columns of one packed panel."""
        return self.vectors * self.lanes

    def variants(self) -> tuple[int, ...]:
        """Row counts of all variants, those taken most first."""
        return (*self.heights, self.tall) if self.tall else self.heights

    def split(self, rows: int, vectors: int) -> int:
        """Accumulator sets, each over its own share of K, that a variant needs to keep the FMA units busy."""
        sets = 1
        while sets * rows * vectors < FMA_CHAINS and sets < 4:
            sets *= 2
        return sets

    def widths(self) -> tuple[int, ...]:
        """Vectors of a row in the variants: a full panel, and one for a last panel of few columns."""
        return (self.vectors, 1) if self.vectors > 1 else (1,)


def _avx512() -> bool:
    return host.vector_bits() >= 512


def _avx2() -> bool:
    return host.has("avx2", "fma")


def _neon() -> bool:
    return host.has("neon")


def _any() -> bool:
    return True


TILES = (
    RegisterTile("avx512_12x2", "float32", (12, 8, 4, 2, 1), 2, 512, _avx512, tall=13),
    RegisterTile("avx512_12x2", "float64", (12, 8, 4, 2, 1), 2, 512, _avx512, tall=13),
    RegisterTile("avx2_6x2", "float32", (6, 4, 2, 1), 2, 256, _avx2),
    RegisterTile("avx2_6x2", "float64", (6, 4, 2, 1), 2, 256, _avx2),
    RegisterTile("neon_8x3", "float32", (8, 4, 2, 1), 3, 128, _neon),
    RegisterTile("neon_8x3", "float64", (8, 4, 2, 1), 3, 128, _neon),
    RegisterTile("portable_4x2", "float32", (4, 2, 1), 2, 128, _any),
    RegisterTile("portable_4x2", "float64", (4, 2, 1), 2, 128, _any),
)


def tile_slot(name: str) -> int:
    """Number of a word of the argument block."""
    return TILE_SLOTS.index(name)


def finish_slots(operands: int) -> tuple[str, ...]:
    """All words of the argument block of a tile that finishes, for so many operands of its epilogue."""
    return (*TILE_SLOTS, *FINISH_SLOTS, *(f"e{k}{part}" for k in range(operands) for part in ("", "_row")))


def tile_for(dtype: str) -> RegisterTile:
    """The first declared tile of ``dtype`` that the CPU (as narrowed by ``MGX_CPU_FEATURES``) can run."""
    return _tile_for(dtype, host.host())


@functools.lru_cache(maxsize=32)
def _tile_for(dtype: str, cpu: host.Host) -> RegisterTile:
    return next(tile for tile in TILES if tile.dtype == dtype and tile.fits())
