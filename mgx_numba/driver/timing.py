"""Repeated measurements, and their statistics as MIGraphX defines them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..dataclass import dataclass
from ..progress import shown_progress


@dataclass(frozen=True)
class Repeats:
    """Number of runs of a measurement.

    Attributes:
        iterations: least number of timed runs.
        duration: least total time (s) of the timed runs.
        warmup: number of runs before the timed runs.
    """

    iterations: int
    duration: float = 0.0
    warmup: int = 1

    def times(self, run: Callable[[], object], what: str) -> list[float]:
        """Return the seconds of each timed run; ``what`` names the work in the progress line."""
        for _ in range(self.warmup):
            run()
        seconds: list[float] = []
        spent = 0.0
        with shown_progress(what) as show:
            while len(seconds) < self.iterations or spent < self.duration:
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
                spent += seconds[-1]
                if show is not None:
                    left = f"{spent:.0f} of {self.duration:g} s" if self.duration else ""
                    show(len(seconds), max(self.iterations, len(seconds)), left)
        return seconds


def average(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
