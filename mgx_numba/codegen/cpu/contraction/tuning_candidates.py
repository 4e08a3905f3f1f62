"""Enumerate a contraction's tuning candidates: each solver with its default blocking, then more blockings of the
fastest solver."""

from __future__ import annotations

from collections.abc import Mapping

from ...tuning.record import TuningRecord
from ...tuning.request import Candidate, Estimate, Request
from .blocking import Blocking
from .select import all_solvers, select, weighed_seconds

_BLOCKING = ("rows", "panels", "taps", "depth", "parts")


def choose(request: Request) -> Candidate:
    return Candidate(select(request.problem, request.threads))


def candidates(request: Request) -> list[Candidate]:
    """Return every applicable solver with its own blocking, sorted by `weighed_seconds`: the cost model's choice comes
    first."""
    problem = request.problem
    found = [s for s in all_solvers(problem) if s.refusal(problem) is None]
    return [Candidate(s) for s in sorted(found, key=lambda s: weighed_seconds(s, problem, request.threads))]


def estimates(request: Request) -> list[Estimate]:
    """Return an estimate for every solver: applicable solvers by `weighed_seconds`, then the others with their
    refusals."""
    able = [Estimate(c.solver.name, c.solver.estimate(request.problem, request.threads)) for c in candidates(request)]
    refused = ((s.name, s.refusal(request.problem)) for s in all_solvers(request.problem))
    return [*able, *(Estimate(name, None, reason) for name, reason in refused if reason is not None)]


def revisions(request: Request) -> dict[str, int]:
    problem = request.problem
    return {s.name: s.revision for s in all_solvers(problem) if s.revision and s.refusal(problem) is None}


def candidate_of(request: Request, record: TuningRecord) -> Candidate | None:
    """Return the candidate that ``record`` describes, or None if its solver is missing or not applicable. Blockings are
    adjusted to fit."""
    for solver in all_solvers(request.problem):
        if solver.name == record.solver and solver.refusal(request.problem) is None:
            return Candidate(solver, _blocking(record.configuration))
    return None


def refinements(request: Request, winner: Candidate) -> list[Candidate]:
    """Return further blockings that the winning solver proposes."""
    near = winner.solver.blockings(request.problem, request.threads)
    distinct = dict.fromkeys(b for b in near if b != winner.blocking)
    return [Candidate(winner.solver, b) for b in list(distinct)[: winner.solver.most_blockings]]


def _blocking(configuration: Mapping[str, int]) -> Blocking | None:
    if not configuration:
        return None
    return Blocking(*(max(1, int(configuration.get(name, 1))) for name in _BLOCKING))
