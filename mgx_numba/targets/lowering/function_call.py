"""Fallback steps that call a function of this package. A plan file with such a step needs no operator to be
imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...runtime.plan_json import LengthsWriter


class FunctionCall:
    """A call of a function of this package, with values and then with the step's arrays."""

    def __init__(self, function: Callable[..., np.ndarray], *values: object) -> None:
        self._function, self._values = function, values

    def __call__(self, arrays: list) -> list:
        return [self._function(*self._values, *arrays)]

    def write(self, lengths: LengthsWriter) -> dict[str, object]:
        from .instruction_json import InstructionWriter

        writer = InstructionWriter(lengths)
        function = self._function.__module__, self._function.__qualname__
        return {"function": function, "values": list(map(writer.value, self._values))}
