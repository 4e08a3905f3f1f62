"""Problems whose lengths are symbols: one solution that serves all lengths, of alternatives that lengths choose.

A planner is tried for sample lengths. What it asks of them beyond what ranges decide, such as whether rows are shorter
than a vector, leads to one of several solutions; the answers are the solution's condition. Alternatives with the same
kernels become one, whose arguments are chosen; others become launches without tasks where they are not wanted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

from ..core.dim import Dim, Length, Scope, evaluate, maximum, select, substitute, symbols_of
from ..dataclass import dataclass
from ..errors import UnsupportedError
from ..graph.module import Module
from .launch import Launch, Solution, TaskRange

__all__ = ["Alternative", "alternatives", "has_lengths", "lengths_in", "one_solution", "renamed"]

T = TypeVar("T")
WHOLE = (Module, Scope)
"""Kinds of values that are not looked into."""


@dataclass(frozen=True)
class Alternative(Generic[T]):
    """A result, and the condition under which it serves: 1, or an expression that is 1 where it holds."""

    condition: Length
    result: T


def alternatives(
    problem: Any, solve: Callable[[Any], T], samples: Sequence[Mapping[Dim, int]] = ()
) -> list[Alternative[T]]:
    """Return the distinct results of a function of a problem; their conditions exclude each other.

    Args:
        problem: dataclasses, tuples, lists, dictionaries and lengths.
        solve: gets the problem with other symbols in the place of its own, whose questions are not asked of its scope.
        samples: values of the problem's symbols to try, besides the hints of their scope and its samples.

    Raises:
        UnsupportedError: what ``solve`` raises for the hints. Other lengths for which it does are not covered.
    """
    symbols = symbols_of(lengths_in(problem))
    if not symbols:
        return [Alternative(1, solve(problem))]
    scope = symbols[0].scope
    found: list[Alternative[T]] = []
    for number, sample in enumerate([scope.hints(), *scope.samples, *samples]):
        if any(evaluate(one.condition, sample) for one in found):
            continue
        inner = Scope()
        there = {s: inner.symbol(str(s), s.low or 0, s.high, sample[s]) for s in symbols}
        back = {own: s for s, own in there.items()}
        try:
            result = solve(renamed(problem, there))
        except UnsupportedError:
            if not number:
                raise
            continue
        found.append(Alternative(substitute(inner.holds(), back), renamed(result, back)))
    return found


def one_solution(found: Sequence[Alternative[Solution]]) -> Solution:
    """Return the solution that consists of alternatives."""
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
    launches = [_only_where(one.condition, launch) for one in merged for launch in one.result.launches]
    return replace(merged[0].result, launches=tuple(launches), scratch=maximum(*(one.result.scratch for one in merged)))


def _only_where(condition: Length, launch: Launch) -> Launch:
    """Return a launch that has no tasks unless a condition holds."""
    geometry = launch.geometry
    if not isinstance(geometry, TaskRange):
        raise UnsupportedError("only ranges of tasks can be empty for some lengths")
    return replace(launch, geometry=replace(geometry, tasks=select(condition, geometry.tasks, 0)))


def _joined(a: Alternative[Solution], b: Alternative[Solution]) -> Alternative[Solution] | None:
    """Return two alternatives as one, if they differ in numbers alone."""
    try:
        return Alternative(a.condition + b.condition, _chosen(a.condition, a.result, b.result))
    except _Different:
        return None


class _Different(Exception):
    """Two results differ in more than numbers."""


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
    if isinstance(a, (Launch, Solution, TaskRange)):
        own = {f.name: _chosen(condition, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
        return dataclasses.replace(a, **own)
    if is_dataclass(a) and any(isinstance(n, Dim) for n in (*lengths_in(a), *lengths_in(b))):
        own = {f.name: _chosen(condition, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)}
        return dataclasses.replace(a, **own)  # type: ignore[type-var]
    if a != b:
        raise _Different
    return a


def has_lengths(value: Any) -> bool:
    """Return whether a value holds symbolic lengths."""
    return next(lengths_in(value), None) is not None


def lengths_in(value: Any) -> Iterator[Dim]:
    """Yield the symbolic lengths in a value."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from lengths_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from lengths_in(one)
    elif is_dataclass(value) and not isinstance(value, (type, *WHOLE)):
        for field in fields(value):
            yield from lengths_in(getattr(value, field.name))


def renamed(value: Any, symbols: Mapping[Dim, Length], known: dict[Dim, Any] | None = None) -> Any:
    """Return a value with other lengths in the place of symbols; parts without symbols are the same objects."""
    known = {} if known is None else known
    if isinstance(value, Dim):
        return substitute(value, symbols, known)
    if isinstance(value, (tuple, list)):
        own = [renamed(one, symbols, known) for one in value]
        if all(a is b for a, b in zip(own, value)):
            return value
        return type(value)(*own) if hasattr(value, "_fields") else type(value)(own)
    if isinstance(value, dict):
        return {key: renamed(one, symbols, known) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, (type, *WHOLE)):
        parts = {f.name: renamed(getattr(value, f.name), symbols, known) for f in fields(value)}
        changed = {name: part for name, part in parts.items() if part is not getattr(value, name)}
        return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]
    return value
