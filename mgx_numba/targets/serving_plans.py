"""Dispatch between the plans of a program with dynamic inputs: a run takes the plan that serves its lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..core.device_array import lens_of
from .base import Growing, Inputs, Kept, KeptChoice, Outgrown
from .symbolic_split import UnservedLengths


class _Serving(Protocol):
    def serves(self, inputs: Inputs) -> bool: ...
    def kept_plan(self) -> Kept | None: ...


P = TypeVar("P", bound=_Serving)
T = TypeVar("T")


class ServingPlans(Generic[P]):
    """The plans of one program with dynamic inputs ``_names``.

    Attributes:
        symbolic_plans: plans that serve many lengths each; the plan of the last run comes first.
        fixed_plans: plans by the one set of lengths that each serves; the least recently used comes first.
    """

    _names: list[str]
    symbolic_plans: list[P]
    fixed_plans: OrderedDict[tuple[tuple[int, ...], ...], P]
    _keep: Callable[[object], None] | None = None
    _kept_count = 0

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        self._keep, self._kept_count = keep, len(self._parts())
        self._follow()

    def _follow(self) -> None:
        """Have growth of the plans themselves kept, too."""
        for part in self._parts():
            if isinstance(part, Growing):
                part.keep_growth(self._part_grown)

    def _part_grown(self, part: object) -> None:
        if self._keep is not None:
            self._keep(self)

    def _grown(self) -> None:
        """Take note of one more plan; call the function given to `keep_growth` when their number has doubled."""
        count = len(self._parts())
        self._follow()
        if self._keep is not None and count >= 2 * self._kept_count:
            self._kept_count = count
            self._keep(self)

    def kept_plan(self) -> Kept | None:
        plans = [plan.kept_plan() for plan in self.symbolic_plans]
        fixed = [(key, plan.kept_plan()) for key, plan in self.fixed_plans.items()]
        if any(kept is None for kept in (*plans, *(kept for _, kept in fixed))):
            return None
        return KeptChoice(tuple(self._names), tuple(plans), tuple(fixed))  # type: ignore[arg-type]

    def _chosen(self, inputs: Inputs, use: Callable[[P], T]) -> T:
        """Return the result of ``use`` for the plan that serves the inputs.

        Raises:
            Outgrown: no plan serves the lengths.
        """
        for plan in [one for one in self.symbolic_plans if one.serves(inputs)]:
            try:
                found = use(plan)
            except UnservedLengths:
                continue
            self._first(plan)
            return found
        fixed = self._fixed_plan(inputs)
        if fixed is None:
            raise Outgrown(f"no plan for {[lens_of(inputs[name]) for name in self._names]}")
        return use(fixed)

    def _serving(self, inputs: Inputs) -> P | None:
        """Return the symbolic plan that serves the inputs' lengths, and move it to the front; None if no plan does."""
        for number, plan in enumerate(self.symbolic_plans):
            if plan.serves(inputs):
                if number:
                    self._first(plan)
                return plan
        return None

    def _first(self, plan: P) -> None:
        """Move a plan to the front of the dispatch order."""
        self.symbolic_plans = [plan, *(other for other in self.symbolic_plans if other is not plan)]

    def _fixed_plan(self, inputs: Inputs) -> P | None:
        """Return the plan with fixed lengths for the inputs' lengths; None if there is none."""
        key = tuple([tuple(lens_of(inputs[name])) for name in self._names])
        found = self.fixed_plans.get(key)
        if found is not None:
            self.fixed_plans.move_to_end(key)
        return found

    def _parts(self) -> list[P]:
        return [*self.symbolic_plans, *self.fixed_plans.values()]
