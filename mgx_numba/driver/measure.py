"""Timing of a compiled program: whole runs, single steps, and the overhead of a call; statistics as MIGraphX defines
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from ..api.program import program
from ..dataclass import dataclass
from ..progress import shown_progress, track
from ..runtime.limits import Limits
from ..targets.base import Observation, Repeatable, Stage, stages_of, units_of
from ..targets.registry import target


@dataclass
class StepTime:
    """Timing of one step of a program.

    ``seconds`` has one time (s) per run; ``reason`` is as in `Observation`, ``stage`` counts from 0, ``unit`` is as in
    `Step`.
    """

    instruction: str
    label: str
    sizes: str
    flops: int
    bytes: int
    seconds: list[float] = field(default_factory=list)
    reason: str = ""
    stage: int = 0
    unit: str = ""

    @property
    def average(self) -> float:
        """Return the mean of the middle half of the times, in seconds."""
        return average(self.seconds)


@dataclass
class Measurement:
    """Times (s) of whole runs, of steps, and of calls that run no step (``idle``).

    ``limits`` is None if no kernel was generated, or the target does not know its limits.
    """

    stages: list[Stage]
    total: list[float]
    steps: list[StepTime]
    idle: list[float]
    limits: Limits | None


def measure(model: program, inputs: Mapping[str, object], repeats: Repeats) -> Measurement:
    """Time a compiled program: whole runs by ``repeats``, then ``repeats.iterations`` runs step by step.

    As many calls without steps follow, for the call overhead. Each step of a `Repeatable` program runs several times in
    a row.
    """
    iterations = repeats.iterations
    compiled = model.compiled
    assert compiled is not None and model.compile_target is not None
    limits_of = target(model.compile_target.name()).limits
    arrays = model._checked(inputs)
    threads = model.compile_options.num_threads if model.compile_options is not None else 0
    stages = stages_of(compiled, arrays)
    planned = [(k, step) for k, stage in enumerate(stages) if stage.plan is not None for step in stage.plan.steps]
    units = [step.unit for _, step in planned]
    used = units_of(stages)
    limits = limits_of(threads, used) if compiled.kernels() else None
    total = repeats.times(lambda: model.run(arrays), "Timing the program")
    steps: list[StepTime] = []
    observed = min(iterations, 1) if isinstance(compiled, Repeatable) else iterations
    for number in track(range(observed), observed, "Timing the steps"):
        position = 0

        def note(seen: Observation, first: bool = number == 0) -> None:
            nonlocal position
            if first:
                sizes = ", ".join(_size(a) for a in seen.outputs())
                step = StepTime(seen.instruction, seen.label, sizes, seen.flops, seen.bytes, reason=seen.reason)
                if position < len(planned):
                    step.stage, step.unit = planned[position][0], units[position]
                steps.append(step)
            steps[position].seconds.append(seen.seconds)
            position += 1

        compiled.observe(arrays, note)
    if isinstance(compiled, Repeatable):
        times = [compiled.step_seconds(arrays) for _ in track(range(iterations), iterations, "Timing the steps")]
        for step, seconds in zip(steps, zip(*times)):
            step.seconds = list(seconds)
    compiled.idle(arrays)
    idle = Repeats(iterations, warmup=0).times(lambda: compiled.idle(arrays), "Timing the call")
    if limits is not None:
        again = limits_of(threads, used)
        limits = limits if again is None else limits.best(again)
    return Measurement(stages, total, steps, idle, limits)


def _size(array: np.ndarray) -> str:
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"


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
