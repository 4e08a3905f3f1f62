"""Operators with submodules, which their shape rule and their evaluation read.

A submodule is known here by the protocol `Submodule` alone: the IR rests on operators, operators do not know the IR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator


class SubmoduleValue(Protocol):
    """A value of a submodule: an instruction's result or a parameter."""

    @property
    def op(self) -> Any:
        """The operator or parameter, which names the value in messages."""

    @property
    def shape(self) -> Shape:
        """The value's shape."""


class Submodule(Protocol):
    """A submodule as operators see it."""

    @property
    def name(self) -> str:
        """The submodule's name."""

    def parameters(self) -> Sequence[SubmoduleValue]:
        """Return the parameters in order."""

    def results(self) -> Sequence[SubmoduleValue]:
        """Return the results in order."""


Repeat = Callable[
    [Any, int, np.ndarray, Sequence[np.ndarray], Callable[[int], str]],
    tuple[list[np.ndarray], list[np.ndarray]] | None,
]
"""Signature of `RunModule.repeat` for a module."""


class RunModule:
    """Evaluator of an instruction's submodules: ``run(position, arguments)`` returns the results of one.

    Attributes:
        modules: the instruction's submodules.
    """

    def __init__(
        self, modules: Sequence[Submodule], evaluate: Callable[[Any, Sequence[Any]], list], repeat: Repeat | None = None
    ) -> None:
        """Store the evaluator; ``repeat`` implements `repeat`."""
        self.modules = modules
        self._evaluate = evaluate
        self._repeat = repeat

    def repeat(
        self,
        position: int,
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Run all iterations of a loop over a submodule at once: at least one, at most ``trips``, until its condition
        is false. ``place`` returns the prefix of an iteration's error messages.

        Returns:
            the condition and the carried values after the last iteration, with the scan results of all iterations along
            a new first axis; None if iterations must run one by one.
        """
        if self._repeat is None:
            return None
        return self._repeat(self.modules[position], trips, condition, carried, place)

    def __call__(self, position: int, arguments: Sequence[object]) -> list:
        return self._evaluate(self.modules[position], arguments)


@dataclass(frozen=True)
class BodyOperator(Operator):
    """Base class of operators with submodules."""

    def compute_shape(self, inputs: Sequence[Shape], bodies: Sequence[Submodule] = ()) -> Shape:
        """See `Operator.compute_shape`; ``bodies`` are the submodules."""
        raise NotImplementedError(f"{self.name} has no shape rule")

    def compute(self, output: Shape, args: Sequence[Any], run: RunModule | None = None) -> Any:
        """See `Operator.compute`; ``run`` evaluates the submodules."""
        raise NotImplementedError(f"{self.name} has no reference implementation")

    def result_shape(self, inputs: Sequence[Shape], bodies: Sequence[Any] = ()) -> Shape:
        return self.compute_shape(inputs, bodies)

    def result_value(self, output: Shape, args: Sequence[Any], run: Any) -> object:
        return self.compute(output, args, run)


def expect_bodies(op: Operator, bodies: Sequence[Submodule], count: int) -> None:
    """Raise ``ShapeError`` unless the instruction has this many submodules."""
    if len(bodies) != count:
        raise op.fail(f"got {len(bodies)} submodules, expected {count}")


def expect_parameters(op: Operator, body: Submodule, inputs: Sequence[Shape]) -> None:
    """Raise ``ShapeError`` unless the submodule has a parameter of the right type for each input."""
    parameters = body.parameters()
    if len(parameters) != len(inputs):
        raise op.fail(f"got {len(inputs)} inputs, module {body.name!r} has {len(parameters)} parameters")
    for parameter, given in zip(parameters, inputs):
        if parameter.shape.type is not given.type:
            raise op.fail(f"module {body.name!r}: {parameter.op} is {parameter.shape.type}, got {given.type}")


def expect_runner(op: Operator, run: RunModule | None) -> RunModule:
    """Return the evaluator of an instruction's submodules.

    Raises:
        ShapeError: there is none.
    """
    if run is None:
        raise op.fail("cannot be evaluated without its submodules")
    return run
