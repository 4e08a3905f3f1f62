"""Cost model of contraction kernels: estimated seconds from the FLOPs, loads and stores of blocks, in waves over the
device."""

from __future__ import annotations

from ....core.dim import ceil_div
from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...tuning.request import least_bytes
from ..machine import machine, multiprocessors
from .gpu_contraction import GpuContraction
from .operands import Extent
from .wgmma_tiles import LATENCY, READING

# In cycles of a multiprocessor, of an H200 as fitted to products by warpgroups; GATHERING and the rates of solvers were
# found beside these.
ARRIVAL = 40
"""L2-to-multiprocessor bandwidth in bytes/cycle."""
BEGINNING = 4200
"""Cycles of pipeline fill and drain of a launch: until the first slice has arrived, and until the last tile is
stored."""
STORING = 7.3
"""Accumulators/cycle that an epilogue processes and stores."""
LAUNCH = 2800
"""Cycles of one additional launch."""
ADDING = 3000.0
"""Split-K partial sums that the whole device writes and reads back, in bytes/cycle."""
NEAR = 128
"""L1 bandwidth of a multiprocessor in bytes/cycle (Hopper's specification)."""
NEAR_REACHED, NEAR_REACHED_SHORT = 14, 21
"""Bytes/cycle that the threads of a multiprocessor load of rows that several of them read, in float32, whose loads take
the registers that would hide latency, and in 16 bits. 15 depthwise convolutions each on an H200 have medians of 16 and
21; single images, for which the choice is close, have 8 in float32."""
GATHERING = 1.4
"""Slowdown of a convolution's slices, whose addresses the threads compute, over a product's slices. Median of 100 tiles
of tensor cores on an H200, with `SHARED`."""
MASKING, MASKING_FIRST = 100, 1500
"""Cycles per tap in which a block finds which rows have a tap inside the image; and additional cycles of fill and drain
of a convolution: images of 88 x 88 x 8 to 112 by 1 x 7 take 6.0 us on an H200, 64 of 16 x 16 x 16 to 64 6.3."""
SHARED = 0.5
"""`BlockWork.shared` of ``mma.sync`` in convolutions: tiles took 1.2 to 2 times as long as the longer alone."""
SAME_COLUMNS = 16
"""Cycles for each tile of a product along the rows: all blocks copy the same columns from the L2 cache. With tiles of
32, 64 and 128 rows 40752 x 32 x 16 takes 12.0, 7.3 and 5.1 us on an H200, 20000 x 64 x 64 5.8, 4.2 and 4.1. Products by
warpgroups take less: 100352 x 64 x 64 6.0 with 64 rows."""
ROWS_BEGINNING = 2000
"""Cycles of fill and drain of a GEMV-like kernel: 768 by 768 takes 1.1 us on an H200."""


@dataclass(frozen=True)
class BlockWork:
    """Work of one thread block.

    Attributes:
        rows, columns: size of the block tile.
        slice: K elements loaded per pipeline stage.
        stages: pipeline depth.
        itemsize: bytes of an operand element.
        products: multiplications/cycle of a fully occupied multiprocessor.
        together: resident blocks per multiprocessor (occupancy).
        arrival: bytes/cycle that a multiprocessor loads beside multiplying.
        loading: cycles in which a block's threads load a slice through registers, not multiplying meanwhile; 0 for
            asynchronous copies.
        shared: part of the shorter of multiplying and loading that adds to the longer.
        latency: cycles of latency of a slice's load; the ring's stages share it.
        stored: accumulators/cycle that the epilogue processes and stores.
        beginning: cycles of pipeline fill and drain of a launch.
        filling: the same of a block.
    """

    rows: int
    columns: int
    slice: int
    stages: int
    itemsize: int
    products: float
    together: int = 2
    arrival: float = ARRIVAL
    loading: float = 0.0
    shared: float = 0.0
    latency: float = LATENCY
    stored: float = STORING
    beginning: float = BEGINNING
    filling: float = 0.0


def tiles_seconds(contraction: GpuContraction, work: BlockWork, splits: int = 1) -> float:
    """Return the estimated time (s) of a kernel with one tile per block; with ``splits`` > 1 (split-K) also of the
    launch that adds the partial sums."""
    extent, cores = Extent.of(contraction.problem), multiprocessors()
    blocks = extent.tiles(work.rows, work.columns) * splits
    rounds = -(-blocks // (cores * work.together))
    sharing = min(work.together, -(-blocks // cores))
    slices = -(-extent.depth // work.slice)
    multiplying = work.rows * work.columns * work.slice / work.products
    bringing = (work.rows + work.columns) * work.slice * work.itemsize / work.arrival
    both = max(multiplying, bringing) + work.shared * min(multiplying, bringing)
    slice = max(sharing * both, work.latency / work.stages)
    if work.loading:
        slice = work.loading + sharing * multiplying
    if isinstance(contraction.problem, ConvProblem):
        slice *= GATHERING
    storing = sharing * work.rows * work.columns / work.stored
    if splits == 1 and any(o.access == "full" for o in contraction.request.epilogue.operands):
        storing += READING
    cycles = rounds * (-(-slices // splits) * slice + storing + work.filling) + work.beginning
    if isinstance(contraction.problem, ConvProblem):
        cycles += rounds * contraction.problem.taps * MASKING + MASKING_FIRST
    elif not work.loading:
        cycles = max(cycles, SAME_COLUMNS * ceil_div(extent.rows, work.rows) + work.beginning)
    seconds = not_below_memory(contraction, cycles / machine().clock, work.beginning)
    if splits > 1:
        seconds += (LAUNCH + 8 * splits * extent.rows * extent.columns * extent.planes / ADDING) / machine().clock
    return seconds


def not_below_memory(contraction: GpuContraction, seconds: float, beginning: float = BEGINNING) -> float:
    """Return ``seconds``, or the time (s) that DRAM traffic of operands and result takes if that is longer.

    Args:
        beginning: cycles of pipeline fill and drain of the launch.
    """
    return max(seconds, least_bytes(contraction.problem) / machine().bandwidth + beginning / machine().clock)


def reading_seconds(contraction: GpuContraction, blocks: int) -> float:
    """Return the estimated time (s) of a memory-bound kernel that reads each operand once."""
    busy = min(blocks, multiprocessors())
    moved, here = least_bytes(contraction.problem), machine()
    return max(moved / here.bandwidth, moved / (busy * ARRIVAL * here.clock)) + ROWS_BEGINNING / here.clock


def near_seconds(contraction: GpuContraction, loaded: int) -> float:
    """Return the estimated time (s) of a kernel that is bound by L1 loads.

    Args:
        loaded: bytes that all threads load, mostly L1 hits.
    """
    rate = NEAR_REACHED if ITEMSIZE[contraction.problem.types.a] > 2 else NEAR_REACHED_SHORT
    near = loaded / (multiprocessors() * rate * machine().clock)
    return max(least_bytes(contraction.problem) / machine().bandwidth, near) + ROWS_BEGINNING / machine().clock
