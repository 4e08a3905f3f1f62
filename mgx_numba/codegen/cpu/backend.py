"""The CPU back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import CompileError
from ..backend import Progress
from ..elf import read_object
from ..kernel import KernelSource
from ..store import Store
from ..workers.objects import objects_of
from .identity import environment_identity
from .kernel import NAME
from .toolchain.loader import load, loadable

if TYPE_CHECKING:
    from ..launch import Solution
    from ..tuning.record import DeviceFingerprint
    from .contraction.tuning_candidates import CpuSolvers


class CpuBackend:
    """Vector code for the CPU of this process, see `Backend`.

    A process that only loads kernels imports neither the generators nor tuning.
    """

    name = NAME

    def identity(self) -> Mapping[str, str]:
        """See `Backend.identity`; read each time, as ``MGX_CPU_FEATURES`` may have been set since."""
        return environment_identity()

    def architecture(self) -> str:
        return ""

    def fingerprint(self) -> DeviceFingerprint:
        from .fingerprint import device_fingerprint

        return device_fingerprint()

    def family(self) -> str:
        """See `Backend.family`: LLVM's name of the CPU."""
        return self.fingerprint().cpu

    def unit(self, kernels: Sequence[KernelSource]) -> str:
        from .units import unit_of

        return unit_of(kernels)

    def plan(self, problem: object) -> Solution:
        from .planning import plan

        return plan(problem)

    @property
    def solvers(self) -> CpuSolvers:
        from .contraction.tuning_candidates import SOLVERS

        return SOLVERS

    def objects(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> dict[str, bytes]:
        return objects_of(sources, progress, store)

    def compile(self, source: KernelSource) -> bytes:
        from .toolchain.compiler import compile_object  # lazy: with workers, this process loads no LLVM

        return compile_object(source)

    def finished(self, source: KernelSource, code: bytes) -> bytes:
        """See `Backend.finished`: the object unchanged."""
        if source.symbol not in read_object(code).defined:
            raise CompileError("the worker compiles for another environment")
        return code

    def worker_environment(self) -> Mapping[str, str]:
        """See `Backend.worker_environment`: empty, as workers inherit the environment."""
        return {}

    def loadable(self, source: KernelSource, data: bytes) -> bool:
        return loadable(source, data)

    def load(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[int]:
        """See `Backend.load`; handles are addresses."""
        return load(sources, progress, store)


BACKEND = CpuBackend()
