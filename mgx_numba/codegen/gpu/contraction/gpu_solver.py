"""`GpuSolver`, the protocol of solvers of contractions on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ...launch import Solution
from .gpu_contraction import GpuContraction
from .weights import WeightOrder

T = TypeVar("T")
"""A solver's tilings."""


class GpuSolver(Protocol[T]):
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

    def refusal(self, contraction: GpuContraction) -> str:
        """Return the reason why the solver does not apply to a contraction; "" if it applies."""

    def tilings(self, contraction: GpuContraction) -> list[T]:
        """Return the tilings (dataclasses of integers) of an applicable contraction."""

    def chosen(self, contraction: GpuContraction) -> T | None:
        """Return the solver's own choice of tiling; None if `plan` chooses it."""

    def estimate(self, contraction: GpuContraction, tiling: T | None = None) -> float:
        """Return the estimated time (s) with ``tiling``, by default with the solver's own choice."""

    def weighed(self, contraction: GpuContraction) -> Sequence[tuple[float, T | None]]:
        """Return (estimated seconds, tiling) of each tiling; the tiling is None if the solver has only one way."""

    def plan(self, contraction: GpuContraction, tiling: T | None = None) -> Solution:
        """Return the launches with ``tiling``, by default with the solver's own choice.

        Raises:
            UnsupportedError: no kernel exists for an operation of the prologue or epilogue.
        """


AnyGpuSolver = GpuSolver[Any]
"""A solver with tilings of any kind."""
