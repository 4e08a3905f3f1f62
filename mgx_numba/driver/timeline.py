"""Timeline of each thread's steps, as a file for Perfetto or Chrome's tracing page (Trace Event Format, JSON)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..api.program import program
from ..api.timeline import CALLER, complete_event, run_timed, thread_names, write_events
from ..progress import track
from ..targets.base import ThreadSpan


def record_runs(model: program, inputs: Mapping[str, object], iterations: int) -> list[list[ThreadSpan]]:
    """Run a compiled program ``iterations`` times; return the time spans of all threads, a list for each run."""
    model.run(inputs)
    return [run_timed(model, inputs)[1] for _ in track(range(iterations), iterations, "Tracing")]


def write_trace_events(path: str, runs: Sequence[Sequence[ThreadSpan]], title: str) -> None:
    """Write runs in sequence, each under an event of its own, with a row for each thread.

    Raises:
        FormatError: the file cannot be written.
    """
    threads = sorted({span.thread for spans in runs for span in spans} | {CALLER})
    process = {"name": "process_name", "ph": "M", "pid": os.getpid(), "tid": 0, "args": {"name": title}}
    events: list[dict[str, object]] = [process, *thread_names(threads)]
    offset = 0.0
    for number, spans in enumerate(runs):
        if not spans:
            continue
        first, last = min(s.start for s in spans), max(s.end for s in spans)
        events.append(complete_event(f"run {number}", "run", CALLER, offset, (last - first) / 1e3, {}))
        for span in spans:
            details = {"instruction": span.instruction, **({"on the host": span.reason} if span.reason else {})}
            start, length = offset + (span.start - first) / 1e3, (span.end - span.start) / 1e3
            events.append(complete_event(span.label, "step", span.thread, start, length, details))
        offset += (last - first) / 1e3
    write_events(path, events, '{"traceEvents": [', '], "displayTimeUnit": "ns"}')
