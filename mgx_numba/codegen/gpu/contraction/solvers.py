"""Solvers of contractions on the GPU (as in MIOpen): applicability, cost estimates, tilings, and candidates for
tuning."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from ....dataclass import dataclass
from ....errors import UnsupportedError
from ...launch import Solution
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.record import TuningRecord
from ...tuning.request import Candidate, Estimate
from ..architecture import WARP
from ..driver.device import known_architecture
from . import nbits, nbits_cores, tiled
from .cost import BANDWIDTH, CLOCK, LAUNCH, BlockWork, near_seconds, not_below_memory, reading_seconds, tiles_seconds
from .depthwise import PixelTiling, chosen_pixels, depthwise_refusal, depthwise_solution, depthwise_tilings, loads
from .few_rows import WARPS, few_rows_refusal, few_rows_solution
from .fma import FmaText, fma_refusal
from .fma_tiles import FmaTile, fma_seconds, weighed_tiles
from .matrix import Wave32Text, Wave64Text, declared_tiles, matrix_refusal
from .operands import Extent
from .placed import PlacedRequest
from .right_columns import OrderedColumns, ordered_columns
from .ring import LEAST_SLICES, RingText, RingTile, ring_solution, slices_of
from .tensor import TensorText, tensor_refusal
from .weights import CHANNELS, COLUMNS, ROWS, WeightOrder
from .wgmma import wgmma_choice, wgmma_solution, wgmma_tiles
from .wgmma_operands import parts_refusal, wants_order, wgmma_refusal
from .wgmma_parts import parts_solution, parts_tiles
from .wgmma_tiles import SPLITS, WarpgroupTile

if TYPE_CHECKING:
    from .library_solver import LibrarySolver

__all__ = [
    "SOLVERS", "GpuSolver", "candidate_of", "candidates", "choose", "estimates",
    "in_vectors", "own_candidates", "refinements", "refusal_of", "revisions",
]  # fmt: skip

MOST_REFINEMENTS = 12
"""Tilings that tuning measures beside a solver's own choice, best estimates first. Each is a kernel to compile, shared
with other problems of the same structure."""


class GpuSolver(Protocol):
    """One algorithm for contractions.

    Attributes:
        name: identifier in tuning records.
        order: layout of convolution weights.
        revision: version of the kernels' performance. Raise it with each change that affects times; records of an
            earlier revision become hints and are measured again.
    """

    name: str
    order: WeightOrder
    revision: int

    def refusal(self, placed: PlacedRequest) -> str:
        """Return the reason why the solver does not apply to a contraction; "" if it applies."""

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """Return the tilings (dataclasses of integers) of an applicable contraction."""

    def chosen(self, placed: PlacedRequest) -> Any | None:
        """Return the solver's own choice of tiling; None if `plan` chooses it."""

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """Return the estimated time (s) with ``tiling``, by default with the solver's own choice."""

    def weighed(self, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """Return (estimated seconds, tiling) of each tiling; the tiling is None if the solver has only one way."""

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """Return the launches with ``tiling``, by default with the solver's own choice.

        Raises:
            UnsupportedError: no kernel exists for an operation of the prologue or epilogue.
        """


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a block tile, and the split-K factor."""

    rows: int
    columns: int
    splits: int


@dataclass(frozen=True)
class WarpgroupTiling(WarpgroupTile):
    """A warpgroup tile and the split-K factor."""

    splits: int = 1

    @property
    def configuration(self) -> dict[str, int]:
        """Return the fields of a tuning record. ``pingpong`` is omitted if it is 1, as in records from before it
        existed."""
        return {name: n for name, n in asdict(self).items() if name != "pingpong" or n > 1}


@functools.lru_cache(maxsize=1024)
def _warpgroup_tiling(tile: WarpgroupTile, splits: int) -> WarpgroupTiling:
    return WarpgroupTiling(**asdict(tile), splits=splits)


@dataclass(frozen=True)
class SquareTiling:
    """Side of a square block tile."""

    side: int


class _Own:
    """Base class of solvers with kernels of this package."""

    revision = 0

    def weighed(self: Any, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """See `GpuSolver.weighed`."""
        return [(self.estimate(placed, tiling), tiling) for tiling in self.tilings(placed) or [None]]


class _Choosing(_Own):
    """Base class of solvers whose `plan` chooses the tiling."""

    def chosen(self, placed: PlacedRequest) -> Any | None:
        """See `GpuSolver.chosen`."""
        return None


class FewBits(_Choosing):
    """GEMV kernel for block-quantised weights (`nbits`)."""

    name = "nbits"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        if not _in_blocks(placed):
            return "its weights are in no blocks"
        return "codes lie as tensor cores want them" if _chunked(placed) else nbits.nbits_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`: none."""
        return []

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        extent = Extent.of(placed.problem)
        return reading_seconds(placed, -(-extent.columns // (nbits.WARPS * nbits.OWN)) * extent.planes)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return nbits.nbits_solution(placed)


class FewBitsOnCores(FewBits):
    """Tensor-core kernel for 4-bit block-quantised weights and few rows (`nbits_cores`)."""

    name = "nbits_cores"

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return nbits_cores.cores_refusal(placed) if _chunked(placed) else "codes do not lie as tensor cores want them"

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        extent = Extent.of(placed.problem)
        return reading_seconds(placed, -(-extent.columns // nbits_cores.COLUMNS) * extent.planes)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return nbits_cores.cores_solution(placed)


class FewRows(_Choosing):
    """GEMV kernel: one warp per column (`few_rows`)."""

    name = "few_rows"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return few_rows_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`: none."""
        return []

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        extent = Extent.of(placed.problem)
        return reading_seconds(placed, -(-extent.columns // WARPS) * extent.planes)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return few_rows_solution(placed)


class Depthwise(_Choosing):
    """Depthwise convolutions (`depthwise`)."""

    name = "depthwise"
    order = CHANNELS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return depthwise_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        return depthwise_tilings(placed)

    def estimate(self, placed: PlacedRequest, tiling: PixelTiling | None = None) -> float:
        """See `GpuSolver.estimate`."""
        return near_seconds(placed, loads(placed, tiling or chosen_pixels(placed)))

    def plan(self, placed: PlacedRequest, tiling: PixelTiling | None = None) -> Solution:
        """See `GpuSolver.plan`."""
        return depthwise_solution(placed, tiling or chosen_pixels(placed))


class Warpgroups(_Own):
    """Warpgroup MMA with TMA loads (`wgmma`)."""

    name = "warpgroup"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return wgmma_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        return [_warpgroup_tiling(tile, splits) for _, tile, splits in wgmma_tiles(placed)]

    def chosen(self, placed: PlacedRequest) -> WarpgroupTiling:
        """See `GpuSolver.chosen`."""
        return _warpgroup_tiling(*wgmma_choice(placed))

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        return _warpgroup_seconds(placed, wgmma_tiles(placed), tiling) + self._before(placed)

    def weighed(self, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """See `GpuSolver.weighed`."""
        return _all_seconds(placed, wgmma_tiles(placed), self._before(placed))

    @staticmethod
    def _before(placed: PlacedRequest) -> float:
        return _ordering(ordered_columns(placed)) if wants_order(placed.problem) else 0.0

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return wgmma_solution(placed, tiling, 0 if tiling is None else tiling.splits)


class WarpgroupParts(_Own):
    """Warpgroup MMA for float32 as three bfloat16 products (`wgmma_parts`)."""

    name = "warpgroup_parts"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return parts_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        return [_warpgroup_tiling(tile, splits) for _, tile, splits in parts_tiles(placed)]

    def chosen(self, placed: PlacedRequest) -> WarpgroupTiling:
        """See `GpuSolver.chosen`."""
        return _warpgroup_tiling(*wgmma_choice(placed, parts=True))

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        return _warpgroup_seconds(placed, parts_tiles(placed), tiling) + _ordering(ordered_columns(placed, "bfloat16"))

    def weighed(self, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """See `GpuSolver.weighed`."""
        return _all_seconds(placed, parts_tiles(placed), _ordering(ordered_columns(placed, "bfloat16")))

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return parts_solution(placed, tiling, 0 if tiling is None else tiling.splits)


def _warpgroup_seconds(
    placed: PlacedRequest, weighed: tuple[tuple[float, WarpgroupTile, int], ...], tiling: WarpgroupTiling | None
) -> float:
    """Return the estimated time (s) of ``tiling``, or of the first tile of ``weighed`` if it is None."""
    found = (c for c, tile, splits in weighed if tiling in (None, _warpgroup_tiling(tile, splits)))
    return not_below_memory(placed, next(found) / CLOCK)


def _all_seconds(
    placed: PlacedRequest, weighed: tuple[tuple[float, WarpgroupTile, int], ...], before: float
) -> list[tuple[float, Any]]:
    """Return (estimated seconds, tiling) of each tile; ``before`` is the time (s) of preceding launches."""
    return [
        (not_below_memory(placed, cycles / CLOCK) + before, _warpgroup_tiling(tile, splits))
        for cycles, tile, splits in weighed
    ]


def _ordering(columns: OrderedColumns) -> float:
    """Return the estimated time (s) of the launch that converts the right operand's layout; 0 without such a launch."""
    return columns.moved and columns.moved / BANDWIDTH + LAUNCH / CLOCK


class _OfRing(_Choosing):
    """Base class of solvers with a shared-memory ring of operand slices."""

    name: str
    order = COLUMNS

    def text(self) -> type[RingText]:
        """Return the class that generates the kernel text."""
        raise NotImplementedError

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return ring_solution(self.text()(placed, *self.tile(placed, tiling)), self.name)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        slices = slices_of(placed, self.text().form_of(placed))
        return [
            Tiling(tile.rows, tile.columns, splits)
            for tile in self.text().tiles
            for splits in SPLITS
            if splits == 1 or slices >= splits * LEAST_SLICES
        ]

    def tile(self, placed: PlacedRequest, tiling: Tiling | None) -> tuple[RingTile, int]:
        """Return the tile and split-K factor of ``tiling``, or the chosen ones if it is None."""
        if tiling is None:
            return self.text().chosen(placed)
        return next(t for t in self.text().tiles if (t.rows, t.columns) == (tiling.rows, tiling.columns)), tiling.splits

    def work(self, placed: PlacedRequest, tile: RingTile, products: float) -> BlockWork:
        """Return the work of a block for the cost model; ``products`` is the multiprocessor's multiplications/cycle."""
        itemsize = ITEMSIZE[placed.problem.types.a]
        form = self.text().form_of(placed)
        return BlockWork(tile.rows, tile.columns, form.words * 4 // itemsize, form.stages, itemsize, products)


class TensorCores(_OfRing):
    """Tensor cores of warps (`tensor`, mma.sync), or AMD matrix cores (`matrix`)."""

    name = "tensor"
    products = 770.0
    """16-bit multiplications/cycle of a multiprocessor: 358 TFLOP/s of an H200 at 4096 x 4096 x 4096. TF32 has half of
    this rate, 8 bits twice this rate."""

    def text(self) -> type[RingText]:
        """Return the kernel text class for the current architecture."""
        arch = known_architecture()
        if arch is None or arch.nvidia:
            return TensorText
        return Wave32Text if arch.wave == WARP else Wave64Text

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return tensor_refusal(placed) if self.text() is TensorText else matrix_refusal(placed)

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        tile, splits = self.tile(placed, tiling)
        return tiles_seconds(placed, self.work(placed, tile, self._rate(placed)), splits)

    def _rate(self, placed: PlacedRequest) -> float:
        """Return the multiplications/cycle of a multiprocessor."""
        if self.text() is not TensorText:
            return declared_tiles(placed)[0].rate
        times = ITEMSIZE[placed.problem.types.a] / 2
        if placed.problem.types.a == "float32" and placed.precision == "high":
            times *= 3
        return self.products / times


class MultiplyAdds(_OfRing):
    """Float32 FMAs with a shared-memory ring (`fma`)."""

    name = "fma"

    def text(self) -> type[RingText]:
        """See `_OfRing.text`."""
        return FmaText

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return fma_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        return [Tiling(tile.rows, tile.columns, splits) for _, tile, splits in weighed_tiles(placed)]

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        tile, splits = self.tile(placed, tiling)
        assert isinstance(tile, FmaTile)
        return fma_seconds(placed, tile, splits)


class Tiles(_Choosing):
    """Scalar FMAs with shared-memory tiles (`tiled`); applies to every contraction."""

    name = "tiled"
    order = ROWS
    products = 40.0
    """Multiplications/cycle of a multiprocessor, of the 128 of an H200; float64 has half of this rate."""

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`: applies to everything."""
        return ""

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`."""
        return [SquareTiling(side) for side in tiled.SIDES]

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        side = tiling.side if tiling is not None else tiled.chosen_side(placed)
        itemsize = ITEMSIZE[placed.problem.types.a]
        products = self.products / (2 if itemsize == 8 else 1)
        return tiles_seconds(placed, BlockWork(side, side, tiled.DEPTH, 1, itemsize, products))

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return tiled.tiled_solution(placed, tiling.side if tiling is not None else 0)


SOLVERS: tuple[GpuSolver, ...] = (
    FewBits(),
    FewBitsOnCores(),
    FewRows(),
    Depthwise(),
    Warpgroups(),
    WarpgroupParts(),
    TensorCores(),
    MultiplyAdds(),
    Tiles(),
)
"""All solvers with kernels of this package; of equal estimates the first one wins."""


def _in_blocks(placed: PlacedRequest) -> bool:
    """Return whether the right operand is block-quantised."""
    problem = placed.problem
    return isinstance(problem, GemmProblem) and problem.blocks is not None


def _chunked(placed: PlacedRequest) -> bool:
    """Return whether the right operand is stored in the layout of `nbits_cores`."""
    return isinstance(placed.problem, GemmProblem) and nbits_cores.chunked(placed.problem)


def refusal_of(solver: GpuSolver | LibrarySolver, placed: PlacedRequest) -> str:
    """Return the reason why ``solver`` does not apply; "" if it applies.

    Checks what solvers need not check themselves: block-quantised weights need `FewBits` or `FewBitsOnCores`;
    `PlacedRequest.first_channel` needs `Warpgroups`; a gated epilogue needs `FewRows` or `Warpgroups`.
    """
    if _in_blocks(placed) and not isinstance(solver, FewBits):
        return "its weights are in blocks of a few bits"
    if placed.first_channel and not isinstance(solver, Warpgroups):
        return "its first tap has fewer channels"
    if placed.request.epilogue.gated and not isinstance(solver, (FewRows, Warpgroups)):
        return "its epilogue takes two sums"
    return solver.refusal(placed)


def in_vectors(placed: PlacedRequest) -> bool:
    """Return whether a solver with vector loads of both operands applies."""
    return any(not refusal_of(solver, placed) for solver in SOLVERS if isinstance(solver, (_OfRing, Warpgroups)))


def _libraries() -> tuple[LibrarySolver, ...]:
    """Return the solvers that call a vendor library."""
    from .library_solvers import LIBRARIES  # late: for who measures, or has a record of what was measured

    return LIBRARIES


def candidates(placed: PlacedRequest) -> list[Candidate]:
    """See `Backend.candidates`: `own_candidates`, then each library with its heuristic's first algorithm."""
    called = [s for s in _libraries() if not refusal_of(s, placed)]
    return [*own_candidates(placed), *(Candidate(s, s.tilings(placed)[0]) for s in called)]


def own_candidates(placed: PlacedRequest) -> list[Candidate]:
    """Return the applicable solvers of this package with their own choice of tiling, least estimated time first."""
    able = [solver for solver in SOLVERS if not refusal_of(solver, placed)]
    return [Candidate(s) for s in (able if len(able) == 1 else sorted(able, key=lambda s: s.estimate(placed)))]


def choose(placed: PlacedRequest) -> Candidate:
    """Return the first of `own_candidates`; libraries are used only after measurement.

    Raises:
        UnsupportedError: no solver applies; the message lists every solver's reason.
    """
    found = own_candidates(placed)
    if not found:
        reasons = "; ".join(f"{s.name}: {refusal_of(s, placed)}" for s in SOLVERS)
        raise UnsupportedError(f"no solver for {placed.problem}: {reasons}")
    return found[0]


def estimates(placed: PlacedRequest) -> list[Estimate]:
    """See `Backend.estimates`."""
    able = [Estimate(c.solver.name, c.solver.estimate(placed)) for c in own_candidates(placed)]
    refused = [(s.name, refusal_of(s, placed)) for s in SOLVERS]
    refused += [
        (s.name, refusal_of(s, placed) or "taken only where measuring finds it the fastest") for s in _libraries()
    ]
    return [*able, *(Estimate(name, None, reason) for name, reason in refused if reason)]


def refinements(placed: PlacedRequest, winner: Candidate) -> list[Candidate]:
    """See `Backend.refinements`: other tilings of the winner's solver, least estimated time first."""
    others = [tiling for tiling in winner.solver.tilings(placed) if tiling != winner.blocking]
    others.sort(key=lambda tiling: winner.solver.estimate(placed, tiling))
    return [Candidate(winner.solver, tiling) for tiling in others[:MOST_REFINEMENTS]]


def _builds(placed: PlacedRequest, named: Candidate) -> bool:
    """Return whether a library accepts the algorithm of a tuning record; true for kernels of this package."""
    return named.solver in SOLVERS or named.solver.builds(placed, named.blocking)


def revisions(placed: PlacedRequest) -> dict[str, int]:
    """See `Backend.revisions`: of solvers with kernels of this package."""
    return {s.name: s.revision for s in SOLVERS if s.revision and not refusal_of(s, placed)}


def candidate_of(placed: PlacedRequest, record: TuningRecord) -> Candidate | None:
    """See `Backend.candidate_of`. Return None for a tiling that the solver lacks, and for a library's default
    algorithm, which may differ in another version of the library."""
    solvers: tuple[GpuSolver | LibrarySolver, ...] = (*SOLVERS, *_libraries())
    for solver in solvers:
        if solver.name == record.solver and not refusal_of(solver, placed):
            if not record.configuration:
                return Candidate(solver) if solver in SOLVERS else None
            wanted = dict(record.configuration)
            found = (Candidate(solver, tiling) for tiling in solver.tilings(placed))
            named = next((c for c in found if c.configuration == wanted), None)
            return None if named is None or not _builds(placed, named) else named
    return None
