"""The compiled form of a ``program``: how it runs, and its fast paths."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.shape import Shape
from ..interrupts import whole_module
from ..targets.base import Compiled, FastPath, OnDevice, Results
from ..targets.options import TargetOptions
from ..targets.registry import DEFAULT, REFERENCE, compile_for
from .argument import argument
from .options import CompileOptions, trace_level
from .portable import FileForm
from .results import result_of, shapes_beside_arrays
from .target import get_target, target

if TYPE_CHECKING:
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program

UNCOMPILED = (
    f"the program is not compiled, so it runs on the target {REFERENCE} (NumPy), which is slow: "
    f'call program.compile(get_target("{DEFAULT}")) before run'
)
"""The warning of a run of a program that is not compiled."""


def target_options(file: FileForm, options: CompileOptions, tuning: Tuning | None = None) -> TargetOptions:
    """Return the options that a target receives for compiling a program."""
    return TargetOptions(
        fast_math=options.fast_math,
        num_threads=options.num_threads,
        memory=options.memory,
        memory_reuse=options.memory_reuse,
        disabled_passes=(*file.disabled_passes, *options.disabled_passes),
        float32_matmul_precision=options.float32_matmul_precision,
        tuning=tuning,
        store=file.store,
        offload_copy=options.offload_copy,
        device_id=options.device_id,
    )


class CompiledForm:
    """A compiled program, in the form in which ``run`` uses it.

    Attributes:
        compiled: the target's compiled program.
        parameters: shapes of the portable form's parameters.
        results: shapes of the portable form's results.
        result_places: position and `output_buffer` of each result, by name; None until `run_into` needs it.
        shapes_beside: see `shapes_beside_arrays`.
        level: level of the run trace, see `trace_level`.
        find_tuning: returns the tuning of the compilation on first access.
        messages: warnings of tuning.
        fast_path, general_fast_path: fast paths of ``run``, which return None to decline. ``fast_path`` is tried first,
            ``general_fast_path`` covers more lengths (see `Compiled.direct`).
        in_stream: fast path of ``run_async``.
        on: the compiled program, if it is for a device.
        home: the compiled program, if results stay on a device.
        buffers: shapes of the output buffers that callers may pass if results stay on a device, by name.
    """

    def __init__(
        self,
        compiled: Compiled,
        of: target,
        parameters: dict[str, Shape],
        results: Sequence[Shape],
        level: int,
        find_tuning: Callable[[], Tuning | None],
        messages: list[str],
    ) -> None:
        """Set up the fast paths of ``run``."""
        self.compiled, self.target = compiled, of
        self.parameters, self.results = parameters, list(results)
        self.result_places: dict[str, tuple[int, str]] | None = None
        self.shapes_beside = shapes_beside_arrays(results)
        self.level = level
        self.find_tuning = find_tuning
        self.messages = messages
        self.fast_path: FastPath = declined
        self.general_fast_path: FastPath = declined
        self.in_stream: Callable[[Any, int | None], Results | None] = declined
        fast_path = None if level else compiled.direct(argument, _preferring(self))
        if fast_path is not None:
            self.fast_path = self.general_fast_path = fast_path
        self.on = compiled if isinstance(compiled, OnDevice) else None
        self.home: OnDevice | None = None
        self.buffers: Mapping[str, Shape] = {}
        if self.on is not None and not self.on.offload_copy:
            self._stay_on(self.on)

    @functools.cached_property
    def tuning(self) -> Tuning | None:
        """Tuning of the compilation; None on targets without choices to tune."""
        return self.find_tuning()

    def _stay_on(self, compiled: OnDevice) -> None:
        """Set up a program whose results stay on the device."""
        whole_module("mgx_numba.api.device")
        from .device import fast_run

        self.home, self.buffers = compiled, compiled.output_parameters()
        fast_path = None if self.level else fast_run(compiled, self.parameters)
        if fast_path is not None:
            self.in_stream = fast_path
            self.fast_path = lambda params: fast_path(params, None)

    def with_shapes(self, results: Results) -> Results:
        """Attach to results of the fast path the shapes that their arrays do not determine."""
        for k, known in self.shapes_beside.items():
            results[k] = results[k].shaped(known)
        return results

    def shown(self, results: Sequence[object]) -> Results:
        """Return results of the compiled program in the user's form."""
        return [result_of(r, self.shapes_beside.get(k)) for k, r in enumerate(results)]


def _preferring(form: CompiledForm) -> Callable[[FastPath | None], None]:
    """Return a callback that makes ``run`` try a given fast path first; given None, it restores the general fast path.

    The callback holds the form weakly.
    """
    own = weakref.ref(form)

    def prefer_fast_path(fast_path: FastPath | None) -> None:
        owner = own()
        if owner is not None:
            owner.fast_path = fast_path or owner.general_fast_path

    return prefer_fast_path


def reference_form(program: Program) -> CompiledForm:
    """Return the form of a program that is not compiled: it runs on the target ``ref``."""
    compiled = compile_for(REFERENCE, program)
    parameters, results = program.parameter_shapes(), program.output_shapes()
    return CompiledForm(compiled, get_target(REFERENCE), parameters, results, trace_level(), declined, [])


def declined(*given: object) -> None:
    """Decline every call; stands for a fast path that does not exist."""
    return None
