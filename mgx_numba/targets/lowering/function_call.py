"""Fallback steps that call a function of this package, by the name that plan files hold. A plan file with such a step
needs no operator to be imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import FormatError

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


def named(module: str, name: str) -> Any:
    """Return a class or a function of this package.

    Raises:
        FormatError: the module is not one of this package.
    """
    if not module.startswith("mgx_numba."):
        raise FormatError(f"a plan file names {module}.{name}")
    return getattr(importlib.import_module(module), name)
