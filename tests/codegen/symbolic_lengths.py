"""Planners of symbolic lengths, and their solutions at lengths of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from mgx_numba.codegen.alternatives import alternatives, has_lengths, one_solution, served
from mgx_numba.codegen.launch import Launch, Solution
from mgx_numba.core.dim import Dim, Length, Scope, evaluate

SAMPLES = (1, 2, 3, 4, 16, 64, 300)


def scope_of(**ranges: tuple[int, int | None]) -> tuple[Scope, dict[str, Dim]]:
    """A scope with symbols of these ranges, of primes as hints, and samples in which all of them have one value."""
    scope = Scope()
    symbols = {
        name: scope.symbol(name, low, high, prime)
        for (name, (low, high)), prime in zip(ranges.items(), (37, 41, 43, 47))
    }
    scope.samples += [dict.fromkeys(symbols.values(), n) for n in SAMPLES]
    return scope, symbols


def planned(planner: Callable[..., Solution | Launch], *arguments: Any) -> tuple[Solution, Length]:
    """What a planner makes of arguments for all lengths, and the condition that lengths have to meet; it asks the
    symbols' scope nothing."""

    def plan(own: tuple[Any, ...]) -> Solution:
        made = planner(*own)
        return Solution((made,)) if isinstance(made, Launch) else made

    found = alternatives(arguments, plan)
    return one_solution(found), served(found)


def at_lengths(value: Any, values: Mapping[Dim, int]) -> Any:
    """A solution, a problem or a number with the values of its expressions."""
    if isinstance(value, Dim):
        return evaluate(value, values)
    if isinstance(value, (tuple, list)):
        own = [at_lengths(one, values) for one in value]
        return type(value)(*own) if hasattr(value, "_fields") else type(value)(own)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and has_lengths(value):
        parts = {f.name: at_lengths(getattr(value, f.name), values) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)
    return value
