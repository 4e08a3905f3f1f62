"""Selection of the fastest of several candidates by interleaved measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from statistics import median
from typing import Generic, TypeVar

from ...dataclass import dataclass
from ...errors import MgxError

T = TypeVar("T", bound=Hashable)

ROUNDS = 9
"""Samples of a candidate, whose median counts: more cost time, fewer let noise choose."""
FEWEST_ROUNDS = 5  # fewest samples for a meaningful median deviation
_MARGINS = (1.6, 1.3, 1.15)
"""Factors over the best median beyond which a candidate is dropped after the first rounds; later the noise decides."""
_LEAST_MARGIN = 0.03
"""Relative difference below which two times count as equal: the spread of repeated runs of one plan on a quiet
machine."""
_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""


@dataclass
class _Runner(Generic[T]):
    candidate: T
    samples: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.samples)

    @property
    def noise(self) -> float:
        middle = self.seconds
        return _DEVIATION * median(abs(s - middle) for s in self.samples) / middle if middle else 0.0


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The winner of a race: median seconds, relative noise, and how many samples of all candidates it took."""

    candidate: T
    seconds: float
    noise: float
    samples: int


def race(
    candidates: Sequence[T],
    measure: Callable[[T], float],
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome[T] | None:
    """Measure candidates in turns, dropping losers, and return the fastest; None if no candidate can be measured.

    The first candidate is the incumbent: it is never dropped, and loses only to a candidate that is faster by more than
    the noise. The first round always completes: without a sample of each candidate, the time spent on the others, above
    all on compiling, would be lost.

    Args:
        candidates: the candidates, incumbent first.
        measure: returns the seconds of one execution; a candidate for which it raises `MgxError` is dropped.
        deadline: time of ``clock`` after which the samples taken so far decide.
        clock: returns the current time (s).
    """
    field_ = [_Runner(candidate) for candidate in candidates]
    incumbent = field_[0] if field_ else None
    total = 0
    for number in range(ROUNDS):
        for runner in list(field_):
            if number and deadline is not None and clock() >= deadline:
                return _outcome(field_, incumbent, total)
            try:
                runner.samples.append(measure(runner.candidate))
            except MgxError:
                field_.remove(runner)
                continue
            total += 1
        if not field_:
            return None
        best = min(field_, key=lambda r: r.seconds)
        margin = _MARGINS[number] if number < len(_MARGINS) else 1 + max(_LEAST_MARGIN, 2 * best.noise)
        field_ = [r for r in field_ if r is incumbent or r.seconds <= margin * best.seconds]
        if number + 1 >= FEWEST_ROUNDS and (len(field_) == 1 or best is incumbent):
            break
    return _outcome(field_, incumbent, total)


def _outcome(field_: Sequence[_Runner[T]], incumbent: _Runner[T] | None, total: int) -> Outcome[T]:
    best = min(field_, key=lambda r: r.seconds)
    if incumbent is not None and incumbent in field_:
        doubt = max(_LEAST_MARGIN, best.noise)
        if incumbent.seconds <= best.seconds * (1 + doubt):
            best = incumbent
    return Outcome(best.candidate, best.seconds, best.noise, total)
