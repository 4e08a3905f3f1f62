"""The ``gpu`` target: generated kernels on an NVIDIA device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ...codegen.backend import backend
from ...errors import DeviceError
from ...interrupts import whole_module
from ..passes import GPU_PASSES

if TYPE_CHECKING:
    from ...graph.passes import Options
    from ...graph.program import Program
    from ...runtime.limits import Limits
    from ..base import Compiled, Kept, Progress
    from ..options import TargetOptions


class GpuTarget:
    """The ``gpu`` target; see `Target`. Passes, lowering and the driver are loaded at the first compilation."""

    name = "gpu"
    backend = "gpu"
    passes = GPU_PASSES
    tunes = True
    device_options: frozenset[str] = frozenset(("device_id", "float32_matmul_precision", "offload_copy"))

    def compile(self, program: Program, options: TargetOptions, progress: Progress | None = None) -> Compiled:
        """See `Target.compile`.

        Raises:
            DeviceError: there is no device; the message says what is missing.
        """
        whole_module("mgx_numba.targets.gpu.program")
        from .program import compile_program

        return compile_program(program, options, progress)

    def pass_options(self, options: TargetOptions) -> Options:
        whole_module("mgx_numba.targets.gpu.capabilities")
        from .capabilities import pass_options

        return pass_options(options)

    def machine(self, device_id: int = 0) -> Mapping[str, str] | None:
        """Return architecture, versions, the device's model and its kept record; None if there is no device, or if the
        device is interpreted."""
        from ...codegen.gpu.architecture import lowering_on
        from ...codegen.gpu.machine import kept_text
        from ...runtime.gpu.engines import model_of

        try:
            with lowering_on(device_id):
                model = model_of(device_id)
                return {**backend(self.backend).identity(), "model": model, "record": kept_text(model)}
        except DeviceError:
            return None

    def restore(self, kept: Kept, options: TargetOptions, portable: Callable[[], Program]) -> Compiled:
        """See `Target.restore`; kernels are loaded, and constants uploaded, when the program is first run."""
        from ...runtime.gpu.engines import engine
        from .restored import DevicePlans, restored

        def optimized() -> Program:
            whole_module("mgx_numba.targets.gpu.lower")
            from ..lowering.tuples import without_tuples
            from .lower import optimized as passed

            return passed(without_tuples(portable())[0], options)

        device = engine(options.device_id)

        def compiled(known: DevicePlans | None) -> Compiled:
            whole_module("mgx_numba.targets.gpu.program")
            from .program import compile_program

            return compile_program(portable(), options, on=device, known=known)

        return restored(kept, device, options, optimized, compiled)  # type: ignore[no-any-return]

    def limits(self, num_threads: int = 0, units: Collection[str] = ()) -> Limits | None:
        """Return the first device's limits, measured once; ``num_threads`` is ignored. See `Target.limits`."""
        whole_module("mgx_numba.targets.gpu.limits")
        from ...runtime.gpu.engines import engine
        from .limits import device_limits

        return device_limits(0, tuple(sorted(units))) if engine().name else None

    def missing(self) -> str:
        """Return why this process has no device; empty if it has one."""
        from ...runtime.gpu.engines import missing

        return missing()


TARGET = GpuTarget()
