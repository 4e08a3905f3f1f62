"""Contractions of symbolic lengths: choose which solver serves which lengths, and plan their launches.

Solvers are compared at sample lengths, by estimates over plain numbers. A few solvers are chosen that lose little at
any length. Thresholds of one length, usually the number of rows, decide where each is used. Each then plans the
symbolic problem (`codegen.alternatives`). One of them, the *general* solver, serves all lengths that no other serves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ....core.dim import (
    Dim,
    Length,
    SampleValues,
    Scope,
    all_of,
    any_of,
    evaluate,
    known_equal,
    less,
    less_equal,
    symbols_of,
)
from ....dataclass import dataclass
from ....errors import ShapeError, UnsupportedError
from ...alternatives import at_lengths, evaluator, lengths_in, loss, shares
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...problems.epilogue import ALONG_N
from ...problems.gemm import GemmProblem
from ...tuning.request import Candidate, Request
from ..machine import Machine, machine
from .blocking import samples_along, values_of
from .gemm import distinct_matrices
from .solver import AnySolver
from .solvers import SECONDS_PER_BYTE, solvers_of

MOST_SOLVERS = 4
"""Most solvers of one contraction: each has kernels, and some have packed weights of their own."""
WORTH, WORTH_OWN_WEIGHTS = 0.05, 0.25
"""Fraction of the time that another solver must save at some length: if it shares packed weights, and if its weights
are stored in addition. Estimates are no more accurate than the first."""
WORTH_MEAN = 0.01
"""Fraction of the time that another solver must save in the mean of all sample lengths, so that no kernel is made for
one length alone."""
IMAGES = (4, 7, 14, 28, 56, 112, 224, 512)
"""Image sizes at which solvers are compared."""
BISECTIONS = 4
"""Steps of the bisection for a threshold between two samples."""

Samples = list[dict[Dim, int]]


@dataclass(frozen=True)
class SolverShare:
    """The launches of one solver. They have no tasks at lengths that another solver serves."""

    candidate: Candidate
    request: Request
    solution: Solution


class _Open(NamedTuple):
    """A symbolic contraction, the length that thresholds refer to (None: no thresholds), its symbols, and the problem
    as a function of the values of its lengths."""

    request: Request
    feature: Dim | None
    symbols: list[Dim]
    solvers: Sequence[AnySolver]
    chosen: Callable[[GemmProblem | ConvProblem, Callable[[], Request]], str]
    problem_at: Callable[[Callable[[Dim], int]], GemmProblem | ConvProblem]

    def costs(self, sample: Mapping[Dim, int], value: Callable[[Dim], int]) -> dict[str, float]:
        """Return the estimated time (s) of each applicable solver at sample lengths; ``value`` is that of a length
        there."""
        try:
            problem = self.problem_at(value)
        except ShapeError:  # an image that is smaller than the kernel
            return {}
        if isinstance(problem, GemmProblem) and min(problem.m, problem.n, problem.k, *problem.batch) < 1:
            return {}  # such as frames of a signal that is shorter than a frame
        strides = self.request.strides
        preferred = self.chosen(
            problem, lambda: replace(self.request, problem=problem, strides=at_lengths(strides, sample))
        )
        found = dict(_estimates(problem, self.request.threads, tuple(self.solvers), machine()))
        if preferred in found:  # measured to be the fastest
            found[preferred] = min(found.values())
        return found

    def named(self, name: str) -> AnySolver:
        """Return the solver called ``name``."""
        return next(solver for solver in self.solvers if solver.name == name)


@functools.lru_cache(maxsize=1 << 12)  # more than the contractions of a network, at all sample lengths
def _estimates(
    problem: GemmProblem | ConvProblem, threads: int, solvers: tuple[AnySolver, ...], of: Machine
) -> tuple[tuple[str, float], ...]:
    """Return the estimated time (s) of each of ``solvers`` that applies, by name, on the machine of this process.

    The solvers have accepted the problem's types.
    """
    found = []
    for solver in solvers:
        if solver.refused_lengths(problem) is None:
            seconds = solver.estimate(problem, threads)
            found.append((solver.name, seconds + SECONDS_PER_BYTE * solver.packing_growth(problem)))
    return tuple(found)


def solve_open(
    request: Request,
    plan: Callable[[Request, Candidate], Solution],
    chosen: Callable[[GemmProblem | ConvProblem, Callable[[], Request]], str] = lambda *_: "",
    unsuited: Collection[str] = (),
) -> tuple[list[SolverShare], Length]:
    """Return the launches that compute a contraction of symbolic lengths, and the condition under which they cover it.

    Args:
        request: the contraction.
        plan: plans one solver, by `Solver.plan` in the end.
        chosen: returns the name of the solver that measurements prefer for a problem of plain numbers, and a function
            that makes its request; "" if there are no measurements.
        unsuited: names of solvers that must not be used.

    Raises:
        UnsupportedError: no solver applies for the example lengths; the message has every solver's reason.
    """
    problem = request.problem
    solvers = solvers_of(problem)
    refused = {
        s.name: "it shall not be taken"
        if s.name in unsuited
        else s.refused_types(problem) or s.refused_symbols(problem)
        for s in solvers
    }
    symbols = symbols_of(lengths_in((problem, request.strides)))
    suited = [s for s in solvers if refused[s.name] is None and not _never_applies(s, problem, symbols[0].scope)]
    open_ = _Open(request, _feature(problem), symbols, suited, chosen, evaluator(problem))
    samples = _samples(open_)
    values = SampleValues(samples)
    table = [open_.costs(sample, values.at(number)) for number, sample in enumerate(samples)]
    if not table[0]:
        plain = at_lengths(problem, samples[0])
        reasons = "; ".join(f"{s.name}: {refused[s.name] or s.refusal(plain)}" for s in solvers)
        raise UnsupportedError(f"no solver for {problem}: {reasons}")
    general, names = _picked(open_, table)
    where = _thresholds(open_, samples, table, names)

    def planned(name: str, given: tuple[object, object]) -> Solution:
        solver = open_.named(name)
        reason = solver.refusal(given[0])
        if reason is not None:
            raise UnsupportedError(reason)
        return plan(request, Candidate(solver))

    order = [*(one for one in names if one != general), general]
    found, covered = shares((problem, request.strides), order, where, zip(samples, table), planned)
    return [SolverShare(Candidate(open_.named(name)), request, solution) for name, solution in found], covered


def _never_applies(solver: AnySolver, problem: GemmProblem | ConvProblem, scope: Scope) -> bool:
    """Return whether a solver that accepts the types refuses the problem without a question about its lengths."""
    with scope.trial({}):
        return solver.refused_lengths(problem) is not None and not scope.guards and not scope.preferences


def flattened(request: Request) -> Request:
    """Return a product whose batch is merged into rows, if that is valid for all lengths.

    Solvers for few rows then see the total number of rows.
    """
    problem = request.problem
    if not isinstance(problem, GemmProblem) or not problem.batch or problem.prologue:
        return request
    if not known_equal(distinct_matrices(problem), 1):
        return request
    strides = [tuple(problem.a_strides[:-1]), tuple(problem.out_strides)]
    for k, operand in enumerate(request.epilogue.operands):
        own = request.strides[k] if k < len(request.strides) else ()
        if not own and operand.access in (*ALONG_N, "per_m"):
            return request
        if own:
            strides.append(tuple(own))
    lens = (*problem.batch, problem.m)
    for one in strides:
        if not all(known_equal(one[d], one[d + 1] * lens[d + 1]) for d in range(len(lens) - 1)):
            return request
    rows = replace(
        problem, m=problem.batch_count * problem.m, batch=(), a_strides=problem.a_strides[-2:],
        b_strides=problem.b_strides[-2:], out_strides=problem.out_strides[-1:],
    )  # fmt: skip
    return replace(request, problem=rows, strides=tuple(tuple(own[-1:]) for own in request.strides))


def _feature(problem: GemmProblem | ConvProblem) -> Dim | None:
    """Return the symbolic length that most affects which solver is fastest."""
    if isinstance(problem, ConvProblem):
        lengths: list[Length] = [problem.batch * problem.out_pixels, *problem.in_lens]
    else:
        shared = known_equal(distinct_matrices(problem), 1)
        rows = problem.batch_count * problem.m if shared else problem.m
        lengths = [rows, problem.n, problem.k, problem.batch_count]
    return next((length for length in lengths if isinstance(length, Dim)), None)


def _samples(open_: _Open) -> Samples:
    """Return assignments of the symbols at which solvers are compared: the example first, then increasing features."""
    scope = open_.symbols[0].scope
    found: Samples = scope.samples_of(open_.symbols)
    problem: Any = open_.request.problem
    feature = open_.feature
    inside = symbols_of(problem.in_lens) if isinstance(problem, ConvProblem) else []
    if inside:
        least = {s: max(s.low or 1, 1) for s in open_.symbols}
        line = next(length for length in problem.in_lens if isinstance(length, Dim))
        along = set(map(id, symbols_of([line])))
        values = [values_of(s, line if id(s) in along else s, found[0], IMAGES) for s in inside]
        found += [least | dict(zip(inside, sizes)) for sizes in zip(*values)]
    elif feature is not None:
        found += samples_along(feature, open_.symbols)
    return [dict(one) for one in dict.fromkeys(tuple(sample.items()) for sample in found)]


def _picked(open_: _Open, table: Sequence[Mapping[str, float]]) -> tuple[str, list[str]]:
    """Return the general solver, and the names of all solvers that are worth having."""
    names = list(dict.fromkeys(name for costs in table for name in costs))
    losses = {name: [loss(costs, [name]) for costs in table] for name in names}
    everywhere = [name for name in names if math.inf not in losses[name]] or names
    general = min(everywhere, key=lambda name: sum(losses[name]))
    picked = [general]
    while len(picked) < MOST_SOLVERS:
        now = [loss(costs, picked) for costs in table]
        gains = {}
        for name in names:
            own = [before - loss(costs, [*picked, name]) for before, costs in zip(now, table) if before > 0]
            shared = any(_weights(open_, name) == _weights(open_, one) for one in picked)
            if max(own, default=0) > (WORTH if shared else WORTH_OWN_WEIGHTS) and sum(own) > WORTH_MEAN * len(table):
                gains[name] = sum(own)
        if not gains:
            break
        picked.append(max(gains, key=lambda name: gains[name]))
    return general, picked


def _weights(open_: _Open, name: str) -> object:
    """Return a key of the solver's packed weight format; None if the solver packs no weights."""
    solver, problem = open_.named(name), open_.request.problem
    lens = solver.packed_lens(problem)
    return (solver.packed_as or solver.name, *lens, *solver.packing_key(problem)) if lens else None


def _thresholds(
    open_: _Open, samples: Samples, table: Sequence[Mapping[str, float]], names: Sequence[str]
) -> dict[str, Length]:
    """Return the condition under which each solver is used."""
    feature = open_.feature
    if feature is None or len(names) == 1:
        return {name: 1 if name == names[0] else 0 for name in names}
    rows = sorted(zip((evaluate(feature, s) for s in samples), range(len(samples))), key=lambda one: one[0])
    runs: list[tuple[int, int, str]] = []  # first length, index of its sample, solver
    for value, number in rows:
        costs = {name: table[number][name] for name in names if name in table[number]}
        if not costs:
            continue
        best = min(costs, key=lambda name: costs[name])
        if runs and costs.get(runs[-1][2], math.inf) <= (1 + WORTH) * costs[best]:
            continue
        if runs:
            value = _bisected(open_, feature, rows, value, runs[-1][2], best)
        runs.append((value, number, best))
    where: dict[str, list[Length]] = {name: [] for name in names}
    for k, (start, _, name) in enumerate(runs):
        after = runs[k + 1][0] if k + 1 < len(runs) else None
        bounds = [less_equal(start, feature)] if k else []
        where[name].append(all_of(*bounds, *([less(feature, after)] if after is not None else [])))
    return {name: any_of(*conditions) for name, conditions in where.items()}


def _bisected(open_: _Open, feature: Dim, rows: Sequence[tuple[int, int]], value: int, before: str, after: str) -> int:
    """Return the least length found, up to ``value``, at which solver ``after`` is faster than ``before``."""
    low = max((v for v, _ in rows if v < value), default=value)
    *others, last = symbols_of([feature])
    hints = feature.scope.hints()
    for _ in range(BISECTIONS):
        sample = {s: hints[s] for s in open_.symbols} | {s: max(s.low or 1, 1) for s in others}
        (at,) = values_of(last, feature, sample, [(low + value) // 2])
        middle = evaluate(feature, sample | {last: at})
        if not low < middle < value:
            break
        here = sample | {last: at}
        costs = open_.costs(here, functools.partial(evaluate, values=here))
        if costs.get(before, math.inf) <= (1 + WORTH) * costs.get(after, math.inf):
            low = middle
        else:
            value = middle
    return value
