"""Programs compiled for the ``gpu`` target: passes run, lowered to plans, kernels loaded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...dataclass import dataclass
from ...graph.program import Program
from ...graph.specialize import is_dynamic
from ...runtime.gpu.choice import engine
from ...runtime.gpu.constants import DeviceConstants
from ...runtime.gpu.engine import Engine
from ...runtime.gpu.executor import DeviceExecutable
from ..base import Progress
from ..lowering.shared_weights import SharedWeights
from ..lowering.tuples import without_tuples
from ..options import TargetOptions
from ..stages import split
from .compiled import DeviceProgram
from .dynamic import DynamicGpuProgram
from .lower import lowering, optimized
from .staged import StagedGpuProgram

if TYPE_CHECKING:
    from ...codegen.tuning.session import Tuning

__all__ = ["Common", "GpuProgram", "compile_program"]


@dataclass(frozen=True)
class Common:
    """The constants that plans of the same program have in common: on the host, and on the device."""

    weights: SharedWeights
    constants: DeviceConstants


def compile_program(
    program: Program,
    options: TargetOptions,
    progress: Progress | None = None,
    on: Engine | None = None,
    common: Common | None = None,
) -> DeviceProgram | StagedGpuProgram:
    """Compile a program for a device, in stages where its lengths depend on data.

    Args:
        program: it stays as it is.
        options: what was asked for.
        progress: told of the kernels that are compiled.
        on: what it runs on, by default the device of the options.
        common: what plans have in common that are made of the dynamic program that this one is a case, or a part, of.

    Raises:
        CompileError: a kernel cannot be compiled.
        DeviceError: there is no device, or not enough memory.
    """
    device = on or engine(options.device_id)
    if is_dynamic(program):

        def fixed(
            program: Program, weights: SharedWeights, constants: DeviceConstants
        ) -> DeviceProgram | StagedGpuProgram:
            return compile_program(program, options, None, device, Common(weights, constants))

        return DynamicGpuProgram(program, options, progress, device, fixed)
    arrays, trees = without_tuples(program)
    stages = split(arrays)
    if stages is None:
        return GpuProgram(program, options, progress, device, common)
    made = functools.partial(compile_program, options=options, progress=progress, on=device, common=common)
    return StagedGpuProgram(made(stages.head), made(stages.tail), stages.seam, trees, arrays, device, options)


class GpuProgram(DeviceProgram):
    """A program whose inputs have lengths, compiled for a device."""

    def __init__(
        self,
        program: Program,
        options: TargetOptions,
        progress: Progress | None = None,
        on: Engine | None = None,
        common: Common | None = None,
    ) -> None:
        """Arguments are those of `compile_program`.

        Raises:
            DeviceError: there is no device.
        """
        on = on or engine(options.device_id)
        arrays, trees = without_tuples(program)
        made = optimized(arrays, options)
        super().__init__(on, options, None, trees, lambda: made)
        if options.tuning is not None and options.tuning.exhaustive:
            self._measure(options.tuning)
        later = functools.partial(compile_program, options=options, on=on)
        low = lowering(made, options, later)
        low.shared = None if common is None else common.weights
        self._plan = low.run()
        if options.tuning is not None:
            options.tuning.tell()
        constants = None if common is None else common.constants
        self.executable = DeviceExecutable(self._plan, on, progress, options.store, constants)

    def _measure(self, tuning: Tuning) -> None:
        """Have the contractions measured that the program needs and there is no record of."""
        if not self._engine.name:
            tuning.decline("times of the interpreter say nothing of a device")
            return
        from ..tuning import tune  # late: a compilation that measures nothing needs none of it
        from .measuring import DeviceBench, compile_candidates

        lowering(self.program, self._options).run()  # asks the tuning all its questions
        compile_candidates(self._engine, tuning)
        tune(tuning, functools.partial(DeviceBench, self._engine))
