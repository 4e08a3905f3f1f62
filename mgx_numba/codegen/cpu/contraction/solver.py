"""The base of all solvers: applicability, weight packing, the plan of launches, and times estimated from
floating-point operations and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from ....core.dim import known_equal
from ...backend import LoadKernels
from ...kernel import KernelSource
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ElementTypes
from ...problems.epilogue import Epilogue
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import declared_tile
from .blocking import Blocking, nearby_blockings

NO_EPILOGUE = Epilogue()
NO_PARTS = "the left-hand side comes in parts"
"""Refusal of a problem whose left-hand side comes in parts."""

Strides = Sequence[Sequence[int]]
"""Element strides of each epilogue operand: batch dimensions and row for a product, image and pixel for a convolution.
``per_n`` and ``scalar`` operands have none (an empty sequence)."""


IsCompiled = Callable[[KernelSource], bool]
"""Returns whether a kernel is already compiled."""


class Setting(NamedTuple):
    """The inputs of a plan beside the problem.

    Attributes:
        strides: strides of the epilogue operands; if missing, as for a contiguous output.
        blocking: replaces the solver's own choice. Any blocking is safe, since it is adjusted to fit.
    """

    epilogue: Epilogue
    strides: Strides
    threads: int
    blocking: Blocking | None


def integer_types_refused(types: ElementTypes) -> str | None:
    """Return why a product of 8-bit integers of these types cannot be computed; None if it can."""
    if types.a not in ("int8", "uint8") or types.b != "int8":
        return f"the operands are {types.a} and {types.b}"
    if types.out != types.accumulator:
        return f"the sums are {types.accumulator}, and no epilogue makes {types.out} of them"
    return None if declared_tile(types) else f"no tile is declared for {types}"


def stored_types_refused(types: ElementTypes) -> str | None:
    """Return why a product of one dtype with a right-hand side stored in fewer bits cannot be computed; None if it
    can."""
    if not types.a == types.accumulator == types.out:
        return f"the element types differ: {types}"
    tile = declared_tile(types)
    if tile is None or tile.packing.k_interleave > 1:
        return f"no tile is declared for {types}"
    return None


class UnsuitedWeights(Exception):
    """Weights whose values a solver's format cannot represent."""


P = TypeVar("P", ConvProblem, GemmProblem, contravariant=True)


class Solver(Protocol, Generic[P]):
    """One way to compute a contraction, and the base of all. Solvers hold no state; none imports Numba.

    Attributes:
        reads_blocks: whether it serves only products with block-quantised weights.
        reads_bf16_split: whether it also computes problems whose left-hand side comes in parts.
        rounds_weights: whether weights lose bits, so that results differ by some 1e-5 of the largest sum, which is more
            of the largest result where results saturate.
        error_variance: mean square of its errors, relative to the direct method with the same tile.
        looks_at_values: whether packing may find the weights unsuited, so that their values must be known before.
        reads_shuffled: whether it also computes convolutions whose input channels are shuffled.
        line_gaps: whether it can write a convolution's result with gaps between lines (`ConvProblem.line_gap`).
        packed_as: name of the packed weight format, if not the solver's name; solvers with the same name share packed
            weights.
        open_batch: whether it computes convolutions of a symbolic number of images.
        open_lens: whether it computes problems in which any length may be symbolic.
        most_blockings: most blockings near its own that tuning measures: each costs up to `tuner.ROUNDS` samples.
        method: name of its method in `MachineRecord.methods`.
        unrecorded: factor of its estimates where the machine record lacks the method; infinite for methods whose gain
            is small and differs between CPUs, which are then taken only if tuning measures them as faster.
        revision: incremented with each change of its kernels that affects times; older measurements become hints and
            are repeated. 0 at first.
    """

    reads_blocks: ClassVar[bool] = False
    reads_bf16_split: ClassVar[bool] = False
    rounds_weights: ClassVar[bool] = False
    error_variance: ClassVar[float] = 1.0
    looks_at_values: ClassVar[bool] = False
    line_gaps: ClassVar[bool] = False
    packed_as: ClassVar[str] = ""
    open_batch: ClassVar[bool] = False
    open_lens: ClassVar[bool] = False
    most_blockings: ClassVar[int] = 8
    reads_shuffled: ClassVar[bool] = False
    revision: ClassVar[int] = 0
    method: ClassVar[str] = ""
    unrecorded: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """Return the solver's name in tuning records."""

    def refusal(self, problem: P) -> str | None:
        """Return why this solver does not apply to the problem; None if it does."""
        return self.refused_types(problem) or self.refused_lengths(problem)

    def refused_lengths(self, problem: P) -> str | None:
        """Return why the problem is refused for any reason but its types, which this solver has accepted."""
        return self._refused_form(problem) or self.declines(problem)

    def _refused_form(self, problem: P) -> str | None:
        if isinstance(problem, ConvProblem) and not known_equal(problem.line_gap, 0) and not self.line_gaps:
            return "lines of the result do not follow each other"
        if isinstance(problem, ConvProblem) and problem.shuffled and not self.reads_shuffled:
            return "the channels of the input are shuffled"
        blocks = problem.blocks if isinstance(problem, GemmProblem) else None
        if problem.low_parts and not self.reads_bf16_split:
            return NO_PARTS
        symbols = self.refused_symbols(problem)
        if symbols is not None:
            return symbols
        if (blocks is not None) == self.reads_blocks:
            return None
        return "the weights are in blocks of few bits" if blocks else "the weights are in no blocks"

    def refused_symbols(self, problem: P) -> str | None:
        """Return why a problem with symbolic lengths cannot be planned; None if it can, or has no symbolic lengths."""
        if not problem.symbolic:
            return None
        if isinstance(problem, ConvProblem) and not problem.symbolic_image:
            return None if self.open_batch else "the number of images is symbolic"
        return None if self.open_lens else "a length is symbolic"

    def refused_types(self, problem: P) -> str | None:
        """Return why the element types are not supported; by default a problem must have one dtype, and that a tile."""
        if problem.types.uniform is None:
            return f"the element types differ: {problem.types}"
        return None if declared_tile(problem.types) else f"no tile is declared for {problem.types}"

    def declines(self, problem: P) -> str | None:
        """Return why the problem is refused for a reason of this solver's own; its types have been accepted."""

    def writes_bf16_split(self, problem: P) -> bool:
        """Return whether the last launch supports an epilogue that stores the result in parts."""
        return False

    def rewrites(self, problem: P) -> bool:
        """Return whether results are not rounded as sums of plain products: Strassen's and Winograd's methods, operands
        in fewer bits or in parts."""
        return False

    def packed_lens(self, problem: P) -> tuple[int, ...]:
        """Return the lengths of the packed weights; empty if weights are not packed at compile time."""

    def pack_weights(self, problem: P, weights: np.ndarray) -> np.ndarray:
        """Return weights in the format of the operand ``w``. They may have any strides, 0 too.

        Raises:
            UnsuitedWeights: the solver's format cannot represent the values.
        """

    def pack_by_kernel(
        self, problem: P, weights: np.ndarray, load: LoadKernels, compiled: IsCompiled
    ) -> np.ndarray | None:
        """Return the result of `pack_weights`, by machine code; None if there is no kernel, or too few weights to load
        it for.

        Raises:
            UnsuitedWeights: the solver's format cannot represent the values.
        """
        return None

    def packing_growth(self, problem: P) -> int:
        """Return the bytes by which packed weights exceed the packed weights of most solvers."""
        return 0

    def packing_key(self, problem: P) -> tuple[object, ...]:
        """Return the properties that the packed format depends on, besides the solver's name and ``packed_lens``.

        By default every property that it can depend on; for products there are none.
        """
        if isinstance(problem, GemmProblem):
            return ()
        p: ConvProblem = problem
        return (p.groups, p.transposed, p.stride, p.dilation, p.pads_begin, p.phases, p.shuffled)

    def plan(
        self,
        problem: P,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Solution:
        """Return the launches that compute the problem on ``threads`` threads; see `Setting` for the remaining
        arguments."""
        return self.solve(problem, Setting(epilogue, strides, threads, blocking))

    def solve(self, problem: P, setting: Setting) -> Solution:
        """Return the launches; the solver's implementation of `plan`."""

    def estimate(self, problem: P, threads: int = 1) -> float:
        """Return the estimated time (s) on ``threads`` threads, to compare solvers."""

    def blockings(self, problem: P, threads: int) -> list[Blocking]:
        """Return the blockings that tuning tries beside the solver's own: near it, the most promising first."""
        return nearby_blockings(problem, threads)


AnySolver = Solver[Any]
"""A solver of products or one of convolutions; whoever asks it about a problem found it in the list for that kind."""


EFFICIENCY = 0.9
"""Fraction of peak arithmetic throughput that is assumed for all solvers, to weigh arithmetic against memory.
`bench.choices` measures what the estimates' constants lose."""


def peak_flops(tile: RegisterTile) -> float:
    """Return the peak operations per second of one thread that runs the tile."""
    return _cycle_flops(tile) * machine().clock


def _cycle_flops(tile: RegisterTile) -> float:
    return 2.0 * tile.lanes * tile.packing.k_interleave / tile.cycles


def seconds(tile: RegisterTile, flops: float, moved: float, threads: int) -> float:
    """Return the time (s) of arithmetic, spread evenly over threads, overlapped with memory traffic, whose bandwidth
    threads share."""
    here = machine()
    peak = _cycle_flops(tile) * here.clock
    return max(flops / (EFFICIENCY * peak * max(threads, 1)), moved / here.bandwidth(threads))
