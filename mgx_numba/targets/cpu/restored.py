"""Programs read from files, for the CPU: their plans run; for everything else the program is compiled again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...interrupts import whole_module
from ...runtime.cpu.executor import EXECUTOR_KERNELS, Executable
from ...runtime.plan import FallbackStep
from ..base import FastPath, Growing, Kept, KeptPlan, KeptSplit, OpenPlan, OpenPlanned, Outgrown, Stage
from ..fallback_file import StoredCall
from ..options import TargetOptions
from .choice import PlanChoice
from .compiled import LoweredProgram
from .split_program import CpuSymbolicSplit, SplitProgram

if TYPE_CHECKING:
    from pathlib import Path

    from ...codegen.store import Store
    from ...graph.program import Program
    from ...graph.rewrite_log import RewriteLog
    from ...runtime.plan_json import LengthsReader
    from ..base import Observer, ThreadSpan


def may_outgrow(kept: Kept) -> bool:
    """Return whether a run of a program from a file may raise `Outgrown`."""
    if not isinstance(kept, KeptPlan):
        return True
    return any(isinstance(step, FallbackStep) and (step.plans or step.kernels) for step in kept.plan.steps)


def runnable(kept: Kept, options: TargetOptions, shown: Callable[[], Program]) -> LoweredProgram:
    """Return an executable program; ``shown`` returns the optimised program of a single plan.

    Raises:
        CompileError: a kernel that the store lacks cannot be compiled.
    """
    if isinstance(kept, KeptPlan):
        for step in kept.plan.all_steps():
            if isinstance(step, FallbackStep) and isinstance(step.function, StoredCall):
                step.function.body = partial(_body, options)
        for kernel, symbol in zip(EXECUTOR_KERNELS, kept.symbols):
            kernel.__dict__.setdefault("symbol", symbol)  # equal to the computed symbol, as in `PlansReader`
        executable = Executable(kept.plan, options.num_threads or None, store=options.store)
        return LoweredProgram(executable, kept.trees, shown, options.store)
    if isinstance(kept, KeptSplit):
        kind = CpuSymbolicSplit if kept.given else SplitProgram
        head, tail = (runnable(one, options, shown) for one in (kept.head, kept.tail))
        return kind(head, tail, kept.split_point, kept.trees, shown)
    plans = [runnable(one, options, shown) for one in kept.plans]
    fixed = {key: runnable(one, options, shown) for key, one in kept.fixed}
    return PlanChoice(kept.names, plans, fixed, shown, options.store)


def _body(
    options: TargetOptions, module: Any, kind: str, content: Any, captured: Sequence[Any], lengths: LengthsReader
) -> Any:
    whole_module("mgx_numba.targets.cpu.bodies")
    from .bodies import read_body

    return read_body(module, kind, content, captured, lengths, options, runnable)


class RestoredProgram(LoweredProgram):
    """A program read from a file; compiled again only to show it, or when a run needs a plan that the file lacks."""

    def __init__(
        self, kept: LoweredProgram, compile: Callable[[PlanChoice | None], LoweredProgram], store: Store | None
    ) -> None:
        """Create the program.

        Args:
            kept: runs the plans of the file.
            compile: returns the compiled program. For dynamic inputs its argument has the file's plans, which are used
                instead of a first symbolic plan.
            store: object store of the kernels; None: the user's.
        """
        super().__init__(kept.executable, kept.trees, lambda: self._whole().program, store)
        self._kept = kept
        self._compile = compile
        self._compiled: LoweredProgram | None = None
        self._more: LoweredProgram | None = None
        self._keep: Callable[[LoweredProgram], None] | None = None
        self._lock = threading.RLock()

    def _whole(self) -> LoweredProgram:
        """Return the program compiled anew, which can be shown."""
        with self._lock:
            if self._compiled is None:
                self._compiled = self._compile(None)
            return self._compiled

    def _with_more(self) -> LoweredProgram:
        """Return the program that can make plans that the file lacks."""
        with self._lock:
            if self._more is None:
                kept = self._kept
                self._more = self._compile(kept) if isinstance(kept, PlanChoice) else self._whole()
                self._tell(self._more)
            return self._more

    def keep_growth(self, keep: Callable[[LoweredProgram], None]) -> None:
        self._keep = keep
        if self._more is not None:
            self._tell(self._more)

    def _tell(self, more: LoweredProgram) -> None:
        keep = self._keep
        if keep is not None and isinstance(more, Growing):
            more.keep_growth(lambda _: keep(self))

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        try:
            return (self._more or self._kept).run(inputs)
        except Outgrown:
            pass
        try:
            return self._with_more().run(inputs)
        except Outgrown:  # a submodule has only the file's plans
            whole = self._whole()
        results = whole.run(inputs)
        with self._lock:
            self._more = whole
            self._tell(whole)
            if self._keep is not None:
                self._keep(self)
        return results

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path that tries the file's plans, then the compiled program; see `LoweredProgram.direct`."""
        first, functions = self._kept.direct(result_type, prefer), dict[LoweredProgram, FastPath | None]()
        if first is None:
            return None
        kept = first

        def for_lengths(inputs: Any) -> list[Any] | None:
            found, more = kept(inputs), self._more
            if found is not None or more is None:
                return found
            if more not in functions:
                functions[more] = more.direct(result_type, prefer)
            entry = functions[more]
            return None if entry is None else entry(inputs)

        return for_lengths

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        try:
            (self._more or self._kept).idle(inputs)
        except Outgrown:
            self._with_more().idle(inputs)

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        return self._whole().resolve(inputs)

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[Any]:
        return self._whole().observe(inputs, observer)

    def stages(self, inputs: Mapping[str, np.ndarray]) -> list[Stage]:
        return self._whole().stages(inputs)

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[Any], list[ThreadSpan]]:
        return self._whole().timeline(inputs)

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        return self._whole().trace(inputs, level, out)

    def rewrite_log(self) -> RewriteLog:
        return self._whole().rewrite_log()

    def fallback_reasons(self) -> dict[str, str]:
        return self._kept.fallback_reasons()

    def open_plans(self) -> list[OpenPlan]:
        whole = self._whole()
        return whole.open_plans() if isinstance(whole, OpenPlanned) else []

    def kept_plan(self) -> Kept | None:
        return (self._more or self._kept).kept_plan()

    def export_library(
        self, folder: Path, name: str, output_names: Any, embed_weights: bool, link: bool | None
    ) -> Path:
        return self._kept.export_library(folder, name, output_names, embed_weights, link)

    def _parts(self) -> list[LoweredProgram]:
        made = [one for one in (self._more, self._compiled) if one is not None]
        return [self._kept, *dict.fromkeys(made)]
