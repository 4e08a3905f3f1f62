"""Programs with dynamic inputs that dispatch each run to the plan that serves its lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import FastPath, Kept, KeptChoice, Outgrown
from ..serving_plans import ServingPlans
from ..symbolic_split import UnservedLengths
from .compiled import LoweredProgram

if TYPE_CHECKING:
    from pathlib import Path

    from ...codegen.store import Store
    from ...graph.program import Program


class PlanChoice(ServingPlans[LoweredProgram], LoweredProgram):
    """A program with dynamic inputs that runs the plans that it has."""

    def __init__(
        self,
        names: Sequence[str],
        plans: Sequence[LoweredProgram],
        fixed: Mapping[tuple[tuple[int, ...], ...], LoweredProgram],
        shown: Callable[[], Program],
        store: Store | None = None,
    ) -> None:
        """Create the program from its plans.

        Args:
            names: names of the dynamic inputs.
            plans: symbolic plans.
            fixed: plans for one set of lengths of the dynamic inputs each, by these lengths.
            shown: returns the source program of the plans.
            store: object store of the kernels; None: the user's.
        """
        super().__init__(None, None, shown, store)
        self._names = list(names)
        self._plans = list(plans)
        self._fixed = OrderedDict(fixed)
        self._keep: Callable[[LoweredProgram], None] | None = None
        self._kept_count = 0

    def keep_growth(self, keep: Callable[[LoweredProgram], None]) -> None:
        self._keep, self._kept_count = keep, len(self._parts())

    def _grown(self) -> None:
        """Take note of one more plan; call the function given to `keep_growth` when their number has doubled."""
        count = len(self._parts())
        if self._keep is not None and count >= 2 * self._kept_count:
            self._kept_count = count
            self._keep(self)

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

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path that tries the plans' fast paths in turn, each of which checks its guards; see
        `LoweredProgram.direct`."""
        preferred: FastPath | None = None

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

    def export_library(
        self, folder: Path, name: str, output_names: Sequence[str], embed_weights: bool, link: bool | None
    ) -> Path:
        """See `LoweredProgram.export_library`: the library serves the lengths that the symbolic plan serves, or those
        of the only plan."""
        plans = self._plans or self._parts()
        if len(plans) != 1:
            return super().export_library(folder, name, output_names, embed_weights, link)
        return plans[0].export_library(folder, name, output_names, embed_weights, link)

    def kept_plan(self) -> Kept | None:
        plans = [plan.kept_plan() for plan in self._plans]
        fixed = [(key, plan.kept_plan()) for key, plan in self._fixed.items()]
        if any(kept is None for kept in (*plans, *(kept for _, kept in fixed))):
            return None
        return KeptChoice(tuple(self._names), tuple(plans), tuple(fixed))  # type: ignore[arg-type]
