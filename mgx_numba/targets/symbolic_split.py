"""Compiled programs of two stages with symbolic lengths, for any target with plans. Importing this module imports no
pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..core.device_array import lens_of
from ..core.dim import Dim
from ..runtime.explicit_lengths import is_explicit
from ..runtime.plan import Plan
from .base import Inputs, Results, Stage, without_buffers
from .split_point import SplitCompiled

T = TypeVar("T")
Lens = Mapping[str, Sequence[int]]


class UnservedLengths(Exception):
    """Raised when a later stage's plan does not serve the computed lengths; ``late`` has the lengths of each later
    stage's inputs."""

    def __init__(self, late: list[Lens]) -> None:
        super().__init__("lengths that no plan serves")
        self.late = late


class SymbolicSplit(SplitCompiled):
    """Two stages of a symbolic program; the second has further symbols, for lengths that the first computes."""

    _given: ClassVar[bool] = True
    _head: Any
    _tail: Any

    def serves(self, inputs: Inputs) -> bool:
        """Return whether the first stage serves the inputs; the second stage's guards are checked during the run."""
        return self._head.serves(inputs)  # type: ignore[no-any-return]

    def symbol_values(self, inputs: Inputs) -> dict[Dim, int] | None:
        """Return the values of the symbols that are known before the run; see `OpenPart.symbol_values`."""
        return self._head.symbol_values(inputs)  # type: ignore[no-any-return]

    def first_plan(self) -> Plan:
        return self._head.first_plan()  # type: ignore[no-any-return]

    def own_plans(self) -> list[Plan]:
        return [*self._head.own_plans(), *self._tail.own_plans()]

    def _in_stages(self, inputs: Inputs, run: Callable[[object, Inputs], list[object]]) -> list[object]:
        inputs = without_buffers(inputs)
        return self._split_point.run(inputs, partial(run, self._head), lambda given: self._later(inputs, given, run))

    def stages(self, inputs: Inputs) -> list[Stage]:
        return self._split_point.stages(inputs, self._head, _Later(partial(self._later, inputs)))

    def _later(self, inputs: Inputs, given: Inputs, use: Callable[[Any, Inputs], T]) -> T:
        """Return the result of ``use`` for the second stage and its inputs, including the lengths of the first stage's
        inputs.

        Args:
            inputs: inputs of the first stage.
            given: values that the first stage computed for the second.
            use: takes the second stage and its inputs.

        Raises:
            UnservedLengths: the second stage's plan does not serve the lengths.
        """
        lens: Lens = {name: lens_of(value) for name, value in given.items()}
        explicit = self._explicit(inputs, given)
        if not self._tail.serves(explicit):
            raise UnservedLengths([lens])
        try:
            return use(self._tail, explicit)
        except UnservedLengths as error:
            raise UnservedLengths([lens, *error.late]) from None

    def _explicit(self, inputs: Inputs, given: Inputs) -> Inputs:
        """Return the second stage's inputs, including the lengths of the first stage's inputs that it takes."""
        added = {
            name: np.empty((lens_of(inputs[source])[axis], 0), np.bool_)
            for name, (source, axis) in self._length_sources.items()
        }
        return {**given, **added} if added else given

    @functools.cached_property
    def _length_sources(self) -> dict[str, tuple[str, int]]:
        """The input of the first stage, and its axis, that has each length that the second stage takes, by name."""
        places = {
            id(length): (parameter.name, axis)
            for parameter in self._head.first_plan().parameters
            for axis, length in enumerate(parameter.lens)
        }
        taken = [p for plan in self._tail.own_plans()[:1] for p in plan.parameters if is_explicit(p)]
        return {p.name: places[id(p.lens[0])] for p in taken}


class _Later:
    """A later stage as `SplitPoint.stages` takes it; ``use`` calls a function with the stage and its inputs."""

    def __init__(self, use: Callable[[Inputs, Callable[[Any, Any], Any]], Any]) -> None:
        self._use = use

    def run(self, inputs: Inputs) -> Results:
        """Run the stage."""
        return self._use(inputs, lambda stage, explicit: stage.run(explicit))  # type: ignore[no-any-return]

    def stages(self, inputs: Inputs) -> list[Stage]:
        return self._use(inputs, lambda stage, explicit: stage.stages(explicit))  # type: ignore[no-any-return]
