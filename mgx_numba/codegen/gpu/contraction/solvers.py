"""Solvers of contractions on the GPU (as in MIOpen): applicability, cost estimates, tilings, and candidates for
tuning."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ....dataclass import dataclass
from ...launch import Solution
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.record import TuningRecord
from ...tuning.request import Candidate, Estimate
from ...tuning.solver_set import SolverSet
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import machine, multiprocessors
from . import block_quant, block_quant_mma, tiled
from .cost import LAUNCH, SHARED, BlockWork, near_seconds, not_below_memory, reading_seconds, tiles_seconds
from .depthwise import (
    PixelTiling,
    chosen_pixels,
    depthwise_refusal,
    depthwise_solution,
    depthwise_tilings,
    loads,
    looped_rows,
)
from .depthwise_patches import (
    RectangleTiling,
    chosen_rectangle,
    rectangle_refusal,
    rectangle_seconds,
    rectangle_solution,
    rectangle_tilings,
)
from .fma import FmaText, FmaTile, fma_refusal, fma_seconds, weighed_tiles
from .gemv import WARPS, gemv_refusal, gemv_rounds, gemv_solution
from .gpu_contraction import CHANNELS, COLUMNS, ROWS, AnyGpuSolver, GpuContraction
from .matrix_cores import Wave32Text, Wave64Text, declared_tiles, matrix_refusal
from .operands import Extent
from .patches import PatchText, patch_refusal, patch_seconds, patch_solution
from .right_columns import OrderedColumns, ordered_columns
from .ring import LEAST_SLICES, RingText, RingTile, ring_solution, slices_of
from .tensor_cores import NarrowText, TensorText, narrow_lanes, narrow_refusal, tensor_refusal
from .wgmma import wgmma_choice, wgmma_solution, wgmma_tiles
from .wgmma_bf16_split import bf16_split_solution, bf16_split_tiles
from .wgmma_operands import bf16_split_refusal, wants_order, wgmma_refusal
from .wgmma_tiles import BEGINNING, LATENCY, SPLITS, STARTING, STORED_BY_WIDTH, WarpgroupTile

if TYPE_CHECKING:
    from .library_solvers import LibrarySolver

MOST_REFINEMENTS = 12
"""Tilings that tuning measures beside a solver's own choice, best estimates first. Each is a kernel to compile, shared
with other problems of the same structure."""
GEMV_COLUMN = 74
"""Cycles of a multiprocessor for a column of `gemv` beside its loads: 2 x 8872 x 16, 2 x 13440 x 24 and 2 x 15070 x 104
take 3.3, 4.8 and 5.3 us on an H200."""
FILTER_ROW = 2500
"""Least cycles of a filter row of `depthwise` that loads after the one before: 8 images of 7 x 7 x 768 and of 14 x 14 x
384 take 10 and 17 us by 7 x 7 on an H200."""
WARP_ARRIVAL, WARP_SHARED, WARP_LATENCY, WARP_BEGINNING, WARP_FILLING = 24.7, 0.2, 1580.0, 1800.0, 450.0
"""Fields of `BlockWork` of products by ``mma.sync``: fitted to 812 tiles of products of `bench.gpu_random` on an H200,
whose estimates deviate by 21% (of the logarithm)."""
NARROW_BEGINNING, NARROW_FILLING = 990.0, 1630.0
"""Fields of `BlockWork` of products whose rows are no whole vectors: fitted to 373 tiles, with `NARROW_LOAD`; estimates
deviate by 16%."""
NARROW_LOAD = 35.0
"""Cycles that a load of a thread takes, of 1 to 4 elements."""
SCALAR_ARRIVALS, SCALAR_BEGINNING = (16.0, 30.0), 5700.0
"""Bytes/cycle that arrive through registers in loads of two bytes, and in longer loads, of scalar kernels; and their
cycles of pipeline fill and drain. No figures kept."""


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

    def weighed(self: AnyGpuSolver, contraction: GpuContraction) -> Sequence[tuple[float, Any]]:
        return [(self.estimate(contraction, tiling), tiling) for tiling in self.tilings(contraction) or [None]]


class _Choosing(_Own):
    """Base class of solvers whose `plan` chooses the tiling; most have none to choose from."""

    def tilings(self, contraction: GpuContraction) -> list[Any]:
        return []

    def chosen(self, contraction: GpuContraction) -> None:
        return None


class BlockQuant(_Choosing):
    """GEMV kernel for block-quantised weights (`nbits`)."""

    name = "nbits"
    order = COLUMNS

    def refusal(self, contraction: GpuContraction) -> str:
        if not _in_blocks(contraction):
            return "its weights are in no blocks"
        return (
            "codes lie as tensor cores want them"
            if _chunked(contraction)
            else block_quant.block_quant_refusal(contraction)
        )

    def estimate(self, contraction: GpuContraction, tiling: object = None) -> float:
        extent = Extent.of(contraction.problem)
        return reading_seconds(contraction, -(-extent.columns // (block_quant.WARPS * block_quant.OWN)) * extent.planes)

    def plan(self, contraction: GpuContraction, tiling: object = None) -> Solution:
        return block_quant.block_quant_solution(contraction)


class BlockQuantMma(BlockQuant):
    """Tensor-core kernel for 4-bit block-quantised weights and few rows (`nbits_cores`)."""

    name = "nbits_cores"

    def refusal(self, contraction: GpuContraction) -> str:
        return (
            block_quant_mma.block_quant_mma_refusal(contraction)
            if _chunked(contraction)
            else "codes do not lie as tensor cores want them"
        )

    def estimate(self, contraction: GpuContraction, tiling: object = None) -> float:
        extent = Extent.of(contraction.problem)
        return reading_seconds(contraction, -(-extent.columns // block_quant_mma.COLUMNS) * extent.planes)

    def plan(self, contraction: GpuContraction, tiling: object = None) -> Solution:
        return block_quant_mma.block_quant_mma_solution(contraction)


class Gemv(_Choosing):
    """GEMV kernel: one warp per column (`few_rows`)."""

    name = "few_rows"
    order = COLUMNS

    refusal = staticmethod(gemv_refusal)

    def estimate(self, contraction: GpuContraction, tiling: object = None) -> float:
        extent = Extent.of(contraction.problem)
        blocks = -(-extent.columns // WARPS) * extent.planes
        issuing = extent.columns * extent.planes / multiprocessors() * GEMV_COLUMN
        cycles = gemv_rounds(contraction) * LATENCY / 2 + issuing
        return max(cycles / machine().clock, reading_seconds(contraction, blocks))

    def plan(self, contraction: GpuContraction, tiling: object = None) -> Solution:
        return gemv_solution(contraction)


class Depthwise(_Choosing):
    """Depthwise convolutions (`depthwise`)."""

    name = "depthwise"
    order = CHANNELS

    refusal = staticmethod(depthwise_refusal)

    tilings = staticmethod(depthwise_tilings)

    def estimate(self, contraction: GpuContraction, tiling: PixelTiling | None = None) -> float:
        tiling = tiling or chosen_pixels(contraction)
        waiting = looped_rows(contraction, tiling) * FILTER_ROW / machine().clock
        return max(near_seconds(contraction, loads(contraction, tiling)), waiting)

    def plan(self, contraction: GpuContraction, tiling: PixelTiling | None = None) -> Solution:
        return depthwise_solution(contraction, tiling or chosen_pixels(contraction))


class DepthwisePatches(_Choosing):
    """Depthwise convolutions with images in shared memory (`depthwise_patch`)."""

    name = "depthwise_patch"
    order = CHANNELS

    refusal = staticmethod(rectangle_refusal)

    tilings = staticmethod(rectangle_tilings)

    def estimate(self, contraction: GpuContraction, tiling: RectangleTiling | None = None) -> float:
        return rectangle_seconds(contraction, tiling or chosen_rectangle(contraction))

    def plan(self, contraction: GpuContraction, tiling: RectangleTiling | None = None) -> Solution:
        return rectangle_solution(contraction, tiling or chosen_rectangle(contraction))


class _OfWarpgroups(_Own):
    """Base class of solvers with warpgroup MMA."""

    order = COLUMNS
    parts = False
    tiles: Callable[[GpuContraction], tuple[tuple[float, WarpgroupTile, int], ...]]
    solution: Callable[..., Solution]

    def tilings(self, contraction: GpuContraction) -> list[WarpgroupTiling]:
        return [_warpgroup_tiling(tile, splits) for _, tile, splits in self.tiles(contraction)]

    def chosen(self, contraction: GpuContraction) -> WarpgroupTiling:
        return _warpgroup_tiling(*wgmma_choice(contraction, parts=self.parts))

    def estimate(self, contraction: GpuContraction, tiling: WarpgroupTiling | None = None) -> float:
        return next(seconds for seconds, own in self.weighed(contraction) if tiling in (None, own))

    def weighed(self, contraction: GpuContraction) -> list[tuple[float, WarpgroupTiling]]:
        before, clock = self._before(contraction), machine().clock
        least = BEGINNING + STARTING * multiprocessors()
        return [
            (not_below_memory(contraction, cycles / clock, least) + before, _warpgroup_tiling(tile, splits))
            for cycles, tile, splits in self.tiles(contraction)
        ]

    def _before(self, contraction: GpuContraction) -> float:
        """Return the estimated time (s) of the launches before the product."""
        raise NotImplementedError

    def plan(self, contraction: GpuContraction, tiling: WarpgroupTiling | None = None) -> Solution:
        return self.solution(contraction, tiling, 0 if tiling is None else tiling.splits)


class Warpgroups(_OfWarpgroups):
    """Warpgroup MMA with TMA loads (`wgmma`)."""

    name = "warpgroup"
    refusal = staticmethod(wgmma_refusal)
    tiles = staticmethod(wgmma_tiles)
    solution = staticmethod(wgmma_solution)

    def _before(self, contraction: GpuContraction) -> float:
        return _ordering(ordered_columns(contraction)) if wants_order(contraction.problem) else 0.0


class WarpgroupBf16Split(_OfWarpgroups):
    """Warpgroup MMA for float32 as three bfloat16 products (`wgmma_parts`)."""

    name = "warpgroup_parts"
    parts = True
    refusal = staticmethod(bf16_split_refusal)
    tiles = staticmethod(bf16_split_tiles)
    solution = staticmethod(bf16_split_solution)

    def _before(self, contraction: GpuContraction) -> float:
        return _ordering(ordered_columns(contraction, "bfloat16"))


def _ordering(columns: OrderedColumns) -> float:
    """Return the estimated time (s) of the launch that converts the right operand's layout; 0 without such a launch."""
    return columns.moved and columns.moved / machine().bandwidth + LAUNCH / machine().clock


class _OfRing(_Choosing):
    """Base class of solvers with a shared-memory ring of operand slices."""

    name: str
    order = COLUMNS

    def text(self) -> type[RingText]:
        """Return the class that generates the kernel text."""
        raise NotImplementedError

    def plan(self, contraction: GpuContraction, tiling: Tiling | None = None) -> Solution:
        return ring_solution(self.text()(contraction, *self.tile(contraction, tiling)), self.name)

    def tilings(self, contraction: GpuContraction) -> list[Tiling]:
        slices = slices_of(contraction, self.text().form_of(contraction))
        return [
            Tiling(tile.rows, tile.columns, splits)
            for tile in self.text().tiles
            for splits in SPLITS
            if splits == 1 or slices >= splits * LEAST_SLICES
        ]

    def tile(self, contraction: GpuContraction, tiling: Tiling | None) -> tuple[RingTile, int]:
        """Return the tile and split-K factor of ``tiling``, or the chosen ones if it is None."""
        if tiling is None:
            return self.text().chosen(contraction)
        return next(t for t in self.text().tiles if (t.rows, t.columns) == (tiling.rows, tiling.columns)), tiling.splits

    def work(self, contraction: GpuContraction, tile: RingTile, products: float) -> BlockWork:
        """Return the work of a block for the cost model; ``products`` is the multiprocessor's multiplications/cycle."""
        itemsize = ITEMSIZE[contraction.problem.types.a]
        form = self.text().form_of(contraction)
        slice = form.words * 4 // itemsize
        return BlockWork(tile.rows, tile.columns, slice, form.stages, itemsize, products, shared=SHARED)


class TensorCores(_OfRing):
    """Tensor cores of warps (`tensor`, mma.sync), or AMD matrix cores (`matrix`)."""

    name = "tensor"
    revision = 1

    def text(self) -> type[RingText]:
        """Return the kernel text class for the current architecture."""
        arch = known_architecture()
        if arch is None or arch.nvidia:
            return TensorText
        return Wave32Text if arch.wave == WARP else Wave64Text

    def refusal(self, contraction: GpuContraction) -> str:
        return tensor_refusal(contraction) if self.text() is TensorText else matrix_refusal(contraction)

    def estimate(self, contraction: GpuContraction, tiling: Tiling | None = None) -> float:
        tile, splits = self.tile(contraction, tiling)
        work = self.work(contraction, tile, self._rate(contraction))
        if issubclass(self.text(), TensorText) and isinstance(contraction.problem, GemmProblem):
            work = replace(
                work, arrival=WARP_ARRIVAL, shared=WARP_SHARED, latency=WARP_LATENCY, beginning=WARP_BEGINNING,
                filling=WARP_FILLING,
            )  # fmt: skip
        return tiles_seconds(contraction, work, splits)

    def _rate(self, contraction: GpuContraction) -> float:
        """Return the multiplications/cycle of a multiprocessor: in TF32 half of those in 16 bits, in 8 bits twice."""
        if not issubclass(self.text(), TensorText):
            return declared_tiles(contraction)[0].rate
        times = ITEMSIZE[contraction.problem.types.a] / 2
        if contraction.problem.types.a == "float32" and contraction.precision == "high":
            times *= 3
        return machine().warp_products / times


class NarrowCores(TensorCores):
    """Tensor cores of warps for rows that are no whole vectors (`tensor_narrow`)."""

    name = "tensor_narrow"
    revision = 0
    refusal = staticmethod(narrow_refusal)

    def text(self) -> type[RingText]:
        return NarrowText

    def tilings(self, contraction: GpuContraction) -> list[Tiling]:
        """See `_OfRing.tilings`. The threads of a tile load at least one row of a slice at once, and one load each."""
        loads = 4 * NarrowText.form_of(contraction).words // ITEMSIZE[contraction.problem.types.a]
        least, most = (loads // lanes for lanes in sorted(narrow_lanes(contraction), reverse=True))
        found = [(t, self.tile(contraction, t)[0].threads) for t in super().tilings(contraction)]
        return [t for t, threads in found if most <= threads <= min(t.rows, t.columns) * least]

    def tile(self, contraction: GpuContraction, tiling: Tiling | None) -> tuple[RingTile, int]:
        if tiling is None:
            tiling = min(self.tilings(contraction), key=lambda one: self.estimate(contraction, one))
        return super().tile(contraction, tiling)

    def estimate(self, contraction: GpuContraction, tiling: Tiling | None = None) -> float:
        tile, splits = self.tile(contraction, tiling)
        work = self.work(contraction, tile, self._rate(contraction))
        lines = sum(side / lanes for side, lanes in zip((tile.rows, tile.columns), narrow_lanes(contraction)))
        loading = NARROW_LOAD * lines * work.slice / tile.threads
        together = 256 // tile.threads  # of the registers that loads in flight take
        work = replace(
            work, loading=loading, together=together, beginning=NARROW_BEGINNING, filling=NARROW_FILLING
        )  # fmt: skip
        return tiles_seconds(contraction, work, splits)


class Patches(_OfRing):
    """Convolutions on tensor cores of warps with images in shared memory (`patch`)."""

    name = "patch"
    revision = 1

    refusal = staticmethod(patch_refusal)

    def text(self) -> type[RingText]:
        return PatchText

    def tilings(self, contraction: GpuContraction) -> list[Tiling]:
        able = [tile for tile in PatchText.tiles if patch_seconds(contraction, tile) < float("inf")]
        return [Tiling(tile.rows, tile.columns, 1) for tile in able]

    def tile(self, contraction: GpuContraction, tiling: Tiling | None) -> tuple[RingTile, int]:
        if tiling is None:
            return min(PatchText.tiles, key=lambda tile: patch_seconds(contraction, tile)), 1
        return super().tile(contraction, tiling)

    def estimate(self, contraction: GpuContraction, tiling: Tiling | None = None) -> float:
        return patch_seconds(contraction, self.tile(contraction, tiling)[0])

    def plan(self, contraction: GpuContraction, tiling: Tiling | None = None) -> Solution:
        return patch_solution(contraction, self.tile(contraction, tiling)[0])


class MultiplyAdds(_OfRing):
    """Float32 FMAs with a shared-memory ring (`fma`)."""

    name = "fma"

    def text(self) -> type[RingText]:
        return FmaText

    refusal = staticmethod(fma_refusal)

    def tilings(self, contraction: GpuContraction) -> list[Tiling]:
        return [Tiling(tile.rows, tile.columns, splits) for _, tile, splits in weighed_tiles(contraction)]

    def estimate(self, contraction: GpuContraction, tiling: Tiling | None = None) -> float:
        tile, splits = self.tile(contraction, tiling)
        assert isinstance(tile, FmaTile)
        return fma_seconds(contraction, tile, splits)


class Tiles(_Choosing):
    """Scalar FMAs with shared-memory tiles (`tiled`); applies to every contraction."""

    name = "tiled"
    order = ROWS
    products = 40.0
    """Multiplications/cycle of a multiprocessor, of the 128 of an H200; float64 has half of this rate."""

    def refusal(self, contraction: GpuContraction) -> str:
        """See `GpuSolver.refusal`: applies to everything."""
        return ""

    def tilings(self, contraction: GpuContraction) -> list[SquareTiling]:
        return [SquareTiling(side) for side in tiled.SIDES]

    def estimate(self, contraction: GpuContraction, tiling: SquareTiling | None = None) -> float:
        side = tiling.side if tiling is not None else tiled.chosen_side(contraction)
        itemsize = ITEMSIZE[contraction.problem.types.a]
        products = self.products / (2 if itemsize == 8 else 1)
        extent = Extent.of(contraction.problem)
        loaded = (min(side, extent.rows) + min(side, extent.columns)) * tiled.DEPTH * itemsize
        return tiles_seconds(contraction, BlockWork(
            side, side, tiled.DEPTH, 1, itemsize, products, beginning=SCALAR_BEGINNING,
            loading=LATENCY + loaded / SCALAR_ARRIVALS[itemsize > 2],
            stored=STORED_BY_WIDTH[contraction.lanes(extent.columns, tiled.OWN)],
        ))  # fmt: skip

    def plan(self, contraction: GpuContraction, tiling: SquareTiling | None = None) -> Solution:
        return tiled.tiled_solution(contraction, tiling.side if tiling is not None else 0)


SOLVERS: tuple[AnyGpuSolver, ...] = (
    BlockQuant(),
    BlockQuantMma(),
    Gemv(),
    Depthwise(),
    DepthwisePatches(),
    Warpgroups(),
    WarpgroupBf16Split(),
    TensorCores(),
    NarrowCores(),
    Patches(),
    MultiplyAdds(),
    Tiles(),
)
"""All solvers with kernels of this package; of equal estimates the first one wins."""


def _in_blocks(contraction: GpuContraction) -> bool:
    """Return whether the right operand is block-quantised."""
    problem = contraction.problem
    return isinstance(problem, GemmProblem) and problem.blocks is not None


def _chunked(contraction: GpuContraction) -> bool:
    """Return whether the right operand is stored in the layout of `nbits_cores`."""
    return isinstance(contraction.problem, GemmProblem) and block_quant_mma.chunked(contraction.problem)


def refusal_of(solver: AnyGpuSolver | LibrarySolver, contraction: GpuContraction) -> str:
    """Return the reason why ``solver`` does not apply; "" if it applies.

    Checks what solvers need not check themselves: block-quantised weights need `BlockQuant` or `BlockQuantMma`;
    `GpuContraction.first_channel` needs `Warpgroups`; a gated epilogue needs `BlockQuantMma`, `Gemv` or
    `Warpgroups`.
    """
    if _in_blocks(contraction) and not isinstance(solver, BlockQuant):
        return "its weights are in blocks of a few bits"
    if contraction.first_channel and not isinstance(solver, Warpgroups):
        return "its first tap has fewer channels"
    if contraction.request.epilogue.gated and not isinstance(solver, (BlockQuantMma, Gemv, Warpgroups)):
        return "its epilogue takes two sums"
    return solver.refusal(contraction)


def in_vectors(contraction: GpuContraction) -> bool:
    """Return whether a solver with vector loads of both operands applies."""
    return any(not refusal_of(solver, contraction) for solver in SOLVERS if isinstance(solver, (_OfRing, Warpgroups)))


def _libraries() -> tuple[LibrarySolver, ...]:
    """Return the solvers that call a vendor library."""
    from .library_solvers import LIBRARIES  # late: for who measures, or has a record of what was measured

    return LIBRARIES


class GpuSolvers(SolverSet[GpuContraction, AnyGpuSolver]):
    """See `SolverSet`. Libraries are used only after measurement."""

    def solvers(self, request: GpuContraction) -> tuple[AnyGpuSolver, ...]:
        return SOLVERS

    def refusal(self, solver: AnyGpuSolver, request: GpuContraction) -> str:
        return refusal_of(solver, request)

    def seconds(self, solver: AnyGpuSolver, request: GpuContraction) -> float:
        return solver.estimate(request)

    def candidates(self, request: GpuContraction) -> list[Candidate]:
        """See `SolverSet.candidates`: `own_candidates`, then each library with its heuristic's first algorithm."""
        called = [s for s in _libraries() if not refusal_of(s, request)]
        return [*self.own_candidates(request), *(Candidate(s, s.tilings(request)[0]) for s in called)]

    def estimates(self, request: GpuContraction) -> list[Estimate]:
        called = ((s.name, refusal_of(s, request)) for s in _libraries())
        measured = "taken only where measuring finds it the fastest"
        return [*super().estimates(request), *(Estimate(name, None, reason or measured) for name, reason in called)]

    def refinements(self, request: GpuContraction, winner: Candidate) -> list[Candidate]:
        """See `SolverSet.refinements`: other tilings of the winner's solver, least estimated time first."""
        others = [tiling for tiling in winner.solver.tilings(request) if tiling != winner.blocking]
        others.sort(key=lambda tiling: winner.solver.estimate(request, tiling))
        return [Candidate(winner.solver, tiling) for tiling in others[:MOST_REFINEMENTS]]

    def candidate_of(self, request: GpuContraction, record: TuningRecord) -> Candidate | None:
        called = (s for s in _libraries() if s.name == record.solver and not refusal_of(s, request))
        library: Any = next(called, None)
        if library is None:
            return super().candidate_of(request, record)
        named = self.configured(library, request, record.configuration)
        return named if named is not None and library.builds(request, named.blocking) else None

    def configured(
        self, solver: AnyGpuSolver, request: GpuContraction, configuration: Mapping[str, int]
    ) -> Candidate | None:
        """See `SolverSet.configured`; None for a library's default algorithm, which may differ between versions."""
        if not configuration:
            return Candidate(solver) if solver in SOLVERS else None
        found = (Candidate(solver, tiling) for tiling in solver.tilings(request))
        return next((c for c in found if c.configuration == dict(configuration)), None)


SOLVER_SET = GpuSolvers()
