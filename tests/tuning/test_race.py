"""The race between candidates, on a simulated clock."""

from __future__ import annotations

import itertools
from collections import Counter

from mgx_numba.codegen.tuning.tuner import race
from mgx_numba.errors import CompileError


class Track:
    """Gives each candidate its times in turn, and counts how often it was asked."""

    def __init__(self, **times: float | list[float]) -> None:
        self.times = {n: itertools.cycle(t if isinstance(t, list) else [t]) for n, t in times.items()}
        self.asked: Counter[str] = Counter()
        self.now = 0.0

    def measure(self, name: str) -> float:
        self.asked[name] += 1
        seconds = next(self.times[name])
        self.now += seconds
        return seconds

    def clock(self) -> float:
        return self.now


def test_losers_are_dropped_early_and_the_fastest_wins():
    track = Track(model=1.0, far=5.0, near=0.8, middle=1.1)
    outcome = race(["model", "far", "near", "middle"], track.measure)
    assert outcome is not None and outcome.candidate == "near" and outcome.seconds == 0.8
    assert track.asked["far"] == 1 and track.asked["middle"] == 2
    assert track.asked["model"] == track.asked["near"] >= 5
    assert outcome.samples == sum(track.asked.values())


def test_incumbent_keeps_its_place_within_the_noise():
    track = Track(model=1.0, other=0.985)
    outcome = race(["model", "other"], track.measure)
    assert outcome is not None and outcome.candidate == "model"
    noisy = Track(model=1.0, other=[0.7, 1.2, 0.95, 0.75, 1.15])
    outcome = race(["model", "other"], noisy.measure)
    assert outcome is not None and outcome.candidate == "model"


def test_one_slow_sample_does_not_decide():
    track = Track(model=1.0, other=[1.4, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6])
    outcome = race(["model", "other"], track.measure)
    assert outcome is not None and outcome.candidate == "other" and outcome.seconds == 0.6 and outcome.noise == 0


def test_candidate_that_cannot_be_measured_is_left_out():
    track = Track(model=1.0, good=0.5)

    def measure(name: str) -> float:
        if name.startswith("bad"):
            raise CompileError("no code")
        return track.measure(name)

    outcome = race(["bad", "model", "bad2", "good"], measure)
    assert outcome is not None and outcome.candidate == "good"
    assert race(["bad"], measure) is None and race([], measure) is None


def test_deadline():
    track = Track(model=1.0, other=0.5)
    outcome = race(["model", "other"], track.measure, 3.2, track.clock)
    assert outcome is not None and outcome.candidate == "other" and track.now <= 4.5
    track = Track(model=1.0, other=0.5)
    outcome = race(["model", "other"], track.measure, 0.5, track.clock)  # over in the first round, which is finished
    assert outcome is not None and outcome.candidate == "other" and track.asked == {"model": 1, "other": 1}
