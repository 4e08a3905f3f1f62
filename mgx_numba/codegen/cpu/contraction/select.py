"""Choosing a solver: the one with the lowest estimate among those that apply."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ....errors import UnsupportedError
from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from .solvers import CONV_SOLVERS, GEMM_SOLVERS

__all__ = ["select"]

SECONDS_PER_BYTE = 3e-12
"""Time that a byte of growth has to save."""


def select(
    problem: GemmProblem | ConvProblem, threads: int = 1, room: int | None = None, unsuited: Collection[str] = ()
) -> Any:
    """The applicable solver with the lowest estimated time, where weights that grow count as time too.

    Args:
        problem: what is to be computed.
        threads: threads that will share the work.
        room: bytes by which transformed weights may exceed the weights; any number if ``None``.
        unsuited: names of solvers whose form the values of the weights do not fit.

    Raises:
        UnsupportedError: none applies; the message has every solver's reason.
    """
    solvers: tuple[Any, ...] = GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS
    refusals = [solver.refusal(problem) for solver in solvers]
    for k, solver in enumerate(solvers):
        if refusals[k] is None and room is not None and solver.packing_growth(problem) > room:
            refusals[k] = f"its weights would grow by more than {room} bytes"
        if unsuited and solver.name in unsuited:
            refusals[k] = "the values of the weights do not fit its form"
    applicable = [solver for solver, refusal in zip(solvers, refusals, strict=True) if refusal is None]
    if not applicable:
        reasons = "; ".join(f"{solver.name}: {reason}" for solver, reason in zip(solvers, refusals, strict=True))
        raise UnsupportedError(f"no solver for {problem}: {reasons}")

    def cost(solver: Any) -> float:
        seconds: float = solver.estimate(problem, threads)
        return seconds + SECONDS_PER_BYTE * solver.packing_growth(problem)

    return min(applicable, key=cost)
