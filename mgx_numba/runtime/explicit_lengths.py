"""Symbolic plans with symbols that are no parameter's length, such as the plan of a branch.

Each symbol of a plan has to be the length of a parameter's axis, so each such symbol gets a parameter without elements
(a *told length*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.dim import Dim, symbols_of
from .plan import ParameterSpec, Plan

_PREFIX = "length of "  # no name of a submodule's parameter has spaces


def with_explicit_lengths(plan: Plan, used: Callable[[], Iterable[Dim]] | None = None) -> Plan:
    """Return the plan with one more parameter, of shape ``(symbol, 0)``, for each symbol that no parameter has.

    Args:
        used: returns the lengths in the program and in those that run after it. A symbol that neither these nor the
            plan's condition nor a parameter has is dropped. None: no symbol is dropped.
    """
    own = {id(length) for parameter in plan.parameters for length in parameter.lens}
    missing = [symbol for symbol in plan.symbols if id(symbol) not in own]
    if missing and used is not None:
        taken = set(map(id, symbols_of([*used(), plan.condition])))
        missing = [symbol for symbol in missing if id(symbol) in taken]
        own.update(map(id, missing))
        plan = replace(plan, symbols=tuple([symbol for symbol in plan.symbols if id(symbol) in own]))
    added = [ParameterSpec(explicit_name(symbol), "bool", (symbol, 0)) for symbol in missing]  # type: ignore[arg-type]
    return replace(plan, parameters=[*plan.parameters, *added])


def explicit_name(symbol: Dim) -> str:
    """Return the name of the parameter that `with_explicit_lengths` adds for a symbol."""
    return f"{_PREFIX}{symbol}"


def is_explicit(parameter: ParameterSpec) -> bool:
    """Return whether `with_explicit_lengths` added a parameter."""
    return parameter.name.startswith(_PREFIX)


def explicit_lengths(plan: Plan, values: Mapping[Dim, int]) -> dict[str, np.ndarray]:
    """Return the arrays of the parameters that `with_explicit_lengths` added, for values of the symbols."""
    lengths: dict[str, Any] = {p.name: p.lens[0] for p in plan.parameters if is_explicit(p)}
    return {name: explicit_length(values[length]) for name, length in lengths.items()}


def explicit_length(value: int) -> np.ndarray:
    """Return the array of a parameter that `with_explicit_lengths` added."""
    return np.empty((value, 0), np.bool_)
