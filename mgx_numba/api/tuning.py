"""Tuning configuration from compile options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..interrupts import whole_module
from ..targets.registry import target
from .options import CompileOptions

if TYPE_CHECKING:
    from ..codegen.tuning.record import TuningRecord
    from ..codegen.tuning.session import Tuning


def tuning_for(
    name: str, options: CompileOptions, records: Sequence[TuningRecord], show: Callable[[int, int, str], None] | None
) -> Tuning | None:
    """Return the tuning of one compilation for the target of this name; None on targets without choices to tune.

    ``show(done, total, text)`` reports progress on the problems that are measured.

    Raises:
        OptionError: a file of ``problem_cache`` does not exist.
        FormatError: a file of ``problem_cache`` holds no tuning records.
    """
    chosen = target(name)
    if not chosen.tunes:
        return None
    whole_module("mgx_numba.codegen.tuning.session")
    from ..codegen.backend import backend
    from ..codegen.tuning.session import open_tuning

    def progress(done: int, remaining: int, best: str) -> None:
        if show is not None:
            show(done, done + remaining, f"tuning: best {best}")

    return open_tuning(
        backend(chosen.backend), records, options.problem_cache, options.exhaustive_tune, options.tune_budget, progress
    )


def merged_records(tuning: Tuning | None, known: Sequence[TuningRecord]) -> list[TuningRecord]:
    """Return the records that a compilation used, then earlier records for other problems or machines."""
    if tuning is None:
        return list(known)
    from ..codegen.tuning.files import best

    return best([*tuning.records(), *known])


def records_of(saved: Mapping[str, object]) -> list[TuningRecord]:
    """Return the tuning records of a program that `saved_options` described."""
    from ..codegen.tuning.files import records_from

    return records_from(saved["tuning"])
