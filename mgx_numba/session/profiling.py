"""`Profile`: writer of the file for ``SessionOptions.enable_profiling``, a JSON trace of events as in ONNX Runtime."""

from __future__ import annotations

import datetime
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from ..api.program import program
from ..api.timeline import CALLER, complete_event, run_timed, write_events
from ..errors import MgxError
from ..targets.base import Results

_MOST_EVENTS = 1_000_000
"""Largest number of events, as in ONNX Runtime; further events are dropped."""


class Profile:
    """Events of a session since the start of its constructor.

    Args:
        prefix: prefix of the file's name.
        owner: the session; when it is released, or the process ends, an unwritten file is written.
        provider: the name of the execution provider.

    Attributes:
        start: time of construction, in nanoseconds of `time.monotonic_ns`.
    """

    def __init__(self, prefix: str, owner: object, provider: str) -> None:
        self.start = time.monotonic_ns()
        self._zero = time.perf_counter_ns()
        self._provider = provider
        self._events: list[dict[str, object]] = []
        self._lock = threading.Lock()
        now = datetime.datetime.now()
        self._path: str | None = f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03d}.json"
        self._at_end = weakref.finalize(owner, _write_quietly, self)

    @property
    def is_open(self) -> bool:
        """Return whether the file is not yet written, so that events are still recorded."""
        return self._path is not None

    def note(self, name: str, since: int) -> None:
        """Add an event of the session from ``since`` (a value of `time.perf_counter_ns`) until now."""
        now = time.perf_counter_ns()
        self._add([complete_event(name, "Session", CALLER, self._microseconds(since), (now - since) / 1e3, {})])

    def run(self, model: program, inputs: Mapping[str, object]) -> Results:
        """Run a program once and add an event for each thread's part of each step, and one for the run."""
        begin = time.perf_counter_ns()
        results, spans = run_timed(model, inputs)
        # Spans use another clock on some targets, so the first span is placed at the start of the run.
        first = min((span.start for span in spans), default=0)
        found = []
        for number, span in enumerate(spans):
            details = {
                "op_name": span.label,
                "provider": self._provider,
                "node_index": str(number),
                "instruction": span.instruction,
            }
            if span.reason:
                details["on the host"] = span.reason
            start, length = self._microseconds(begin + span.start - first), (span.end - span.start) / 1e3
            name = f"{span.label}_kernel_time"
            found.append(complete_event(name, "Node", span.thread, start, length, details))
        self._add(found)
        self.note("model_run", begin)
        return results

    def end(self) -> str:
        """Write the file and return its name; return "" if the file is already written.

        Raises:
            FormatError: the file cannot be written.
        """
        with self._lock:
            path, self._path = self._path, None
            events, self._events = self._events, []
        self._at_end.detach()
        if path is None:
            return ""
        write_events(path, events)
        return path

    def _microseconds(self, when: int) -> float:
        return (when - self._zero) / 1e3

    def _add(self, events: list[dict[str, Any]]) -> None:
        with self._lock:
            if self._path is not None:
                self._events += events[: _MOST_EVENTS - len(self._events)]


def _write_quietly(profile: Profile) -> None:
    try:
        profile.end()
    except MgxError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
