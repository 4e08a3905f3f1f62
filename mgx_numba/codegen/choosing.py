"""The methods of a back end that choose solvers of contractions, by functions of its own module of solvers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tuning.record import TuningRecord
    from .tuning.request import Candidate, Estimate, TuningRequest


class ChoosesSolvers(ABC):
    """A back end whose solvers are in one module. The module is imported at the first question: a process that only
    loads kernels needs none.
    """

    @abstractmethod
    def _solvers(self) -> Any:
        """Return the module, whose functions have the names of the methods below."""

    def choose(self, request: TuningRequest) -> Candidate:
        return self._solvers().choose(request)  # type: ignore[no-any-return]

    def revisions(self, request: TuningRequest) -> Mapping[str, int]:
        return self._solvers().revisions(request)  # type: ignore[no-any-return]

    def estimates(self, request: TuningRequest) -> list[Estimate]:
        return self._solvers().estimates(request)  # type: ignore[no-any-return]

    def candidates(self, request: TuningRequest) -> list[Candidate]:
        return self._solvers().candidates(request)  # type: ignore[no-any-return]

    def refinements(self, request: TuningRequest, winner: Candidate) -> list[Candidate]:
        return self._solvers().refinements(request, winner)  # type: ignore[no-any-return]

    def candidate_of(self, request: TuningRequest, record: TuningRecord) -> Candidate | None:
        return self._solvers().candidate_of(request, record)  # type: ignore[no-any-return]
