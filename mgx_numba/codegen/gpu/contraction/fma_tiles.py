"""Choose the tile of a float32 FMA contraction, and how its slices reach shared memory."""

from __future__ import annotations

import functools

from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import machine, multiprocessors
from .cost import ADDING, ARRIVAL, BEGINNING, LAUNCH, STORING, not_below_memory
from .gpu_contraction import GpuContraction
from .operands import Extent
from .ring import COPIED, LEAST_SLICES, RingForm, RingTile, ring_form, slices_of
from .wgmma_tiles import LATENCY, READING, SPLITS

OWN = 64
"""Rows and columns of a warp's sub-tile: 128 accumulators per lane (8 rows by 16 columns), which leave enough of the
255 registers for the operands of 4 K elements. A lane loads 24 shared-memory words per 128 FMAs; shared memory could
deliver 32. With 64 accumulators (8 by 8) shared memory would be the limit."""
TOGETHER = 2
"""Resident blocks per multiprocessor: 128 threads with 255 registers each."""


@dataclass(frozen=True)
class FmaTile(RingTile):
    """A block tile of `OWN` x `OWN` per warp.

    Attributes:
        deep: warps that share one sub-tile, each with its part of every slice (intra-block split-K).
        slower: time relative to the 128 x 128 tile, fitted together with `BOTH`.
    """

    deep: int = 1
    slower: float = 1.0

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.wave * self.down * self.across * self.deep


TILES = (
    FmaTile(128, 128, 2, 2),
    FmaTile(128, 64, 2, 1, deep=2, slower=1.09),
    FmaTile(64, 128, 1, 2, deep=2),
    FmaTile(64, 64, 1, 1, deep=4, slower=1.07),
)
"""Declared tiles. All have four warps, one for each scheduler of a multiprocessor. Smaller tiles leave less of the last
wave of blocks idle, and load more bytes per FMA."""
SHORT = RingForm(16, 4, True)
"""Ring with half-length slices, for devices or sums where a slice of `COPIED` does not fit; see `fma_form`."""
LARGE_SHARED = 160 << 10
"""Least shared memory per multiprocessor (bytes) with which two blocks hold two slices of 32 words of the largest tile,
72 KiB each: sm_80."""

# Instructions of a warp, counted in what ptxas 13.0 makes for sm_90a.
MULTIPLYING = 543 / 512
"""Instructions per FMA: a warp issues 24 loads and 7 others beside the 512 FMAs of four K elements."""
SLICE, VECTOR, PIXELS = 35, 4, 7
"""Instructions per slice, per vector of a product that a thread copies, and per vector of a convolution."""
# Fitted, with `FmaTile.slower`, by least squares of logarithms to what 98 tiles and parts of 14 products and
# convolutions took on an H200: off by 9% in the mean square, and by up to 38% where a convolution of one image is
# computed in many parts. Of what was measured the fastest is chosen or one within 1%, but for one image of 28 by 28
# pixels and 128 channels one that took 5% longer. Fitted without the shape in question the choices are as good, but for
# 32 images of 7 by 7 pixels one that took 10% longer.
ALONE, BOTH = 1.82, 1.39
"""Cycles per warp instruction with one resident warp per scheduler, and with two."""
FMA_LANES = 128
"""Multiply-adds per cycle of an H200's multiprocessor, with which the cycles were measured."""
BLOCK = 3800
"""Cycles until the first slice of a block that replaces a finished block has arrived."""


def fma_form(contraction: GpuContraction) -> RingForm:
    """Return the ring: half-length slices where two blocks per multiprocessor would not fit, or where they reduce the
    padding of K."""
    form, arch = ring_form(), known_architecture()
    if not form.copied:
        return form
    small = arch is not None and arch.shared_bytes < LARGE_SHARED
    over = Extent.of(contraction.problem).depth % form.words
    return SHORT if small or 0 < over <= SHORT.words else form


def shared_bytes() -> int:
    """Return the shared memory (bytes) of a block, that of large devices where no architecture is known."""
    arch = known_architecture()
    return LARGE_SHARED if arch is None else arch.shared_bytes


def fma_ring_bytes() -> int:
    """Return the shared memory (bytes) per block that allows `TOGETHER` resident blocks."""
    return shared_bytes() // TOGETHER


def weighed_tiles(contraction: GpuContraction) -> tuple[tuple[float, FmaTile, int], ...]:
    """Return (estimated cycles, tile, splits) of every applicable tile and split-K factor, fastest first."""
    form = fma_form(contraction)
    reads = any(o.access == "full" for o in contraction.request.epilogue.operands)
    question = (
        Extent.of(contraction.problem),
        slices_of(contraction, form),
        form,
        isinstance(contraction.problem, ConvProblem),
    )
    return _weighed(*question, reads, multiprocessors(), FMA_LANES / machine().fma_lanes)


@functools.lru_cache(maxsize=1024)
def _weighed(
    extent: Extent, slices: int, form: RingForm, pixels: bool, reads: bool, cores: int, slower: float
) -> tuple[tuple[float, FmaTile, int], ...]:
    candidates = [
        (_cycles(tile, splits, extent, slices, form, pixels, reads, cores, slower), tile, splits)
        for tile in TILES
        for splits in SPLITS
        if splits == 1 or slices * form.words >= splits * LEAST_SLICES * COPIED.words
    ]
    return tuple(sorted(candidates, key=lambda c: c[0]))


def _cycles(
    tile: FmaTile,
    splits: int,
    extent: Extent,
    slices: int,
    form: RingForm,
    pixels: bool,
    reads: bool,
    cores: int,
    slower: float,
) -> float:
    """Return the estimated cycles of the multiprocessor with the most blocks; two blocks are resident at once."""
    blocks = extent.tiles(tile.rows, tile.columns) * splits
    pairs, odd = divmod(-(-blocks // cores), TOGETHER)
    multiplied = OWN * OWN * form.words // (WARP * tile.deep)
    vectors = (tile.rows + tile.columns) * form.words // (4 * tile.threads)
    slice = multiplied * MULTIPLYING + SLICE + vectors * (PIXELS if pixels else VECTOR)
    bringing = (tile.rows + tile.columns) * form.words * 4 / ARRIVAL
    ends = BLOCK + tile.rows * tile.columns / STORING + (READING if reads and splits == 1 else 0)
    own, waiting = -(-slices // splits), LATENCY / form.stages
    slice *= tile.slower * slower
    both, alone = max(slice * BOTH, bringing, waiting / TOGETHER), max(slice * ALONE, bringing, waiting)
    multiplying = TOGETHER * pairs * both + odd * alone
    cycles = own * multiplying + (pairs + odd) * ends - BLOCK + BEGINNING
    if splits > 1:
        cycles += LAUNCH + 8 * splits * extent.rows * extent.columns * extent.planes / ADDING
    return cycles


def fma_seconds(contraction: GpuContraction, tile: FmaTile, splits: int) -> float:
    """Return the estimated time (s) of a contraction with a tile of `TILES`; infinite for too few slices to split."""
    found = next((c for c, *candidate in weighed_tiles(contraction) if candidate == [tile, splits]), float("inf"))
    return not_below_memory(contraction, found / machine().clock)
