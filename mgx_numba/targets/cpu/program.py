"""A program compiled for the ``cpu`` target: its passes run, lowered to a plan, its kernels loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.cpu.toolchain.loader import load
from ...codegen.kernel import KernelSource
from ...errors import MgxError
from ...graph.passes import Options, run_passes
from ...graph.program import Program
from ...graph.specialize import is_dynamic, specialize
from ...runtime.cpu.direct import Entry
from ...runtime.cpu.executor import EXECUTOR_KERNELS, Executable
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..samples import sample_lengths
from .compiled import LoweredProgram, kernels_of
from .lower import lower, lower_and_release
from .passes import PASSES

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["CpuProgram", "optimize"]

ENOUGH = 6
"""Sets of lengths in succession that needed no kernel that others before them had not needed: no more are tried."""

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
        Options(fast_math=options.fast_math),
        disabled=options.disabled_passes,
        trace=trace,
        timings=timings,
        validate=validate,
    )
    optimized.remove_unused_modules()
    return optimized


class CpuProgram(LoweredProgram):
    """A program compiled for the CPU; one with dynamic inputs gets a plan for each set of lengths it meets.

    Its kernels are made when it is compiled, for lengths that stand for the ranges. A plan that is made in a run takes
    no other kernels: it computes in another way, in host steps if need be, what would take them.
    """

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Callable[[int, int, str], None] | None,
        shared: SharedWeights | None = None,
        compiled_only: bool = False,
    ) -> None:
        """``shared`` has the packed weights of the dynamic program that this one is a case of; with ``compiled_only``
        nothing is compiled."""
        self._options = options
        self._source: Program | None = None
        self._specialized: OrderedDict[tuple[tuple[int, ...], ...], CpuProgram] = OrderedDict()
        self._latest: CpuProgram | None = None
        self._lock = threading.Lock()
        self._compiled: dict[KernelSource, KernelSource] = {}
        self._usual: list[np.ndarray] = []
        if is_dynamic(program):
            self._source = source = program.clone()
            self._shared = SharedWeights(source)
            super().__init__(None, None, lambda: source)
            if options.tuning is not None:
                options.tuning.decline("a program with dynamic inputs is not measured; fix its lengths to tune it")
            self._compile_kernels(progress)
            return
        program, trees = without_tuples(program)
        optimized = optimize(program, options)
        if options.tuning is not None and options.tuning.exhaustive:
            lower(optimized, options)  # asks the tuning all its questions
            _tune(options.tuning)
        plan, whole = lower_and_release(optimized, options, program, shared, compiled_only)
        if options.tuning is not None:
            options.tuning.tell()
        shown = (lambda: optimized) if whole else _again(program, options)
        executable = Executable(plan, options.num_threads or None, progress, options.store)
        super().__init__(executable, trees, shown, options.store)

    def _compile_kernels(self, progress: Callable[[int, int, str], None] | None) -> None:
        """Compile what lengths within the ranges can need."""
        assert self._source is not None
        kernels: dict[KernelSource, KernelSource] = {}
        idle = 0
        for lens in sample_lengths(self._source):
            if idle >= ENOUGH:
                break
            try:
                program = without_tuples(specialize(self._source, lens))[0]
                plan = lower_and_release(optimize(program, self._options), self._options, program, self._shared)[0]
            except MgxError:  # lengths that do not fit each other; whoever runs the program on such is told
                continue
            if not kernels:  # their weights stay packed, for the first run's sake
                self._usual = plan.constants
            known = len(kernels)
            kernels = {**kernels_of([plan]), **kernels}
            idle = idle + 1 if len(kernels) == known else 0
        load([*kernels, *EXECUTOR_KERNELS], progress, self._options.store)
        self._compiled = kernels

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
            found = CpuProgram(specialize(self._source, lens), self._options, None, self._shared, True)
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

    def kernels(self) -> list[KernelSource]:
        """See `LoweredProgram.kernels`; those that lengths within the ranges may need, too."""
        return list({**self._compiled, **{kernel: kernel for kernel in super().kernels()}}.values())

    def _all(self) -> list[LoweredProgram]:
        return [self, *list(self._specialized.values())]


def _again(program: Program, options: TargetOptions) -> Callable[[], Program]:
    """What optimises the program as it is now, once more."""
    source = program.clone()
    return lambda: optimize(source, options)


def _tune(tuning: Tuning) -> int:
    from .tuning import tune  # late: a compilation that measures nothing needs none of it

    return tune(tuning)
