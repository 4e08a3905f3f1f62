"""The ways to compute a contraction, MIOpen's solvers: which apply, what they should take, what tuning tries."""

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
"""Tiles that tuning measures besides a solver's own choice, those that the cost model has for the best. Each costs
compiling a kernel, which other problems of the same structure share."""


class GpuSolver(Protocol):
    """One way to compute contractions.

    Attributes:
        name: as tuning records have it.
        order: in which weights of convolutions lie.
        revision: raised with each change of its kernels that times depend on, so that what was measured before is a
            hint and is measured again; 0 of the first.
    """

    name: str
    order: WeightOrder
    revision: int

    def refusal(self, placed: PlacedRequest) -> str:
        """Why it does not compute a contraction; empty if it does."""

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """The tilings (dataclasses of integers) that it can have for a contraction that it does not refuse."""

    def chosen(self, placed: PlacedRequest) -> Any | None:
        """Its own choice among these, None if `plan` makes it; it is asked before where it weighs times."""

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """Seconds that it should take, by default with its own choice."""

    def weighed(self, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """The seconds that it should take with each of its tilings; with None if there is one way."""

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """Its launches, by default with its own choice.

        Raises:
            UnsupportedError: an operation around the contraction has no kernel.
        """


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a block's tile, and in how many parts each sum is computed."""

    rows: int
    columns: int
    splits: int


@dataclass(frozen=True)
class WarpgroupTiling(WarpgroupTile):
    """A tile of warpgroups, and in how many parts each sum is computed."""

    splits: int = 1

    @property
    def configuration(self) -> dict[str, int]:
        """As tuning records have it; those of before tiles were taken in turns do not say that they are not."""
        return {name: n for name, n in asdict(self).items() if name != "pingpong" or n > 1}


@functools.lru_cache(maxsize=1024)
def _warpgroup_tiling(tile: WarpgroupTile, splits: int) -> WarpgroupTiling:
    return WarpgroupTiling(**asdict(tile), splits=splits)


@dataclass(frozen=True)
class SquareTiling:
    """Rows and columns of a block's tile, which are as many."""

    side: int


class _Own:
    """What solvers have in common whose kernels are our own."""

    revision = 0

    def weighed(self: Any, placed: PlacedRequest) -> list[tuple[float, Any]]:
        """See `GpuSolver.weighed`."""
        return [(self.estimate(placed, tiling), tiling) for tiling in self.tilings(placed) or [None]]


class _Choosing(_Own):
    """What solvers have in common whose `plan` chooses a tiling."""

    def chosen(self, placed: PlacedRequest) -> Any | None:
        """See `GpuSolver.chosen`."""
        return None


class FewBits(_Choosing):
    """Warps that bring codes of weights in blocks for a few rows (`nbits`)."""

    name = "nbits"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        if not _in_blocks(placed):
            return "its weights are in no blocks"
        return "codes lie as tensor cores want them" if _chunked(placed) else nbits.nbits_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`: there is one way."""
        return []

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        extent = Extent.of(placed.problem)
        return reading_seconds(placed, -(-extent.columns // (nbits.WARPS * nbits.OWN)) * extent.planes)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return nbits.nbits_solution(placed)


class FewBitsOnCores(FewBits):
    """Tensor cores of warps, for which codes of weights in blocks become words (`nbits_cores`)."""

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
    """A warp for each column of a few rows (`few_rows`)."""

    name = "few_rows"
    order = COLUMNS

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`."""
        return few_rows_refusal(placed)

    def tilings(self, placed: PlacedRequest) -> list[Any]:
        """See `GpuSolver.tilings`: there is one way."""
        return []

    def estimate(self, placed: PlacedRequest, tiling: Any = None) -> float:
        """See `GpuSolver.estimate`."""
        extent = Extent.of(placed.problem)
        return reading_seconds(placed, -(-extent.columns // WARPS) * extent.planes)

    def plan(self, placed: PlacedRequest, tiling: Any = None) -> Solution:
        """See `GpuSolver.plan`."""
        return few_rows_solution(placed)


class Depthwise(_Choosing):
    """Vectors of channels of convolutions in which each channel is a group (`depthwise`)."""

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
    """Tensor cores of warpgroups (`wgmma`)."""

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
    """Tensor cores of warpgroups for float32 in parts (`wgmma_parts`)."""

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
    """Return the seconds of the first tile, or of the tile that ``tiling`` names."""
    found = (c for c, tile, splits in weighed if tiling in (None, _warpgroup_tiling(tile, splits)))
    return not_below_memory(placed, next(found) / CLOCK)


def _all_seconds(
    placed: PlacedRequest, weighed: tuple[tuple[float, WarpgroupTile, int], ...], before: float
) -> list[tuple[float, Any]]:
    """Return the seconds and the tiling of each tile; ``before`` are seconds of the launches before the product."""
    return [
        (not_below_memory(placed, cycles / CLOCK) + before, _warpgroup_tiling(tile, splits))
        for cycles, tile, splits in weighed
    ]


def _ordering(columns: OrderedColumns) -> float:
    """Seconds of the launch that brings a right operand into order."""
    return columns.moved and columns.moved / BANDWIDTH + LAUNCH / CLOCK


class _OfRing(_Choosing):
    """What solvers whose operands come to a ring have in common."""

    name: str
    order = COLUMNS

    def text(self) -> type[RingText]:
        """What writes the text."""
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
        """The tile and the parts of sums that a tiling names, or that are chosen."""
        if tiling is None:
            return self.text().chosen(placed)
        return next(t for t in self.text().tiles if (t.rows, t.columns) == (tiling.rows, tiling.columns)), tiling.splits

    def work(self, placed: PlacedRequest, tile: RingTile, products: float) -> BlockWork:
        """A block's, of so many multiplications a cycle."""
        itemsize = ITEMSIZE[placed.problem.types.a]
        form = self.text().form_of(placed)
        return BlockWork(tile.rows, tile.columns, form.words * 4 // itemsize, form.stages, itemsize, products)


class TensorCores(_OfRing):
    """Tensor cores of warps (`tensor`), or matrix cores of waves (`matrix`)."""

    name = "tensor"
    products = 770.0
    """Of 16-bit numbers: 358 TFLOP/s of an H200 at 4096 x 4096 x 4096. One product in TF32 takes twice as long, one of
    8 bits half as long."""

    def text(self) -> type[RingText]:
        """That of the architecture's instructions."""
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
        """Products a cycle of a multiprocessor."""
        if self.text() is not TensorText:
            return declared_tiles(placed)[0].rate
        times = ITEMSIZE[placed.problem.types.a] / 2
        if placed.problem.types.a == "float32" and placed.precision == "high":
            times *= 3
        return self.products / times


class MultiplyAdds(_OfRing):
    """Ordinary arithmetic from a ring (`fma`)."""

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
    """Ordinary arithmetic on single elements (`tiled`), which computes everything."""

    name = "tiled"
    order = ROWS
    products = 40.0
    """Of the 128 that a multiprocessor of an H200 could do; float64 takes twice as long."""

    def refusal(self, placed: PlacedRequest) -> str:
        """See `GpuSolver.refusal`: none."""
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
"""All of them; of those that should take as long the first one is taken."""


def _in_blocks(placed: PlacedRequest) -> bool:
    """Whether the right operand is codes of a few bits in blocks."""
    problem = placed.problem
    return isinstance(problem, GemmProblem) and problem.blocks is not None


def _chunked(placed: PlacedRequest) -> bool:
    """Whether it has codes that lie as `nbits_cores` wants them."""
    return isinstance(placed.problem, GemmProblem) and nbits_cores.chunked(placed.problem)


def refusal_of(solver: GpuSolver | LibrarySolver, placed: PlacedRequest) -> str:
    """Why a solver does not compute a contraction; only `FewBits` and its kind read weights in blocks, only
    `Warpgroups` leave channels of the first tap out, and these two have epilogues of two sums."""
    if _in_blocks(placed) and not isinstance(solver, FewBits):
        return "its weights are in blocks of a few bits"
    if placed.first_channel and not isinstance(solver, Warpgroups):
        return "its first tap has fewer channels"
    if placed.request.epilogue.gated and not isinstance(solver, (FewRows, Warpgroups)):
        return "its epilogue takes two sums"
    return solver.refusal(placed)


def in_vectors(placed: PlacedRequest) -> bool:
    """Whether a solver whose operands come in vectors computes a contraction."""
    return any(not refusal_of(solver, placed) for solver in SOLVERS if isinstance(solver, (_OfRing, Warpgroups)))


def _libraries() -> tuple[LibrarySolver, ...]:
    """Solvers that call a library."""
    from .library_solvers import LIBRARIES  # late: for who measures, or has a record of what was measured

    return LIBRARIES


def candidates(placed: PlacedRequest) -> list[Candidate]:
    """See `Backend.candidates`: `own_candidates`, then the libraries', each with the first of its algorithms."""
    called = [s for s in _libraries() if not refusal_of(s, placed)]
    return [*own_candidates(placed), *(Candidate(s, s.tilings(placed)[0]) for s in called)]


def own_candidates(placed: PlacedRequest) -> list[Candidate]:
    """The solvers with kernels that apply, with their own choice of a tile, the quickest by the cost model first."""
    able = [solver for solver in SOLVERS if not refusal_of(solver, placed)]
    return [Candidate(s) for s in (able if len(able) == 1 else sorted(able, key=lambda s: s.estimate(placed)))]


def choose(placed: PlacedRequest) -> Candidate:
    """The first of `own_candidates`: libraries are for who measures.

    Raises:
        UnsupportedError: there is none; the message has every solver's reason.
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
    """See `Backend.refinements`: other tilings of the winner's solver, the quickest by the cost model first."""
    others = [tiling for tiling in winner.solver.tilings(placed) if tiling != winner.blocking]
    others.sort(key=lambda tiling: winner.solver.estimate(placed, tiling))
    return [Candidate(winner.solver, tiling) for tiling in others[:MOST_REFINEMENTS]]


def _builds(placed: PlacedRequest, named: Candidate) -> bool:
    """Whether a library takes what a record says of it; kernels are our own."""
    return named.solver in SOLVERS or named.solver.builds(placed, named.blocking)


def revisions(placed: PlacedRequest) -> dict[str, int]:
    """See `Backend.revisions`: of solvers with kernels of our own."""
    return {s.name: s.revision for s in SOLVERS if s.revision and not refusal_of(s, placed)}


def candidate_of(placed: PlacedRequest, record: TuningRecord) -> Candidate | None:
    """See `Backend.candidate_of`; a tiling that the solver does not have is none, nor is a library's own choice, which
    another version of it would not make."""
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
