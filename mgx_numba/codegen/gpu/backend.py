"""The GPU back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..backend import Progress
from ..kernel import KernelSource
from ..store import Store
from .architecture import ENVIRONMENT
from .driver.device import selected_architecture
from .identity import environment_identity
from .kernel import NAME

if TYPE_CHECKING:
    from ..launch import Solution
    from ..tuning.record import DeviceFingerprint
    from .contraction.solvers import GpuSolvers


class GpuBackend:
    """Back end for the GPU in use, see `Backend`.

    Without a device, ``MGX_GPU_ARCH`` names the architecture to compile for; kernels cannot be loaded then.
    """

    name = NAME

    def identity(self) -> Mapping[str, str]:
        return environment_identity()

    def architecture(self) -> str:
        return selected_architecture().name

    def fingerprint(self) -> DeviceFingerprint:
        from .fingerprint import device_fingerprint

        return device_fingerprint()

    def family(self) -> str:
        """See `Backend.family`: the architecture's name, "" if unknown. H100 and H200 are one family: the same
        multiprocessors, equally many."""
        names = self.fingerprint().features
        return names[0] if names else ""

    def unit(self, kernels: Sequence[KernelSource]) -> str:
        from .units import unit_of

        return unit_of(kernels)

    def plan(self, problem: object) -> Solution:
        from .planning import plan

        return plan(problem)

    @property
    def solvers(self) -> GpuSolvers:
        from .contraction.solvers import SOLVER_SET

        return SOLVER_SET

    def objects(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> dict[str, bytes]:
        """See `Backend.objects`: cubins if a device of the architecture is present, else PTX; library calls have no
        object."""
        from ..workers.objects import objects_of
        from .libraries.calls import described

        return objects_of([s for s in sources if described(s) is None], progress, store)

    def compile(self, source: KernelSource) -> bytes:
        """See `Backend.compile`: PTX, or an AMD object."""
        from .toolchain.compiler import compile_object

        return compile_object(source, selected_architecture())

    def finished(self, source: KernelSource, code: bytes) -> bytes:
        """See `Backend.finished`: a cubin if a device of the architecture is present."""
        from .loader import assembled

        return assembled(source, code)

    def worker_environment(self) -> Mapping[str, str]:
        """See `Backend.worker_environment`: the architecture, so that workers need not open the device."""
        return {ENVIRONMENT: selected_architecture().name}

    def loadable(self, source: KernelSource, data: bytes) -> bool:
        from .loader import loadable

        return loadable(source, data)

    def load(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[int]:
        """See `Backend.load`; handles are the driver's function handles on the device in use."""
        from .loader import load

        return load(sources, progress, store)


BACKEND = GpuBackend()
