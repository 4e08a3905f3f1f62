"""Dispatch between the plans of a program with dynamic inputs: a run takes the plan that serves its lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from .symbolic_split import lens_of

Inputs = Mapping[str, Any]


class _Serving(Protocol):
    def serves(self, inputs: Inputs) -> bool: ...


P = TypeVar("P", bound=_Serving)


class ServingPlans(Generic[P]):
    """The plans of one program with dynamic inputs ``_names``.

    Each symbolic plan in ``_plans`` serves many lengths; the plan of the last run comes first. Each plan in ``_fixed``
    serves one set of lengths; the least recently used comes first.
    """

    _names: list[str]
    _plans: list[P]
    _fixed: OrderedDict[tuple[tuple[int, ...], ...], P]

    def _serving(self, inputs: Inputs) -> P | None:
        """Return the symbolic plan that serves the inputs' lengths, and move it to the front; None if no plan does."""
        for number, plan in enumerate(self._plans):
            if plan.serves(inputs):
                if number:
                    self._first(plan)
                return plan
        return None

    def _first(self, plan: P) -> None:
        """Move a plan to the front of the dispatch order."""
        self._plans = [plan, *(other for other in self._plans if other is not plan)]

    def _fixed_plan(self, inputs: Inputs) -> P | None:
        """Return the plan with fixed lengths for the inputs' lengths; None if there is none."""
        key = tuple([tuple(lens_of(inputs[name])) for name in self._names])
        found = self._fixed.get(key)
        if found is not None:
            self._fixed.move_to_end(key)
        return found

    def _grown(self) -> None:
        """Take note that a run has made one more plan."""

    def _parts(self) -> list[P]:
        return [*self._plans, *self._fixed.values()]
