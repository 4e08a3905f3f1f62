"""The ways to compute a contraction that tuning tries: solvers as they are, and other blockings of the best one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...problems.convolution import ConvProblem
from ...problems.gemm import GemmProblem
from ...tuning.record import TuningRecord
from ...tuning.request import Candidate, Estimate, Request
from .blocking import Blocking
from .solvers import CONV_SOLVERS, GEMM_SOLVERS

__all__ = ["candidate_of", "estimates", "refinements", "revisions", "solver_candidates"]

_BLOCKING = ("rows", "panels", "taps", "depth", "parts")


def solver_candidates(request: Request) -> list[Candidate]:
    """Every solver that applies, with its own blocking, in order of its estimate: the cost model's choice first."""
    problem = request.problem
    found = [s for s in _solvers(problem) if s.refusal(problem) is None]
    return [Candidate(s) for s in sorted(found, key=lambda s: s.estimate(problem, request.threads))]


def estimates(request: Request) -> list[Estimate]:
    """Every solver: those that apply with their estimates, the quickest first, then the others with their reasons."""
    able = [
        Estimate(c.solver.name, c.solver.estimate(request.problem, request.threads)) for c in solver_candidates(request)
    ]
    refused = ((s.name, s.refusal(request.problem)) for s in _solvers(request.problem))
    return [*able, *(Estimate(name, None, reason) for name, reason in refused if reason is not None)]


def revisions(request: Request) -> dict[str, int]:
    """See `Backend.revisions`."""
    problem = request.problem
    return {s.name: s.revision for s in _solvers(problem) if s.revision and s.refusal(problem) is None}


def candidate_of(request: Request, record: TuningRecord) -> Candidate | None:
    """What a record says, or None if its solver does not exist or does not apply here. Any blocking is made to fit."""
    for solver in _solvers(request.problem):
        if solver.name == record.solver and solver.refusal(request.problem) is None:
            return Candidate(solver, _blocking(record.configuration))
    return None


def refinements(request: Request, winner: Candidate) -> list[Candidate]:
    """Other blockings of a solver, as it proposes them."""
    near = winner.solver.blockings(request.problem, request.threads)
    distinct = dict.fromkeys(b for b in near if b != winner.blocking)
    return [Candidate(winner.solver, b) for b in list(distinct)[: winner.solver.most_blockings]]


def _blocking(configuration: Mapping[str, int]) -> Blocking | None:
    if not configuration:
        return None
    return Blocking(*(max(1, int(configuration.get(name, 1))) for name in _BLOCKING))


def _solvers(problem: GemmProblem | ConvProblem) -> tuple[Any, ...]:
    return GEMM_SOLVERS if isinstance(problem, GemmProblem) else CONV_SOLVERS
