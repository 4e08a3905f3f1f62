"""State that a ``program`` has after compilation: its compiled form and the fast paths of ``run``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.shape import Shape
from ..interrupts import whole_module
from ..targets.base import Compiled, FastPath, OnDevice
from ..targets.options import TargetOptions
from .argument import argument
from .options import CompileOptions
from .results import shapes_beside_arrays

if TYPE_CHECKING:
    from ..codegen.tuning.session import Tuning
    from .program import program
    from .target import target

__all__ = ["declined", "take_compiled", "target_options"]


def target_options(p: program, options: CompileOptions, tuning: Tuning | None = None) -> TargetOptions:
    """Return the options that a target receives for compiling a program."""
    return TargetOptions(
        fast_math=options.fast_math,
        num_threads=options.num_threads,
        memory_reuse=options.memory_reuse,
        disabled_passes=(*p._disabled_passes, *options.disabled_passes),
        float32_matmul_precision=options.float32_matmul_precision,
        tuning=tuning,
        store=p._store,
        offload_copy=options.offload_copy,
        device_id=options.device_id,
    )


def take_compiled(
    p: program,
    compiled: Compiled,
    options: CompileOptions,
    t: target,
    level: int,
    parameters: dict[str, Shape],
    results: Sequence[Shape],
) -> None:
    """Store the compiled form in a program and set up the fast paths of ``run``.

    Args:
        level: level of the run trace, see `trace_level`.
        parameters, results: shapes of the portable form's parameters and results.
    """
    p._signature, p._results, p._shapes_beside = parameters, list(results), shapes_beside_arrays(results)
    p._trace_level = level
    p._compiled, p._options, p._target = compiled, options, t
    p._fast_path = p._general_fast_path = declined
    fast_path = None if p._trace_level else compiled.direct(argument, _preferring(p, compiled))
    if fast_path is not None:
        p._fast_path = p._general_fast_path = fast_path
    p._in_stream, p._on, p._home, p._kept = declined, None, None, {}
    if isinstance(compiled, OnDevice):
        p._on = compiled
        if not compiled.offload_copy:
            _stay_on(p, compiled)


def _preferring(p: program, compiled: Compiled) -> Callable[[FastPath | None], None]:
    """Return a callback that makes ``run`` try a given fast path first, as long as ``compiled`` is the program's form.

    The callback holds the program weakly. Given None, it restores the general fast path.
    """
    own = weakref.ref(p)

    def prefer_fast_path(fast_path: FastPath | None) -> None:
        owner = own()
        if owner is not None and owner._compiled is compiled:
            owner._fast_path = fast_path or owner._general_fast_path

    return prefer_fast_path


def _stay_on(p: program, compiled: OnDevice) -> None:
    """Set up a program whose results stay on the device."""
    whole_module("mgx_numba.api.device")
    from .device import fast_run

    p._home, p._kept = compiled, compiled.output_parameters()
    fast_path = None if p._trace_level else fast_run(compiled, p._signature)
    if fast_path is not None:
        p._in_stream = fast_path
        p._fast_path = lambda params: fast_path(params, None)


def declined(*given: Any) -> None:
    """Decline every call; stands for a fast path that does not exist."""
    return None
