"""What the rest of the package asks of one kind of device, and the back ends by name.

A back end is registered here by the module that holds it, which is imported when somebody first asks for it: nothing
else outside of a back end's own packages imports one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OptionError
from ..interrupts import whole_module

if TYPE_CHECKING:
    from .kernel import KernelSource
    from .launch import Solution
    from .store import Store
    from .tuning.record import DeviceFingerprint, TuningRecord
    from .tuning.request import Asked, Candidate, Estimate

__all__ = ["Backend", "Progress", "backend", "register"]

Progress = Callable[[int, int, str], None]
"""``progress(done, total, name)``: kernels compiled, kernels to compile, the one that was compiled last."""


class Backend(Protocol):
    """Code generation for one kind of device, of which this process uses one machine's."""

    @property
    def name(self) -> str:
        """As kernels call it (`KernelSource.backend`)."""

    def identity(self) -> Mapping[str, str]:
        """What machine code depends on besides a kernel's text, by field name: device, features, versions."""

    def fingerprint(self) -> DeviceFingerprint:
        """What measured times depend on besides the problem."""

    def family(self) -> str:
        """The class of devices that it is one of: tuning records that come with the package are for one."""

    def unit(self, kernels: Sequence[KernelSource]) -> str:
        """What multiplies in a kernel and those that it calls, for readers: ``AMX int8``. Empty where that is the
        arithmetic that `Limits` names, or nobody knows."""

    def plan(self, problem: Any) -> Solution:
        """The launches that compute one of `codegen.problems`, with operands by the names that the problem gives.

        Raises:
            UnsupportedError: this back end has no kernel for it; the message says why.
        """

    def choose(self, request: Asked) -> Candidate:
        """The solver that the cost model has for a contraction.

        Raises:
            UnsupportedError: no solver applies; the message has every solver's reason.
        """

    def revisions(self, request: Asked) -> Mapping[str, int]:
        """Revisions of the solvers that apply to a contraction, by name, of those that have another than 0: with each
        of these, what was measured for it with another revision is not true any more."""

    def estimates(self, request: Asked) -> list[Estimate]:
        """What the cost model says of every solver, those that apply first, the quickest of them first."""

    def candidates(self, request: Asked) -> list[Candidate]:
        """Every solver that applies, with its own blocking, the quickest by the cost model first."""

    def refinements(self, request: Asked, winner: Candidate) -> list[Candidate]:
        """Other blockings of a candidate's solver that may be quicker, a few."""

    def candidate_of(self, request: Asked, record: TuningRecord) -> Candidate | None:
        """What a tuning record says, or None if its solver does not exist or does not apply here."""

    def objects(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> dict[str, bytes]:
        """Machine code of distinct kernels by symbol, from the store (by default the user's) or compiled.

        Raises:
            CompileError: a kernel cannot be compiled.
        """

    def compile(self, source: KernelSource) -> bytes:
        """What Numba and LLVM make of a kernel, in this process.

        Raises:
            CompileError: it cannot be compiled.
        """

    def finished(self, source: KernelSource, code: bytes) -> bytes:
        """Machine code from what `compile` has made in this process or in another one; any thread may ask.

        Raises:
            CompileError: it is of another kernel, or compiled for another machine, or no machine code comes of it.
        """

    def worker_environment(self) -> Mapping[str, str]:
        """Variables with which another process compiles for the machine that this one does."""

    def loadable(self, source: KernelSource, data: bytes) -> bool:
        """Whether bytes are machine code of this kernel that can be loaded here."""

    def load(
        self, sources: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[int]:
        """Handles of loaded kernels in the order of the sources (on the CPU: addresses); errors as `objects`."""


_MODULES = {"cpu": "mgx_numba.codegen.cpu.backend", "gpu": "mgx_numba.codegen.gpu.backend"}
"""The package's own back ends: each module has its back end as ``BACKEND``."""

_backends: dict[str, Backend] = {}


def register(new: Backend) -> None:
    """Make a back end known by its name, in the place of another of that name."""
    _backends[new.name] = new


def backend(name: str) -> Backend:
    """The back end of this name.

    Raises:
        OptionError: there is none.
    """
    if name not in _backends:
        if name not in _MODULES:
            raise OptionError(f"unknown back end {name!r}; known: {', '.join(sorted({*_MODULES, *_backends}))}")
        register(whole_module(_MODULES[name]).BACKEND)
    return _backends[name]
