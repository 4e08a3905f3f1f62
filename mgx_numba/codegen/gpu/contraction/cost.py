"""Estimated seconds of a contraction's kernels: what blocks multiply, bring and store, in rounds over a device."""

from __future__ import annotations

from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...tuning.request import least_bytes
from .operands import Extent
from .placed import PlacedRequest
from .wgmma_tiles import LATENCY, READING, multiprocessors

__all__ = [
    "BANDWIDTH", "BEGINNING", "CLOCK", "LAUNCH", "BlockWork", "near_seconds", "not_below_memory", "reading_seconds",
    "tiles_seconds",
]  # fmt: skip

CLOCK = 1.755e9
"""Cycles a second: those that an H200 keeps up while it multiplies, of the 1.98e9 that it can have."""
BANDWIDTH = 4.2e12
"""Bytes a second of an H200's memory, measured by a copy."""
# In cycles of a multiprocessor, of an H200 as fitted to products by warpgroups; GATHERING and the rates of solvers were
# found beside these.
ARRIVAL = 40
"""Bytes a cycle that come to a multiprocessor from the second-level cache."""
BEGINNING = 4200
"""Until a launch's first slice is there, and until its last sums are stored."""
STORING = 7.3
"""Sums a cycle that are finished and stored."""
LAUNCH = 2800
"""A launch besides another one."""
ADDING = 3000.0
"""Bytes of parts of sums that all of the device writes and reads a cycle."""
NEAR = 128
"""Bytes a cycle that come to a multiprocessor's threads from its first-level cache, by definition of Hopper's."""
GATHERING = 1.7
"""Times as long as a product's that a convolution's slices take whose places threads compute: the median of 60 tiles of
tensor cores and multiply-adds on an H200 (1.4 to 1.9)."""
ROWS_BEGINNING = 2000
"""Cycles until rows of a product that is read once have begun and ended: on an H200 768 by 768 takes 1.1 us."""


@dataclass(frozen=True)
class BlockWork:
    """What a block of a kernel does.

    Attributes:
        rows, columns: of its tile.
        slice: positions of the sum that it brings at once.
        stages: slices that are on their way.
        itemsize: bytes of an element of the operands.
        products: multiplications a cycle of a multiprocessor that has enough of these blocks.
        together: blocks that share a multiprocessor.
    """

    rows: int
    columns: int
    slice: int
    stages: int
    itemsize: int
    products: float
    together: int = 2


def tiles_seconds(placed: PlacedRequest, work: BlockWork, splits: int = 1) -> float:
    """Of a kernel whose blocks have a tile each, and of the launch that adds ``splits`` parts of sums."""
    extent, cores = Extent.of(placed.problem), multiprocessors()
    blocks = extent.tiles(work.rows, work.columns) * splits
    rounds = -(-blocks // (cores * work.together))
    sharing = min(work.together, -(-blocks // cores))
    slices = -(-extent.depth // work.slice)
    multiplying = work.rows * work.columns * work.slice / work.products
    bringing = (work.rows + work.columns) * work.slice * work.itemsize / ARRIVAL
    slice = max(sharing * max(multiplying, bringing), LATENCY / work.stages)
    if isinstance(placed.problem, ConvProblem):
        slice *= GATHERING
    storing = sharing * work.rows * work.columns / STORING
    if splits == 1 and any(o.access == "full" for o in placed.request.epilogue.operands):
        storing += READING
    cycles = rounds * (-(-slices // splits) * slice + storing)
    seconds = not_below_memory(placed, (cycles + BEGINNING) / CLOCK)
    if splits > 1:
        seconds += (LAUNCH + 8 * splits * extent.rows * extent.columns * extent.planes / ADDING) / CLOCK
    return seconds


def not_below_memory(placed: PlacedRequest, seconds: float) -> float:
    """An estimate, or how long memory takes to bring the operands and take the result, if that is longer."""
    return max(seconds, least_bytes(placed.problem) / BANDWIDTH + BEGINNING / CLOCK)


def reading_seconds(placed: PlacedRequest, blocks: int) -> float:
    """Of a kernel that reads its operands once, and does little besides."""
    busy = min(blocks, multiprocessors())
    moved = least_bytes(placed.problem)
    return max(moved / BANDWIDTH, moved / (busy * ARRIVAL * CLOCK)) + ROWS_BEGINNING / CLOCK


def near_seconds(placed: PlacedRequest, loaded: int) -> float:
    """Of a kernel whose threads load so many bytes, most of them from the first-level caches."""
    near = loaded / (multiprocessors() * NEAR * CLOCK)
    return max(least_bytes(placed.problem) / BANDWIDTH, near) + ROWS_BEGINNING / CLOCK
