"""The register tiles of contractions, declared in one line each; a predicate selects the host's best tile.

A tile computes ``rows`` x ``vectors * lanes`` results of a matrix product in registers. Its variants of fewer rows
serve the last rows of a matrix and products of few rows. Needs llvmlite, never Numba.
"""

from __future__ import annotations

import functools

from ....errors import UnsupportedError
from ...problems.element_types import ElementTypes
from .. import host
from ..records import Holds, Record, Word, pointer
from .amx_table import AMX_TILES
from .bfloat16_table import BFLOAT16_TILES
from .int8_table import INT8_TILES, RESIDUAL_TILES
from .register_tile import RegisterTile, TileTypes, any_cpu, avx2, avx512, neon
from .stored_table import STORED_TILES

PREFETCH_STEPS = 32
"""Prefetch distance (k) of the right-hand side: about 4 KiB of a packed panel."""

TILE_BLOCK = Record(
    "tile",
    (
        pointer("x", "left-hand side"),
        Word(
            "offsets",
            "int64 [taps][TILE_TABLE_ROWS]: where each row is from x, negative for zeros",
            Holds.WORDS,
        ),
        pointer("zero", "as many zeros as one row reads"),
        pointer("w", "first panel"),
        pointer("acc", "first row of accumulators"),
        Word("taps"),
        Word("depth", "k of one tap"),
        Word("x_step", "elements from one k to the next on the left"),
        Word("w_step", "elements from one k to the next on the right"),
        Word("w_panel", "elements from one panel to the next"),
        Word("acc_row", "elements from one row of accumulators to the next"),
        Word("acc_panel", "columns of a panel: elements from one panel's accumulators to the next's"),
        Word("accumulate", "whether acc holds sums to add to"),
        Word("rows", "selects the variant"),
        Word("vectors", "selects the variant"),
        Word("columns", "(masked variants) columns that exist from panel 0 on; none is read past them"),
        Word("touched", "(products) how many of the two places below to bring into the cache: none, one or both"),
        pointer("written", "where the result's first row for panel 0 will be stored"),
        Word("written_row", "elements from one row of the result to the next"),
        pointer("read", "first row, for panel 0, of what the epilogue reads"),
        Word("read_row", "elements from one row of that to the next"),
        Word("elsewhere", "(products) elements from the right-hand side to what is brought into the cache instead"),
    ),
)
"""The argument block of a tile kernel."""

_FINISH_WORDS = (
    Word("x_row", "(even variants, several tiles) elements from one row of the left-hand side to the next"),
    Word("runs", "(variants of runs) int64 [2][MOST_RUNS]: where each tap is from x, and its k", Holds.WORDS),
    Word("tiles", "blocks of rows below each other; several only if all rows lie ``x_row`` apart"),
    Word("last", "whether panel ``end`` has missing columns and is to be computed, too"),
    Word("finish", "whether the sums go through the epilogue, acc being room for a panel; else they are stored in acc"),
    pointer("far", "the right-hand side of the next task or step, which is brought near meanwhile"),
    Word("far_panels", "how many panels that are"),
    Word("stream", "parts of ``taps * depth`` cache lines that calls before this one have brought near"),
    pointer("out", "the result's first row, for panel 0"),
    Word("out_row", "elements from one row of the result to the next"),
)

MATRIX_BLOCK = TILE_BLOCK.followed_by(
    "matrix tile",
    (
        Word("x_row", "elements from one row of the left-hand side to the next"),
        Word("x_low", "elements from its high parts to its low ones"),
        Word(
            "exist",
            "rows that exist, more than the next smaller variant has; of others nothing is read or written",
        ),
        pointer("far", "what of the right-hand side is needed next, for panel 0; it is brought near meanwhile"),
        Word("far_lines", "cache lines of that for each step of k; 0 if nothing is"),
        Word("finish", "rows that are finished of each panel; 0: its sums are stored in acc"),
        Word("places", "of these rows, as a `panel_block` has them", Holds.WORDS),
        Word("column", "of the result, of panel 0"),
        Word("finisher", "address of the kernel that finishes rows of the panel in the `panel_block`"),
        Word("panel", "that block", Holds.WORDS),
        pointer("spare", "room for the sums of a panel, besides that for those of the panel in the block"),
        Word("done", "rows of the panel in the block that are finished"),
        Word("waiting", "rows that it has"),
        Word("pace", "rows that are finished beside each step of k"),
    ),
)
"""The argument block of a matrix tile. Its table has, for each tap, the offset of the first row.

The epilogue of a panel runs while the tile multiplies the next panel, also across calls: the caller runs it for the
remaining rows of the last panel.
"""

RESIDUAL_BLOCK = TILE_BLOCK.followed_by(
    "residual tile",
    (
        Word("first_residual", "elements from the right-hand side to the number of the first residual to add; 0: none"),
        Word("last_residual", "elements from there to the number of the last one, plus 1"),
        Word("residuals", "elements from the right-hand side to the residuals of its panel"),
        Word("skipped_taps", "taps before those of this call"),
        Word("residual_place", "which place of a residual counts: 0, or 2 where taps are runs of taps"),
    ),
)
"""The argument block of a tile whose panels end with residuals (`Packing`)."""

RESIDUAL_PLACES = 4
"""Words before the columns of a residual."""

RUNS = 2
"""The value of ``EVEN`` for a variant of runs (`fused_epilogue`)."""
MOST_RUNS = 16
"""Row length of a table of runs, limited by its stack memory."""

TILE_TABLE_ROWS = 16
"""Row length of the offsets table, at least the rows of the tallest tile."""

_FLOAT32 = TileTypes("float32", "float32", "float32")
_FLOAT64 = TileTypes("float64", "float64", "float64")

WIDE_INTEGERS = ("int32", "uint32", "int64", "uint64")
"""Dtypes whose products wrap around in the same dtype."""
_INTEGERS = tuple(TileTypes(t, t, t) for t in WIDE_INTEGERS)

TILES = (
    RegisterTile("avx512_12x2", _FLOAT32, (12, 8, 4, 2, 1), 2, 512, avx512, tall=13),
    RegisterTile("avx512_12x2", _FLOAT64, (12, 8, 4, 2, 1), 2, 512, avx512, tall=13),
    RegisterTile("avx2_6x2", _FLOAT32, (6, 4, 2, 1), 2, 256, avx2),
    RegisterTile("avx2_6x2", _FLOAT64, (6, 4, 2, 1), 2, 256, avx2),
    RegisterTile("neon_8x3", _FLOAT32, (8, 4, 2, 1), 3, 128, neon),
    RegisterTile("neon_8x3", _FLOAT64, (8, 4, 2, 1), 3, 128, neon),
    RegisterTile("portable_4x2", _FLOAT32, (4, 2, 1), 2, 128, any_cpu),
    RegisterTile("portable_4x2", _FLOAT64, (4, 2, 1), 2, 128, any_cpu),
    *(RegisterTile("avx512_wide_8x2", t, (8, 4, 2, 1), 2, 512, avx512, finishes=False, cycles=1) for t in _INTEGERS),
    *(RegisterTile("avx2_wide_4x2", t, (4, 2, 1), 2, 256, avx2, finishes=False, cycles=1) for t in _INTEGERS),
    *(RegisterTile("portable_wide_4x2", t, (4, 2, 1), 2, 128, any_cpu, finishes=False, cycles=1) for t in _INTEGERS),
    *INT8_TILES,
    *RESIDUAL_TILES,
    *BFLOAT16_TILES,
    *STORED_TILES,
)
"""The tiles that read rows at arbitrary offsets, the best tile of the same types first."""


@functools.lru_cache(maxsize=16)
def finish_block(operands: int) -> Record:
    """Return the argument block of a tile with an epilogue of ``operands`` operands.

    It begins with the argument block of a plain tile, and ends with each operand's first row and row stride.
    """
    own = [word for k in range(operands) for word in (pointer(f"e{k}"), Word(f"e{k}_row"))]
    return TILE_BLOCK.followed_by("finishing tile", (*_FINISH_WORDS, *own))


@functools.lru_cache(maxsize=16)
def panel_block(operands: int) -> Record:
    """Return the argument block of the epilogue kernel for rows of one panel, with ``operands`` operands."""
    return Record(
        "panel",
        (
            pointer("sums", "of the panel's first row; rows lie the columns of a tile apart"),
            Word("places", "for each row: where its sums are, the result's row, and that of each operand", Holds.WORDS),
            Word("column", "of the result, of the panel's first column"),
            Word("first", "elements from a row's place to that column"),
            Word("columns", "that exist"),
            pointer("out"),
            *(pointer(f"e{k}") for k in range(operands)),
        ),
    )


def declared_tile(types: ElementTypes) -> RegisterTile | None:
    """Return the first declared tile of these types that the CPU (as restricted by ``MGX_CPU_FEATURES``) can run, or
    None."""
    return _declared(types, host.host())


def tile_for(types: ElementTypes) -> RegisterTile:
    """Return the result of `declared_tile`.

    Raises:
        UnsupportedError: there is no such tile.
    """
    tile = declared_tile(types)
    if tile is None:
        raise UnsupportedError(f"no tile is declared for {TileTypes.of(types)}")
    return tile


def residual_tile(types: ElementTypes) -> RegisterTile | None:
    """Return the tile that adds products of 8-bit integers in 16 bits, or None where the CPU has none or has a better
    tile."""
    return _residual(types, host.host())


def matrix_tile(types: ElementTypes) -> RegisterTile | None:
    """Return the first declared matrix tile of these types that the CPU can run, or None."""
    return _declared_matrix(types, host.host())


@functools.lru_cache(maxsize=32)
def _declared(types: ElementTypes, cpu: host.Host) -> RegisterTile | None:
    own = TileTypes.of(types)
    return next((t for t in TILES if t.types == own and t.isa(cpu) and not t.packing.residuals), None)


@functools.lru_cache(maxsize=32)
def _residual(types: ElementTypes, cpu: host.Host) -> RegisterTile | None:
    own, plain = TileTypes.of(types), _declared(types, cpu)
    if plain is None or plain.packing.k_interleave != 2:
        return None
    return next((t for t in RESIDUAL_TILES if t.types == own and t.isa(cpu) and t.bits == plain.bits), None)


@functools.lru_cache(maxsize=32)
def _declared_matrix(types: ElementTypes, cpu: host.Host) -> RegisterTile | None:
    own = TileTypes.of(types)
    return next((tile for tile in AMX_TILES if tile.types == own and tile.isa(cpu)), None)
