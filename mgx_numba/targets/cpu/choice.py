"""Programs with dynamic inputs that dispatch each run to the plan that serves its lengths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..base import FastPath, Results, Tree
from ..serving_plans import ServingPlans
from .compiled import LoweredProgram

if TYPE_CHECKING:
    from ...codegen.store import Store
    from ...graph.program import Program
    from ...runtime.cpu.library.nodes import Node


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
        self.symbolic_plans = list(plans)
        self.fixed_plans = OrderedDict(fixed)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Results:
        """See `LoweredProgram.run`.

        Raises:
            Outgrown: no plan serves the lengths.
        """
        return self._chosen(inputs, lambda plan: plan.run(inputs))

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        return self._chosen(inputs, lambda plan: plan)

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path that tries the plans' fast paths in turn, each of which checks its guards; see
        `LoweredProgram.direct`."""
        preferred: FastPath | None = None
        for plan in self.symbolic_plans:
            plan.direct(result_type)  # made here, not by the first run

        def for_lengths(inputs: object) -> list[object] | None:
            nonlocal preferred
            for number, plan in enumerate(self.symbolic_plans):
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

    def result_trees(self) -> list[Tree] | None:
        parts = self._parts()
        return parts[0].result_trees() if parts else None

    def library_node(self) -> Node:
        """See `LoweredProgram.library_node`: the library serves the lengths that the plans made so far serve."""
        from ...runtime.cpu.library.nodes import ChoiceNode

        members = [plan.library_node() for plan in self._parts()]
        if len(members) < 2:
            return members[0] if members else super().library_node()
        return ChoiceNode(tuple(members))
