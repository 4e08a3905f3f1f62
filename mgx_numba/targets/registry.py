"""The registry of targets, by name.

The module that holds a target registers it here, and is imported at the first compilation for the target.
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


class Target(Protocol):
    """A kind of machine, or an interpreter, for which programs are compiled."""

    @property
    def name(self) -> str:
        """Name of the target, as `get_target` takes it."""

    @property
    def backend(self) -> str:
        """Name of the back end that makes the target's kernels (`codegen.backend`); empty for a target without kernels,
        which has nothing to tune."""

    @property
    def passes(self) -> Sequence[str]:
        """Names of the target's passes, in order."""

    @property
    def tunes(self) -> bool:
        """Whether the back end has several solvers for a contraction, among which tuning records choose."""

    @property
    def device_options(self) -> frozenset[str]:
        """Compile options about a device (``offload_copy``, ``device_id``, ...) that have an effect on this target."""

    def pass_options(self, options: TargetOptions) -> Options:
        """Return the facts that passes may assume in a compilation with these options on this machine."""

    def compile(self, program: Program, options: TargetOptions, progress: Progress | None = None) -> Compiled:
        """Return the program compiled for this target; ``program`` is not changed.

        Raises:
            CompileError: a pass or code generation failed.
        """

    def machine(self, device_id: int = 0) -> Mapping[str, str] | None:
        """Return the properties of the machine that plans depend on, by field name; None if plans cannot be kept.

        These come in addition to the program and its options. A target without devices returns the same for every
        ``device_id``.
        """

    def restore(self, kept: Kept, options: TargetOptions, portable: Callable[[], Program]) -> Compiled:
        """Return the compiled program that `Compiled.kept_plan` stored, in this process or another.

        Args:
            kept: the stored program.
            options: options of the compilation.
            portable: returns the program before compilation; called only when it is to be shown.

        Raises:
            OptionError: the target has no plans.
            CompileError: a kernel that the store lacks cannot be compiled.
        """

    def limits(self, num_threads: int = 0, units: Collection[str] = ()) -> Limits | None:
        """Return this machine's peak rates and bandwidths, or None if they are not known.

        Measuring a limit takes a fraction of a second.

        Args:
            num_threads: number of threads; 0: as many as a run takes.
            units: arithmetic units whose peak rates are wanted, as `Backend.unit` names them.
        """


@runtime_checkable
class NeedsDevice(Protocol):
    """A target that is not available in every process."""

    def missing(self) -> str:
        """Return what the process lacks for this target, such as a device; empty if nothing."""


DEFAULT = "cpu"
"""Name of the default target."""

REFERENCE = "ref"
"""Name of the target with whose results all others are compared."""

_MODULES = {
    REFERENCE: "mgx_numba.targets.ref.target",
    DEFAULT: "mgx_numba.targets.cpu.target",
    "gpu": "mgx_numba.targets.gpu.target",
}
"""Modules of the package's own targets. Each holds its target as ``TARGET``, and imports its compiler only when it
compiles."""

_targets: dict[str, Target] = {}


def register(new: Target) -> None:
    """Register a target under its name, replacing any target of that name."""
    _targets[new.name] = new


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, the package's own first."""
    return tuple(dict.fromkeys((*_MODULES, *_targets)))


def target(name: str) -> Target:
    """Return the target of this name.

    Raises:
        OptionError: there is no such target.
    """
    if name not in _targets:
        if name not in _MODULES:
            raise OptionError(f"unknown target {name!r}; known: {', '.join(target_names())}")
        register(whole_module(_MODULES[name]).TARGET)
    return _targets[name]


def missing(name: str) -> str:
    """Return what this process lacks for the target of this name, such as a device; empty if nothing.

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
        UnsupportedError: the program holds unknown operators; the message lists them.
        CompileError: a pass or code generation failed.
    """
    known = _without_unknown(program)
    start = time.perf_counter()
    if environment_flag("MIGRAPHX_TRACE_COMPILE"):
        print(f"Compile for {name}:\n{known}")
    options = options or TargetOptions()
    measured = options.tuning is not None and options.tuning.exhaustive  # may take minutes
    with contextlib.nullcontext() if measured else uncollected():
        compiled = target(name).compile(known, options, progress)
    tell("compile", DEBUG, "compiled for %s in %.3f ms", name, (time.perf_counter() - start) * 1e3)
    return compiled


def _without_unknown(program: Program) -> Program:
    """Return the program without the `Unknown` operators that no result needs (``skip_unknown_operators`` leaves them).

    Raises:
        UnsupportedError: a result needs an unknown operator.
    """
    if not any(module.named(("unknown",)) for module in program.reachable_modules()):
        return program
    from ..graph.passes import run_passes
    from ..ops.deferred import Unknown

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
