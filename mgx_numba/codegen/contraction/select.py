"""Choosing a solver: the one with the lowest estimate among those that apply."""

from __future__ import annotations

import math
from typing import Any

from ...errors import UnsupportedError
from . import CONV_SOLVERS, GEMM_SOLVERS
from .problem import ConvProblem, GemmProblem

__all__ = ["packing_growth", "select"]

TRANSFORMED = 1.5
"""Packed weights that grow by more than this factor are transformed ones; less is padding."""


def packing_growth(solver: Any, problem: GemmProblem | ConvProblem) -> int:
    """Bytes by which a solver's transformed weights exceed the weights themselves; 0 for weights only reordered."""
    if not isinstance(problem, ConvProblem):
        return 0
    own = math.prod(problem.weight_lens)
    packed = math.prod(solver.packed_lens(problem))
    return (packed - own) * problem.itemsize if packed > TRANSFORMED * own else 0


def select(problem: GemmProblem | ConvProblem, threads: int = 1, room: int | None = None) -> Any:
    """The applicable solver with the lowest estimated time.

    Args:
        problem: what is to be computed.
        threads: threads that will share the work.
        room: bytes by which transformed weights may exceed the weights; any number if ``None``.

    Raises:
        UnsupportedError: none applies; the message has every solver's reason.
    """
    solvers: tuple[Any, ...] = GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS
    refusals = {solver.name: solver.refusal(problem) for solver in solvers}
    for solver in solvers:
        if refusals[solver.name] is None and room is not None and packing_growth(solver, problem) > room:
            refusals[solver.name] = f"its weights would grow by more than {room} bytes"
    applicable = [solver for solver in solvers if refusals[solver.name] is None]
    if not applicable:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UnsupportedError(f"no solver for {problem}: {reasons}")
    return min(applicable, key=lambda solver: solver.estimate(problem, threads))
