"""Products and convolutions in full float32: FMAs of ordinary arithmetic units, operands from the shared-memory ring
(`ring`); and the choice of their tiles.

The lanes of a warp form an 8 by 4 grid over its sub-tile. A lane owns every eighth row, and four neighbouring columns
of every sixteen. Loads of a step (four K elements) by a warp are free of bank conflicts, and every loaded word is
reused as often as accumulator registers allow.
"""

from __future__ import annotations

import functools

from ....dataclass import dataclass
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import machine, multiprocessors
from .cost import ADDING, ARRIVAL, BEGINNING, LAUNCH, STORING, not_below_memory
from .gpu_contraction import GpuContraction
from .operands import Extent
from .ring import COPIED, LEAST_SLICES, RingForm, RingText, RingTile, ring_form, ring_refusal, slices_of
from .wgmma_tiles import LATENCY, READING, SPLITS

WARP_SIDE = 64
"""Rows and columns of a warp's sub-tile: 128 accumulators per lane (8 rows by 16 columns), which leave enough of the
255 registers for the operands of 4 K elements. A lane loads 24 shared-memory words per 128 FMAs; shared memory could
deliver 32. With 64 accumulators (8 by 8) shared memory would be the limit."""
RESIDENT_BLOCKS = 2
"""Resident blocks per multiprocessor: 128 threads with 255 registers each."""


@dataclass(frozen=True)
class FmaTile(RingTile):
    """A block tile of `WARP_SIDE` x `WARP_SIDE` per warp.

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
    """Return the shared memory (bytes) of a multiprocessor, that of large devices where no architecture is known."""
    arch = known_architecture()
    return LARGE_SHARED if arch is None else arch.shared_bytes


@dataclass(frozen=True)
class _FmaWork:
    """All that the estimated time of a contraction's tiles depends on.

    Attributes:
        extent: rows, columns and planes of the result.
        slices: slices of K in the form ``form`` of the ring.
        pixels: whether the left operand is a convolution's input, whose addresses take more instructions.
        reads: whether the epilogue reads an operand of the result's size.
        cores: multiprocessors of the device.
        slower: FMAs per cycle of an H200's multiprocessor over the device's.
    """

    extent: Extent
    slices: int
    form: RingForm
    pixels: bool
    reads: bool
    cores: int
    slower: float

    def cycles(self, tile: FmaTile, splits: int) -> float:
        """Return the estimated cycles of the multiprocessor with the most blocks; two blocks are resident at once."""
        blocks, words = self.extent.tiles(tile.rows, tile.columns) * splits, self.form.words
        pairs, odd = divmod(-(-blocks // self.cores), RESIDENT_BLOCKS)
        multiplied = WARP_SIDE * WARP_SIDE * words // (WARP * tile.deep)
        vectors = (tile.rows + tile.columns) * words // (4 * tile.threads)
        slice = multiplied * MULTIPLYING + SLICE + vectors * (PIXELS if self.pixels else VECTOR)
        slice *= tile.slower * self.slower
        loading, latency = (tile.rows + tile.columns) * words * 4 / ARRIVAL, LATENCY / self.form.stages
        both, alone = max(slice * BOTH, loading, latency / RESIDENT_BLOCKS), max(slice * ALONE, loading, latency)
        ends = BLOCK + tile.rows * tile.columns / STORING + (READING if self.reads and splits == 1 else 0)
        multiplying = RESIDENT_BLOCKS * pairs * both + odd * alone
        cycles = -(-self.slices // splits) * multiplying + (pairs + odd) * ends - BLOCK + BEGINNING
        if splits > 1:
            cycles += LAUNCH + 8 * splits * self.extent.rows * self.extent.columns * self.extent.planes / ADDING
        return cycles


def weighed_tiles(contraction: GpuContraction) -> tuple[tuple[float, FmaTile, int], ...]:
    """Return (estimated cycles, tile, splits) of every applicable tile and split-K factor, fastest first."""
    form = fma_form(contraction)
    reads = any(o.access == "full" for o in contraction.request.epilogue.operands)
    extent, slices = Extent.of(contraction.problem), slices_of(contraction, form)
    pixels = isinstance(contraction.problem, ConvProblem)
    return _weighed(_FmaWork(extent, slices, form, pixels, reads, multiprocessors(), FMA_LANES / machine().fma_lanes))


@functools.lru_cache(maxsize=1024)
def _weighed(work: _FmaWork) -> tuple[tuple[float, FmaTile, int], ...]:
    candidates = [
        (work.cycles(tile, splits), tile, splits)
        for tile in TILES
        for splits in SPLITS
        if splits == 1 or work.slices * work.form.words >= splits * LEAST_SLICES * COPIED.words
    ]
    return tuple(sorted(candidates, key=lambda c: c[0]))


def fma_seconds(contraction: GpuContraction, tile: FmaTile, splits: int) -> float:
    """Return the estimated time (s) of a contraction with a tile of `TILES`; infinite for too few slices to split."""
    found = next((c for c, *candidate in weighed_tiles(contraction) if candidate == [tile, splits]), float("inf"))
    return not_below_memory(contraction, found / machine().clock)


DOWN, ACROSS = 8, 4
"""Lanes of a warp along the rows, and along the columns, of its sub-tile."""
STEP = 4
"""K elements per load of a thread, and neighbouring columns per lane: 16 bytes."""
STAGING_PAD = 16
"""Padding words per staged row. Eight lanes store at once, two rows of four vectors, which the padding puts in
different banks."""
AT_ONCE = 4
"""Rows of a lane that are staged together; the staging area fits in two ring slices of 16 words."""


def fma_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the FMA kernel does not apply to a contraction; "" if it applies."""
    types = contraction.request.problem.types
    if types.uniform != "float32":
        return f"slices of {types} do not come to a ring"
    return ring_refusal(contraction)


class FmaText(RingText):
    """Kernel text of one contraction.

    Attributes:
        high, wide: rows and columns of a warp's sub-tile.
        own_rows: rows per lane.
        own_groups: groups of neighbouring columns per lane.
    """

    tiles = TILES
    blocks, spread = RESIDENT_BLOCKS, STEP
    tile: FmaTile

    def __init__(self, contraction: GpuContraction, tile: FmaTile | None, splits: int) -> None:
        super().__init__(contraction, tile, splits)
        tile = self.tile
        self.high, self.wide = tile.rows // tile.down, tile.columns // tile.across
        self.own_rows, self.own_groups = self.high // DOWN, self.wide // (ACROSS * STEP)
        self.width = min(self.width, STEP)

    @classmethod
    def form_of(cls, contraction: GpuContraction) -> RingForm:
        return fma_form(contraction)

    @staticmethod
    def _ring_bytes() -> int:
        return shared_bytes() // RESIDENT_BLOCKS

    @classmethod
    def chosen(cls, contraction: GpuContraction) -> tuple[FmaTile, int]:
        """See `RingText.chosen`: the tile with the least estimated time."""
        _, tile, splits = weighed_tiles(contraction)[0]
        return tile, splits

    def _staged(self) -> int:
        return self.tile.threads // WARP * AT_ONCE * DOWN * (self.tile.columns // self.tile.across + STAGING_PAD)

    def _start(self, buffer: CodeBuffer) -> None:
        tile = self.tile
        buffer.line(
            f"deep = idiv(warp, {tile.down * tile.across})",
            f"beside = warp - deep * {tile.down * tile.across}",
            f"warp_down = idiv(beside, {tile.across})",
            f"warp_row = warp_down * {self.high}",
            f"warp_column = (beside - warp_down * {tile.across}) * {self.wide}",
            f"down_lane = idiv(lane, {ACROSS})",
            f"side_lane = lane - down_lane * {ACROSS}",
            f"first_k = deep * {self.form.words // tile.deep}",
            f"own_a = (warp_row + down_lane) * {self.pitch} + first_k",
        )
        if self.along:
            buffer.line(f"own_b = (idiv(warp_column, {STEP}) + side_lane) * {self.pitch} + first_k")
        else:
            buffer.line(f"own_b = first_k * {self.transposed_pitch} + warp_column + side_lane * {STEP}")
        for i in range(self.own_rows):
            for g in range(self.own_groups):
                buffer.line(f"acc{i}_{g} = const_float32(0, {STEP})")

    def _add_slice(self, buffer: CodeBuffer) -> None:
        buffer.line(f"slice_a = slot * {self.left_slot} + own_a")
        buffer.line(f"slice_b = slot * {self.right_slot} + own_b")
        with buffer.block(f"for step in range({self.form.words // self.tile.deep // STEP}):"):
            for i in range(self.own_rows):
                place = f"slice_a + {DOWN * i * self.pitch}"
                buffer.line(f"a{i} = load_aligned(ring_a, {place}, {STEP})")
            if self.along:
                self._add_along(buffer)
            else:
                self._add_transposed(buffer)
            buffer.line(f"slice_a = slice_a + {STEP}")
            buffer.line(f"slice_b = slice_b + {STEP * (1 if self.along else self.transposed_pitch)}")

    def _add_along(self, buffer: CodeBuffer) -> None:
        """Emit the FMAs of a step for a right operand that is contiguous along K, one column group at a time."""
        for g in range(self.own_groups):
            for q in range(STEP):
                place = f"slice_b + {(g * ACROSS + q * self.tile.columns // STEP) * self.pitch}"
                buffer.line(f"c{q} = load_aligned(ring_b, {place}, {STEP})")
            for k in range(STEP):
                lanes = ", ".join(f"splat(extract(c{q}, {k}), 1)" for q in range(STEP))
                buffer.line(f"b = join4({lanes})")
                for i in range(self.own_rows):
                    buffer.line(f"acc{i}_{g} = fma(splat(extract(a{i}, {k}), {STEP}), b, acc{i}_{g})")

    def _add_transposed(self, buffer: CodeBuffer) -> None:
        """Emit the FMAs of a step for a right operand that is contiguous along columns, one K element at a time."""
        for k in range(STEP):
            for g in range(self.own_groups):
                place = f"slice_b + {k * self.transposed_pitch + g * ACROSS * STEP}"
                buffer.line(f"b{g} = load_aligned(ring_b, {place}, {STEP})")
            for i in range(self.own_rows):
                for g in range(self.own_groups):
                    buffer.line(f"acc{i}_{g} = fma(splat(extract(a{i}, {k}), {STEP}), b{g}, acc{i}_{g})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the epilogue, `AT_ONCE` rows of each lane at a time. Warps with partial sums of one sub-tile
        (intra-block split-K) each add and store some of the rows."""
        pitch, per_row, deep = self.wide + STAGING_PAD, self.wide // self.width, self.tile.deep
        meet = "warp_barrier()" if deep == 1 else "barrier()"
        rows = AT_ONCE * DOWN
        area, apart = rows * pitch, self.tile.down * self.tile.across * rows * pitch
        buffer.line(f"mine = warp * {area} + down_lane * {pitch} + side_lane * {STEP}")
        buffer.line(f"first_below = deep * {rows // deep}")
        buffer.line(f"area = beside * {area}")
        for first in range(0, self.own_rows, AT_ONCE):
            buffer.line(meet)
            for i in range(AT_ONCE):
                for g in range(self.own_groups):
                    place = f"mine + {i * DOWN * pitch + g * ACROSS * STEP}"
                    buffer.line(f"store_aligned(staged, {place}, acc{first + i}_{g})")
            buffer.line(meet)
            row = f"first_row + warp_row + {first * DOWN} + first_below + below"
            column = "first_column + warp_column + side"
            place = f"area + (first_below + below) * {pitch} + side"
            places = [place + f" + {d * apart}" * (d > 0) for d in range(deep)]
            self._store_staged(buffer, places, rows // deep * per_row // WARP, per_row, row, column)
