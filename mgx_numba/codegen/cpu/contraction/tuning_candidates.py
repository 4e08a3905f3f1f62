"""The CPU's solvers as tuning sees them: each with its default blocking, then more blockings of the fastest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...tuning.request import Candidate, Request
from ...tuning.solver_set import SolverSet
from .blocking import Blocking
from .solver import AnySolver
from .solvers import select, solvers_of, weighed_seconds

_BLOCKING = ("rows", "panels", "taps", "depth", "parts")


class CpuSolvers(SolverSet[Request, AnySolver]):
    """See `SolverSet`."""

    def solvers(self, request: Request) -> Sequence[AnySolver]:
        return solvers_of(request.problem)

    def refusal(self, solver: AnySolver, request: Request) -> str | None:
        return solver.refusal(request.problem)

    def seconds(self, solver: AnySolver, request: Request) -> float:
        return solver.estimate(request.problem, request.threads)

    def cost(self, solver: AnySolver, request: Request) -> float:
        return weighed_seconds(solver, request.problem, request.threads)

    def choose(self, request: Request) -> Candidate:
        """See `SolverSet.choose`; the cost includes the memory of packed weights."""
        return Candidate(select(request.problem, request.threads))

    def configured(self, solver: AnySolver, request: Request, configuration: Mapping[str, int]) -> Candidate:
        """See `SolverSet.configured`. Blockings are adjusted to fit."""
        numbers = (max(1, int(configuration.get(name, 1))) for name in _BLOCKING)
        return Candidate(solver, Blocking(*numbers) if configuration else None)

    def refinements(self, request: Request, winner: Candidate) -> list[Candidate]:
        near = winner.solver.blockings(request.problem, request.threads)
        distinct = dict.fromkeys(b for b in near if b != winner.blocking)
        return [Candidate(winner.solver, b) for b in list(distinct)[: winner.solver.most_blockings]]


SOLVERS = CpuSolvers()
