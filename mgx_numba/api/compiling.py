"""Implementation of ``program.compile``: options, prior quantisation, and the plan cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..interrupts import whole_module
from ..messages import recorded
from ..targets.registry import DEFAULT, compile_for
from .compiled_form import take_compiled, target_options
from .options import CompileOptions, parse_compile_options, requested_quantizations, trace_level
from .target import get_target, target
from .tuning import merged_records, tuning_for

if TYPE_CHECKING:
    from ..graph.program import Program
    from .kept_compilations import KeptCompilation
    from .program import program

__all__ = ["compile_program"]


def compile_program(p: program, t: Any, given: Mapping[str, Any]) -> None:
    """Compile a program, in place.

    Args:
        t: a target, or its name.
        given: options of `program.compile`, by name.

    Raises:
        OptionError: an option is unknown, or ``t`` is not a target.
        CompileError: a pass or code generation failed; the program is unchanged.
    """
    if isinstance(t, str):
        t = get_target(t)
    if not isinstance(t, target):
        raise OptionError(f"compile needs a target (get_target({DEFAULT!r})), got {type(t).__name__}")
    level, parsed = trace_level(), parse_compile_options(given, t.name())
    kept = _kept(p, t, parsed, given)
    if kept is not None and kept.find(level):
        return
    with recorded() as messages:
        portable = _quantized(p, given, t)
        from ..progress import shown_progress

        with shown_progress("compiling") as progress:
            tuning = tuning_for(t.name(), parsed, p._records, progress)
            compiled = compile_for(t.name(), portable, target_options(p, parsed, tuning), progress)
    p._records = merged_records(tuning, p._records)
    p._portable = portable
    p._tuning = tuning
    p._messages = tuning.messages if tuning is not None else []
    take_compiled(p, compiled, parsed, t, level, portable.parameter_shapes(), portable.output_shapes())
    if kept is not None:
        kept.keep(messages)


def _kept(p: program, t: target, options: CompileOptions, given: Mapping[str, Any]) -> KeptCompilation | None:
    """See `kept_compilations.kept_compilation`."""
    if p._lineage is None:
        return None
    whole_module("mgx_numba.api.kept_compilations")
    from .kept_compilations import kept_compilation

    return kept_compilation(p, t, options, given)


def _quantized(p: program, options: Mapping[str, Any], t: target) -> Program:
    """Return the portable form, or a copy quantised as the options ``use_fp16`` and so on request."""
    kinds = requested_quantizations(options)
    if not kinds:
        return p._portable
    whole_module("mgx_numba.api.quantizing")
    from .quantizing import quantize

    changed = p._portable.clone()
    found = quantize(changed, kinds, t.name(), map(p._checked, options.get("calibration") or ()))
    if found is not None:
        p._layer_choices, p._calibration = found
    return changed
