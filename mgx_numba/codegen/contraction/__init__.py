"""Contractions: matrix products and convolutions by solvers, one a file, over declared register tiles."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from .conv import ConvDirect, ConvPointwise
from .gemm import GemmInPlace, GemmPacked, GemmPacking
from .problem import ConvProblem, Epilogue, EpilogueOperand, GemmProblem
from .solver import NO_EPILOGUE, Plan, Solver

__all__ = [
    "CONV_SOLVERS",
    "GEMM_SOLVERS",
    "NO_EPILOGUE",
    "ConvProblem",
    "Epilogue",
    "EpilogueOperand",
    "GemmProblem",
    "Plan",
    "Solver",
    "select",
]

GEMM_SOLVERS: tuple[Solver, ...] = (GemmPacked(), GemmInPlace(), GemmPacking())
CONV_SOLVERS: tuple[Solver, ...] = (ConvPointwise(), ConvDirect())


def select(problem: GemmProblem | ConvProblem, threads: int = 1) -> Solver:
    """The applicable solver with the lowest estimated time.

    Raises:
        UnsupportedError: none applies; the message has every solver's reason.
    """
    solvers: tuple[Any, ...] = GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS
    refusals = {solver.name: solver.refusal(problem) for solver in solvers}
    applicable = [solver for solver in solvers if refusals[solver.name] is None]
    if not applicable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UnsupportedError(f"no solver for {problem}: {reasons}")
    return min(applicable, key=lambda solver: solver.estimate(problem, threads))
