"""Recording of the steps of each thread of a run, in the Trace Event Format, which Perfetto and Chrome display."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from ..errors import FormatError
from ..targets.base import Compiled, Inputs, Observation, Results, ThreadSpan, Timed
from .program import program

CALLER = 0
"""Thread number of the thread that calls `run`, by definition."""


def run_timed(model: program, inputs: Mapping[str, object]) -> tuple[Results, list[ThreadSpan]]:
    """Run a compiled program once; return its results and the time spans in which its threads ran steps.

    On a target that does not record spans of threads, steps run one by one on the calling thread.

    Raises:
        ParameterError: an input is missing or does not fit, as in ``program.run``.
    """
    form = model._form
    assert form is not None
    arrays, compiled = model._checked(inputs), form.compiled
    results, spans = compiled.timeline(arrays) if isinstance(compiled, Timed) else _observed(compiled, arrays)
    return form.shown(results), spans


def _observed(compiled: Compiled, arrays: Inputs) -> tuple[Results, list[ThreadSpan]]:
    spans: list[ThreadSpan] = []
    now = 0

    def note(seen: Observation) -> None:
        nonlocal now
        end = now + round(seen.seconds * 1e9)
        spans.append(ThreadSpan(seen.instruction, seen.label, CALLER, now, end, seen.reason))
        now = end

    results = compiled.observe(arrays, note)
    return results, spans


def complete_event(
    name: str, category: str, thread: int, start: float, length: float, details: Mapping[str, object]
) -> dict[str, object]:
    """Return a complete event of this process; times are in microseconds."""
    where = {"pid": os.getpid(), "tid": thread, "ts": start, "dur": length}
    return {"name": name, "cat": category, "ph": "X", **where, "args": dict(details)}


def thread_names(threads: Sequence[int]) -> list[dict[str, object]]:
    """Return the metadata events that name threads: "caller", and "worker" with a number."""
    names = {thread: "caller" if thread == CALLER else f"worker {thread}" for thread in threads}
    return [
        {"name": "thread_name", "ph": "M", "pid": os.getpid(), "tid": thread, "args": {"name": name}}
        for thread, name in names.items()
    ]


def write_events(path: str, events: Sequence[Mapping[str, object]], prefix: str = "[", suffix: str = "]") -> None:
    """Write events, one to a line, as a list of JSON between a prefix and a suffix.

    Raises:
        FormatError: the file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{prefix}\n" + ",\n".join(map(json.dumps, events)) + f"\n{suffix}\n")
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None
