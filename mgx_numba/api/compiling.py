"""Implementation of ``program.compile``: options, prior quantisation, and the plan cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..errors import OptionError
from ..interrupts import whole_module
from ..messages import recorded
from ..targets.registry import DEFAULT, compile_for
from .background import PendingCompilation
from .compiled_form import CompiledForm, target_options
from .options import CompileOptions, parse_compile_options, requested_quantizations, trace_level
from .portable import FileForm, PortableForm
from .target import get_target, target
from .tuning import merged_records, tuning_for

if TYPE_CHECKING:
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program
    from .kept_compilations import KeptCompilation

Quantized: TypeAlias = "Callable[[Sequence[str], str, Mapping[str, object]], Program]"


def compiled_form(
    source: PortableForm, file: FileForm, t: object, given: Mapping[str, object], quantized: Quantized
) -> CompiledForm | PendingCompilation:
    """Compile a program and return its compiled form, or begin to with ``wait=False``; ``source`` and ``file`` receive
    the compilation's options, records and, if it quantises, the quantised program.

    Args:
        source: the portable form.
        file: options and records that a file holds.
        t: a target, or its name.
        given: options of `program.compile`, by name.
        quantized: returns a quantised copy of the portable form, for the kinds of quantisation, the name of the target
            and ``given``.

    Raises:
        OptionError: an option is unknown, or ``t`` is not a target.
        CompileError: a pass or code generation failed; ``source`` and ``file`` are unchanged.
    """
    if isinstance(t, str):
        t = get_target(t)
    if not isinstance(t, target):
        raise OptionError(f"compile needs a target (get_target({DEFAULT!r})), got {type(t).__name__}")
    level, parsed = trace_level(), parse_compile_options(given, t.name())
    kept = _kept(source, file, t, parsed, given)
    found = None if kept is None else kept.find(level)
    if found is not None:
        file.target, file.options = t, parsed
        return found
    with recorded() as messages:
        kinds = requested_quantizations(given)
        portable = quantized(kinds, t.name(), given) if kinds else source.program

    def finished() -> CompiledForm:
        from ..progress import shown_progress

        with recorded() as more, shown_progress("compiling") as progress:
            tuning = tuning_for(t.name(), parsed, file.records, progress)
            compiled = compile_for(t.name(), portable, target_options(file, parsed, tuning), progress)
        file.records = merged_records(tuning, file.records)
        file.target, file.options = t, parsed
        source.program = portable
        shapes = portable.parameter_shapes(), portable.output_shapes()
        form = CompiledForm(compiled, t, *shapes, level, lambda: tuning, tuning.messages if tuning is not None else [])
        if kept is not None:
            kept.keep(form, [*messages, *more])
        return form

    if given.get("wait", True) or t.name() != DEFAULT or level:
        return finished()
    return PendingCompilation(portable, finished)


def _kept(
    source: PortableForm, file: FileForm, t: target, options: CompileOptions, given: Mapping[str, object]
) -> KeptCompilation | None:
    if source.lineage is None:
        return None
    whole_module("mgx_numba.api.kept_compilations")
    from .kept_compilations import kept_compilation

    def again(portable: Program) -> Tuning | None:
        with recorded(quiet=True):
            requested = dataclasses.asdict(options)
            form = compiled_form(PortableForm.of(portable), FileForm(), t, requested, lambda *_: portable)
            assert isinstance(form, CompiledForm)  # options that are kept do not say whether to wait
            return form.tuning

    return kept_compilation(source, file, t, options, given, again)
