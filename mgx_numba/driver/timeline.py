"""When each thread works at what, as a file for Perfetto or Chrome's tracing page (the Trace Event Format, in JSON)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..api.program import program
from ..errors import FormatError
from ..progress import track
from ..targets.base import Observation, ThreadSpan, Timed

__all__ = ["record_runs", "write_trace_events"]

_CALLER = 0
"""Number of the thread that called `run`, by definition."""


def record_runs(model: program, inputs: Mapping[str, Any], iterations: int) -> list[list[ThreadSpan]]:
    """What the threads of a compiled program do in so many runs, one list a run.

    Where a target cannot tell its threads' times, steps are run one by one, and follow one another.
    """
    compiled = model._compiled
    assert compiled is not None
    arrays = model._checked(inputs)
    model.run(arrays)
    runs = []
    for _ in track(range(iterations), iterations, "Tracing"):
        if isinstance(compiled, Timed):
            runs.append(compiled.timeline(arrays))
        else:
            runs.append(_observed(compiled, arrays))
    return runs


def _observed(compiled: Any, arrays: Mapping[str, np.ndarray]) -> list[ThreadSpan]:
    spans: list[ThreadSpan] = []
    now = 0

    def note(seen: Observation) -> None:
        nonlocal now
        end = now + round(seen.seconds * 1e9)
        spans.append(ThreadSpan(seen.instruction, seen.label, _CALLER, now, end, seen.reason))
        now = end

    compiled.observe(arrays, note)
    return spans


def write_trace_events(path: str, runs: Sequence[Sequence[ThreadSpan]], title: str) -> None:
    """Write runs one after the other, each under an event of its own; a row for each thread.

    Raises:
        FormatError: the file cannot be written.
    """
    process = os.getpid()
    threads = sorted({span.thread for spans in runs for span in spans} | {_CALLER})
    events: list[dict[str, Any]] = [_meta("process_name", process, 0, title)]
    events += [_meta("thread_name", process, t, "caller" if t == _CALLER else f"worker {t}") for t in threads]
    offset = 0.0
    for number, spans in enumerate(runs):
        if not spans:
            continue
        first, last = min(s.start for s in spans), max(s.end for s in spans)
        events.append(_event(f"run {number}", "run", process, _CALLER, offset, (last - first) / 1e3, {}))
        for span in spans:
            details = {"instruction": span.instruction, **({"on the host": span.reason} if span.reason else {})}
            start, length = offset + (span.start - first) / 1e3, (span.end - span.start) / 1e3
            events.append(_event(span.label, "step", process, span.thread, start, length, details))
        offset += (last - first) / 1e3
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _event(
    name: str, category: str, process: int, thread: int, start: float, length: float, details: dict[str, str]
) -> dict[str, Any]:
    """A complete event; times are in microseconds."""
    where = {"pid": process, "tid": thread, "ts": start, "dur": length}
    return {"name": name, "cat": category, "ph": "X", **where, "args": details}


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
