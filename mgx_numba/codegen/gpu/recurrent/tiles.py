"""How the units of a recurrent layer are shared by blocks that keep its weights, and what its steps cost."""

from __future__ import annotations

from math import gcd

from ....core.types import from_numpy, numpy_dtype
from ....dataclass import dataclass
from ...problems.recurrence import RecurrenceProblem
from ..architecture import ARCHITECTURES, WARP, Architecture
from ..contraction.cost import BANDWIDTH, CLOCK
from ..printer import most_lanes
from .steps import WARPS as STEP_WARPS
from .steps import rows_of_steps

__all__ = ["PersistentTile", "ProductLanes", "fitting_tiles", "ranked_tiles", "rows_of_turn"]

WARPS = 8
"""Warps of a block, each of whose threads may have 255 registers: two for each of a multiprocessor's schedulers."""
MOST_WORDS = 128
"""32-bit registers of a thread that hold weights: half of what it may have."""
MOST_CLUSTER = 8
"""Blocks of a cluster: CUDA C++ programming guide, "Thread Block Clusters"."""
WORDS = 4
"""Words with tags that a thread waits for at once: `lang.tagged`."""
UNITS = (1, 2, 4, 8)
"""Units of a warp; lanes compute the cells of 32 of these, each with a sequence of its own."""
MOST_SUMS = 64
"""Vectors' elements of sums that a thread holds beside the weights."""
_SPARE = 2 << 10
"""Bytes of a multiprocessor's shared memory that are not a launch's to give: what the text and the driver take, and
what aligning may cost."""
# In cycles of a multiprocessor at `CLOCK`, fitted on an H200 to LSTM of 256, 2 x 512 and 1024 units over 64 steps of
# one sequence: 1.0 us a step by a cluster, 1.0, 1.0 and 1.3 with tags, 1.7, 1.8 and 1.9 by a grid, 1.9, 3.1 and 4.3 by
# launches; and of 16 sequences of 1024 units 7.5 by a grid, 10.4 with tags, 17 by launches.
STEP = {"grid": 2650, "cluster": 1050, "tagged": 1400}
"""Until what blocks have stored is read by the others, by `PersistentTile.kind`."""
LAUNCH_STEP = 2200
"""The same by the end of a launch."""
GRID_TURN = 220
"""For each chunk of a state that a turn after the first reads from the device's memory."""
FETCH = 700
"""Until words of a thread have come from the second-level cache, of which it waits for each four: about the latency."""
ARRIVAL = 24
"""Bytes of weights a cycle that come to a multiprocessor from the second-level cache, in a launch of a step."""
CELLS = 150
"""Instructions of a warp that computes cells: about so many are in the text of LSTM's."""


@dataclass(frozen=True)
class PersistentTile:
    """Blocks of `warps` warps, that keep the weights of ``units`` units of each in registers.

    Attributes:
        blocks: that share the units of a direction, for one slice of the sequences.
        slices: parts of the sequences; each has blocks of its own.
        kind: how they give each other states: ``cluster``, in each other's memory, ``tagged``, by words of the device's
            memory that say of which step they are, or ``grid``, there, with a barrier of all blocks.
        directions: of a launch: all, or one after the other.
    """

    warps: int
    units: int
    blocks: int
    slices: int
    kind: str
    directions: int

    @property
    def cluster(self) -> bool:
        """Whether they are a cluster; else all blocks of the launch are on the device at the same time."""
        return self.kind == "cluster"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP


@dataclass(frozen=True)
class ProductLanes:
    """How the lanes of a warp share a product over the hidden units.

    Attributes:
        width: neighbouring units that a lane has.
        chunks: times that all lanes have some.
    """

    width: int
    chunks: int

    @classmethod
    def of(cls, problem: RecurrenceProblem) -> ProductLanes:
        """Those of a problem."""
        size = from_numpy(numpy_dtype(problem.dtype)).compute.size
        width = gcd(problem.hidden, most_lanes(size))
        return cls(width, -(-problem.hidden // (WARP * width)))

    @property
    def padded(self) -> int:
        """Units of a state, with those that no lane has."""
        return WARP * self.width * self.chunks


def rows_of_turn(problem: RecurrenceProblem, tile: PersistentTile) -> int:
    """Sequences that a warp multiplies at once; a power of two."""
    gates = max(len(phase) for phase in problem.phases)
    rows = -(-problem.batch // tile.slices)
    most = min(WARP // tile.units, max(1, MOST_SUMS // (gates * tile.units * ProductLanes.of(problem).width)))
    return min(1 << most.bit_length() - 1, 1 << (rows - 1).bit_length())


def ranked_tiles(
    problem: RecurrenceProblem, arch: Architecture | None, multiprocessors: int
) -> list[PersistentTile | None]:
    """All tiles that fit, the quickest by estimate first; None stands for launches for each step."""
    seconds: dict[PersistentTile | None, float] = {None: steps_seconds(problem, multiprocessors)}
    for tile in fitting_tiles(problem, arch, multiprocessors):
        seconds[tile] = tile_seconds(problem, tile)
    return sorted(seconds, key=lambda tile: seconds[tile])


def fitting_tiles(problem: RecurrenceProblem, arch: Architecture | None, multiprocessors: int) -> list[PersistentTile]:
    """Those with which weights fit into registers, states into a cluster's memory, and all blocks that wait for each
    other onto the multiprocessors. None on AMD's devices: `runtime.gpu.hip` launches nothing that is known to have all
    its blocks at the same time."""
    if arch is not None and not arch.nvidia:
        return []
    most = min(a.shared_bytes for a in ARCHITECTURES.values() if a.nvidia) if arch is None else arch.shared_bytes
    kinds = ["grid"]
    if from_numpy(numpy_dtype(problem.dtype)).compute.size == 4 and ProductLanes.of(problem).width == WORDS:
        kinds.append("tagged")
    if arch is not None and arch.clusters:
        kinds.append("cluster")
    numbers = sorted({problem.lanes, 1})
    found = [tile for kind in kinds for n in numbers for tile in _tiles(problem, multiprocessors, kind, n)]
    return [tile for tile in found if tile.kind == "grid" or _state_bytes(problem, tile) <= most]


def _tiles(problem: RecurrenceProblem, multiprocessors: int, kind: str, directions: int) -> list[PersistentTile]:
    """Those of a kind, with so many directions of a launch. Clusters lie within parts of a device, some of whose
    multiprocessors are left over: 16 of 8 blocks do not run at once on an H200's 132."""
    found, cluster = [], kind == "cluster"
    size, lanes = from_numpy(numpy_dtype(problem.dtype)).compute.size, ProductLanes.of(problem)
    for units in UNITS:
        words = problem.gates * units * lanes.width * lanes.chunks * size // 4
        blocks = -(-problem.hidden // (WARPS * units))
        if words > MOST_WORDS or blocks > (MOST_CLUSTER if cluster else multiprocessors) or (cluster and blocks < 2):
            continue
        together = (multiprocessors - multiprocessors // 8 if cluster else multiprocessors) // blocks
        slices = min(together // directions, problem.batch)
        if slices:
            rows = -(-problem.batch // slices)
            found.append(PersistentTile(WARPS, units, blocks, -(-problem.batch // rows), kind, directions))
    return found


def _state_bytes(problem: RecurrenceProblem, tile: PersistentTile) -> int:
    rows, size = -(-problem.batch // tile.slices), from_numpy(numpy_dtype(problem.dtype)).compute.size
    return (1 + len(problem.phases)) * rows * ProductLanes.of(problem).padded * size + _SPARE


def tile_seconds(problem: RecurrenceProblem, tile: PersistentTile) -> float:
    """Estimated seconds of all steps by a persistent kernel."""
    lanes, rows = ProductLanes.of(problem), -(-problem.batch // tile.slices)
    at_once = rows_of_turn(problem, tile)
    turns, groups = -(-rows // at_once), -(-rows // (WARP // tile.units))
    cycles = 0.0
    for gates in map(len, problem.phases):
        pairs = at_once * tile.units
        multiplying = gates * pairs * lanes.width * lanes.chunks
        joining = gates * pairs * (lanes.width + 2)
        issued = turns * (multiplying + joining) + groups * CELLS
        cycles += issued * tile.warps / 4 + STEP[tile.kind]
        if tile.kind == "tagged":
            cycles += FETCH * (-(-rows * problem.hidden // (WORDS * tile.threads)) - 1)
        if tile.kind == "grid":
            cycles += GRID_TURN * (turns - 1) * lanes.chunks
    return problem.lanes // tile.directions * (problem.steps * cycles + LAUNCH_STEP) / CLOCK


def steps_seconds(problem: RecurrenceProblem, multiprocessors: int) -> float:
    """Estimated seconds of all steps by launches of their own."""
    seconds = 0.0
    for gates in map(len, problem.phases):
        rows = rows_of_steps(problem, gates)
        tiles = -(-problem.batch // rows) * problem.lanes
        weights = gates * problem.hidden**2 * problem.itemsize
        blocks = -(-problem.hidden // STEP_WARPS) * tiles
        bringing = tiles * weights / (min(blocks, multiprocessors) * ARRIVAL * CLOCK)
        adding = tiles * gates * rows * problem.hidden**2 / (min(blocks, multiprocessors) * 4 * WARP * CLOCK)
        seconds += max(bringing, adding, problem.lanes * weights / BANDWIDTH) + LAUNCH_STEP / CLOCK
    return problem.steps * seconds
