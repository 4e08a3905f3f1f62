"""The interface of a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .backends import Registrable, register, registered

if TYPE_CHECKING:
    from .kernel import KernelSource
    from .launch import Solution
    from .store import Store
    from .tuning.record import DeviceFingerprint
    from .tuning.solver_set import SolverSet

__all__ = ["Backend", "LoadKernels", "Progress", "backend", "register"]

Progress = Callable[[int, int, str], None]
"""``progress(done, total, name)``: kernels compiled, kernels to compile, the last compiled kernel."""
LoadKernels: TypeAlias = "Callable[[Sequence[KernelSource]], list[int]]"
"""Returns handles of loaded kernels, like `Backend.load`."""


class Planner(Protocol):
    """Plans kernel launches for one kind of device."""

    @property
    def solvers(self) -> SolverSet[Any, Any]:
        """Return the solvers of contractions; a process that only loads kernels does not import them."""

    def fingerprint(self) -> DeviceFingerprint:
        """Return the device properties that measured times depend on."""

    def family(self) -> str:
        """Return the device family; shipped tuning records belong to one."""

    def unit(self, kernels: Sequence[KernelSource]) -> str:
        """Return the functional unit of a kernel's multiplications, for display: ``AMX int8``. "" if it is the
        arithmetic that `Limits` names, or unknown."""

    def plan(self, problem: object) -> Solution:
        """Return the launches of a problem of `codegen.problems`; operands are named by the problem.

        Raises:
            UnsupportedError: this back end has no kernel for it; the message says why.
        """


class KernelCompiler(Protocol):
    """Compiles kernels to machine code and loads them."""

    def objects(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> dict[str, bytes]:
        """Return the machine code of distinct kernels by symbol, from the store (by default the user's) or compiled.

        Raises:
            CompileError: a kernel cannot be compiled.
        """

    def compile(self, source: KernelSource) -> bytes:
        """Compile a kernel with Numba and LLVM in this process.

        Raises:
            CompileError: it cannot be compiled.
        """

    def finished(self, source: KernelSource, code: bytes) -> bytes:
        """Return the machine code from the output of `compile` in this or another process; thread-safe.

        Raises:
            CompileError: the code is another kernel's or another machine's, or cannot be assembled.
        """

    def worker_environment(self) -> Mapping[str, str]:
        """Return environment variables that make another process compile for the same machine."""

    def loadable(self, source: KernelSource, data: bytes) -> bool:
        """Return whether ``data`` is machine code of this kernel that can be loaded here."""

    def load(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[int]:
        """Return handles of loaded kernels in the order of the sources (on the CPU: addresses); errors as in
        `objects`."""


class Backend(Registrable, Planner, KernelCompiler, Protocol):
    """Code generation for one kind of device; a process uses one machine's."""


def backend(name: str) -> Backend:
    """Return the registered back end of this name; errors as in `backends.registered`."""
    found: Backend = registered(name)
    return found
