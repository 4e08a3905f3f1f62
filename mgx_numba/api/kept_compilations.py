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
from .compiled_form import take_compiled, target_options
from .kept_models import keep_known
from .options import CompileOptions, requested_quantizations
from .saved_plans import find
from .saving import keep_plan
from .target import target
from .tuning import records_of

if TYPE_CHECKING:
    from ..codegen.store import Store
    from ..codegen.tuning.session import Tuning
    from ..graph.program import Program
    from .lineage import Lineage
    from .program import program

__all__ = ["KeptCompilation", "kept_compilation"]

_WITHOUT_DATA = frozenset(("fp16", "bf16", "int4_weights"))
"""Quantisations that depend on the program alone, not on calibration data."""
_OF_MEASURING = ("exhaustive_tune", "tune_budget", "problem_cache")
"""Compile options that prevent caching: the result depends on more than program, options and machine."""


def kept_compilation(
    p: program, t: target, options: CompileOptions, given: Mapping[str, Any]
) -> KeptCompilation | None:
    """Return a compilation that may use the plan cache; None if caching is not possible.

    Args:
        p: the program to compile.
        t: the target.
        options: parsed options of the compilation.
        given: the options as the caller passed them, including quantisations.
    """
    lineage = p._lineage_now() if options.plan_cache else None
    if lineage is None or p._store is not None or p._disabled_passes or p._records:
        return None
    kinds = requested_quantizations(given)
    of_measuring = any(getattr(options, name) for name in _OF_MEASURING)
    if of_measuring or given.get("calibration") or not _WITHOUT_DATA.issuperset(kinds):
        return None
    return KeptCompilation(p, t, options, lineage, tuple(sorted(kinds)))


class KeptCompilation:
    """A compilation whose plan the cache folder can hold: lineage and options determine the result."""

    def __init__(
        self, p: program, t: target, options: CompileOptions, lineage: Lineage, kinds: tuple[str, ...]
    ) -> None:
        self._program, self._target, self._options = p, t, options
        if kinds:
            lineage = lineage.after(f"use {' '.join(kinds)} on {t.name()}")
        self._own = lineage
        compile_options = {name: value for name, value in dataclasses.asdict(options).items() if name != "device_id"}
        self._lineage = lineage.after(f"compile {json.dumps(compile_options, sort_keys=True)}")
        self._decode = _quantized(p._decode, kinds, t.name()) if kinds else p._decode
        self._changes = bool(kinds)

    def find(self, level: int) -> bool:
        """Restore the compiled form from a cached plan; return whether the cache had the plan.

        Args:
            level: level of the run trace.
        """
        p, name = self._program, self._target.name()

        def build(
            kept: Kept, about: Mapping[str, Any], decode: Callable[[], Any], store: Store | None
        ) -> tuple[Compiled, tuple[Compiled, Mapping[str, Any]]]:
            compiled = registry.target(name).restore(kept, target_options(p, self._options), decode)
            return compiled, (compiled, about)

        found = find(self._lineage, build, self._decode, [name], self._options.device_id)
        if found is None:
            return False
        compiled, about = found
        if self._changes:
            p.__dict__.pop("_portable", None)
            p._lineage, p._decode = self._own, self._decode
        decode, options, t = self._decode, self._options, self._target
        for cached in ("_records", "_tuning"):
            p.__dict__.pop(cached, None)
        p._read_records = lambda: records_of(about["saved"])
        new = type(p)
        p._find_tuning = lambda: _tuning(new.wrap(decode()), t, options)
        p._messages = [text for text, _ in about["told"]]
        parameters = {key: shape_from_json(entry) for key, entry in about["parameters"].items()}
        results = [shape_from_json(entry) for entry in about["results"]]
        take_compiled(p, compiled, options, t, level, parameters, results)
        return True

    def keep(self, messages: list[Messages]) -> None:
        """Store the plan of the program, which has just been compiled.

        Args:
            messages: warnings of the compilation, which a cache hit repeats.
        """
        p = self._program
        if self._changes:
            p._take_lineage(self._own, self._decode)
        if keep_plan(self._lineage, p, messages=messages):
            keep_known(p)


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


def _tuning(again: program, t: target, options: CompileOptions) -> Tuning | None:
    """Compile a program again and return the tuning, which a cached plan does not hold."""
    with recorded(quiet=True):
        again.compile(t, dataclasses.asdict(options))
    return again._tuning
