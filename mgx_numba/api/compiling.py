"""What ``program.compile`` does: options, quantisation before, and what a program is once it is compiled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.shape import Shape
from ..errors import OptionError
from ..interrupts import whole_module
from ..messages import recorded
from ..targets.base import Compiled, Direct, OnDevice
from ..targets.options import TargetOptions
from ..targets.registry import DEFAULT, compile_for
from .argument import argument
from .options import CompileOptions, asked_quantizations, parse_compile_options, trace_level
from .results import shapes_beside_arrays
from .target import get_target, target
from .tuning import merged_records, tuning_for

if TYPE_CHECKING:
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program
    from .kept_compilations import KeptCompilation
    from .program import program

__all__ = ["compile_program", "declined", "take_compiled", "target_options"]


def compile_program(p: program, t: Any, given: Mapping[str, Any]) -> None:
    """Compile a program, in place.

    Args:
        t: a target, or its name.
        given: options of `program.compile`, by name.

    Raises:
        OptionError: an unknown option, or no target.
        CompileError: a pass or code generation failed; the program is as before.
    """
    if isinstance(t, str):
        t = get_target(t)
    if not isinstance(t, target):
        raise OptionError(f"compile needs a target (get_target({DEFAULT!r})), got {type(t).__name__}")
    level, parsed = trace_level(), parse_compile_options(given, t.name())
    kept = _kept(p, t, parsed, given)
    if kept is not None and kept.find(level):
        return
    with recorded() as told:
        portable = _quantized(p, given, t)
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            tuning = tuning_for(t.name(), parsed, p._records, progress)
            compiled = compile_for(t.name(), portable, target_options(p, parsed, tuning), progress)
    p._records = merged_records(tuning, p._records)
    p._portable = portable
    p._tuning = tuning
    p._told = tuning.told if tuning is not None else []
    take_compiled(p, compiled, parsed, t, level, portable.parameter_shapes(), portable.output_shapes())
    if kept is not None:
        kept.keep(told)


def _kept(p: program, t: target, options: CompileOptions, given: Mapping[str, Any]) -> KeptCompilation | None:
    """See `kept_compilations.kept_compilation`."""
    if p._lineage is None:
        return None
    whole_module("mgx_numba.api.kept_compilations")
    from .kept_compilations import kept_compilation

    return kept_compilation(p, t, options, given)


def _quantized(p: program, options: Mapping[str, Any], t: target) -> Program:
    """The portable form as the options ``use_fp16`` and the like want it: a copy, if they want another."""
    kinds = asked_quantizations(options)
    if not kinds:
        return p._portable
    whole_module("mgx_numba.api.quantizing")
    from .quantizing import quantize

    changed = p._portable.clone()
    found = quantize(changed, kinds, t.name(), map(p._checked, options.get("calibration") or ()))
    if found is not None:
        p._layer_choices, p._calibration = found
    return changed


def target_options(p: program, options: CompileOptions, tuning: Tuning | None = None) -> TargetOptions:
    """What a target is told of a compilation of a program."""
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
    """Give a program its compiled form.

    Args:
        level: of the trace of runs, see `trace_level`.
        parameters, results: shapes of the portable form's.
    """
    p._signature, p._results, p._shapes_beside = parameters, list(results), shapes_beside_arrays(results)
    p._trace_level = level
    p._compiled, p._options, p._target = compiled, options, t
    p._direct = p._quick = declined
    quick = None if p._trace_level else compiled.direct(argument, _preferring(p, compiled))
    if quick is not None:
        p._direct = p._quick = quick
    p._in_stream, p._on, p._home, p._kept = declined, None, None, {}
    if isinstance(compiled, OnDevice):
        p._on = compiled
        if not compiled.offload_copy:
            _stay_on(p, compiled)


def _preferring(p: program, compiled: Compiled) -> Callable[[Direct | None], None]:
    """What has a quick form of a compiled one asked before that which knows them all, as long as it is in use."""
    own = weakref.ref(p)

    def prefer(quick: Direct | None) -> None:
        asked = own()
        if asked is not None and asked._compiled is compiled:
            asked._direct = quick or asked._quick

    return prefer


def _stay_on(p: program, compiled: OnDevice) -> None:
    """Take a compiled form whose results stay on its device."""
    whole_module("mgx_numba.api.device")
    from .device import quick_run

    p._home, p._kept = compiled, compiled.output_parameters()
    quick = None if p._trace_level else quick_run(compiled, p._signature)
    if quick is not None:
        p._in_stream = quick
        p._direct = lambda params: quick(params, None)


def declined(*given: Any) -> None:
    """The quick form of what has none: declines every call."""
    return None
