"""Solutions of problems with symbolic lengths: one solution for all lengths, built from alternatives with conditions.

A planner is tried for sample lengths. Questions that ranges do not decide, such as whether rows are shorter than a
vector, lead to different solutions; the answers are the solution's condition. Alternatives with the same kernels are
merged, and their arguments are selected at run time. Other alternatives become launches that have no tasks where their
condition is false.

If the answers only chose between correct alternatives (`core.dim.preferred`), a solution is valid for more lengths than
its condition covers. One such solution takes the lengths that no sample represents. If none is valid for all of them,
the planner is tried again without assumptions on the lengths.

Symbolic lengths are divided among candidates, such as solvers of a contraction: each candidate serves lengths by
thresholds; the *general* candidate serves all lengths that no other takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ..core.dim import (
    Atom,
    Dim,
    Length,
    SampleValues,
    Scope,
    all_of,
    any_of,
    evaluate,
    known_equal,
    known_less_equal,
    less,
    less_equal,
    maximum,
    negate,
    select,
    symbols_of,
)  # fmt: skip
from ..dataclass import dataclass
from ..errors import UnsupportedError
from ..graph.module import Module
from .kernel import KernelSource
from .launch import Grid, Launch, OpenAxis, Operand, Solution, TaskRange, axis_text

K = TypeVar("K")
P = TypeVar("P")
T = TypeVar("T")
WHOLE = (Module, Scope, KernelSource)
"""Types of values that are not searched for lengths."""


@dataclass(frozen=True)
class Alternative(Generic[T]):
    """A result and the condition under which it is taken: 1, or an expression that is 1 where the condition holds.

    ``valid`` is the condition under which the result would be correct.
    """

    condition: Length
    result: T
    valid: Length = 1


def alternatives(
    problem: P, solve: Callable[[P], T], samples: Sequence[Mapping[Dim, int]] = (), within: Length = 1
) -> list[Alternative[T]]:
    """Return the distinct results of a function of a problem; their conditions exclude each other.

    The last result is taken wherever it is valid and no other is taken.

    Args:
        problem: dataclasses, tuples, lists, dictionaries and lengths.
        solve: computes a result; its questions are not recorded in the scope of the problem's symbols.
        samples: values of the problem's symbols to try, besides the hints of their scope and its samples.
        within: a condition; samples for which it does not hold are not tried. It holds for the hints.

    Raises:
        UnsupportedError: raised by ``solve`` for the hints. Other lengths for which it raises are not covered.
    """
    symbols = symbols_of(lengths_in(problem))
    if not symbols:
        return [Alternative(1, solve(problem))]
    scope = symbols[0].scope
    holds = all_of(scope.holds(), within)  # only lengths that satisfy the program's guards matter
    hints, *given = scope.samples_of(symbols_of([*symbols, holds]), samples)
    tries = SampleValues([hints, *(one for one, fits in zip(given, SampleValues(given).of(holds)) if fits)])
    tried: set[tuple[int, ...]] = set()
    found: list[Alternative[T]] = []
    answers: list[dict[Dim, bool]] = []
    permitted = False
    for number, sample in enumerate(tries.samples):
        values = tuple([sample[s] for s in symbols])
        if values in tried:
            continue
        if any(tries.of(one.condition)[number] for one in found):
            tried.add(values)
            continue
        with scope.trial(sample):
            try:
                result = solve(problem)
            except UnsupportedError:
                if not tried:
                    raise
                continue
            finally:
                tried.add(values)
            needed = {condition: guard.answer for condition, guard in scope.guards.items()}
            asked = {**scope.preferences, **needed}
            permitted |= any(condition in scope.preferences for condition in needed)
        # Planners that read example lengths directly may ask different questions at other samples.
        others = [a for a, own in zip(found, answers) if not any(asked.get(c, yes) != yes for c, yes in own.items())]
        condition = all_of(_holds(asked), *(negate(one.condition) for one in others))
        found.append(Alternative(condition, result, all_of(_holds(needed), *(negate(a.condition) for a in others))))
        answers.append(asked)
        if type(condition) is int:
            break
    rest = next((one for one in found if type(one.valid) is int), found[0])
    if permitted and type(rest.valid) is not int:
        largest = max(tries.samples, key=lambda sample: sum(sample[s] for s in symbols))
        with scope.trial(largest, cautious=True), contextlib.suppress(UnsupportedError):
            result = solve(problem)
            found.append(rest := Alternative(0, result, scope.holds()))
    others = [one for one in found if one is not rest]
    return [*others, replace(rest, condition=all_of(rest.valid, *(negate(one.condition) for one in others)))]


def served(found: Sequence[Alternative[Any]]) -> Length:
    """Return the condition that some alternative is taken: 1, or an expression."""
    return 1 if type(found[-1].valid) is int else any_of(*(one.condition for one in found))


def _holds(answers: Mapping[Dim, bool]) -> Length:
    """Return the conjunction of all answers, without answers that follow from others."""
    conditions = [c if yes else negate(c) for c, yes in answers.items()]
    atoms = {c: c.terms[0][0][0] for c in conditions if len(c.terms) == 1 and len(c.terms[0][0]) == 1}
    bounds = [(c, atom.operands[0]) for c, atom in atoms.items() if atom.kind == "negative"]

    def follows(condition: object, atom: Atom) -> bool:
        for other, bound in bounds:
            if other is condition:
                continue
            value = atom.operands[0]
            if atom.kind == "negative" and known_less_equal(value, bound):
                return True
            if atom.kind == "nonzero" and (known_less_equal(value, bound) or known_less_equal(-value, bound)):
                return True
        return False

    return all_of(*(c for c in conditions if c not in atoms or not follows(c, atoms[c])))


def fixed(length: Length) -> int:
    """Return the example value of a length on which kernel text depends; this records a guard."""
    if not isinstance(length, Dim):
        return length
    value = length.scope.value(length)
    assert length == value  # this records the guard
    return value


def one_solution(found: Sequence[Alternative[Solution]]) -> Solution:
    """Combine alternatives into one solution."""
    merged: list[Alternative[Solution]] = []
    for one in found:
        for k, other in enumerate(merged):
            joined = _joined(other, one)
            if joined is not None:
                merged[k] = joined
                break
        else:
            merged.append(one)
    if len(merged) == 1:
        return merged[0].result
    first = merged[0].result
    if any(getattr(one.result, name) != getattr(first, name) for one in merged for name in _TEXTUAL[Solution]):
        raise UnsupportedError("weights would be wanted in one order for some lengths, and in another one for others")
    launches = [_only_where(one.condition, launch) for one in merged for launch in one.result.launches]
    return replace(merged[0].result, launches=tuple(launches), scratch=maximum(*(one.result.scratch for one in merged)))


def only_where(condition: Length, solution: Solution) -> Solution:
    """Return a solution whose launches have no tasks unless a condition holds."""
    if type(condition) is int and condition:
        return solution
    return replace(solution, launches=tuple(_only_where(condition, launch) for launch in solution.launches))


def _only_where(condition: Length, launch: Launch) -> Launch:
    """Return a launch that has no tasks, or no blocks, unless a condition holds."""
    geometry = launch.geometry
    if isinstance(geometry, TaskRange):
        return replace(launch, geometry=replace(geometry, tasks=select(condition, geometry.tasks, 0)))
    if isinstance(geometry, Grid):
        first, *planes = geometry.blocks
        return replace(launch, geometry=replace(geometry, blocks=(select(condition, first, 0), *planes)))
    raise UnsupportedError("calls of libraries cannot be left out for some lengths")


def _joined(a: Alternative[Solution], b: Alternative[Solution]) -> Alternative[Solution] | None:
    """Merge two alternatives that differ only in numbers; None if they differ otherwise."""
    try:
        return Alternative(a.condition + b.condition, _chosen(a.condition, a.result, b.result))
    except _Different:
        return None


class _Different(Exception):
    """Raised if two results differ in more than numbers."""


_TEXTUAL: dict[type, tuple[str, ...]] = {
    Solution: ("lane_permutation", "gated", "halves"),
    Grid: ("threads", "shared_bytes", "cooperative"),
    Operand: ("name",),
}
"""Fields that are not run-time numbers of a launch: they hold for all lengths, or kernels depend on them."""


def _chosen(condition: Length, a: Any, b: Any) -> Any:
    if a is b:
        return a
    if isinstance(a, (int, Dim)) and isinstance(b, (int, Dim)) and not isinstance(a, bool):
        return select(condition, a, b)
    if type(a) is not type(b):
        raise _Different
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            raise _Different
        return type(a)(_chosen(condition, x, y) for x, y in zip(a, b))
    if any(getattr(a, name) != getattr(b, name) for name in _TEXTUAL.get(type(a), ())):
        raise _Different
    if isinstance(a, (Launch, Solution, TaskRange, Grid, Operand)):
        own = {f.name: _chosen(condition, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
        return dataclasses.replace(a, **own)
    if is_dataclass(a) and has_lengths((a, b)):
        own = {f.name: _chosen(condition, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
        return dataclasses.replace(a, **own)  # type: ignore[type-var]
    if a != b:
        raise _Different
    return a


def has_lengths(value: object) -> bool:
    """Return whether a value holds symbolic lengths."""
    if isinstance(value, Dim):
        return True
    for one in _members(value):
        kind = type(one)
        if kind is not int and kind is not str and has_lengths(one):
            return True
    return False


def at_lengths(value: P, values: Mapping[Dim, int]) -> P:
    """Return a problem, a solution or a number with its expressions evaluated at values of their symbols."""
    return evaluator(value)(functools.partial(evaluate, values=values, known={}))


def evaluator(value: P) -> Callable[[Callable[[Dim], int]], P]:
    """Return a function that makes a value again with its argument's result for each expression. The value is searched
    for expressions once. Parts without expressions stay the same objects."""
    return _rebuilder(value) or (lambda _: value)


def _rebuilder(value: object) -> Callable[[Callable[[Dim], Any]], Any] | None:
    """Return a function that makes ``value`` again with its argument's result for each expression; None if there are no
    expressions."""
    kind: Any = type(value)
    if kind is int or kind is str or value is None:
        return None
    if isinstance(value, Dim):
        return lambda function: function(value)
    if isinstance(value, OpenAxis):
        return lambda function: axis_text(value.axis, function(value.length))
    if isinstance(value, (tuple, list)):
        members = [_rebuilder(one) for one in value]
        if not any(members):
            return None
        return lambda function: kind([make(function) if make else one for one, make in zip(value, members)])
    kept: Any = value
    if not isinstance(value, dict):
        kept = {name: getattr(value, name) for name in _arguments(kind)} if _fields(kind) else {}
    rebuilt = {name: make for name, one in kept.items() if (make := _rebuilder(one))}
    if not rebuilt:
        return None

    def rebuild(function: Callable[[Dim], object]) -> object:
        own = {**kept, **{name: make(function) for name, make in rebuilt.items()}}
        return own if kept is value else kind(**own)

    return rebuild


def lengths_in(value: object) -> list[Dim]:
    """Return the symbolic lengths in a value."""
    found: list[Dim] = []
    _collect(value, found)
    return found


def modules_in(value: object) -> list[Module]:
    """Return the modules in a value; their lengths are not among `lengths_in`."""
    return [value] if isinstance(value, Module) else [found for one in _members(value) for found in modules_in(one)]


def _collect(value: object, found: list[Dim]) -> None:
    if isinstance(value, Dim):
        found.append(value)
    else:
        for one in _members(value):
            _collect(one, found)


def _members(value: object) -> Collection[object]:
    """Return the direct members of a value."""
    kind: object = type(value)
    if kind is int or kind is str:
        return ()
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return value.values()
    names = _fields(kind)
    return [getattr(value, name) for name in names] if names else ()


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the field names of a dataclass; None for other types and for the types in `WHOLE`."""
    if issubclass(kind, WHOLE) or not is_dataclass(kind):
        return None
    return tuple(field.name for field in fields(kind))


@functools.cache
def _arguments(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields with which a dataclass is made."""
    return tuple(field.name for field in fields(kind) if field.init)


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
            found = alternatives(problem, solve, inside, limit)
        except UnsupportedError:
            return []
    return [one for one in found if any(evaluate(one.condition, {**everything, **sample}) for sample in inside)]
