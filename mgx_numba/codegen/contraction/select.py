"""Choosing a solver: the one with the lowest estimate among those that apply."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from . import CONV_SOLVERS, GEMM_SOLVERS
from .problem import ConvProblem, GemmProblem

__all__ = ["select"]


def select(problem: GemmProblem | ConvProblem, threads: int = 1) -> Any:
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
