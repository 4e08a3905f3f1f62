"""Choose the tile of a warpgroup MMA kernel by a cost model."""

from __future__ import annotations

import functools
from dataclasses import replace

from ....core.dim import SharedLength
from ....dataclass import dataclass
from ..architecture import WARP
from ..machine import multiprocessors

SLICE_BYTES = 128
"""Bytes of K per row and column in a ring stage."""
STEP_BYTES = 32
"""Bytes of K per MMA instruction."""
TRANSPOSED_COLUMNS = SLICE_BYTES // 2
"""Columns (16 bits) per row of a stage for a transposed right operand."""
WARPGROUP = 128
"""Threads per warpgroup."""
OWN_ROWS, WARP_ROWS = 64, 16
"""Rows per warpgroup, and per warp: PTX ISA, "wgmma.mma_async"."""
PARTS, PART_REGISTERS, MOST_REGISTERS = 4, 1 << 14, 255
"""Schedulers per multiprocessor, registers of each, and most registers per thread: CUDA C++ programming guide,
"Technical specifications per compute capability"."""
AT_ONCE = 4
"""Vectors per lane that the epilogue processes together: 64 columns of 16-bit results. No figures kept."""
AHEAD = 8
"""Vectors of epilogue operands in flight per lane, loaded before the K loop ends: 32 registers, and 32 KiB for the 8
warps of a multiprocessor, about its share of bandwidth times latency."""
EARLY_REGISTERS, AT_ONCE_REGISTERS, AHEAD_REGISTERS = 56, 64, 104
"""Registers beside accumulators without spills: for one vector ahead, for `AT_ONCE`, and for `AHEAD`. With spills the
convolution of 64 to 256 channels with a residual (see `READING`) took 79 us instead of 59."""


HALVING_REGISTERS, KEPT_REGISTERS = 54, 8
"""Registers beside accumulators for float32 as bfloat16 halves: 16 words being multiplied, 16 of the next slice, 16
source words, and addresses. With fewer, ptxas serialises MMAs. `KEPT_REGISTERS` more for a second set of accumulators,
some of which may spill: with 160 accumulators and 200 bytes of spills 3072 by 768 by 3072 takes 71 us on an H200; with
128 and no spills 110."""
PART_SLICES = 32
"""Slices of float32 halves that tensor cores accumulate before FP32 additions take over. Each of a slice's six MMAs may
truncate the last bit of an accumulator."""


@dataclass(frozen=True)
class WarpgroupTile:
    """A block tile.

    Attributes:
        rows, columns: size; 64 rows per warpgroup, and a multiple of 8 columns per block of a cluster.
        stages: ring stages.
        blocks: resident blocks per multiprocessor.
        cluster: blocks of a cluster along the rows; each loads a part of the columns for all.
        across: blocks of a cluster along the columns; each loads a part of the rows, a multiple of 8, for all.
        pingpong: sets of warpgroups that alternate between tiles; one multiplies while another stores.
    """

    rows: int
    columns: int
    stages: int
    blocks: int
    cluster: int = 1
    across: int = 1
    pingpong: int = 1

    @property
    def warpgroups(self) -> int:
        """Return the warpgroups per tile."""
        return self.rows // OWN_ROWS

    @property
    def consumers(self) -> int:
        """Return the consumer threads per block."""
        return self.warpgroups * self.pingpong * WARPGROUP

    @property
    def threads(self) -> int:
        """Return the threads per block. The producer's warp comes last, because a warpgroup must begin at a multiple of
        four warps."""
        return self.consumers + 32

    @property
    def stage_bytes(self) -> int:
        """Return the bytes of a stage, both operands."""
        return (self.rows + self.columns) * SLICE_BYTES

    @property
    def loaded_bytes(self) -> int:
        """Return the bytes of a stage that each block loads itself."""
        return (self.rows // self.across + self.columns // self.cluster) * SLICE_BYTES

    @functools.cached_property
    def spare_registers(self) -> int:
        """Return the registers per thread beside its accumulators, with warps distributed evenly over the four
        schedulers."""
        warps = -(-self.threads // WARP * self.blocks // PARTS)
        return min(MOST_REGISTERS, PART_REGISTERS // (WARP * warps)) - self.columns // 2

    @property
    def reads_at_once(self) -> int:
        """Return the vectors of epilogue operands that a lane loads together; `AHEAD` of them are loaded before the K
        loop ends."""
        if self.spare_registers >= AHEAD_REGISTERS:
            return AHEAD
        return AT_ONCE if self.spare_registers >= AT_ONCE_REGISTERS else AT_ONCE // 2

    def fits_bf16_split(self, slices: int) -> bool:
        """Return whether the registers suffice for float32 halves over ``slices`` slices, see `PART_SLICES`. Clusters
        across, ping-pong, 96 columns and four warpgroups are excluded: they were not measured with halves."""
        least = HALVING_REGISTERS
        if slices > PART_SLICES:
            least = max(least, self.columns // 2 + KEPT_REGISTERS)
        tried = self.across == self.pingpong == 1 and not TRANSPOSED_COLUMNS < self.columns < WIDE_PARTS
        tried = tried and self.warpgroups < 4
        return tried and least <= self.spare_registers

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory per block (bytes), without mbarriers."""
        return self.stages * self.stage_bytes

    @property
    def transposed_bytes(self) -> int:
        """Return the same with a transposed right operand, whose rows are padded to `TRANSPOSED_COLUMNS`."""
        columns = -(-self.columns // TRANSPOSED_COLUMNS) * TRANSPOSED_COLUMNS
        return self.stages * (self.rows + columns) * SLICE_BYTES

    def transposed(self) -> WarpgroupTile:
        """Return the tile with fewer stages, such that a transposed right operand fits the same shared memory."""
        wanted = self
        while wanted.transposed_bytes > self.shared_bytes:
            wanted = replace(wanted, stages=wanted.stages - 1)
        return wanted


OF_PRODUCTS = WarpgroupTile(64, 192, 7, 1)
"""Tile that is not for convolutions: 4 images of 200 x 200 x 295 to 696 channels, 7 x 7, stride 2, take 3.8 ms on an
H200, with 128 by 160 2.4; 8296 by 192 by 3056 takes 18.2 us, with 128 by 128 27.4."""
# Stages fill the 227 KiB of a multiprocessor that its blocks share, less barriers and what the driver keeps of each.
TILES = (
    WarpgroupTile(128, 256, 4, 1),
    WarpgroupTile(128, 256, 4, 1, 2),
    WarpgroupTile(128, 224, 5, 1),
    WarpgroupTile(192, 128, 5, 1),
    WarpgroupTile(128, 192, 5, 1),
    WarpgroupTile(128, 160, 6, 1),
    WarpgroupTile(192, 96, 6, 1),
    WarpgroupTile(192, 96, 6, 1, 1, 2),
    WarpgroupTile(192, 64, 7, 1),
    WarpgroupTile(192, 64, 7, 1, 1, 2),
    WarpgroupTile(128, 128, 7, 1),
    WarpgroupTile(128, 128, 7, 1, 1, 2),
    WarpgroupTile(256, 96, 4, 1),
    WarpgroupTile(256, 64, 5, 1),
    WarpgroupTile(64, 256, 5, 1),
    OF_PRODUCTS,
    WarpgroupTile(64, 128, 9, 1),
    WarpgroupTile(128, 64, 9, 1),
    WarpgroupTile(64, 128, 9, 1, 1, 2),
    WarpgroupTile(64, 96, 11, 1),
    WarpgroupTile(64, 64, 14, 1),
    WarpgroupTile(64, 32, 18, 1),
    WarpgroupTile(128, 128, 3, 2),
    WarpgroupTile(128, 64, 4, 2),
    WarpgroupTile(64, 128, 4, 2),
    WarpgroupTile(64, 64, 6, 2),
    WarpgroupTile(64, 192, 7, 1, pingpong=2),
)
"""Tiles that were fastest for some shape on an H200; of equal estimates the first one with the fewest columns outside,
then the fewest rows, wins.

Measurements on an H200:
    Three warpgroups hide a long epilogue better: int8 3072 by 3072 by 768 with float32 GELU and quantisation took 18.4
        us, two of 192 columns 20.6; float16 without these takes the same time.
    Clusters of two along the rows gain with the largest tile and many tiles: 4096 by 4096 by 4096 takes 198 us, without
        215.
    Clusters of two along the columns gain for convolutions with few tiles: 3 x 3, 14 x 14 pixels, 256 channels, 32
        images takes 13.8 us, without 15.1.
    Ping-pong gains with a long epilogue: float16 3072 by 3072 by 768 with GELU takes 25.2 us, without 26.1; with 128 or
    256 columns, clusters, or two warpgroups per set 27 to 32.
    Tiles of 192 by 96 occupy nearly all multiprocessors for 3072 by 768 results: 20.6 us at a depth of 3072, 128 by 160
        takes 21.5.
    One warpgroup of 128 columns was as fast as two of 64, or faster.
    Four warpgroups gain for convolutions with few outputs: 3 x 3, 32 images of 136 x 136 x 272 to 64 channels take 508
        us with 256 by 64, with 192 by 64 544 and with 128 by 64 589; 8 of 64 x 64 x 248 to 71 43 with 256 by 96.
"""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Split-K factors that the cost model compares; larger ones leave too little work per split for usual GEMMs."""
LEAST_SLICES = 2
"""Least slices per split; shorter splits cost more to add up than they save."""
NEIGHBOURS = 8
"""Tiles along the rows that are computed next to each other, so that their operands stay in L2. No figures kept."""
WIDEST = 8
"""Most neighbouring results of 16 bits per store of a thread: 16 bytes."""
# In cycles of a multiprocessor; fitted by `python -m bench.fit_tiles` to times on an H200, in
# `bench/data/gpu_tiles.json`, of 16-bit products, with and without epilogues, convolutions, and 506 random products.
# Tiles that are chosen take longer than the fastest, in the mean: of random products by 5.0%, of products of networks
# by 1.6%, of their convolutions by 1.1%, with GELU by 0.6%, with a float32 residual by 4.2%. Most of these take a few
# us.
MULTIPLIES = 3934
"""Bytes of K multiplied per cycle, of 4096 at peak, for any element type (measured with 16 bits)."""
PAIRED = 222
"""Cycles that a slice takes longer in blocks of a cluster, which load shared operands once and wait for one another."""
IN_TURNS = 2780
"""The same for a warpgroup with ping-pong scheduling."""
LONG_TURN, LEAST_TURNS = 12, 4
"""Least slices, and least tiles per multiprocessor, for ping-pong scheduling: measured with 12 and 6; with few tiles
nothing alternates."""
DELIVERY, DISTINCT = 11870, 3070
"""L2 bandwidth to all multiprocessors in bytes/cycle; and the rate of distinct bytes of concurrent blocks, each counted
once. A slice waits for both."""
STREAM = 28
"""Bytes/cycle that one block loads which no other block loads: 8 x 5760 x 7808 takes 36.8 us on 45 multiprocessors of
an H200. With it the mean regret of all measured products and convolutions is 3.8%, without 4.5%."""
LINE_RATES = {128: 90.0, 64: 39.0, 32: 38.0, 16: 26.4}
"""Bytes/cycle that TMA loads to one multiprocessor, by the alignment in bytes of rows longer than a cache line: from
the times of products of odd sizes (`bench.gpu_random --tiles`) on an H200; of whole lines that of `DELIVERY`."""
PARTS_OF_ROWS = 2
"""Rows of a slice that take as long as one of a transposed right operand of which a tile has less than
`TRANSPOSED_COLUMNS` columns: 384 by 1536 by 2560 takes 9.5 us with 64 by 96, 8.4 with 64 by 128."""
STORED_BY_WIDTH = {1: 1.04, 2: 1.58, 4: 3.6}
"""`STORING` where threads store fewer than 8 neighbouring results of 16 bits: measured at 1 and 2, between these and
`STORING` at 4."""
SHORT_PIXELS = 8
"""Stands for the alignment of pixels of an odd number of vectors, shorter than a line, see `PIXEL_RATES`."""
GATHERING, BESIDE_PIXELS = 41.0, 90.0
"""TMA bandwidth to one multiprocessor in bytes/cycle in im2col mode of pixels, and of the weights that arrive in turn
with them. Found, with `PIXEL_RATES[16]`, by the times of 300 tiles of 25 convolutions of 152 to 560 channels."""
PIXEL_RATES = {16: (25.0, 38.0), SHORT_PIXELS: (8.5, 38.0)}
"""The same by the alignment in bytes of pixels, where it is less. On an H200 64 images of 192 x 192 x 88 channels take
8 to 9 cycles for each pixel of a slice, 8 of 144 x 144 x 40 take 15 to 17."""
OUTSIDE = 3.1
"""Cycles for each column of a tile behind the last, which TMA fills with zeros."""
STARTING = 5.2
"""Cycles by which each block of the first wave delays the others: all fetch the same descriptors from L2."""
LEAST_SLICE = 327
"""Least cycles per slice, however small the tile."""
BEGINNING = 1630
"""Cycles of pipeline fill and drain of a launch."""
STORING, ACTIVATING = 9.42, 2.08
"""Accumulators/cycle that the epilogue processes and stores; and how much longer it takes with an exponential or error
function."""
SHORT_ROWS = 500
"""Cycles that TMA takes longer for a slice of left rows shorter than a cache line: on an H200 29504 x 128 x 40 takes
9.9 us with 64 by 64 and 5.4 with 256 by 96; of 106 such products the mean regret is 4.4% with it and 5.3% without."""
LAUNCH = 3020
"""Cycles of the split-K sum's launch."""
PAIRING, PAIRING_CONSTANTS = 1370, 280
"""Cycles of cluster synchronisation at start and end; and the cycles that non-clustered kernels save by loading
constants before the preceding launch ends."""
ADDING = 1600.0
"""Split-K partial sums that the whole device writes and reads back, in bytes/cycle."""
LATENCY = 1150
"""Cycles of latency of a slice's load; the ring's stages share it."""
PART_PRODUCTS, NARROW_PART_PRODUCTS = 1.42, 2.27
"""Time of a float32 slice as halves relative to a 16-bit slice (six MMAs instead of four, left operand from registers);
and the same for tiles of fewer than `WIDE_PARTS` columns, where splitting is the bottleneck."""
WIDE_PARTS = 128
"""Columns of the narrowest measured tile whose MMAs take as long as splitting its operands."""
HALVING = 210
"""Cycles that splitting delays the MMAs of a warpgroup alone on its multiprocessor. With the two constants above,
estimates of 12 tiles are 0.9 to 1.2 of the measured times of BERT's products and 4096 by 4096 by 4096 on an H200."""
READING = 3475
"""Cycles until the epilogue operands that a lane loads together have arrived. On an H200 a convolution of 64 to 256
channels takes 24 us, and 59 with a residual; of 128 to 512 channels 12 and 34."""


@dataclass(frozen=True)
class TileQuestion:
    """Description of a contraction for the cost model.

    Attributes:
        rows, columns, planes: size of the result.
        slices: slices of `SLICE_BYTES` along K.
        widths: divisor of a tile's columns.
        transposed: whether the right operand is transposed; each block of a cluster then loads a multiple of
            `TRANSPOSED_COLUMNS`.
        taps: filter taps of a convolution in im2col mode; 0 otherwise.
        constant: whether the right operand is loaded before the preceding launch ends.
        activates: whether the epilogue has a function that takes many instructions, see `ACTIVATING`.
        left_alignment, right_alignment: alignment (bytes) of the operands' rows in memory, see `LINE_RATES`.
        width: neighbouring results per store of a thread, at most 8.
        reads: whether the epilogue has an operand with one element per result.
        parts: whether float32 is computed as three bfloat16 products (`wgmma_parts`).
        whole: whether split-K is excluded.
        short: whether the left operand's rows are shorter than a cache line, see `SHORT_ROWS`.
    """

    rows: SharedLength
    columns: SharedLength
    slices: SharedLength
    planes: SharedLength
    widths: int = 8
    reads: bool = False
    parts: bool = False
    whole: bool = False
    transposed: bool = False
    taps: int = 0
    constant: bool = False
    activates: bool = False
    left_alignment: int = SLICE_BYTES
    right_alignment: int = SLICE_BYTES
    width: int = 8
    short: bool = False


def chosen_tile(question: TileQuestion) -> tuple[WarpgroupTile, int]:
    """Return the tile and split-K factor with the least estimate, see `weighed_tiles`."""
    _, tile, splits = weighed_tiles(question, multiprocessors())[0]
    return tile, splits


def weighed_tiles(question: TileQuestion, cores: int) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    """Return (estimated cycles, tile, splits) of each applicable tile on a device of ``cores`` multiprocessors, fastest
    first."""
    if question.slices < SPLITS[1] * LEAST_SLICES:  # without parts only rows of tiles count: many products are alike
        unit = OWN_ROWS if question.rows > OWN_ROWS else WARP_ROWS
        question = replace(question, rows=-(-question.rows // unit) * unit)
    return _weighed(question, cores)


@functools.lru_cache(maxsize=1024)
def _weighed(question: TileQuestion, cores: int) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    candidates = [
        (tile_cycles(tile, splits, question, cores), tile, splits)
        for tile in (tile.transposed() if question.transposed else tile for tile in TILES)
        for splits in ((1,) if question.whole else SPLITS)
        if tile.columns % (question.widths * tile.cluster) == 0
        and (not question.transposed or tile.cluster == 1 or tile.columns % (TRANSPOSED_COLUMNS * tile.cluster) == 0)
        and (splits == 1 or question.slices >= splits * LEAST_SLICES)
        and (not question.parts or tile.fits_bf16_split(-(-question.slices // splits)))
        and (tile.pingpong == 1 or _alternates(tile, splits, question, cores))
        and not (question.taps and tile == OF_PRODUCTS)
    ]

    def covered(tile: WarpgroupTile) -> tuple[int, int]:
        """Return the columns and rows of all tiles."""
        return -(-question.columns // tile.columns) * tile.columns, -(-question.rows // tile.rows) * tile.rows

    return tuple(sorted(candidates, key=lambda c: (c[0], covered(c[1]))))


def _alternates(tile: WarpgroupTile, splits: int, question: TileQuestion, cores: int) -> bool:
    """Return whether ping-pong scheduling may gain. Excluded for a transposed right operand: 3072 by 3072 by 768 takes
    24.3 us on an H200, without ping-pong 22.5; and for narrow stores: 16 images of 88 x 48 x 64 to 865 channels take
    556 us by 5 x 5, without ping-pong 422."""
    if splits > 1 or question.reads or question.transposed or question.width < WIDEST:
        return False
    tiles = -(-question.rows // tile.rows) * -(-question.columns // tile.columns) * question.planes
    return question.slices >= LONG_TURN and tiles > LEAST_TURNS * cores


def tile_cycles(tile: WarpgroupTile, splits: int, question: TileQuestion, cores: int) -> float:
    """Return the estimated cycles of a product; arguments as of `weighed_tiles`."""
    shared = tile.cluster * tile.across
    down = -(-question.rows // (tile.rows * tile.cluster)) * tile.cluster
    side = -(-question.columns // (tile.columns * tile.across)) * tile.across
    blocks = down * side * question.planes * splits
    rounds = -(-blocks // (cores * tile.blocks))
    sharing = min(tile.blocks, -(-blocks // cores))
    part = -(-question.slices // splits)
    multiplied = IN_TURNS if tile.pingpong > 1 else MULTIPLIES
    multiplying = tile.rows * tile.columns * SLICE_BYTES / multiplied + (PAIRED if shared > 1 else 0)
    if question.parts:
        multiplying *= PART_PRODUCTS if tile.columns >= WIDE_PARTS else NARROW_PART_PRODUCTS
        if tile.consumers * tile.blocks == WARPGROUP:
            multiplying = max(multiplying, 3 * tile.columns + HALVING)  # `lang.warpgroups`: 6 instructions
    bringing = 0.0  # which held up none of the sets that were measured
    if tile.pingpong == 1:
        bringing = _loading_cycles(tile, down, side, min(blocks, cores), max(1, question.taps))
    loaded = tile.columns if question.parts or shared > 1 else loaded_columns(tile, question.columns)
    outside = 0.0 if question.transposed else OUTSIDE * (loaded - question.columns / side)
    if question.taps:
        if question.right_alignment < SLICE_BYTES:
            outside += tile.columns // tile.cluster * SLICE_BYTES / LINE_RATES[question.right_alignment]
        pixels, weights = PIXEL_RATES.get(question.left_alignment, (GATHERING, BESIDE_PIXELS))
        own = tile.rows // tile.across / pixels + min(tile.columns // tile.cluster, loaded) / weights
        bringing = max(bringing, SLICE_BYTES * own + outside)
    columns = tile.columns // tile.cluster
    part_rows = columns % TRANSPOSED_COLUMNS if question.transposed else 0
    if not question.taps:
        left, right = LINE_RATES[question.left_alignment], LINE_RATES[question.right_alignment]
        rows = tile.rows // tile.across if question.parts or shared > 1 else loaded_rows(tile, question.rows)
        if part_rows:
            columns += PARTS_OF_ROWS * TRANSPOSED_COLUMNS - part_rows
        bringing = max(bringing, SLICE_BYTES * (rows / left + columns / right) + outside)
    if question.short:
        bringing += SHORT_ROWS
    slice = max(sharing * max(multiplying, bringing), LATENCY / tile.stages, LEAST_SLICE)
    stored = min(tile.rows, question.rows) * min(tile.columns, question.columns)
    storing = stored / STORING
    width = question.width if splits == 1 else 2 * question.width  # partial sums have 32 bits
    if width in STORED_BY_WIDTH:
        storing = max(storing, stored / STORED_BY_WIDTH[width])
    storing *= sharing
    if question.activates and splits == 1:
        storing *= ACTIVATING
    if question.reads and splits == 1:
        storing += READING * max(1, tile.columns / 16 / tile.reads_at_once)
    if tile.pingpong == 1:
        cycles = rounds * (part * slice + storing) + BEGINNING
    else:  # one of multiplying and storing waits for the other
        cycles = max(rounds * part * slice + storing, part * slice + rounds * storing) + BEGINNING
    cycles += STARTING * min(blocks, cores)
    if shared > 1:
        cycles += PAIRING + PAIRING_CONSTANTS * question.constant
    if splits > 1:
        cycles += LAUNCH + 8 * splits * question.rows * question.columns * question.planes / ADDING
    return cycles


def loaded_columns(tile: WarpgroupTile, columns: int) -> int:
    """Return the columns that are loaded for a tile: those of whole vectors where one tile has all columns. TMA loads
    columns behind the last one slowly, see `OUTSIDE`."""
    return min(tile.columns, -(-columns // WIDEST) * WIDEST)


def loaded_rows(tile: WarpgroupTile, rows: int) -> int:
    """Return the rows that are loaded for a tile: where one tile has all rows those of whole vectors, but some of each
    warpgroup. Results of rows that are not loaded are not stored."""
    return min(tile.rows, max(-(-rows // WIDEST) * WIDEST, tile.rows - OWN_ROWS + WIDEST))


def _loading_cycles(tile: WarpgroupTile, down: int, side: int, active: int, taps: int) -> float:
    """Return the cycles until the slices of ``active`` concurrent blocks have arrived.

    Args:
        down, side: tiles along rows and columns.
        taps: filter taps that reuse the same rows from L1/L2.
    """
    high = min(down, max(NEIGHBOURS, active / side))
    wide = min(side, max(1, active / high))
    distinct = active / (high * wide) * (high * tile.rows / taps + wide * tile.columns) * SLICE_BYTES
    return max(active * tile.loaded_bytes / DELIVERY + distinct / DISTINCT, distinct / (active * STREAM))
