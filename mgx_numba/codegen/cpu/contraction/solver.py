"""What all solvers have in common: how one says that it applies, packs weights, and plans its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from ....core.dim import known_equal
from ...kernel import KernelSource
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ElementTypes
from ...problems.epilogue import Epilogue
from ...problems.gemm import GemmProblem
from ..microkernels.tile_table import declared_tile
from .blocking import Blocking
from .refinement import near_blockings

__all__ = [
    "NO_EPILOGUE",
    "NO_PARTS",
    "IsCompiled",
    "LoadKernels",
    "Setting",
    "Solver",
    "Strides",
    "UnsuitedWeights",
    "integer_types_refused",
    "stored_types_refused",
]

NO_EPILOGUE = Epilogue()
NO_PARTS = "the left-hand side comes in parts"
"""Why a solver refuses a problem where it does."""

Strides = Sequence[Sequence[int]]
"""For each epilogue operand its element strides: batch dimensions and row for a product, image and pixel for a
convolution. ``per_n`` and ``scalar`` operands have none (an empty sequence)."""


LoadKernels = Callable[[Sequence[KernelSource]], list[int]]
IsCompiled = Callable[[KernelSource], bool]
"""Addresses of kernels: a back end's `load`."""


class Setting(NamedTuple):
    """What launches are planned for besides the problem.

    Missing ``strides`` are those of operands laid out like a contiguous output. ``blocking`` replaces the solver's own
    choice; any is safe, since what a kernel cannot run is made to fit.
    """

    epilogue: Epilogue
    strides: Strides
    threads: int
    blocking: Blocking | None


def integer_types_refused(types: ElementTypes) -> str | None:
    """Why a product of 8-bit integers cannot be computed."""
    if types.a not in ("int8", "uint8") or types.b != "int8":
        return f"the operands are {types.a} and {types.b}"
    if types.out != types.accumulator:
        return f"the sums are {types.accumulator}, and no epilogue makes {types.out} of them"
    return None if declared_tile(types) else f"no tile is declared for {types}"


def stored_types_refused(types: ElementTypes) -> str | None:
    """Why a product of one dtype with a right-hand side that is stored in fewer bits cannot be computed."""
    if not types.a == types.accumulator == types.out:
        return f"the element types differ: {types}"
    tile = declared_tile(types)
    if tile is None or tile.packing.k_interleave > 1:
        return f"no tile is declared for {types}"
    return None


class UnsuitedWeights(Exception):
    """Weights that a solver cannot store in its form, which only their values tell."""


P = TypeVar("P", ConvProblem, GemmProblem, contravariant=True)


class Solver(Protocol, Generic[P]):
    """One way to compute a contraction, and the base of all. Solvers hold no state; none imports Numba.

    Attributes:
        reads_blocks: whether it is for products whose weights are in blocks of few bits, and for no others.
        reads_parts: whether it computes those whose left-hand side comes in parts, too.
        rounds_weights: whether weights lose bits, so that results differ by some 1e-5 of the largest sum, which
            is more of the largest result where these saturate.
        error_variance: mean square of its errors, in that of the direct method's with the same tile.
        looks_at_values: whether it may find weights unsuited when it packs them, so that it has to know them before.
        reads_shuffled: whether it computes convolutions whose input's channels are shuffled, too.
        line_gaps: whether it writes a convolution's result where something lies between the lines
            (`ConvProblem.line_gap`).
        packed_as: what the order of packed weights is called, if not as the solver: those of the same name hold them
            once.
        open_batch: whether it computes convolutions of a symbolic number of images.
        open_lens: whether it computes problems of which any length may be symbolic.
        most_blockings: blockings near its own that tuning measures at most: each costs up to `tuner.ROUNDS` samples.
        revision: raised with each change of its kernels that times depend on, so that what was measured before is a
            hint and is measured again; 0 of the first.
    """

    reads_blocks: ClassVar[bool] = False
    reads_parts: ClassVar[bool] = False
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

    @property
    def name(self) -> str:
        """As tuning records call it."""

    def refusal(self, problem: P) -> str | None:
        """Why this solver does not apply to the problem; None if it does."""
        return self.refused_types(problem) or self._refused_form(problem) or self.declines(problem)

    def _refused_form(self, problem: P) -> str | None:
        if isinstance(problem, ConvProblem) and not known_equal(problem.line_gap, 0) and not self.line_gaps:
            return "lines of the result do not follow each other"
        if isinstance(problem, ConvProblem) and problem.shuffled and not self.reads_shuffled:
            return "the channels of the input are shuffled"
        blocks = problem.blocks if isinstance(problem, GemmProblem) else None
        if problem.low_parts and not self.reads_parts:
            return NO_PARTS
        symbols = self.refused_symbols(problem)
        if symbols is not None:
            return symbols
        if (blocks is not None) == self.reads_blocks:
            return None
        return "the weights are in blocks of few bits" if blocks else "the weights are in no blocks"

    def refused_symbols(self, problem: P) -> str | None:
        """Why a problem with symbolic lengths cannot be planned; None if it can, and if it has none."""
        if not problem.symbolic:
            return None
        if isinstance(problem, ConvProblem) and not problem.symbolic_image:
            return None if self.open_batch else "the number of images is symbolic"
        return None if self.open_lens else "a length is symbolic"

    def refused_types(self, problem: P) -> str | None:
        """Why the element types are none for this solver; by default it has to have one dtype, and a tile for that."""
        if problem.types.uniform is None:
            return f"the element types differ: {problem.types}"
        return None if declared_tile(problem.types) else f"no tile is declared for {problem.types}"

    def declines(self, problem: P) -> str | None:
        """`refusal` for any other reason than the types, which this solver has accepted."""

    def writes_parts(self, problem: P) -> bool:
        """Whether its last launch takes an epilogue that stores the result in parts."""
        return False

    def packed_lens(self, problem: P) -> tuple[int, ...]:
        """Lens of the packed weights; empty if weights are not packed at compile time."""

    def pack_weights(self, problem: P, weights: np.ndarray) -> np.ndarray:
        """Weights as the operand ``w`` has to hold them. They may have any strides, 0 too.

        Raises:
            UnsuitedWeights: their values do not fit the solver's form.
        """

    def pack_by_kernel(
        self, problem: P, weights: np.ndarray, load: LoadKernels, compiled: IsCompiled
    ) -> np.ndarray | None:
        """As `pack_weights`, by machine code; None if there is none for it, or too few weights to load that for.

        Raises:
            UnsuitedWeights: their values do not fit the solver's form.
        """
        return None

    def packing_growth(self, problem: P) -> int:
        """Bytes by which packed weights exceed the weights as most solvers pack them."""
        return 0

    def packing_key(self, problem: P) -> tuple[Any, ...]:
        """What the order of packed weights depends on besides the solver's name and ``packed_lens``.

        By default all that it can depend on; a product's depends on nothing more.
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
        """The launches that compute the problem on ``threads`` threads; the other arguments are those of `Setting`."""
        return self.solve(problem, Setting(epilogue, strides, threads, blocking))

    def solve(self, problem: P, setting: Setting) -> Solution:
        """`plan`, as each solver does it."""

    def estimate(self, problem: P, threads: int = 1) -> float:
        """Rough seconds on ``threads`` threads, to compare solvers by."""

    def blockings(self, problem: P, threads: int) -> list[Blocking]:
        """Blockings that tuning tries besides the solver's own: near it, the most promising first."""
        return near_blockings(problem, threads)
