"""Compile programs with dynamic inputs for a device: symbolic plans, whose numbers follow from the lengths of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.dim import Scope
from ...graph.program import Program
from ...runtime.explicit_lengths import with_explicit_lengths
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine, Queue
from ...runtime.gpu.executor import DeviceExecutable
from ..base import Progress, Tree
from ..dynamic import OpenPlans
from ..lowering.job import LoweringJob
from ..lowering.shared_weights import SharedWeights
from ..options import TargetOptions
from ..split_point import SplitPoint
from .capabilities import pass_options
from .compiled import DeviceProgram, OpenLengthsProgram
from .lower import lowering, optimize
from .restored import DevicePlans
from .split_program import DeviceSymbolicSplit

Inputs = Mapping[str, Any]
Fixed = Callable[[Program, SharedWeights, DeviceConstants], Any]


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
        """Compile a program for all lengths within the ranges of its inputs.

        Args:
            program: the program, which is not changed.
            options: options of the compilation.
            progress: told of the kernels that are compiled.
            on: the engine that runs the program.
            compile_fixed: compiles a program without dynamic inputs for the engine, with shared constants.
            known: the plans that a file had for the program. Nothing is compiled until a run needs another plan.
        """
        DeviceProgram.__init__(self, on, options, None, None, lambda: self._source)
        self._compile_fixed = compile_fixed
        self._constants = DeviceConstants(on)
        self._open(program, options, pass_options(options), progress, known)

    def _lowered(
        self, program: Program, scope: Scope, trees: list[Tree] | None, progress: Progress | None
    ) -> DeviceProgram:
        options, on = self._options, self._engine
        optimize(program, options)
        plan = with_explicit_lengths(lowering(LoweringJob(program, options, scope, self._weights), self._body).run())
        made = DeviceProgram(on, options, plan, trees, lambda: program)
        made.executable = DeviceExecutable(plan, on, progress, options.store, self._constants)
        return made

    def _in_two(self, head: Any, tail: Any, split_point: SplitPoint, trees: list[Tree] | None, whole: Program) -> Any:
        return DeviceSymbolicSplit(head, tail, split_point, trees, lambda: whole, self._engine, self._options)

    def _with_fixed_lengths(self, program: Program) -> Any:
        return self._compile_fixed(program, self._weights, self._constants)

    def _body(self, program: Program) -> Any:
        """Compile a submodule whose lengths are known only when it runs."""
        return self._compile_fixed(program, SharedWeights(program), self._constants)

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[Any]:
        return self._tried(inputs, lambda plan: plan.run_staying(inputs, stream, stays))  # type: ignore[no-any-return]

    def run_on(self, queue: Queue, inputs: Inputs) -> list[Any]:
        return self._tried(inputs, lambda plan: plan.run_on(queue, inputs))  # type: ignore[no-any-return]

    def resolve(self, inputs: Inputs) -> Program:
        return self._for(inputs).resolve(inputs)  # type: ignore[no-any-return]

    def step_seconds(self, inputs: Inputs) -> list[float]:
        return self._tried(inputs, lambda plan: plan.step_seconds(inputs))  # type: ignore[no-any-return]
