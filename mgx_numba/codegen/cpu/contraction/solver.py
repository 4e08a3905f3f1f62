"""What all solvers have in common: how one says that it applies, packs weights, and plans its launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from ...launch import Solution
from ...problems.contraction import ConvProblem, Epilogue, GemmProblem
from .blocking import Blocking

__all__ = ["NO_EPILOGUE", "Solver", "Strides", "UnsuitedWeights"]

NO_EPILOGUE = Epilogue()

Strides = Sequence[Sequence[int]]
"""For each epilogue operand its element strides: batch dimensions and row for a product, image and pixel for a
convolution. ``per_n`` and ``scalar`` operands have none (an empty sequence)."""


class UnsuitedWeights(Exception):
    """Weights that a solver cannot store in its form, which only their values tell."""


P = TypeVar("P", ConvProblem, GemmProblem, contravariant=True)


class Solver(Protocol, Generic[P]):
    """One way to compute a contraction. Solvers hold no state; none imports Numba."""

    name: str

    def refusal(self, problem: P) -> str | None:
        """Why this solver does not apply to the problem; None if it does."""

    def packed_lens(self, problem: P) -> tuple[int, ...]:
        """Lens of the packed weights; empty if weights are not packed at compile time."""

    def pack_weights(self, problem: P, weights: np.ndarray) -> np.ndarray:
        """Weights as the operand ``w`` has to hold them. They may have any strides, 0 too.

        Raises:
            UnsuitedWeights: their values do not fit the solver's form.
        """

    def plan(
        self,
        problem: P,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Solution:
        """The launches that compute the problem on ``threads`` threads.

        Missing ``strides`` are those of operands laid out like a contiguous output. ``blocking`` replaces the
        solver's own choice; any is safe, since what a kernel cannot run is made to fit.
        """

    def estimate(self, problem: P, threads: int = 1) -> float:
        """Rough seconds on ``threads`` threads, to compare solvers by."""
