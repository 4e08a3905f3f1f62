"""A program compiled for the ``cpu`` target: its passes run, lowered to a plan, its kernels loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.passes import run_passes
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...graph.specialize import is_dynamic, specialize
from ...runtime.cpu.direct import Entry
from ...runtime.cpu.executor import Executable
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from .capabilities import pass_options
from .compiled import LoweredProgram
from .lower import lower, lower_and_release
from .passes import PASSES

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["CpuProgram", "optimize"]

MOST_PLANS = 32
"""Plans that a program with dynamic inputs keeps; the least recently used goes when another set of lengths comes."""


def optimize(
    program: Program,
    options: TargetOptions,
    trace: Callable[[str, Program], None] | None = None,
    timings: MutableMapping[str, float] | None = None,
    validate: bool = False,
) -> Program:
    """A copy of ``program`` after the target's passes."""
    optimized = program.clone()
    run_passes(
        optimized,
        PASSES,
        pass_options(options),
        disabled=options.disabled_passes,
        trace=trace,
        timings=timings,
        validate=validate,
    )
    optimized.remove_unused_modules()
    return optimized


class CpuProgram(LoweredProgram):
    """A program compiled for the CPU; one with dynamic inputs gets a plan for each set of lengths it meets."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        shared: SharedWeights | None = None,
    ) -> None:
        """``shared`` has the packed weights of the dynamic program that this one is a case of."""
        self._options = options
        self._source: Program | None = None
        self._specialized: OrderedDict[tuple[tuple[int, ...], ...], CpuProgram] = OrderedDict()
        self._latest: CpuProgram | None = None
        self._lock = threading.Lock()
        self._log = RewriteLog()
        if is_dynamic(program):
            self._source = source = program.clone()
            self._shared = SharedWeights(source)
            super().__init__(None, None, lambda: source)
            if options.tuning is not None:
                options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
            return
        program, trees = without_tuples(program)
        optimized = optimize(program, options)
        self._log = optimized.log
        if options.tuning is not None and options.tuning.exhaustive:
            lower(optimized, options)  # asks the tuning all its questions
            _tune(options.tuning)
        plan, whole = lower_and_release(optimized, options, program, shared)
        if options.tuning is not None:
            options.tuning.tell()
        shown = (lambda: optimized) if whole else _again(program, options)
        executable = Executable(plan, options.num_threads or None, progress, options.store)
        super().__init__(executable, trees, shown, options.store)

    def _for(self, inputs: Mapping[str, np.ndarray]) -> LoweredProgram:
        if self._source is None:
            return self
        key = tuple(inputs[name].shape for name in self._source.parameter_shapes())
        with self._lock:
            found = self._specialized.get(key)
            if found is not None:
                self._specialized.move_to_end(key)
        if found is None:
            lens = {name: array.shape for name, array in inputs.items()}
            found = CpuProgram(specialize(self._source, lens), self._options, None, self._shared)
            with self._lock:
                while len(self._specialized) >= MOST_PLANS:
                    self._specialized.popitem(last=False)
                self._specialized[key] = found
        self._latest = found
        return found

    def direct(self, result_type: type[np.ndarray]) -> Entry | None:
        """As `LoweredProgram.direct`; with dynamic inputs, for the lengths that were run last the general way."""
        if self._source is None:
            return super().direct(result_type)

        def latest(inputs: Any) -> list[Any] | None:
            program = self._latest
            entry = None if program is None else program.direct(result_type)
            return None if entry is None else entry(inputs)

        return latest

    def rewrite_log(self) -> RewriteLog:
        """See `Compiled.rewrite_log`; with dynamic inputs, that of all sets of lengths so far."""
        if self._source is None:
            return self._log
        log = RewriteLog()
        for program in list(self._specialized.values()):
            log.include(program.rewrite_log())
        return log

    def _all(self) -> list[LoweredProgram]:
        return [self, *list(self._specialized.values())]


def _again(program: Program, options: TargetOptions) -> Callable[[], Program]:
    """What optimises the program as it is now, once more."""
    source = program.clone()
    return lambda: optimize(source, options)


def _tune(tuning: Tuning) -> int:
    from .tuning import tune  # late: a compilation that measures nothing needs none of it

    return tune(tuning)
