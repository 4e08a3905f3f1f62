"""Runs that report each instruction with its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import MgxError, ParameterError
from ..targets.base import Inputs, Observation
from .argument import argument
from .compiled_form import CompiledForm
from .results import result_of

_NUMBERED = re.compile(r"(?:\S*:)?@(\d+) = ")
"""Start of an instruction's text: its module's name outside of the main module, and its number."""


class trace_info:
    """One instruction of the compiled program in a traced run, with its results.

    Attributes:
        index: the instruction's number in its module: that of ``@3``, say, in the printed compiled program.
        name: the kernel or operator that ran: ``ref::sub``, ``cpu::mul_add_kernel``.
        instruction: the instruction's text.
        seconds: duration.
    """

    def __init__(self, index: int, seen: Observation, outputs: Sequence[np.ndarray]) -> None:
        self.index = index
        self.name = seen.label
        self.instruction = seen.instruction
        self.seconds = seen.seconds
        self._outputs: Sequence[np.ndarray] | None = outputs
        self._results: list[argument] | None = None

    @property
    def results(self) -> list[argument]:
        """Return copies of the instruction's results; in the callback, since the memory is used again after it.

        Raises:
            MgxError: the callback has returned.
        """
        if self._results is None:
            if self._outputs is None:
                raise MgxError(f"run_trace: the results of {self.instruction} were not read in the callback")
            self._results = [result_of(array.copy(), None) for array in self._outputs]
        return self._results

    @property
    def result(self) -> argument:
        """Return the first of `results`."""
        return self.results[0]

    def __repr__(self) -> str:
        return f"<trace_info {self.instruction}>"


def run_trace(form: CompiledForm, inputs: Inputs, callback: Callable[[trace_info], object]) -> list[argument]:
    """Run on checked inputs; see ``program.run_trace``."""
    if not callable(callback):
        raise ParameterError(f"run_trace: callback must be a function of a trace_info, got {callback!r}")
    count = 0

    def note(seen: Observation) -> None:
        nonlocal count
        outputs = seen.outputs()
        if not outputs:  # a step that prepares another one of the instruction
            return
        numbered = _NUMBERED.match(seen.instruction)
        info = trace_info(int(numbered[1]) if numbered else count, seen, outputs)
        count += 1
        try:
            callback(info)
        finally:
            info._outputs = None

    return form.shown(form.compiled.observe(inputs, note))
