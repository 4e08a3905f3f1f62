"""Which tile of a warpgroup product's kernel suits a problem."""

from __future__ import annotations

import functools
from dataclasses import replace

from ....core.dim import SharedLength
from ....dataclass import dataclass
from ....errors import DeviceError
from ..architecture import WARP
from ..driver.device import device

__all__ = [
    "TILES",
    "TileQuestion",
    "WarpgroupTile",
    "chosen_tile",
    "multiprocessors",
    "tile_cycles",
    "weighed_tiles",
]

SLICE_BYTES = 128
"""Bytes of the sum that a stage has of each row and column."""
STEP_BYTES = 32
"""Those that one instruction multiplies."""
TURNED_COLUMNS = SLICE_BYTES // 2
"""Columns of 16 bits that lie side by side in a row of a stage, where they do in memory."""
WARPGROUP = 128
"""Threads of a warpgroup."""
OWN_ROWS = 64
"""Rows of a tile for each warpgroup: PTX ISA, "wgmma.mma_async"."""
LARGE_DEVICE = 132
"""Multiprocessors of an H100 or H200, for which is planned where no device is there."""
PARTS, PART_REGISTERS, MOST_REGISTERS = 4, 1 << 14, 255
"""Parts of a multiprocessor, registers of each, and of a thread at most: CUDA C++ programming guide, "Technical
specifications per compute capability"."""
AT_ONCE = 4
"""Vectors of each lane that are finished together: of 16-bit results those of 64 columns. No figures kept."""
AHEAD = 8
"""Vectors of the epilogue's operands that each lane has on their way, from before the sums are there: 32 registers, and
for the 8 warps of a multiprocessor 32 KiB, about its share of the bandwidth times the latency of memory."""
EARLY_REGISTERS, AT_ONCE_REGISTERS, AHEAD_REGISTERS = 56, 64, 104
"""Registers besides sums with which ptxas spills none for one vector ahead, for `AT_ONCE`, and for `AHEAD`. With spills
the convolution of 64 to 256 channels with a residual of `READING` took 79 us instead of 59."""


HALVING_REGISTERS, KEPT_REGISTERS = 54, 8
"""Registers besides sums of a thread that multiplies float32 in parts: for 16 words that are multiplied, 16 of the next
slice, 16 that these are made of, and places. With fewer ptxas lets products wait for one another. Where sums are kept
twice, it may keep some of them in local memory: with 160, and 200 bytes of that, 3072 by 768 by 3072 takes 71 us on an
H200, where 128 sums and none take 110."""
PART_SLICES = 32
"""Slices of float32 in parts that tensor cores add up; longer sums are added to by ordinary additions. Each of the six
instructions of a slice may cut off the last bit of a sum."""


@dataclass(frozen=True)
class WarpgroupTile:
    """A block's tile.

    Attributes:
        rows, columns: of the result; 64 rows for each warpgroup, a multiple of 8 columns for each block of a cluster.
        stages: of its ring.
        blocks: those that share a multiprocessor.
        cluster: blocks of a cluster whose tiles lie below one another; each brings a part of the columns to all.
        across: those whose tiles lie beside one another; each brings a part of the rows, a multiple of 8, to all.
        pingpong: sets of warpgroups that take tiles in turns, so that one multiplies while another one stores sums.
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
        """Those that multiply a tile."""
        return self.rows // OWN_ROWS

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return self.warpgroups * self.pingpong * WARPGROUP

    @property
    def threads(self) -> int:
        """Threads of a block; the producer's warp comes last: warpgroups must begin at multiples of four warps."""
        return self.consumers + 32

    @property
    def stage_bytes(self) -> int:
        """Bytes of both operands' slices."""
        return (self.rows + self.columns) * SLICE_BYTES

    @property
    def brought_bytes(self) -> int:
        """Those of a stage that each block asks for."""
        return (self.rows // self.across + self.columns // self.cluster) * SLICE_BYTES

    @functools.cached_property
    def spare_registers(self) -> int:
        """Registers of a thread besides its sums; each of the four parts of a multiprocessor has as many warps of its
        blocks."""
        warps = -(-self.threads // WARP * self.blocks // PARTS)
        return min(MOST_REGISTERS, PART_REGISTERS // (WARP * warps)) - self.columns // 2

    @property
    def reads_at_once(self) -> int:
        """Vectors of what the epilogue reads that each lane asks for together: `AHEAD` are from before the sums are
        there."""
        if self.spare_registers >= AHEAD_REGISTERS:
            return AHEAD
        return AT_ONCE if self.spare_registers >= AT_ONCE_REGISTERS else AT_ONCE // 2

    def fits_parts(self, slices: int) -> bool:
        """Whether registers hold what a thread multiplies of so many slices in parts, see `PART_SLICES`; blocks that
        bring each other's rows, sets that take turns, and 96 columns were not tried with parts."""
        least = HALVING_REGISTERS
        if slices > PART_SLICES:
            least = max(least, self.columns // 2 + KEPT_REGISTERS)
        tried = self.across == self.pingpong == 1 and not TURNED_COLUMNS < self.columns < WIDE_PARTS
        return tried and least <= self.spare_registers

    @property
    def shared_bytes(self) -> int:
        """Memory of a block besides its barriers."""
        return self.stages * self.stage_bytes

    @property
    def turned_bytes(self) -> int:
        """The same where the right operand's columns lie side by side: its rows have room for `TURNED_COLUMNS`."""
        columns = -(-self.columns // TURNED_COLUMNS) * TURNED_COLUMNS
        return self.stages * (self.rows + columns) * SLICE_BYTES

    def turned(self) -> WarpgroupTile:
        """The tile with as many stages as then take no more memory than those that it has."""
        wanted = self
        while wanted.turned_bytes > self.shared_bytes:
            wanted = replace(wanted, stages=wanted.stages - 1)
        return wanted


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
    WarpgroupTile(64, 256, 5, 1),
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
"""Those that were fastest for some shape on an H200; of those that should take as long the first one is taken. With
three warpgroups a long epilogue waits less for itself: int8 3072 by 3072 by 768 with GELU and quantisation took 18.4
us, and with two of 192 columns 20.6, when it was computed in float32; float16 without these takes as long. Pairs of
blocks below one another pay with the largest tile, where many tiles follow one another: 4096 by 4096 by 4096 takes
198 us, and without 215; pairs beside one another where convolutions gather rows of few tiles: 3 x 3 ones of 14 x 14
pixels of 256 channels, 32 images, take 13.8 us, and without 15.1. Sets that take turns pay where much follows the
sums: float16 3072 by 3072 by 768 with GELU takes 25.2 us, and without 26.1; with 128 or 256 columns, pairs of blocks,
or two warpgroups in a set 27 to 32. Tiles of 192 by 96 give nearly all multiprocessors one where there are 3072 by 768
sums: 20.6 us for 3072 of depth, with 128 by 160 21.5. One warpgroup of 128 columns was as fast as two of 64 or
faster."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Parts of a sum that are weighed against one another; more leave too little for each of a GEMM's usual lengths."""
LEAST_SLICES = 2
"""Slices of a part of a sum: fewer are not worth adding up."""
NEIGHBOURS = 8
"""Tiles down that are computed side by side, so that their operands stay in the second-level cache. No figures kept."""
# In cycles of a multiprocessor; fitted to 785 tiles of 29 products and convolutions of 16 bits, as `bench.gpu_tiles`
# measures them, on an H200: those that are chosen lose 1.0% in the mean to the fastest ones, at most 13% (0.3 us). With
# one of these 3% larger or smaller they lose 1.0 to 1.3% in the mean.
MULTIPLIES = 3360
"""Bytes of the sum that a cycle multiplies, of the 4096 that there could be, whatever type they are of: those of 16-bit
numbers were measured."""
PAIRED = 3480
"""The same of a cluster's blocks, whose columns or rows come once for all of them."""
IN_TURNS = 2880
"""The same of a warpgroup that takes turns with another one."""
LONG_TURN, LEAST_TURNS = 12, 4
"""Slices of a sum, and tiles of each multiprocessor, from which on sets of warpgroups may take turns: that was measured
with 12 and 6, and with few tiles there is no turn to take."""
DELIVERY, DISTINCT = 10300, 3350
"""Bytes a cycle that come from the second-level cache to all multiprocessors, and of those that blocks which run
together want, each counted once: a slice waits for both."""
GATHERING = 39
"""Bytes a cycle of an image's pixels that the copy engine brings to one multiprocessor."""
LEAST_SLICE = 345
"""Of a slice at least, however small a tile is."""
BEGINNING = 1850
"""Until a launch's first slice is there, and until its last sums are stored."""
STORING = 10
"""Sums a cycle that are finished and stored."""
LAUNCH = 3300
"""A second launch, that adds parts."""
PAIRING, PAIRING_CONSTANTS = 1800, 1200
"""Until blocks of a cluster have met, in the beginning and in the end; and what only others gain by asking for
constants before the launch before is done."""
ADDING = 1850.0
"""Bytes of parts that all of the device writes and reads a cycle."""
LATENCY = 2100
"""Until a slice is there that was asked for, which the stages of a ring share."""
PART_PRODUCTS, NARROW_PART_PRODUCTS = 1.42, 2.27
"""Times as long as a slice of 16-bit numbers that one of float32 in parts takes (six instructions in the place of four,
whose left operand is in registers), and of a tile of fewer than `WIDE_PARTS` columns, which its halves make wait."""
WIDE_PARTS = 128
"""Columns of the narrowest tile that was measured and whose products last as long as its halves take."""
HALVING = 210
"""Cycles that halves make the products of a warpgroup wait for that is alone on its multiprocessor; with the two above
estimates of 12 tiles are 0.9 to 1.2 of what BERT's products and 4096 by 4096 by 4096 took on an H200."""
READING = 1400
"""Until what an epilogue reads beside the sums is there, for vectors that a lane asks for together: on an H200 a
convolution of 64 to 256 channels takes 24 us and with a residual 59, one of 128 to 512 channels 12 and 34."""


def multiprocessors(number: int = 0) -> int:
    """Those of a device, or of a large one where there is none."""
    try:
        return device(number).multiprocessors
    except DeviceError:
        return LARGE_DEVICE


@dataclass(frozen=True)
class TileQuestion:
    """What a tile is chosen for.

    Attributes:
        rows, columns, planes: of the result.
        slices: slices of `SLICE_BYTES` of the sum.
        widths: a tile's columns are a multiple of it.
        turned: whether the right operand's columns lie side by side; the part that each block of a cluster brings of
            them is then a multiple of `TURNED_COLUMNS`.
        taps: those of the filter which lie on pixels that are rows of the left operand; 0 of other rows.
        constant: whether the right operand is asked for before the launch before is done.
        reads: whether the epilogue reads something for each sum.
        parts: whether float32 is multiplied as three products of parts (`wgmma_parts`).
        whole: whether sums are not computed in parts that are added later.
    """

    rows: SharedLength
    columns: SharedLength
    slices: SharedLength
    planes: SharedLength
    widths: int = 8
    reads: bool = False
    parts: bool = False
    whole: bool = False
    turned: bool = False
    taps: int = 0
    constant: bool = False


def chosen_tile(question: TileQuestion) -> tuple[WarpgroupTile, int]:
    """The tile that should be the fastest, and in how many parts each sum is computed; see `weighed_tiles`."""
    _, tile, splits = weighed_tiles(question, multiprocessors())[0]
    return tile, splits


def weighed_tiles(question: TileQuestion, cores: int) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    """The tiles that a product can have on a device of so many multiprocessors, and parts of its sums, the fastest ones
    first: estimated cycles, tile, parts."""
    if question.slices < SPLITS[1] * LEAST_SLICES:  # without parts only rows of tiles count: many products are alike
        question = replace(question, rows=-(-question.rows // OWN_ROWS) * OWN_ROWS)
    return _weighed(question, cores)


@functools.lru_cache(maxsize=1024)
def _weighed(question: TileQuestion, cores: int) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    candidates = [
        (tile_cycles(tile, splits, question, cores), tile, splits)
        for tile in (tile.turned() if question.turned else tile for tile in TILES)
        for splits in ((1,) if question.whole else SPLITS)
        if tile.columns % (question.widths * tile.cluster) == 0
        and (not question.turned or tile.cluster == 1 or tile.columns % (TURNED_COLUMNS * tile.cluster) == 0)
        and (splits == 1 or question.slices >= splits * LEAST_SLICES)
        and (not question.parts or tile.fits_parts(-(-question.slices // splits)))
        and (tile.pingpong == 1 or _takes_turns(tile, splits, question, cores))
    ]
    return tuple(sorted(candidates, key=lambda c: c[0]))


def _takes_turns(tile: WarpgroupTile, splits: int, question: TileQuestion, cores: int) -> bool:
    """Whether sets of warpgroups have what they need to pay. Not where columns lie side by side: 3072 by 3072 by 768
    takes 24.3 us on an H200, without turns 22.5."""
    if splits > 1 or question.reads or question.turned:
        return False
    tiles = -(-question.rows // tile.rows) * -(-question.columns // tile.columns) * question.planes
    return question.slices >= LONG_TURN and tiles > LEAST_TURNS * cores


def tile_cycles(tile: WarpgroupTile, splits: int, question: TileQuestion, cores: int) -> float:
    """Estimated cycles of a multiprocessor that a product takes; arguments as of `weighed_tiles`."""
    shared = tile.cluster * tile.across
    down = -(-question.rows // (tile.rows * tile.cluster)) * tile.cluster
    side = -(-question.columns // (tile.columns * tile.across)) * tile.across
    blocks = down * side * question.planes * splits
    rounds = -(-blocks // (cores * tile.blocks))
    sharing = min(tile.blocks, -(-blocks // cores))
    part = -(-question.slices // splits)
    rate = IN_TURNS if tile.pingpong > 1 else PAIRED if shared > 1 else MULTIPLIES
    multiplying = tile.rows * tile.columns * SLICE_BYTES / rate
    if question.parts:
        multiplying *= PART_PRODUCTS if tile.columns >= WIDE_PARTS else NARROW_PART_PRODUCTS
        if tile.consumers * tile.blocks == WARPGROUP:
            multiplying = max(multiplying, 3 * tile.columns + HALVING)  # `lang.warpgroups`: 6 instructions
    bringing = 0.0  # which held up none of the sets that were measured
    if tile.pingpong == 1:
        bringing = _bringing(tile, down, side, min(blocks, cores), max(1, question.taps))
    if question.taps:
        bringing = max(bringing, tile.rows // tile.across * SLICE_BYTES / GATHERING)
    slice = max(sharing * max(multiplying, bringing), LATENCY / tile.stages, LEAST_SLICE)
    storing = sharing * tile.rows * tile.columns / STORING
    if question.reads and splits == 1:
        storing += READING * max(1, tile.columns / 16 / tile.reads_at_once)
    ends = rounds if tile.pingpong == 1 else 1
    cycles = rounds * part * slice + ends * storing + BEGINNING
    if shared > 1:
        cycles += PAIRING + PAIRING_CONSTANTS * question.constant
    if splits > 1:
        cycles += LAUNCH + 8 * splits * question.rows * question.columns * question.planes / ADDING
    return cycles


def _bringing(tile: WarpgroupTile, down: int, side: int, active: int, taps: int) -> float:
    """Cycles until slices are there that so many blocks want at once, of so many tiles down and side by side: those of
    `NEIGHBOURS` tiles down, as a rule. Rows that so many taps lie on are there from the tap before."""
    high = min(down, max(NEIGHBOURS, active / side))
    wide = min(side, max(1, active / high))
    distinct = active / (high * wide) * (high * tile.rows / taps + wide * tile.columns) * SLICE_BYTES
    return active * tile.brought_bytes / DELIVERY + distinct / DISTINCT
