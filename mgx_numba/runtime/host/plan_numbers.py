"""A symbolic plan with the numbers for some lengths, for reports and observers; no run needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...codegen.launch import TaskRange
from ...core.dim import Dim
from ..plan import HostStep, ParameterSpec, Plan, PlannedStep, Pointer, Step, TensorSpec, TensorView, Use
from ..size_program import SizeProgram
from .sizes import Evaluator

__all__ = ["PlanNumbers", "runs"]

_PARTS = (HostStep, ParameterSpec, Step, TaskRange, TensorSpec, TensorView, Use)
_FIELDS = ("steps", "arena_bytes", "parameters", "outputs", "uses")
"""Fields of a plan that hold expressions."""


class PlanNumbers:
    """The numbers of all parts of a symbolic plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        program = SizeProgram(plan.symbols)
        self._numbers: dict[Dim, int] = {}

        def note(length: Dim) -> int:
            return self._numbers.setdefault(length, program.number(length))

        _replaced(plan, note)
        self._evaluator = Evaluator(program)

    def at(self, given: Sequence[int]) -> Plan:
        """Return the plan for values of its symbols. All steps are in their places, also those without tasks."""
        values = self._evaluator.values(given).tolist()
        by_symbol = dict(zip(self._plan.symbols, given))

        def number(length: Dim) -> int:
            return values[self._numbers[length]]

        plan = _replaced(self._plan, number)
        for k, step in enumerate(plan.steps):
            if isinstance(step, HostStep) and step.bind is not None:
                plan.steps[k] = dataclasses.replace(step, function=step.bind(by_symbol), bind=None)
        return plan


def runs(step: PlannedStep) -> bool:
    """Return whether a step of a plan with numbers computes something, or has only results without elements."""
    if not isinstance(step, Step) or not isinstance(step.geometry, TaskRange) or step.geometry.tasks > 0:
        return True
    return bool(step.outputs) and all(0 in view.lens for view in step.outputs)


def _replaced(value: Any, number: Callable[[Dim], int]) -> Any:
    """Return a part of a plan with numbers in the place of expressions."""
    if isinstance(value, Dim):
        return number(value)
    if isinstance(value, Pointer):
        return value._replace(offset=number(value.offset)) if isinstance(value.offset, Dim) else value
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(one, number) for one in value)
    if isinstance(value, Plan):
        parts = {name: _replaced(getattr(value, name), number) for name in _FIELDS}
        return dataclasses.replace(value, symbols=(), condition=1, **parts)
    if isinstance(value, _PARTS):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        own = {name: _replaced(field, number) for name, field in fields.items()}
        changed = {name: field for name, field in own.items() if field is not fields[name]}
        return dataclasses.replace(value, **changed)
    return value
