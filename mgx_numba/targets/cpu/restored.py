"""Programs read from files, for the CPU: their plans run; for everything else the program is compiled again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...interrupts import whole_module
from ...runtime.cpu.executor import Executable, executor_kernels
from ...runtime.plan import FallbackStep
from ..base import FastPath, Kept, KeptPlan, KeptSplit, Results
from ..fallback_file import StoredCall
from ..options import TargetOptions
from ..restored import Restored
from .choice import PlanChoice
from .compiled import CpuSymbolicSplit, LoweredProgram, SplitProgram, compile_node

if TYPE_CHECKING:
    from pathlib import Path

    from ...codegen.store import Store
    from ...graph.program import Program
    from ...runtime.library_form import LibraryForm
    from ...runtime.plan_json import LengthsReader
    from ..base import ThreadSpan


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
                step.function.compile = partial(_node, options)
        for kernel, symbol in zip(executor_kernels(kept.plan), kept.symbols):
            kernel.restore_symbol(symbol)  # equal to the computed symbol, as in `PlansReader`
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
) -> object:
    whole_module("mgx_numba.targets.cpu.bodies")
    from .bodies import read_body

    return read_body(module, kind, content, captured, lengths, options, runnable)


def _node(options: TargetOptions, program: Program) -> Callable[[Mapping[str, np.ndarray]], list]:
    whole_module("mgx_numba.targets.cpu.program")
    from .program import compile_program

    return compile_node(lambda given: compile_program(given, options), program)


class RestoredProgram(Restored[LoweredProgram], LoweredProgram):
    """A program read from a file, for the CPU; see `Restored`."""

    def __init__(
        self, kept: LoweredProgram, compile: Callable[[PlanChoice | None], LoweredProgram], store: Store | None
    ) -> None:
        """Create the program; ``store`` is the object store of the kernels (None: the user's), others are as in
        `Restored`."""
        LoweredProgram.__init__(self, kept.executable, kept.trees, kept._optimized, store)
        Restored.__init__(self, kept, compile)

    @property
    def program(self) -> Program:
        """The optimised program, which is compiled anew."""
        return self._whole().program

    def run(self, inputs: Mapping[str, np.ndarray]) -> Results:
        return self._tried(lambda program: program.run(inputs))

    def direct(
        self, result_type: type[np.ndarray], prefer: Callable[[FastPath | None], None] | None = None
    ) -> FastPath | None:
        """Return a fast path that tries the file's plans, then the compiled program; see `LoweredProgram.direct`."""
        first, functions = self._kept.direct(result_type, prefer), dict[LoweredProgram, FastPath | None]()
        if first is None:
            return None
        kept = first

        def for_lengths(inputs: object) -> list[object] | None:
            found, more = kept(inputs), self._more
            if found is not None or more is None:
                return found
            if more not in functions:
                functions[more] = more.direct(result_type, prefer)
            entry = functions[more]
            return None if entry is None else entry(inputs)

        return for_lengths

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._tried(lambda program: program.idle(inputs))

    def timeline(self, inputs: Mapping[str, np.ndarray]) -> tuple[list[object], list[ThreadSpan]]:
        return self._whole().timeline(inputs)

    def export_library(self, folder: Path, name: str, output_names: Any, form: LibraryForm) -> Path:
        return (self._more or self._kept).export_library(folder, name, output_names, form)
