"""Suggestions for making a slow step of a compiled program faster, derived only from the step reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..codegen.tuning.request import Estimate
    from ..codegen.tuning.session import Choice
    from .explaining import StepReport

ARITHMETIC, MEMORY = "the multiply-add units", "memory"
"""Names of the two resources that can bound a step (roofline model)."""

CLOSE = 1.3
"""Ratio to the best estimate below which the cost model's ranking is not trusted. In bench.choices its choices are 0.8%
slower than the best on average, and single choices up to about 30%."""
NEAR_LIMIT = 0.8
"""Fraction of a hardware limit from which a step counts as near that limit. Well written kernels reach 0.75 to 1, by
the readme's table."""
BRIEF_SECONDS = 5e-6
"""Time below which launching and ending a step, which take some microseconds, dominate the step's time."""
_OPEN_LENGTHS = "known at run time only"
_FAST_MATH = "fast_math"


def advice(steps: Sequence[StepReport], choice: Choice | None, estimates: Sequence[Estimate]) -> list[str]:
    """Return suggestions for an instruction's steps; an empty list if nothing is known to help."""
    return [*_of_host(steps), *_of_choice(choice, estimates), *_of_limits(steps)]


def _of_host(steps: Sequence[StepReport]) -> Iterator[str]:
    for step in steps:
        if _OPEN_LENGTHS in step.reason:
            yield "give the lengths that are open (map_input_dims, --input-dim): kernels need those of their operands"
        elif step.reason:
            yield "NumPy computes it, on one thread: the reason says what a kernel would need"


def _of_choice(choice: Choice | None, estimates: Sequence[Estimate]) -> Iterator[str]:
    if choice is None:
        return
    able = [e for e in estimates if e.seconds is not None]
    best = min((e.seconds for e in able if e.seconds is not None), default=0.0)
    close = [e.solver for e in able if e.seconds is not None and e.seconds < CLOSE * best]
    if choice.record is None and len(close) > 1:
        yield f"measure: estimates of {', '.join(close)} lie close together (exhaustive_tune, or the driver's tune)"
    elif choice.record is not None and choice.miss:
        yield "measure on this machine: the record is of another (exhaustive_tune=True, or the driver's tune)"
    barred = [e.solver for e in estimates if _FAST_MATH in e.refusal]
    if barred:
        yield f"fast_math=True would allow {', '.join(barred)}, which change rounding"


def _of_limits(steps: Sequence[StepReport]) -> Iterator[str]:
    timed = [s for s in steps if s.fraction is not None]
    if not timed:
        return
    longest = max(timed, key=lambda s: s.seconds or 0.0)
    assert longest.fraction is not None
    if (longest.seconds or 0.0) < BRIEF_SECONDS:
        yield "a step of some microseconds is mostly its start and end: larger batches have more work for each"
        return
    if not NEAR_LIMIT <= longest.fraction <= 1:
        return
    if longest.limit == MEMORY:
        yield "it is near what memory can do: fewer bytes help (quantize_fp16 or quantize_int8 of weights, more fusion)"
    else:
        yield "it is near what the multiply-add units can do: integers help (quantize_int8), or less work"
