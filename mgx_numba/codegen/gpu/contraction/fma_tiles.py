"""Which tile of a product by multiply-adds suits a problem, and how its slices come."""

from __future__ import annotations

import functools

from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from .cost import ADDING, ARRIVAL, BEGINNING, CLOCK, LAUNCH, STORING, not_below_memory
from .operands import Extent
from .placed import PlacedRequest
from .ring import COPIED, LEAST_SLICES, RingForm, RingTile, ring_form, slices_of
from .wgmma_tiles import LATENCY, READING, SPLITS, multiprocessors

__all__ = ["TILES", "TOGETHER", "FmaTile", "fma_form", "fma_ring_bytes", "fma_seconds", "weighed_tiles"]

OWN = 64
"""Rows and columns of a tile for each warp: a lane has 128 sums, of 8 rows and 16 columns, and of its 255 registers
enough are left for 4 positions of the operands. For 128 multiply-adds it loads 24 words from a block's memory, which
can bring 32 in that time; with 64 sums, of 8 rows and columns, these would be all that it can bring."""
TOGETHER = 2
"""Blocks that share a multiprocessor: of 128 threads with 255 registers each."""


@dataclass(frozen=True)
class FmaTile(RingTile):
    """A block's tile, of `OWN` rows and columns for each warp.

    Attributes:
        deep: warps that have the same part of the tile, each of which adds up its own part of every slice.
        slower: times as long as a tile of 128 rows and columns that it multiplies, fitted as `BOTH` is.
    """

    deep: int = 1
    slower: float = 1.0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.wave * self.down * self.across * self.deep


TILES = (
    FmaTile(128, 128, 2, 2),
    FmaTile(128, 64, 2, 1, deep=2, slower=1.09),
    FmaTile(64, 128, 1, 2, deep=2),
    FmaTile(64, 64, 1, 1, deep=4, slower=1.07),
)
"""All have four warps, one for each part of a multiprocessor: a product is as long as the largest number of tiles that
one of these gets, so smaller tiles leave less of the last round empty, and bring more for what they multiply."""
SHORT = RingForm(16, 4, True)
"""Where a slice of `COPIED` has no room, see `fma_form`."""
LARGE_SHARED = 160 << 10
"""Bytes of a block's memory at most from which on two blocks have two slices of 32 words of the largest tile, 72 KiB
each: sm_80's."""

# Instructions of a warp, counted in what ptxas 13.0 makes for sm_90a.
MULTIPLYING = 543 / 512
"""For each multiply-add: of four positions of a warp's part 512, beside 24 loads."""
SLICE, VECTOR, PIXELS = 35, 4, 7
"""For each slice, and each vector of it that a thread copies: of a product, and of a convolution."""
# Fitted, with `FmaTile.slower`, by least squares of logarithms to what 98 tiles and parts of 14 products and
# convolutions took on an H200: off by 9% in the mean square, and by up to 38% where a convolution of one image is
# computed in many parts. Of what was measured the fastest is chosen or one within 1%, but for one image of 28 by 28
# pixels and 128 channels one that took 5% longer. Fitted without the shape in question the choices are as good, but for
# 32 images of 7 by 7 pixels one that took 10% longer.
ALONE, BOTH = 1.82, 1.39
"""Cycles for each instruction of a warp that shares its part of a multiprocessor with none, and for each of two that
share one."""
BLOCK = 3800
"""Cycles until the first slice of a block is there that follows another one."""


def fma_form(placed: PlacedRequest) -> RingForm:
    """How slices come to a block's memory: half as long ones where two blocks have no room, or less lies behind the
    sum's end."""
    form, arch = ring_form(), known_architecture()
    if not form.copied:
        return form
    small = arch is not None and arch.shared_bytes < LARGE_SHARED
    over = Extent.of(placed.problem).depth % form.words
    return SHORT if small or 0 < over <= SHORT.words else form


def fma_ring_bytes() -> int:
    """Bytes that the ring of a block may have, so that `TOGETHER` share a multiprocessor."""
    arch = known_architecture()
    return (LARGE_SHARED if arch is None else arch.shared_bytes) // TOGETHER


def weighed_tiles(placed: PlacedRequest) -> tuple[tuple[float, FmaTile, int], ...]:
    """The tiles that a contraction can have, and parts of its sums, the fastest ones first: estimated cycles, tile,
    parts."""
    form = fma_form(placed)
    reads = any(o.access == "full" for o in placed.request.epilogue.operands)
    question = Extent.of(placed.problem), slices_of(placed, form), form, isinstance(placed.problem, ConvProblem)
    return _weighed(*question, reads, multiprocessors())


@functools.lru_cache(maxsize=1024)
def _weighed(
    extent: Extent, slices: int, form: RingForm, pixels: bool, reads: bool, cores: int
) -> tuple[tuple[float, FmaTile, int], ...]:
    candidates = [
        (_cycles(tile, splits, extent, slices, form, pixels, reads, cores), tile, splits)
        for tile in TILES
        for splits in SPLITS
        if splits == 1 or slices * form.words >= splits * LEAST_SLICES * COPIED.words
    ]
    return tuple(sorted(candidates, key=lambda c: c[0]))


def _cycles(
    tile: FmaTile, splits: int, extent: Extent, slices: int, form: RingForm, pixels: bool, reads: bool, cores: int
) -> float:
    """Estimated cycles of a multiprocessor: those of the one with the most blocks, two of which it has at once."""
    blocks = extent.tiles(tile.rows, tile.columns) * splits
    pairs, odd = divmod(-(-blocks // cores), TOGETHER)
    multiplied = OWN * OWN * form.words // (WARP * tile.deep)
    vectors = (tile.rows + tile.columns) * form.words // (4 * tile.threads)
    slice = multiplied * MULTIPLYING + SLICE + vectors * (PIXELS if pixels else VECTOR)
    bringing = (tile.rows + tile.columns) * form.words * 4 / ARRIVAL
    ends = BLOCK + tile.rows * tile.columns / STORING + (READING if reads and splits == 1 else 0)
    own, waiting = -(-slices // splits), LATENCY / form.stages
    slice *= tile.slower
    both, alone = max(slice * BOTH, bringing, waiting / TOGETHER), max(slice * ALONE, bringing, waiting)
    multiplying = TOGETHER * pairs * both + odd * alone
    cycles = own * multiplying + (pairs + odd) * ends - BLOCK + BEGINNING
    if splits > 1:
        cycles += LAUNCH + 8 * splits * extent.rows * extent.columns * extent.planes / ADDING
    return cycles


def fma_seconds(placed: PlacedRequest, tile: FmaTile, splits: int) -> float:
    """Estimated seconds of a contraction with one of `TILES`."""
    found = next(c for c, *candidate in weighed_tiles(placed) if candidate == [tile, splits])
    return not_below_memory(placed, found / CLOCK)
