"""Timing of several functions against each other in one process, under the same machine conditions.

Functions take turns. In each round, a function waits until the process is quiet (spinning worker threads of another
function have gone to sleep), runs once untimed to warm up caches and threads, then runs a block of timed calls. A
disturbance longer than a block affects all functions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Clocks", "Timing", "geometric_mean", "interleave", "ratio", "ratio_range", "wait_until_quiet"]

WARM_UP_CALLS = 3
MAX_CALLS_PER_BLOCK = 500
QUIET_SLICE = 0.012  # CPU time of other threads may be counted in steps of a scheduler tick, up to 10 ms
QUIET_SHARE = 0.1
QUIET_LIMIT = 0.5


@dataclass(frozen=True)
class Clocks:
    """Time sources: wall-clock seconds, CPU seconds of all threads of the process, and sleeping."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Timing:
    """Seconds of each timed call, by round."""

    rounds: tuple[tuple[float, ...], ...]
    seconds: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not any(self.rounds):
            raise ValueError("a timing needs at least one call")
        calls = [seconds for block in self.rounds for seconds in block]
        object.__setattr__(self, "seconds", np.array(calls, np.float64))

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def p10(self) -> float:
        """Tenth percentile of the calls' seconds."""
        return float(np.quantile(self.seconds, 0.1))

    @property
    def p90(self) -> float:
        """Ninetieth percentile of the calls' seconds."""
        return float(np.quantile(self.seconds, 0.9))

    @property
    def calls(self) -> int:
        return len(self.seconds)

    def summary(self) -> dict[str, float]:
        """Return milliseconds and counts, for a record."""
        return {
            "median_ms": self.median * 1e3,
            "p10_ms": self.p10 * 1e3,
            "p90_ms": self.p90 * 1e3,
            "calls": self.calls,
            "rounds": len(self.rounds),
        }


def interleave(
    functions: Mapping[str, Callable[[], object]],
    budget: float,
    *,
    min_rounds: int = 3,
    block_seconds: float = 0.1,
    clocks: Clocks | None = None,
) -> dict[str, Timing]:
    """Time the functions in turn, a-b-c-a-b-c, for about ``budget`` seconds of wall clock, pauses included.

    Every function is warmed up first. A block fills ``block_seconds`` with calls, at least one. At least ``min_rounds``
    rounds run, whatever the budget. Garbage collection is off while calls are timed.

    Raises:
        ValueError: there are no functions. Exceptions of functions pass through.
    """
    if not functions:
        raise ValueError("nothing to time")
    clocks = clocks or Clocks()
    start = clocks.wall()
    calls = {name: _block_size(function, block_seconds, clocks) for name, function in functions.items()}
    blocks: dict[str, list[tuple[float, ...]]] = {name: [] for name in functions}
    done, elapsed = 0, 0.0
    while done < max(min_rounds, 1) or elapsed * (done + 1) / done <= budget:
        for name, function in functions.items():
            wait_until_quiet(clocks)
            blocks[name].append(_time_block(function, calls[name], clocks))
        done += 1
        elapsed = clocks.wall() - start
    return {name: Timing(tuple(rounds)) for name, rounds in blocks.items()}


def wait_until_quiet(clocks: Clocks) -> None:
    """Sleep until the threads of this process are almost idle, half a second at most."""
    deadline = clocks.wall() + QUIET_LIMIT
    while clocks.wall() < deadline:
        wall, cpu = clocks.wall(), clocks.cpu()
        clocks.sleep(QUIET_SLICE)
        if clocks.cpu() - cpu <= QUIET_SHARE * (clocks.wall() - wall):
            return


def _block_size(function: Callable[[], object], block_seconds: float, clocks: Clocks) -> int:
    seconds = min(_time_block(function, WARM_UP_CALLS - 1, clocks))
    return max(1, min(MAX_CALLS_PER_BLOCK, int(block_seconds / max(seconds, 1e-9))))


def _time_block(function: Callable[[], object], calls: int, clocks: Clocks) -> tuple[float, ...]:
    """Return the seconds of each of ``calls`` calls, after one untimed call."""
    wall = clocks.wall
    seconds = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        function()
        for _ in range(calls):
            begin = wall()
            function()
            seconds.append(wall() - begin)
    finally:
        if collecting:
            gc.enable()
    return tuple(seconds)


def ratio(ours: Timing, *others: Timing) -> float:
    """Return the median of the fastest other over our median: how many times faster we are."""
    return min(other.median for other in others) / ours.median


def ratio_range(ours: Timing, other: Timing) -> tuple[float, float]:
    """Return the tenth and ninetieth percentile of the ratios of medians by round: the uncertainty of the ratio."""
    pairs = zip(ours.rounds, other.rounds, strict=True)
    ratios = [float(np.median(theirs) / np.median(own)) for own, theirs in pairs]
    return float(np.quantile(ratios, 0.1)), float(np.quantile(ratios, 0.9))


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers; NaN for an empty list."""
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")
