"""Exhaustive tuning of a program: measure every contraction that has no tuning record for this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..codegen.tuning.request import Candidate, TuningRequest
from ..codegen.tuning.session import Tuning
from ..codegen.tuning.tuner import Outcome, race
from ..environment import environment_number
from ..errors import UnsupportedError
from ..messages import INFO, tell, warn

_ROUNDS = 4
"""Maximum number of times that the winners are applied to find the new problems that they bring. Programs on AMX bring
new problems once."""


class CandidateBench(Protocol):
    """Memory and executables for a problem's candidates."""

    def sample(self, candidate: Candidate) -> float:
        """Return the median seconds of several executions.

        Raises:
            CompileError: the candidate's kernel cannot be compiled.
        """


def tune(tuning: Tuning, bench_of: Callable[[Any], CandidateBench], ask: Callable[[], object] | None = None) -> int:
    """Measure the pending problems, longest first, record each winner in ``tuning``, and return the number of winners.

    The budget, which includes compile time, is shared in proportion to the estimated time in the program. A problem
    that is begun gets one sample of each solver, even beyond its share. When the budget is spent, or on Ctrl-C, a
    warning says how many problems keep the cost model's choice and how many records were saved.

    Args:
        tuning: holds the problems, the budget and the records.
        bench_of: makes the bench of a request, or raises `UnsupportedError` for a problem that is not measured.
        ask: makes the program's lowering request all its problems again. With the winners there may be new problems (a
            product whose left-hand side another product writes in parts), which are measured in turn.
    """
    end = None if tuning.budget is None else time.monotonic() + tuning.budget
    before = tuning.requests()
    seen: set[str] = set()
    learnt = 0
    for _ in range(_ROUNDS if ask else 1):
        if ask:
            tuning.forget_since(before)
            ask()
        new = [entry for entry in tuning.pending() if entry[0].key().key not in seen]
        if not new:
            break
        seen.update(request.key().key for request, _ in new)
        more, complete = _measure(tuning, bench_of, new, end)
        learnt += more
        if not complete:
            break
    return learnt


def _measure(
    tuning: Tuning,
    bench_of: Callable[[object], CandidateBench],
    requests: Sequence[tuple[TuningRequest, int]],
    end: float | None,
) -> tuple[int, bool]:
    """Measure the requests until the time ``end``; return how many have a winner, and whether there was time for
    all."""
    pending = sorted(((_weight(tuning, request, count), request) for request, count in requests), key=lambda e: -e[0])
    left = max(sum(weight for weight, _ in pending), 1e-12)
    done = learnt = 0
    reason = "the tuning budget is spent"
    try:
        for weight, request in pending:
            now = time.monotonic()
            if end is not None and now >= end:
                break
            deadline = None if end is None else now + (end - now) * min(1.0, weight / left)
            left = max(left - weight, 1e-12)
            outcome = _tune_one(request, tuning, bench_of, deadline, done, len(pending) - done)
            if outcome is not None:
                tuning.record_outcome(request, outcome)
                learnt += 1
            done += 1
    except KeyboardInterrupt:
        reason = "tuning was interrupted"
    if done < len(pending):
        saved = f"{learnt} record{'' if learnt == 1 else 's'} saved"
        text = f"{reason}: {len(pending) - learnt} of {len(pending)} problems are not measured, {saved}"
        warn(text, RuntimeWarning)
    else:
        tell("tuning", INFO, "%d of %d problems measured, as many records saved", learnt, len(pending))
    return learnt, done == len(pending)


def _tune_one(
    request: TuningRequest,
    tuning: Tuning,
    bench_of: Callable[[object], CandidateBench],
    deadline: float | None,
    done: int,
    remaining: int,
) -> Outcome[Candidate] | None:
    """Return the fastest solver with its fastest blocking; None if nothing of the problem can be measured.

    ``MIGRAPHX_TRACE_BENCHMARKING``: 1 prints the winner, 2 also each candidate, 3 also each sample.
    ``MIGRAPHX_MLIR_TUNE_LIMIT`` limits the number of solvers, and of blockings of a solver, that are measured.
    """
    trace, limit = environment_number("MIGRAPHX_TRACE_BENCHMARKING"), environment_number("MIGRAPHX_MLIR_TUNE_LIMIT")
    try:
        bench = bench_of(request)
    except UnsupportedError:
        return None
    best: tuple[float, str] = (float("inf"), "")

    def measure(candidate: Candidate) -> float:
        nonlocal best
        seconds = bench.sample(candidate)
        if trace > 2:
            print(f"Benchmark: {candidate} {seconds * 1e3:.6g}ms")
        if seconds < best[0]:
            best = seconds, f"{candidate} {seconds * 1e3:.3f} ms"
            if tuning.progress is not None:
                tuning.progress(done, remaining, best[1])
        return seconds

    solvers = tuning.backend.solvers.candidates(request)[: limit or None]
    hint = tuning.hint(request)
    if hint is not None and hint not in solvers:
        solvers.append(hint)
    if trace > 1:
        print(f"Benchmarking {request.problem}: {', '.join(map(str, solvers))}")
    winner = race(solvers, measure, deadline)
    if winner is None:
        return None
    late = deadline is not None and time.monotonic() >= deadline
    others = [] if late else tuning.backend.solvers.refinements(request, winner.candidate)[: limit or None]
    if trace > 1 and others:
        print(f"Benchmarking {winner.candidate}: {', '.join(map(str, others))}")
    best_of_all = race([winner.candidate, *others], measure, deadline) or winner
    if trace:
        print(f"Fastest solution: {best_of_all.candidate} {best_of_all.seconds * 1e3:.6g}ms for {request.problem}")
    return best_of_all


def _weight(tuning: Tuning, request: TuningRequest, count: int) -> float:
    """Return the estimated seconds of all occurrences of a request in the program."""
    return count * min(e.seconds for e in tuning.backend.solvers.estimates(request) if e.seconds is not None)
