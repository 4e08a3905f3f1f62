"""Programs with dynamic inputs as plans, of which a run takes the one that serves its lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import Direct, Kept, KeptChoice, Outgrown
from .compiled import LoweredProgram
from .staged import UnservedLengths

if TYPE_CHECKING:
    from ...codegen.store import Store
    from ...graph.program import Program

__all__ = ["PlanChoice"]


class PlanChoice(LoweredProgram):
    """A program with dynamic inputs, of the plans that it has."""

    def __init__(
        self,
        names: Sequence[str],
        plans: Sequence[LoweredProgram],
        fixed: Mapping[tuple[tuple[int, ...], ...], LoweredProgram],
        shown: Callable[[], Program],
        store: Store | None = None,
    ) -> None:
        """Take the plans.

        Args:
            names: of the dynamic inputs.
            plans: each for many lengths.
            fixed: each for one set of lengths of these inputs.
            shown: gives the program that they are made of.
            store: where kernels come from, by default the user's.
        """
        super().__init__(None, None, shown, store)
        self._names = list(names)
        self._plans = list(plans)
        self._fixed = OrderedDict(fixed)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """See `LoweredProgram.run`.

        Raises:
            Outgrown: no plan serves the lengths.
        """
        plan = self._serving(inputs)
        if plan is not None:
            try:
                return plan.run(inputs)
            except UnservedLengths:
                pass
        return self._kept_for(inputs, self._fixed_plan(inputs)).run(inputs)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        return self._kept_for(inputs, self._serving(inputs) or self._fixed_plan(inputs))

    def _kept_for(self, inputs: Mapping[str, np.ndarray], found: LoweredProgram | None) -> LoweredProgram:
        if found is None:
            raise Outgrown(f"no plan for {[inputs[name].shape for name in self._names]}")
        return found

    def _serving(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram | None:
        for number, plan in enumerate(self._plans):
            if plan.serves(inputs):
                if number:
                    self._first(plan)
                return plan
        return None

    def _first(self, plan: LoweredProgram) -> None:
        """Have a plan asked first."""
        self._plans = [plan, *(other for other in self._plans if other is not plan)]

    def _fixed_plan(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram | None:
        """Return the plan that is for the inputs' lengths alone."""
        key = tuple([tuple(inputs[name].shape) for name in self._names])
        found = self._fixed.get(key)
        if found is not None:
            self._fixed.move_to_end(key)
        return found

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[Direct | None], None] | None = None
    ) -> Direct | None:
        """As `LoweredProgram.direct`: the plans' own functions in turn, each of which looks whether it serves."""
        preferred: Direct | None = None

        def for_lengths(inputs: Any) -> list[Any] | None:
            nonlocal preferred
            for number, plan in enumerate(self._plans):
                entry = plan.direct(result_type)
                found = None if entry is None else entry(inputs)
                if found is None:
                    continue
                if number:
                    self._first(plan)
                if prefer is not None and preferred is not entry:
                    preferred = entry
                    prefer(entry)
                return found
            return None

        return for_lengths

    def kept_plan(self) -> Kept | None:
        """See `LoweredProgram.kept_plan`."""
        plans = [plan.kept_plan() for plan in self._plans]
        fixed = [(key, plan.kept_plan()) for key, plan in self._fixed.items()]
        if any(kept is None for kept in (*plans, *(kept for _, kept in fixed))):
            return None
        return KeptChoice(tuple(self._names), tuple(plans), tuple(fixed))  # type: ignore[arg-type]

    def _parts(self) -> list[LoweredProgram]:
        return [*self._plans, *self._fixed.values()]
