"""One model on every engine, in one process: compare outputs, then time the engines in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from bench.agreement import agreement, choices_of
from bench.cases import Case
from bench.peers import ENGINES, OURS, Session, open_session
from bench.timing import Timing, interleave, ratio, ratio_range

__all__ = ["Comparison", "check_outputs", "compare", "fastest_settings", "open_all"]

REFERENCE = "onnxruntime"
_TRIAL_SHARE = 0.25

Note = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """Times of one case by engine, each in its fastest setting, and the error of our outputs against the reference's.

    ``failures`` has a message for each engine that could not load or run the model. ``error`` is None without a
    comparison.
    """

    name: str
    timings: Mapping[str, Timing] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    error: float | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def fastest_peer(self) -> str | None:
        """Return the name of the peer engine with the lowest median."""
        peers = {engine: timing.median for engine, timing in self.timings.items() if engine != OURS}
        return min(peers, key=peers.__getitem__) if peers else None

    @property
    def ratio(self) -> float | None:
        """Median of the fastest peer over our median; None if either is missing."""
        peer = self.fastest_peer
        return ratio(self.timings[OURS], self.timings[peer]) if peer and OURS in self.timings else None

    def record(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        peer = self.fastest_peer
        spread = ratio_range(self.timings[OURS], self.timings[peer]) if peer and OURS in self.timings else None
        return {
            "name": self.name,
            "engines": {
                engine: {"setting": self.settings.get(engine, ""), **timing.summary()}
                for engine, timing in self.timings.items()
            },
            "fastest_peer": peer,
            "ratio": self.ratio,
            "ratio_p10_p90": spread,
            "max_relative_error": self.error,
            "failures": dict(self.failures),
        }


def compare(
    case: Case,
    engines: Sequence[str],
    threads: int,
    budget: float,
    *,
    exact: bool = False,
    after: Callable[[Session], None] | None = None,
) -> Comparison:
    """Compare the engines on a case in about ``budget`` seconds of timing, loading not counted.

    ``exact`` compiles ours without fast math. ``after`` is called with our session once the times are taken.
    """
    error, failures = check_outputs(case, engines, threads, exact)
    sessions = open_all(case.path, case, [e for e in engines if e not in failures], threads, failures, exact)
    if not sessions:
        return Comparison(case.name, failures=failures)
    sessions = fastest_settings(sessions, budget * _TRIAL_SHARE)
    gc.collect()
    timings = interleave({s.engine: s.run for s in sessions}, budget * (1 - _TRIAL_SHARE))
    for session in sessions:
        if session.engine == OURS and after is not None:
            after(session)
    return Comparison(case.name, timings, {s.engine: s.setting for s in sessions}, error, failures)


def open_all(
    path: Path, case: Case, engines: Sequence[str], threads: int, failures: dict[str, str], exact: bool = False
) -> list[Session]:
    """Open a session for each setting of each engine; the messages of failing engines go to ``failures``."""
    sessions = []
    for engine in engines:
        try:
            opened = [
                open_session(engine, path, case.feeds, threads, setting, exact)
                for setting in range(len(ENGINES[engine]))
            ]
            for session in opened:
                session.run()
        except Exception as problem:  # engines raise any exception
            failures[engine] = f"{type(problem).__name__}: {problem}"
        else:
            sessions += opened
    return sessions


def fastest_settings(sessions: Sequence[Session], budget: float) -> list[Session]:
    """Return one session for each engine: the fastest of its settings, measured in turns."""
    engines = list(dict.fromkeys(session.engine for session in sessions))
    if len(engines) == len(sessions):
        return list(sessions)
    timings = interleave({session.name: session.run for session in sessions}, budget)
    return [
        min((s for s in sessions if s.engine == engine), key=lambda s: timings[s.name].median) for engine in engines
    ]


def check_outputs(
    case: Case, engines: Sequence[str], threads: int, exact: bool = False
) -> tuple[float | None, dict[str, str]]:
    """Return our largest relative error against the reference engine, and the failures by engine."""
    failures: dict[str, str] = {}
    outputs = {}
    for engine in (REFERENCE, OURS):
        if engine not in engines:
            return None, failures
        try:
            session = open_session(engine, case.checked, case.feeds, threads, exact=exact)
            outputs[engine] = [output.copy() for output in session.run()]
        except Exception as problem:  # engines raise any exception
            failures[engine] = f"{type(problem).__name__}: {problem}"
    if failures:
        return None, failures
    found = agreement(outputs[OURS], outputs[REFERENCE], choices_of(onnx.load(case.checked)))
    if found.problem:
        return None, {OURS: found.problem}
    return found.error, failures
