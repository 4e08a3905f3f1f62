"""A plan of symbolic lengths as the plan for the lengths of a run: for bodies that host steps run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from ..codegen.kernel import KernelSource
from ..core.dim import Dim, evaluate
from .plan import HostStep, Plan, PlannedStep, Step

__all__ = ["plan_at"]


def plan_at(plan: Plan, values: Mapping[Dim, int]) -> Plan:
    """Return a plan with numbers in the place of expressions, without the alternatives that are not taken.

    Args:
        plan: the symbolic plan; all its symbols must have values, whether or not parameters tell them.
        values: of the symbols.
    """
    number = partial(_with_numbers, values=values, known={})
    rest = number(dataclasses.replace(plan, steps=[], symbols=(), condition=1))
    steps = (_step_at(step, number, values) for step in plan.steps)
    taken = [step for step in steps if not (isinstance(step, Step) and step.geometry.empty)]
    return dataclasses.replace(rest, steps=taken, constants=plan.constants)


def _step_at(step: PlannedStep, number: Any, values: Mapping[Dim, int]) -> PlannedStep:
    if not isinstance(step, HostStep):
        return number(step)  # type: ignore[no-any-return]
    function = step.function if step.bind is None else step.bind(values)
    views = number((step.inputs, step.outputs))
    return dataclasses.replace(step, function=function, bind=None, inputs=views[0], outputs=views[1])


def _with_numbers(value: Any, values: Mapping[Dim, int], known: dict[Dim, int]) -> Any:
    if isinstance(value, Dim):
        return evaluate(value, values, known)
    if isinstance(value, (tuple, list)):
        own = [_with_numbers(one, values, known) for one in value]
        if all(a is b for a, b in zip(own, value)):
            return value
        return type(value)(*own) if hasattr(value, "_fields") else type(value)(own)
    if is_dataclass(value) and not isinstance(value, (type, KernelSource)):
        parts = {f.name: _with_numbers(getattr(value, f.name), values, known) for f in fields(value) if f.init}
        changed = {name: part for name, part in parts.items() if part is not getattr(value, name)}
        return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]
    return value
