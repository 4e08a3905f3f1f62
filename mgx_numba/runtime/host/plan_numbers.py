"""Replace the expressions of a symbolic plan, or of parts of it, by the numbers for a set of lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...codegen.launch import Grid, OpenAxis, TaskRange, TensorLayout, axis_text
from ...core.dim import Dim
from ..plan import (
    CarriedValue,
    ControlStep,
    FallbackStep,
    Jump,
    MappedTensor,
    ParameterSpec,
    Plan,
    PlannedBody,
    PlannedBranch,
    PlannedStep,
    Pointer,
    Repetition,
    Scan,
    Step,
    TensorSpec,
    TensorView,
    Use,
)

_CONTROL = (CarriedValue, ControlStep, PlannedBody, PlannedBranch, Repetition, Scan)
"""Types whose plans keep their symbols: executors look up these plans by identity."""
_PARTS = (Grid, FallbackStep, MappedTensor, ParameterSpec, Step, TaskRange, TensorLayout, TensorSpec, TensorView, Use)
_FIELDS = ("steps", "arena_bytes", "parameters", "outputs", "uses")
"""Fields of a plan that hold expressions."""

P = TypeVar("P")


class PlanNumbers:
    """Evaluates all expressions of a symbolic plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        program = plan.size_program()
        self._numbers: dict[Dim, int] = {}

        def note(length: Dim) -> int:
            return self._numbers.setdefault(length, program.number(length))

        _replaced(plan, note)
        from .sizes import Evaluator  # late: plans from files import no compiler

        self._evaluator = Evaluator(program)

    def at(self, given: Sequence[int]) -> Plan:
        """Return the plan for values of its symbols. It has all steps, including steps without tasks."""
        parts = self.parts(given)
        plan = parts(self._plan)
        plan.steps = [parts.bound(step) for step in plan.steps]
        return plan

    def parts(self, given: Sequence[int]) -> PartsAt:
        """Return a function that replaces expressions in parts of the plan, for values of its symbols."""
        values = self._evaluator.values(given).tolist()
        numbers = self._numbers
        return PartsAt(lambda length: values[numbers[length]], dict(zip(self._plan.symbols, given)))


class PartsAt:
    """Replaces expressions in parts of a plan by numbers."""

    def __init__(self, number: Callable[[Dim], int], values: dict[Dim, int]) -> None:
        """Use ``number`` for the value of an expression, and ``values`` of the symbols."""
        self._number = number
        self._values = values

    def __call__(self, part: P) -> P:
        """Return the part with expressions replaced by numbers."""
        return _replaced(part, self._number)  # type: ignore[no-any-return]

    def bound(self, step: PlannedStep) -> PlannedStep:
        """Return a step, whose expressions are replaced already, with its function bound to the symbols' values."""
        if not isinstance(step, FallbackStep) or step.bind is None:
            return step
        return dataclasses.replace(step, function=step.bind(self._values), bind=None)


def runs(step: PlannedStep) -> bool:
    """Return whether a step of a plan with numbers runs: it has tasks, or all its outputs are empty. Host and control
    steps always run."""
    if not isinstance(step, Step):
        return True
    if isinstance(step.geometry, TaskRange):
        idle = step.geometry.tasks <= 0
    else:
        idle = step.geometry.empty
    return not idle or (bool(step.outputs) and all(0 in view.lens for view in step.outputs))


def kept_jumps(plan: Plan, before: Sequence[int]) -> tuple[Jump, ...]:
    """Return the plan's jumps after steps that do not run were removed.

    ``before[k]`` is the number of remaining steps before step ``k``.
    """
    return tuple(dataclasses.replace(j, by=before[j.by], at=before[j.at], to=before[j.to]) for j in plan.jumps)


def _replaced(value: object, number: Callable[[Dim], int]) -> Any:
    """Return a part of a plan with expressions replaced by numbers."""
    if isinstance(value, Dim):
        return number(value)
    if isinstance(value, OpenAxis):
        return axis_text(value.axis, number(value.length))
    if isinstance(value, Pointer):
        return value._replace(offset=number(value.offset)) if isinstance(value.offset, Dim) else value
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(one, number) for one in value)
    if isinstance(value, Plan):
        parts = {name: _replaced(getattr(value, name), number) for name in _FIELDS}
        return dataclasses.replace(value, symbols=(), condition=1, sizes=None, **parts)
    if isinstance(value, (*_PARTS, *_CONTROL)):
        kept = ("plan", "plans") if isinstance(value, _CONTROL) else ()
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in kept}
        own = {name: _replaced(field, number) for name, field in fields.items()}
        changed = {name: field for name, field in own.items() if field is not fields[name]}
        return dataclasses.replace(value, **changed)
    return value
