"""Plan cache of ``program.compile``: an earlier compilation's plan replaces passes, lowering and code generation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.shape_json import shape_from_json
from ..interrupts import whole_module
from ..messages import Messages, recorded
from ..targets import registry
from ..targets.base import Compiled, Kept
from .compiled_form import CompiledForm, target_options
from .kept_models import keep_known
from .options import CompileOptions, requested_quantizations
from .portable import FileForm, PortableForm
from .saved_plans import find
from .target import target
from .tuning import records_of

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program
    from .lineage import Lineage

_WITHOUT_DATA = frozenset(("fp16", "bf16", "int4_weights"))
"""Quantisations that depend on the program alone, not on calibration data."""
_OF_MEASURING = ("exhaustive_tune", "tune_budget", "problem_cache")
"""Compile options that prevent caching: with them the plan depends on measured times or on a file of records."""


def kept_compilation(
    source: PortableForm,
    file: FileForm,
    t: target,
    options: CompileOptions,
    given: Mapping[str, object],
    again: Callable[[Program], Tuning | None],
) -> KeptCompilation | None:
    """Return the compilation as an entry of the plan cache; None if its plan must not be cached.

    Args:
        source: the program's portable form.
        file: the store, disabled passes and tuning records of the file that the program was loaded from, if any.
        t: the target.
        options: parsed options of the compilation.
        given: the options as the caller passed them, including quantisations.
        again: compiles a program without the cache and returns its tuning, which a cached plan does not hold.
    """
    lineage = source.lineage_now() if options.plan_cache else None
    if lineage is None or file.store is not None or file.disabled_passes or file.records:
        return None
    kinds = requested_quantizations(given)
    of_measuring = any(getattr(options, name) for name in _OF_MEASURING)
    if of_measuring or given.get("calibration") or not _WITHOUT_DATA.issuperset(kinds):
        return None
    return KeptCompilation(source, file, t, options, lineage, tuple(sorted(kinds)), again)


class KeptCompilation:
    """A compilation whose plan the cache folder can hold: the program's lineage and the options determine the plan."""

    def __init__(
        self,
        source: PortableForm,
        file: FileForm,
        t: target,
        options: CompileOptions,
        lineage: Lineage,
        kinds: tuple[str, ...],
        again: Callable[[Program], Tuning | None],
    ) -> None:
        self._source, self._file, self._target, self._options, self._again = source, file, t, options, again
        if kinds:
            lineage = lineage.after(f"use {' '.join(kinds)} on {t.name()}")
        self._own = lineage
        compile_options = {name: value for name, value in dataclasses.asdict(options).items() if name != "device_id"}
        self._lineage = lineage.after(f"compile {json.dumps(compile_options, sort_keys=True)}")
        self._decode = _quantized(source.decode, kinds, t.name()) if kinds else source.decode
        self._changes = bool(kinds)

    def find(self, level: int) -> CompiledForm | None:
        """Return the compiled form of a cached plan; None if the cache does not have the plan.

        Args:
            level: level of the run trace.
        """
        name = self._target.name()

        def build(
            kept: Kept, about: Mapping[str, object], decode: Callable[[], Any], store: Store | None
        ) -> tuple[Compiled, tuple[Compiled, Mapping[str, Any]]]:
            compiled = registry.target(name).restore(kept, target_options(self._file, self._options), decode)
            return compiled, (compiled, about)

        found = find(self._lineage, build, self._decode, [name], self._options.device_id)
        if found is None:
            return None
        compiled, about = found
        if self._changes:
            self._source.defer(self._own, self._decode)
        self._file.defer_records(lambda: records_of(about["saved"]))
        decode, again = self._decode, self._again
        parameters = {key: shape_from_json(entry) for key, entry in about["parameters"].items()}
        results = [shape_from_json(entry) for entry in about["results"]]
        messages = [text for text, _ in about["told"]]
        return CompiledForm(compiled, self._target, parameters, results, level, lambda: again(decode()), messages)

    def keep(self, form: CompiledForm, messages: list[Messages]) -> None:
        """Store the plan of the program, which has just been compiled.

        Args:
            form: the compiled form.
            messages: warnings of the compilation, which a cache hit repeats.
        """
        if self._changes:
            self._source.take_lineage(self._own, self._decode)
        from .saving import keep_plan  # late: a cache hit keeps nothing

        known, self._source.unkept = self._source.unkept, []
        keep_plan(self._lineage, self._source, self._file, form, messages=messages, then=lambda: keep_known(known))


def _quantized(decode: Callable[[], Program], kinds: tuple[str, ...], target_name: str) -> Callable[[], Program]:
    """Return a function that decodes a program and quantises it."""

    def decoded() -> Program:
        whole_module("mgx_numba.api.quantizing")
        from .quantizing import quantize

        found = decode()
        with recorded(quiet=True):
            quantize(found, kinds, target_name)
        return found

    return decoded
