"""Timing in turns, on simulated clocks."""

from __future__ import annotations

import gc
import math

import pytest

from bench.timing import (
    MAX_CALLS_PER_BLOCK,
    Clocks,
    Timing,
    geometric_mean,
    interleave,
    ratio,
    ratio_range,
    wait_until_quiet,
)


class Machine:
    """Simulated clocks: calls take the time that they say, sleeping takes as long as asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used = 0.0
        self.spinning = 0.0
        self.log: list[str] = []
        self.slept_since_call = True

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.now, cpu=lambda: self.used, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        spun = min(seconds, self.spinning)
        self.spinning -= spun
        self.used += spun
        self.slept_since_call = True

    def function(self, name: str, seconds: float, first: float = 0.0, spins: float = 0.0):
        """A call that takes ``first`` seconds more after a pause, and leaves threads spinning."""

        def call() -> None:
            duration = seconds + (first if self.slept_since_call else 0.0)
            self.slept_since_call = False
            self.now += duration
            self.used += duration
            self.spinning = spins
            self.log.append(name)

        return call


def test_functions_take_turns_and_each_block_has_one_call_that_is_not_timed():
    machine = Machine()
    functions = {"a": machine.function("a", 0.25, first=5.0), "b": machine.function("b", 0.25)}
    timings = interleave(functions, 0.0, min_rounds=3, block_seconds=0.5, clocks=machine.clocks)
    assert machine.log[-12:] == ["a"] * 3 + ["b"] * 3 + ["a"] * 3 + ["b"] * 3
    assert timings["a"].seconds == pytest.approx([0.25] * 6)
    assert timings["a"].median == pytest.approx(timings["b"].median)


def test_blocks_hold_as_many_calls_as_fill_them():
    machine = Machine()
    functions = {
        name: machine.function(name, seconds) for name, seconds in (("long", 3.0), ("short", 0.125), ("tiny", 1e-6))
    }
    timings = interleave(functions, 0.0, min_rounds=1, block_seconds=1.0, clocks=machine.clocks)
    assert [timings[name].calls for name in ("long", "short", "tiny")] == [1, 8, MAX_CALLS_PER_BLOCK]


def test_rounds_stop_before_the_budget_is_spent():
    machine = Machine()
    timings = interleave({"a": machine.function("a", 1.0)}, 30.0, block_seconds=1.0, clocks=machine.clocks)
    assert len(timings["a"].rounds) > 3
    assert machine.now <= 30.0


def test_the_next_function_waits_for_threads_that_spin():
    machine = Machine()
    functions = {"a": machine.function("a", 0.25, spins=0.1), "b": machine.function("b", 0.25)}
    at_start = []
    inner = functions["b"]

    def watched() -> None:
        at_start.append(machine.spinning)
        inner()

    interleave({"a": functions["a"], "b": watched}, 0.0, min_rounds=2, block_seconds=0.25, clocks=machine.clocks)
    assert max(at_start[3:]) == 0.0


def test_waiting_gives_up_on_threads_that_never_stop():
    machine = Machine()
    machine.spinning = math.inf
    wait_until_quiet(machine.clocks)
    assert 0.5 <= machine.now < 0.6


def test_garbage_collection_is_as_before_even_after_an_error():
    def fail() -> None:
        assert not gc.isenabled()
        raise KeyError("stop")

    assert gc.isenabled()
    with pytest.raises(KeyError):
        interleave({"a": fail}, 0.0, clocks=Machine().clocks)
    assert gc.isenabled()


def test_nothing_to_time_is_an_error():
    with pytest.raises(ValueError, match="nothing to time"):
        interleave({}, 1.0)
    with pytest.raises(ValueError, match="at least one call"):
        Timing(())


def test_ratio_is_of_the_faster_of_the_others():
    ours, one, other = (Timing(((t, t), (t, 2 * t, t))) for t in (1.0, 3.0, 2.0))
    assert ratio(ours, one, other) == 2.0
    assert ratio_range(ours, one) == (3.0, 3.0)
    assert ours.summary() == {"median_ms": 1000.0, "p10_ms": 1000.0, "p90_ms": 1600.0, "calls": 5, "rounds": 2}


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))
