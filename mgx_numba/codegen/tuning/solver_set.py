"""The solvers of a back end's contractions, and the loop that chooses among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from ...errors import UnsupportedError
from .record import TuningRecord
from .request import Candidate, Estimate, TuningRequest

R = TypeVar("R", bound=TuningRequest)


class Named(Protocol):
    """What records name of a solver: its name, and the revision of its kernels."""

    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> int: ...


S = TypeVar("S", bound=Named)


class SolverSet(Generic[R, S]):
    """The solvers of contractions of a back end, whose subclass lists them and gives refusals and costs."""

    def solvers(self, request: R) -> Sequence[S]:
        """Return the solvers for a request, applicable or not; of equal costs the first one wins."""
        raise NotImplementedError

    def refusal(self, solver: S, request: R) -> str | None:
        """Return the reason why a solver does not apply; None or "" if it applies."""
        raise NotImplementedError

    def seconds(self, solver: S, request: R) -> float:
        """Return the estimated time (s) of an applicable solver."""
        raise NotImplementedError

    def cost(self, solver: S, request: R) -> float:
        """Return the number by which solvers are compared, by default `seconds`."""
        return self.seconds(solver, request)

    def configured(self, solver: S, request: R, configuration: Mapping[str, int]) -> Candidate | None:
        """Return an applicable solver with the blocking of a tuning record; None if the solver lacks that blocking."""
        raise NotImplementedError

    def refinements(self, request: R, winner: Candidate) -> list[Candidate]:
        """Return a few other blockings of a candidate's solver that may be faster."""
        raise NotImplementedError

    def own_candidates(self, request: R) -> list[Candidate]:
        """Return all applicable solvers with their default blockings, the cheapest first."""
        able = [s for s in self.solvers(request) if not self.refusal(s, request)]
        return [Candidate(s) for s in (able if len(able) == 1 else sorted(able, key=lambda s: self.cost(s, request)))]

    def candidates(self, request: R) -> list[Candidate]:
        """Return the candidates to measure: `own_candidates`, then solvers that only a measurement may choose."""
        return self.own_candidates(request)

    def choose(self, request: R) -> Candidate:
        """Return the first of `own_candidates`.

        Raises:
            UnsupportedError: no solver applies; the message lists every solver's reason.
        """
        found = self.own_candidates(request)
        if not found:
            raise unsupported(request.problem, ((s.name, self.refusal(s, request)) for s in self.solvers(request)))
        return found[0]

    def estimates(self, request: R) -> list[Estimate]:
        """Return every solver's estimate: applicable ones, least cost first, then the others with their reasons."""
        able = [Estimate(c.solver.name, self.seconds(c.solver, request)) for c in self.own_candidates(request)]
        refused = ((s.name, self.refusal(s, request)) for s in self.solvers(request))
        return [*able, *(Estimate(name, None, reason) for name, reason in refused if reason)]

    def revisions(self, request: R) -> dict[str, int]:
        """Return the nonzero revisions of applicable solvers by name. Records of another revision are outdated."""
        return {s.name: s.revision for s in self.solvers(request) if s.revision and not self.refusal(s, request)}

    def candidate_of(self, request: R, record: TuningRecord) -> Candidate | None:
        """Return the candidate of a tuning record; None if its solver does not exist or does not apply."""
        for solver in self.solvers(request):
            if solver.name == record.solver and not self.refusal(solver, request):
                return self.configured(solver, request, record.configuration)
        return None


def unsupported(problem: object, reasons: Iterable[tuple[str, str | None]]) -> UnsupportedError:
    """Return the error that no solver applies to a problem; ``reasons`` are names of solvers with their refusals."""
    return UnsupportedError(f"no solver for {problem}: {'; '.join(f'{name}: {reason}' for name, reason in reasons)}")
