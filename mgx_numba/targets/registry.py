"""The targets by name: what a program can be compiled for.

A target is registered here by the module that holds it, which is imported when somebody compiles for it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..environment import environment_flag
from ..errors import OptionError, UnsupportedError
from ..garbage import uncollected
from ..interrupts import whole_module
from ..messages import DEBUG, tell
from .base import Compiled, Kept, Progress
from .options import TargetOptions

if TYPE_CHECKING:
    from ..graph.passes import Options
    from ..graph.program import Program
    from ..runtime.limits import Limits

__all__ = ["DEFAULT", "REFERENCE", "Target", "compile_for", "missing", "register", "target", "target_names"]


class Target(Protocol):
    """One kind of thing to compile for."""

    @property
    def name(self) -> str:
        """As `get_target` calls it."""

    @property
    def backend(self) -> str:
        """The back end that makes its kernels (`codegen.backend`); empty if it has none, and so nothing to tune."""

    @property
    def passes(self) -> Sequence[str]:
        """Names of its passes, in order."""

    @property
    def tunes(self) -> bool:
        """Whether its back end has solvers among which measurements and their records choose."""

    @property
    def device_options(self) -> frozenset[str]:
        """Compile options about a device (``offload_copy``, ``device_id``, ...) that have an effect on this target."""

    def pass_options(self, options: TargetOptions) -> Options:
        """What its passes may assume in a compilation with these options, on this machine."""

    def compile(self, program: Program, options: TargetOptions, progress: Progress | None = None) -> Compiled:
        """A program compiled for this target; ``program`` stays as it is.

        Raises:
            CompileError: a pass or code generation failed.
        """

    def machine(self, device_id: int = 0) -> Mapping[str, str] | None:
        """What its plans for a device depend on besides a program and its options, by field name; None if none can be
        kept. A target without devices has the same for all numbers."""

    def restore(self, kept: Kept, options: TargetOptions, portable: Callable[[], Program]) -> Compiled:
        """The compiled program of what `Compiled.kept_plan` gave here, in this process or another.

        Args:
            options: those of the compilation.
            portable: gives the program that was compiled; asked when somebody wants to see it.

        Raises:
            OptionError: the target has no plans.
            CompileError: a kernel that the store lacks cannot be compiled.
        """

    def limits(self, num_threads: int = 0, units: Collection[str] = ()) -> Limits | None:
        """What this machine can do at most with so many threads (0: as many as a run takes), and these units of it, as
        `Backend.unit` calls them; None if it is not known. It may be measured, in a fraction of a second each."""


@runtime_checkable
class NeedsDevice(Protocol):
    """A target that not every process has."""

    def missing(self) -> str:
        """What this process lacks for it; empty if nothing."""


DEFAULT = "cpu"
"""Name of the target of a compilation that names none."""

REFERENCE = "ref"
"""Name of the target whose results all others are compared with."""

_MODULES = {
    REFERENCE: "mgx_numba.targets.ref.target",
    DEFAULT: "mgx_numba.targets.cpu.target",
    "gpu": "mgx_numba.targets.gpu.target",
}
"""The package's own targets: each module has its target as ``TARGET``, and imports what compiles when that is asked."""

_targets: dict[str, Target] = {}


def register(new: Target) -> None:
    """Make a target known by its name, in the place of another of that name."""
    _targets[new.name] = new


def target_names() -> tuple[str, ...]:
    """Names of all targets, the package's own first."""
    return tuple(dict.fromkeys((*_MODULES, *_targets)))


def target(name: str) -> Target:
    """The target of this name.

    Raises:
        OptionError: there is none.
    """
    if name not in _targets:
        if name not in _MODULES:
            raise OptionError(f"unknown target {name!r}; known: {', '.join(target_names())}")
        register(whole_module(_MODULES[name]).TARGET)
    return _targets[name]


def missing(name: str) -> str:
    """What this process lacks for the target of this name, such as a device; empty if nothing.

    Raises:
        OptionError: there is no such target.
    """
    found = target(name)
    return found.missing() if isinstance(found, NeedsDevice) else ""


def compile_for(
    name: str, program: Program, options: TargetOptions | None = None, progress: Progress | None = None
) -> Compiled:
    """Compile a copy of a program for the target of this name.

    Raises:
        OptionError: unknown target.
        UnsupportedError: it holds operators that nothing here knows; the message lists them.
        CompileError: a pass or code generation failed.
    """
    known = _without_unknown(program)
    start = time.perf_counter()
    if environment_flag("MIGRAPHX_TRACE_COMPILE"):
        print(f"Compile for {name}:\n{known}")
    options = options or TargetOptions()
    measured = options.tuning is not None and options.tuning.exhaustive  # for minutes, perhaps
    with contextlib.nullcontext() if measured else uncollected():
        compiled = target(name).compile(known, options, progress)
    tell("compile", DEBUG, "compiled for %s in %.3f ms", name, (time.perf_counter() - start) * 1e3)
    return compiled


def _without_unknown(program: Program) -> Program:
    """The program, less `Unknown` operators that no result needs (``skip_unknown_operators`` leaves them).

    Raises:
        UnsupportedError: a result needs one.
    """
    if not any(ins.name == "unknown" for module in program.reachable_modules() for ins in module):
        return program
    from ..graph.passes import run_passes
    from ..ops.unknown import Unknown

    alive = program.clone()
    run_passes(alive, ["dead_code_elimination"])
    names = [ins.op.operator for module in alive.reachable_modules() for ins in module if isinstance(ins.op, Unknown)]
    if names:
        listed = ", ".join(f"{name} ({count} times)" if count > 1 else name for name, count in Counter(names).items())
        raise UnsupportedError(
            f"the program needs operators that are not known: {listed}; it was read with skip_unknown_operators, and "
            "can be printed and saved, but neither compiled nor run"
        )
    return alive
