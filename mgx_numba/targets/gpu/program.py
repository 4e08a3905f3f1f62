"""Compile programs for the ``gpu`` target: run passes, lower to plans, load kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...codegen.gpu.architecture import lowering_on
from ...core.dim import Scope
from ...dataclass import dataclass
from ...graph.program import Program
from ...graph.specialize import is_dynamic
from ...runtime.explicit_lengths import with_explicit_lengths
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine, Queue
from ...runtime.gpu.engines import engine
from ...runtime.gpu.executor import DeviceExecutable
from ...runtime.gpu.held_call import HeldCall
from ..base import Inputs, Progress, Tree
from ..data_dependent_split import split
from ..dynamic import OpenPlans, source_of
from ..lowering.job import LoweringJob
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..split_point import SplitPoint
from .capabilities import pass_options
from .compiled import DeviceProgram, DeviceSymbolicSplit, OpenLengthsProgram, SplitGpuProgram
from .lower import lowering, optimize, optimized
from .restored import DevicePlans

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning


Fixed = Callable[[Program, SharedWeights, DeviceConstants], object]


class DynamicGpuProgram(OpenPlans[Any], OpenLengthsProgram):
    """A program with dynamic inputs, compiled for a device; see `OpenPlans`."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Progress | None,
        on: Engine,
        compile_fixed: Fixed,
        known: DevicePlans | None = None,
    ) -> None:
        """Compile a program for the engine `on`, see `OpenPlans.open`; ``compile_fixed`` compiles a program without
        dynamic inputs, with shared constants."""
        source = source_of(program, options, pass_options(options))
        DeviceProgram.__init__(self, on, options, None, None, lambda: source)
        self._compile_fixed = compile_fixed
        self._constants = DeviceConstants(on)
        self.open(source, options, progress, known)

    def _lowered(
        self,
        program: Program,
        scope: Scope,
        trees: list[Tree] | None,
        progress: Progress | None,
        later: Program | None = None,
    ) -> DeviceProgram:
        options, on = self._options, self._engine
        optimize(program, options)
        plan = lowering(LoweringJob(program, options, scope, self._weights), self._body).run()
        plan = with_explicit_lengths(plan, self._used_lengths(program, later))
        made = DeviceProgram(on, options, plan, trees, lambda: program)
        made.executable = DeviceExecutable(plan, on, progress, options.store, self._constants)
        return made

    def _in_two(
        self, head: object, tail: object, split_point: SplitPoint, trees: list[Tree] | None, whole: Program
    ) -> object:
        return DeviceSymbolicSplit(head, tail, split_point, trees, lambda: whole, self._engine, self._options)

    def _with_fixed_lengths(self, program: Program) -> object:
        return self._compile_fixed(program, self._weights, self._constants)

    def _body(self, program: Program) -> object:
        """Compile a submodule whose lengths are known only when it runs."""
        return self._compile_fixed(program, SharedWeights(program), self._constants)

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[object]:
        return self._tried(inputs, lambda plan: plan.run_staying(inputs, stream, stays))  # type: ignore[no-any-return]

    def held(self, inputs: Inputs) -> HeldCall | None:
        return self._tried(inputs, lambda plan: plan.held(inputs))  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Inputs) -> list[object]:
        return self._tried(inputs, lambda plan: plan.run_on(queue, inputs))  # type: ignore[no-any-return]

    def resolve(self, inputs: Inputs) -> Program:
        return self._for(inputs).resolve(inputs)  # type: ignore[no-any-return]

    def step_seconds(self, inputs: Inputs) -> list[float]:
        return self._tried(inputs, lambda plan: plan.step_seconds(inputs))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Common:
    """Constants that all plans of a program share, on the host and on the device."""

    weights: SharedWeights
    constants: DeviceConstants


def compile_program(
    program: Program,
    options: TargetOptions,
    progress: Progress | None = None,
    on: Engine | None = None,
    common: Common | None = None,
    known: DevicePlans | None = None,
) -> DeviceProgram | SplitGpuProgram:
    """Compile a program for a device, in stages where its lengths depend on data.

    Args:
        program: the program, which is not changed.
        options: options of the compilation.
        progress: told of the kernels that are compiled.
        on: the engine that runs it; None: the device of the options.
        common: constants shared by all plans of the dynamic program to which ``program`` belongs.
        known: the plans that a file had for a program with dynamic inputs.

    Raises:
        CompileError: a kernel cannot be compiled.
        DeviceError: there is no device, or not enough memory.
    """
    device = on or engine(options.device_id)
    with lowering_on(device.number):
        if is_dynamic(program):

            def fixed(program: Program, weights: SharedWeights, constants: DeviceConstants) -> object:
                return compile_program(program, options, None, device, Common(weights, constants))

            return DynamicGpuProgram(program, options, progress, device, fixed, known)
        arrays, trees = without_tuples(program)
        stages = split(arrays)
        if stages is None:
            return GpuProgram(program, options, progress, device, common)
        made = functools.partial(compile_program, options=options, progress=progress, on=device, common=common)
        head, tail = made(stages.head), made(stages.tail)
        return SplitGpuProgram(head, tail, stages.split_point, trees, lambda: arrays, device, options)


class GpuProgram(DeviceProgram):
    """A program without dynamic inputs, compiled for a device."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Progress | None = None,
        on: Engine | None = None,
        common: Common | None = None,
    ) -> None:
        """Compile a program; arguments as in `compile_program`.

        Raises:
            DeviceError: there is no device.
        """
        on = on or engine(options.device_id)
        arrays, trees = without_tuples(program)
        made = optimized(arrays, options)
        super().__init__(on, options, None, trees, lambda: made)
        if options.tuning is not None and options.tuning.exhaustive:
            self._measure(options.tuning)
        compile_body = functools.partial(compile_program, options=options, on=on)
        weights = None if common is None else common.weights
        self._plan = lowering(LoweringJob(made, options, weights=weights), compile_body).run()
        if options.tuning is not None:
            options.tuning.tell()
        constants = None if common is None else common.constants
        self.executable = DeviceExecutable(self._plan, on, progress, options.store, constants)

    def _measure(self, tuning: Tuning) -> None:
        """Measure the program's contractions that have no tuning record."""
        if not self._engine.name:
            tuning.decline("the engine that stands in for a device measures no times")
            return
        from ..tuning import tune  # late: only needed for tuning
        from .measuring import DeviceBench, compile_candidates

        lowering(LoweringJob(self.program, self._options)).run()  # makes all requests to tuning
        compile_candidates(self._engine, tuning)
        tune(tuning, functools.partial(DeviceBench, self._engine))
