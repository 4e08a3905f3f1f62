"""Programs of the ``gpu`` target, in two where lengths depend on data: the second is for what the first has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ...codegen.kernel import KernelSource
from ...core.shape import Shape
from ...graph.program import Program
from ...graph.specialize import is_dynamic
from ...runtime.gpu.choice import engine
from ..base import Tree, grouped
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..seam import TwoStages
from ..stages import ProgramStages, split
from .compiled import DeviceCalls, on_host
from .program import GpuProgram, Progress

if TYPE_CHECKING:
    from ..base import Observer

__all__ = ["StagedGpuProgram", "compile_program"]

Inputs = Mapping[str, Any]


def compile_program(
    program: Program, options: TargetOptions, progress: Progress | None = None
) -> GpuProgram | StagedGpuProgram:
    """A program compiled for the device of the options, in stages where its inputs have lengths and others depend on
    data.

    Raises:
        CompileError: a kernel cannot be compiled.
        DeviceError: there is no device, or not enough memory.
    """
    if not is_dynamic(program):
        arrays, trees = without_tuples(program)
        stages = split(arrays)
        if stages is not None:
            return StagedGpuProgram(stages, arrays, trees, options, progress)
    return GpuProgram(program, options, progress)


class StagedGpuProgram(DeviceCalls, TwoStages):
    """See `Compiled`, `OnDevice` and `Planned`. What the first stage hands to the second stays on the device."""

    def __init__(
        self,
        stages: ProgramStages,
        whole: Program,
        trees: list[Tree] | None,
        options: TargetOptions,
        progress: Progress | None,
    ) -> None:
        """``trees`` groups the results of ``whole``, which is shown."""
        self._engine = engine(options.device_id)
        head, tail = (GpuProgram(p, options, progress, self._engine) for p in (stages.head, stages.tail))
        TwoStages.__init__(self, head, tail, stages.seam)
        self._trees, self._options = trees, options
        self.program = whole

    def output_parameters(self) -> dict[str, Shape]:
        """See `OnDevice.output_parameters`: lengths of results may depend on data."""
        return {}

    def entry(self) -> None:
        """See `OnDevice.entry`: lengths have to be known before the second stage."""

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        """None, as `DeviceProgram.direct`."""

    def run_staying(self, inputs: Inputs, stream: int | None, stays: bool) -> list[Any]:
        """See `DeviceCalls.run_staying`."""
        results = self._seam.run(
            inputs,
            lambda given: self._head.run_staying(given, stream, True),
            lambda given: self._tail.run_staying(given, stream, stays),
        )
        return grouped(self._trees, results if stays else [on_host(self._engine, r) for r in results])

    def resolve(self, inputs: Inputs) -> Program:
        """See `Compiled.resolve`: the whole, of which each stage is another program."""
        return self.program

    def observe(self, inputs: Inputs, observer: Observer) -> list[Any]:
        """See `GpuProgram.observe`: the steps of both stages."""
        return grouped(self._trees, self._in_stages(inputs, lambda stage, given: stage.observe(given, observer)))

    def trace(self, inputs: Inputs, level: int, out: TextIO) -> list[Any]:
        """See `Compiled.trace`: the steps of both stages."""
        return grouped(self._trees, self._in_stages(inputs, lambda stage, given: stage.trace(given, level, out)))

    def step_seconds(self, inputs: Inputs) -> list[float]:
        """See `Repeatable.step_seconds`: those of both stages."""
        seconds: list[float] = []

        def timed(stage: GpuProgram, given: Inputs) -> list[Any]:
            seconds.extend(stage.step_seconds(given))
            return stage.run(given)

        self._in_stages(inputs, timed)
        return seconds

    def idle(self, inputs: Inputs) -> None:
        """Nothing, as `GpuProgram.idle`."""

    def kernels(self) -> list[KernelSource]:
        """The distinct kernels of both stages."""
        return list(dict.fromkeys([*self._head.kernels(), *self._tail.kernels()]))

    def machine_code(self) -> dict[str, Any]:
        """See `Compiled.machine_code`: of all kernels that both stages have by now."""
        from ...codegen.embedding import embed  # late: few programs are saved with their code

        return embed(self.kernels(), self._options.store)
