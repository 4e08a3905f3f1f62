"""Programs read from files, for any target with plans: their plans run; for everything else the program is compiled
again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .base import Growing, Inputs, Kept, Observer, OpenPlan, OpenPlanned, Outgrown, Stage
from .serving_plans import ServingPlans

if TYPE_CHECKING:
    from ..graph.program import Program
    from ..graph.rewrite_log import RewriteLog

C = TypeVar("C", bound=Any)
T = TypeVar("T")


class Restored(Generic[C]):
    """A program read from a file; compiled again only to show it, or when a run needs a plan that the file lacks."""

    def __init__(self, kept: C, compile: Callable[[Any], C]) -> None:
        """Create the program.

        Args:
            kept: runs the plans of the file.
            compile: returns the compiled program. For dynamic inputs its argument has the file's plans, which are used
                instead of a first symbolic plan; else it is None.
        """
        self._kept = kept
        self._compile = compile
        self._compiled: C | None = None
        self._more: C | None = None
        self._keep: Callable[[object], None] | None = None
        self._making = threading.RLock()

    def _whole(self) -> C:
        """Return the program compiled anew, which can be shown."""
        with self._making:
            if self._compiled is None:
                self._compiled = self._compile(None)
            return self._compiled

    def _with_more(self) -> C:
        """Return the program that can make plans that the file lacks."""
        with self._making:
            if self._more is None:
                kept = self._kept
                self._more = self._compile(kept) if isinstance(kept, ServingPlans) else self._whole()
                self._tell(self._more)
            return self._more

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        self._keep = keep
        if self._more is not None:
            self._tell(self._more)

    def _tell(self, more: C) -> None:
        keep = self._keep
        if keep is not None and isinstance(more, Growing):
            more.keep_growth(lambda _: keep(self))

    def _tried(self, use: Callable[[C], T]) -> T:
        """Return the result of ``use`` for the file's plans, or else for the program compiled again."""
        try:
            return use(self._kept if self._more is None else self._more)
        except Outgrown:
            pass
        try:
            return use(self._with_more())
        except Outgrown:  # a submodule has only the file's plans
            whole = self._whole()
        results = use(whole)
        with self._making:
            self._more = whole
            self._tell(whole)
            if self._keep is not None:
                self._keep(self)
        return results

    def resolve(self, inputs: Inputs) -> Program:
        return self._whole().resolve(inputs)  # type: ignore[no-any-return]

    def observe(self, inputs: Inputs, observer: Observer) -> list[object]:
        return self._whole().observe(inputs, observer)  # type: ignore[no-any-return]

    def stages(self, inputs: Inputs) -> list[Stage]:
        return self._whole().stages(inputs)  # type: ignore[no-any-return]

    def rewrite_log(self) -> RewriteLog:
        return self._whole().rewrite_log()  # type: ignore[no-any-return]

    def fallback_reasons(self) -> dict[str, str]:
        return self._kept.fallback_reasons()  # type: ignore[no-any-return]

    def open_plans(self) -> list[OpenPlan]:
        whole = self._whole()
        return whole.open_plans() if isinstance(whole, OpenPlanned) else []

    def kept_plan(self) -> Kept | None:
        return (self._kept if self._more is None else self._more).kept_plan()  # type: ignore[no-any-return]

    def _parts(self) -> list[C]:
        made = [one for one in (self._more, self._compiled) if one is not None]
        return [self._kept, *dict.fromkeys(made)]
