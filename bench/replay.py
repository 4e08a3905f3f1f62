"""Replay of externally measured times to pytest-benchmark, so that it saves and compares them.

Benchmarks of one group are timed in turn (see `bench.timing`) or in separate processes, which pytest-benchmark does not
support. So its timer is a clock that advances only by replayed calls. Mark a test with
``@pytest.mark.benchmark(timer=CLOCK.read)`` and end it with `replay`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["CLOCK", "Clock", "replay"]


class Clock:
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self._now = 0.0

    def read(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


CLOCK = Clock()


def replay(benchmark: Any, seconds: Sequence[float], clock: Clock = CLOCK) -> None:
    """Give a benchmark one round per duration."""
    durations = iter(seconds)
    benchmark.pedantic(lambda: clock.advance(next(durations)), rounds=len(seconds), iterations=1)
