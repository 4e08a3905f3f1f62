"""Partition of a recurrent layer's units over persistent blocks, and the cost model of its steps."""

from __future__ import annotations

from math import gcd

from ....core.dim import SharedLength, ceil_div
from ....core.types import from_numpy, numpy_dtype
from ....dataclass import dataclass
from ...problems.recurrence import RecurrenceProblem
from ..architecture import ARCHITECTURES, WARP, Architecture
from ..machine import machine
from ..printer import most_lanes
from .steps import WARPS as STEP_WARPS
from .steps import rows_of_steps

WARPS = 8
"""Warps per block with up to 255 registers per thread: two per scheduler."""
MOST_WORDS = 128
"""Most 32-bit registers per thread for weights: half of the limit."""
MOST_CLUSTER = 8
"""Most blocks per cluster: CUDA C++ programming guide, "Thread Block Clusters"."""
WORDS = 4
"""Tagged words that a thread polls together, see `lang.tagged`."""
UNITS = (1, 2, 4, 8)
"""Units per warp; its 32 lanes compute cells of 32 / units sequences."""
MOST_SUMS = 64
"""Most accumulator elements per thread beside the weights."""
_SPARE = 2 << 10
"""Shared memory (bytes) of a multiprocessor that a launch cannot use: static variables, the driver, alignment."""
# In cycles of a multiprocessor at its clock, fitted on an H200 to LSTM of 256, 2 x 512 and 1024 units over 64 steps of
# one sequence: 1.0 us a step by a cluster, 1.0, 1.0 and 1.3 with tags, 1.7, 1.8 and 1.9 by a grid, 1.9, 3.1 and 4.3 by
# launches; and of 16 sequences of 1024 units 7.5 by a grid, 10.4 with tags, 17 by launches.
STEP = {"grid": 2650, "cluster": 1050, "tagged": 1400}
"""Cycles until other blocks read a published state, by `PersistentTile.kind`."""
LAUNCH_STEP = 2200
"""The same across launches."""
GRID_TURN = 220
"""Cycles per chunk of a state that turns after the first read from device memory."""
FETCH = 700
"""Cycles until four words of a thread have arrived from L2: about its latency."""
ARRIVAL = 24
"""L2-to-multiprocessor bandwidth of weights in bytes/cycle, for one launch per step."""
CELLS = 150
"""Instructions per cell of a warp; LSTM's text has about as many."""


@dataclass(frozen=True)
class PersistentTile:
    """Blocks of ``warps`` warps that keep the weights of ``units`` units per warp in registers.

    Attributes:
        blocks: blocks that share the units of a direction, for one slice of the sequences.
        slices: most slices of the sequences, each with its own blocks.
        kind: exchange of states: ``cluster`` (distributed shared memory), ``tagged`` (tagged words in device memory),
            ``grid`` (device memory with a grid-wide barrier).
        directions: directions per launch: all, or one.
        most_rows: most sequences of a slice, for a batch that is no number; 0: those of the problem.
    """

    warps: int
    units: int
    blocks: int
    slices: int
    kind: str
    directions: int
    most_rows: int = 0

    @property
    def cluster(self) -> bool:
        """Return whether the blocks form a cluster; otherwise all blocks of the launch must be resident."""
        return self.kind == "cluster"

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.warps * WARP

    def slice_rows(self, batch: SharedLength) -> SharedLength:
        """Return the sequences of a slice; the last slice may have fewer."""
        return ceil_div(batch, self.slices)

    def used_slices(self, batch: SharedLength) -> SharedLength:
        """Return the slices that have sequences."""
        return ceil_div(batch, self.slice_rows(batch))

    def planned_rows(self, batch: SharedLength) -> SharedLength:
        """Return the sequences of a slice for which kernels have room."""
        return self.most_rows or self.slice_rows(batch)


@dataclass(frozen=True)
class ProductLanes:
    """Distribution of a dot product over the hidden units to the lanes of a warp.

    Attributes:
        width: neighbouring units per load of a lane.
        chunks: loads per lane.
    """

    width: int
    chunks: int

    @classmethod
    def of(cls, problem: RecurrenceProblem) -> ProductLanes:
        """Return the distribution for a problem."""
        size = from_numpy(numpy_dtype(problem.dtype)).compute.size
        width = gcd(problem.hidden, most_lanes(size))
        return cls(width, -(-problem.hidden // (WARP * width)))

    @property
    def padded(self) -> int:
        """Return the units of a state including padding."""
        return WARP * self.width * self.chunks


def rows_of_turn(problem: RecurrenceProblem, tile: PersistentTile) -> int:
    """Return the sequences that a warp multiplies at once, a power of two."""
    gates = max(len(phase) for phase in problem.phases)
    rows = tile.planned_rows(problem.batch)
    most = min(WARP // tile.units, max(1, MOST_SUMS // (gates * tile.units * ProductLanes.of(problem).width)))
    return min(1 << most.bit_length() - 1, 1 << (rows - 1).bit_length())


def ranked_tiles(
    problem: RecurrenceProblem, arch: Architecture | None, multiprocessors: int
) -> list[PersistentTile | None]:
    """Return all applicable tiles, least estimated time first; None stands for one launch per step."""
    seconds: dict[PersistentTile | None, float] = {None: steps_seconds(problem, multiprocessors)}
    for tile in fitting_tiles(problem, arch, multiprocessors):
        seconds[tile] = tile_seconds(problem, tile)
    return sorted(seconds, key=lambda tile: seconds[tile])


def fitting_tiles(problem: RecurrenceProblem, arch: Architecture | None, multiprocessors: int) -> list[PersistentTile]:
    """Return the tiles whose weights fit the registers, whose states fit a cluster's shared memory, and whose blocks
    are all resident. Empty on AMD devices: `runtime.gpu.hip` has no cooperative launches."""
    if arch is not None and not arch.nvidia:
        return []
    kinds = ["grid"]
    if from_numpy(numpy_dtype(problem.dtype)).compute.size == 4 and ProductLanes.of(problem).width == WORDS:
        kinds.append("tagged")
    if arch is not None and arch.clusters:
        kinds.append("cluster")
    numbers = sorted({problem.lanes, 1})
    found = [tile for kind in kinds for n in numbers for tile in _tiles(problem, multiprocessors, kind, n)]
    return [tile for tile in found if fits(problem, tile, arch)]


def fits(problem: RecurrenceProblem, tile: PersistentTile, arch: Architecture | None) -> bool:
    """Return whether the states of a tile's slices fit the shared memory of an NVIDIA device; None: of any."""
    most = min(a.shared_bytes for a in ARCHITECTURES.values() if a.nvidia) if arch is None else arch.shared_bytes
    return tile.kind == "grid" or _state_bytes(problem, tile) <= most


def _tiles(problem: RecurrenceProblem, multiprocessors: int, kind: str, directions: int) -> list[PersistentTile]:
    """Return the tiles of a kind with ``directions`` per launch. Clusters do not use all multiprocessors: 16 clusters
    of 8 blocks are not resident together on an H200's 132."""
    found, cluster = [], kind == "cluster"
    size, lanes = from_numpy(numpy_dtype(problem.dtype)).compute.size, ProductLanes.of(problem)
    for units in UNITS:
        words = problem.gates * units * lanes.width * lanes.chunks * size // 4
        blocks = -(-problem.hidden // (WARPS * units))
        if words > MOST_WORDS or blocks > (MOST_CLUSTER if cluster else multiprocessors) or (cluster and blocks < 2):
            continue
        together = (multiprocessors - multiprocessors // 8 if cluster else multiprocessors) // blocks
        if together >= directions:
            found.append(PersistentTile(WARPS, units, blocks, together // directions, kind, directions))
    return found


def _state_bytes(problem: RecurrenceProblem, tile: PersistentTile) -> int:
    rows, size = tile.planned_rows(problem.batch), from_numpy(numpy_dtype(problem.dtype)).compute.size
    return (1 + len(problem.phases)) * rows * ProductLanes.of(problem).padded * size + _SPARE


def tile_seconds(problem: RecurrenceProblem, tile: PersistentTile) -> float:
    """Return the estimated time (s) of all steps of a persistent kernel."""
    lanes, rows = ProductLanes.of(problem), tile.slice_rows(problem.batch)
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
    return problem.lanes // tile.directions * (problem.steps * cycles + LAUNCH_STEP) / machine().clock


def steps_seconds(problem: RecurrenceProblem, multiprocessors: int) -> float:
    """Return the estimated time (s) of all steps as separate launches."""
    seconds = 0.0
    for gates in map(len, problem.phases):
        rows = rows_of_steps(problem, gates)
        tiles = -(-problem.batch // rows) * problem.lanes
        weights = gates * problem.hidden**2 * problem.itemsize
        blocks = -(-problem.hidden // STEP_WARPS) * tiles
        bringing = tiles * weights / (min(blocks, multiprocessors) * ARRIVAL * machine().clock)
        adding = tiles * gates * rows * problem.hidden**2 / (min(blocks, multiprocessors) * 4 * WARP * machine().clock)
        seconds += max(bringing, adding, problem.lanes * weights / machine().bandwidth) + LAUNCH_STEP / machine().clock
    return problem.steps * seconds
