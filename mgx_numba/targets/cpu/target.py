"""The ``cpu`` target: generated kernels on the threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...codegen.backend import backend
from ...codegen.cpu import host
from ...codegen.cpu.machine_record import record_for, to_be_measured
from ...interrupts import whole_module
from ...runtime.cpu.threads import default_num_threads, resolve_num_threads

if TYPE_CHECKING:
    from ...graph.passes import Options
    from ...graph.program import Program
    from ...runtime.limits import Limits
    from ..base import Kept, Progress
    from ..options import TargetOptions
    from .choice import PlanChoice
    from .compiled import LoweredProgram


class CpuTarget:
    """The ``cpu`` target; see `Target`. Passes and lowering are imported at the first compilation."""

    name = "cpu"
    backend = "cpu"
    tunes = True
    device_options: frozenset[str] = frozenset(("float32_matmul_precision", "memory"))

    @property
    def passes(self) -> Sequence[str]:
        """See `Target.passes`."""
        from ..passes import PASSES  # late: a cached plan needs no pass

        return PASSES

    def compile(self, program: Program, options: TargetOptions, progress: Progress | None = None) -> LoweredProgram:
        return self._compiled(program, options, progress, None)

    def _compiled(
        self, program: Program, options: TargetOptions, progress: Progress | None, known: PlanChoice | None
    ) -> LoweredProgram:
        whole_module("mgx_numba.targets.cpu.program")
        from .program import compile_program

        if to_be_measured(host.host()):
            from ...runtime.cpu.rates import measure_in_background

            measure_in_background()
        # Resolved once: runs also make plans for fixed lengths, and reading the system's files is slow.
        threads = resolve_num_threads(options.num_threads or None)
        return compile_program(program, replace(options, num_threads=threads), progress, known=known)

    def pass_options(self, options: TargetOptions) -> Options:
        whole_module("mgx_numba.targets.cpu.capabilities")
        from .capabilities import pass_options

        return pass_options(options)

    def machine(self, device_id: int = 0) -> Mapping[str, str]:
        """Return CPU, features, versions, the machine record, and the default number of threads of a run."""
        record = record_for(host.host())
        return {**backend(self.backend).identity(), "threads": str(default_num_threads()), "record": str(record)}

    def restore(self, kept: Kept, options: TargetOptions, portable: Callable[[], Program]) -> LoweredProgram:
        from .restored import RestoredProgram, may_outgrow, runnable

        def optimized() -> Program:
            whole_module("mgx_numba.targets.cpu.program")
            from ..lowering.tuples import without_tuples
            from .program import optimize

            return optimize(without_tuples(portable())[0], options)

        made = runnable(kept, options, optimized)
        if not may_outgrow(kept):
            return made
        return RestoredProgram(made, lambda known: self._compiled(portable(), options, None, known), options.store)

    def limits(self, num_threads: int = 0, units: Collection[str] = ()) -> Limits:
        """Return the limits, measured by our own kernels in a fraction of a second; see `Target.limits`."""
        from ...runtime.cpu.limits import measure_limits

        return measure_limits(num_threads, units)


TARGET = CpuTarget()
