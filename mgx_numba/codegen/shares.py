"""Division of symbolic lengths among candidates, such as solvers of a contraction.

Each candidate serves lengths by thresholds; the *general* candidate serves all lengths that no other takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..core.dim import Dim, Length, SampleValues, all_of, any_of, evaluate, known_equal, less, less_equal, negate
from ..errors import UnsupportedError
from .alternatives import Alternative, alternatives, lengths_in, one_solution, only_where, served
from .launch import Solution

K = TypeVar("K")
Sample = Mapping[Dim, int]
WORTH, WORTH_MEAN = 0.08, 0.01
"""Part of the time that another candidate has to save at some length, and over all samples. No figures kept."""


def loss(costs: Mapping[K, float], candidates: Iterable[K]) -> float:
    """Return the relative time lost by the fastest of ``candidates`` against the fastest of all."""
    if not costs:
        return 0.0
    return min((costs[one] for one in candidates if one in costs), default=math.inf) / min(costs.values()) - 1


def worth_having(general: K, table: Sequence[Mapping[K, float]], most: int) -> list[K]:
    """Return the general candidate and up to ``most`` others that save time; ``table`` has the costs at samples."""
    names = list(dict.fromkeys(one for costs in table for one in costs))
    picked = [general]
    while len(picked) < 1 + most:
        now = [loss(costs, picked) for costs in table]
        best, saved = None, 0.0
        for name in names:
            own = [before - loss(costs, [*picked, name]) for before, costs in zip(now, table) if before > 0]
            own = [min(gain, 100.0) for gain in own]
            if max(own, default=0) > WORTH and sum(own) > max(saved, WORTH_MEAN * len(table)):
                best, saved = name, sum(own)
        if best is None:
            break
        picked.append(best)
    return picked


def fastest_where(
    feature: Length | None, table: Sequence[tuple[Sample, Mapping[K, float]]], names: Sequence[K]
) -> dict[K, Length]:
    """Return the condition under which each candidate is taken, by thresholds of the feature, which grows in the
    table."""
    if not isinstance(feature, Dim) or len(names) == 1:
        return {name: 1 if name == names[-1] else 0 for name in names}
    runs: list[tuple[int, K]] = []  # from which length on, which
    for sample, costs in table:
        able = {name: costs[name] for name in names if name in costs}
        if not able:
            continue
        best = min(able, key=lambda name: able[name])
        if not runs or able.get(runs[-1][1], math.inf) > able[best]:
            runs.append((evaluate(feature, sample), best))
    where: dict[K, list[Length]] = {name: [] for name in names}
    for k, (start, name) in enumerate(runs):
        bounds = [less_equal(start, feature)] if k else []
        bounds += [less(feature, runs[k + 1][0])] if k + 1 < len(runs) else []
        where[name].append(all_of(*bounds))
    return {name: any_of(*conditions) for name, conditions in where.items()}


def shares(
    problem: object,
    candidates: Sequence[K],
    where: Mapping[K, Length],
    table: Iterable[tuple[Sample, Mapping[K, float]]],
    plan: Callable[[K, Any], Solution],
) -> tuple[list[tuple[K, Solution]], Length]:
    """Return the launches of each candidate, without tasks at other candidates' lengths, and the condition that one
    serves.

    Args:
        problem: holds symbolic lengths.
        candidates: the general candidate last.
        where: the condition under which each candidate is taken; the general candidate's is ignored.
        table: sample lengths, with the costs of the candidates that apply.
        plan: plans the problem by a candidate, or raises `UnsupportedError`.

    Raises:
        UnsupportedError: no candidate can be planned.
    """
    rows = list(table)
    *_, general = candidates
    parts: list[tuple[K, Solution]] = []
    taken: list[Length] = []
    covered: Length = 0
    for candidate in candidates:
        own = [sample for sample, costs in rows if candidate in costs]
        limit = all_of(*map(negate, taken)) if candidate == general else where[candidate]
        found = _planned(problem, partial(plan, candidate), limit, own)
        if not found:
            continue
        conditions = [all_of(limit, one.condition) for one in found]
        solution = one_solution([replace(one, condition=c) for one, c in zip(found, conditions)])
        if len(solution.launches) == len(found[0].result.launches):  # all merged into one
            solution = only_where(any_of(*conditions), solution)
        parts.append((candidate, solution))
        taken += conditions
        covered = 1 if candidate == general and known_equal(served(found), 1) else any_of(*taken)
    if not parts:
        raise UnsupportedError(f"none of {', '.join(map(str, candidates))} can be planned for symbolic lengths")
    return parts, covered


def _planned(
    problem: object, solve: Callable[[object], Solution], limit: Length, samples: Sequence[Sample]
) -> list[Alternative[Solution]]:
    """Return solutions for the samples within ``limit``, and the conditions under which they are valid there."""
    inside = [sample for sample, fits in zip(samples, SampleValues(samples).of(limit)) if fits]
    if not inside:
        return []
    scope = lengths_in(problem)[0].scope
    everything = {**scope.hints(), **inside[0]}
    with scope.trial(everything):
        try:
            found = alternatives(problem, solve, inside)
        except UnsupportedError:
            return []
    return [one for one in found if any(evaluate(one.condition, {**everything, **sample}) for sample in inside)]
