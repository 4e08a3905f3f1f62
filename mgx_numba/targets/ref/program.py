"""Programs as the ``ref`` target runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

import numpy as np

from ...core.shape import Shape
from ...errors import MgxError, OptionError
from ...graph.instruction import Instruction
from ...graph.passes import run_passes
from ...graph.printer import format_instruction, instruction_names
from ...graph.program import Program
from ...graph.rewrite_log import RewriteLog
from ...runtime.memory import copied, expect_room
from ..base import Observation, Observer
from ..tracing import write_trace
from .interpreter import PASSES, evaluate

if TYPE_CHECKING:
    from ...codegen.kernel import KernelSource


class RefProgram:
    """A program that runs by its operators' NumPy meaning."""

    def __init__(self, program: Program) -> None:
        run_passes(program, PASSES)
        self.program = program
        sizes = (ins.shape.bytes for ins in program.main if not (ins.op.view or ins.shape.is_dynamic))
        self._largest = max(sizes, default=0)

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[object]:
        """Return the results for checked inputs, by name."""
        self._expect_room()
        return self._given(evaluate(self.program, inputs))

    def _expect_room(self) -> None:
        """Raise an error if the program's largest value does not fit in memory, before smaller values fill the
        memory."""
        try:
            expect_room(self._largest, "the largest value of the program,")
        except MemoryError as error:
            raise MgxError(f"run: {error}") from error

    def direct(self, result_type: type[np.ndarray], prefer: object = None) -> None:
        """Return None: there is no fast path."""

    def resolve(self, inputs: Mapping[str, np.ndarray]) -> Program:
        """Return the program itself."""
        return self.program

    def observe(self, inputs: Mapping[str, np.ndarray], observer: Observer) -> list[object]:
        """Run, call the observer after each instruction, and return the results."""
        names = instruction_names(self.program.reachable_modules())
        last = time.perf_counter()

        def note(ins: Instruction, value: object) -> None:
            nonlocal last
            seconds = time.perf_counter() - last
            if not ins.name.startswith("@"):
                known = not ins.shape.is_dynamic and not any(i.shape.is_dynamic for i in ins.inputs)
                flops = ins.op.flops(ins.shape, [i.shape for i in ins.inputs]) if known else 0
                text = format_instruction(ins, names)
                observer(Observation(text, f"ref::{ins.name}", seconds, lambda: _arrays(value), flops))
            last = time.perf_counter()

        self._expect_room()
        return self._given(evaluate(self.program, inputs, note))

    def idle(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Do nothing: a run consists of its instructions only."""

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[object]:
        """Run, printing each instruction like MIGraphX's ``MIGRAPHX_TRACE_EVAL``, and return the results."""
        names = instruction_names(self.program.reachable_modules())
        start = last = time.perf_counter()

        def show(ins: Instruction, value: object) -> None:
            nonlocal last
            now = time.perf_counter()
            write_trace(out, format_instruction(ins, names), now - last, now - start, value, level)
            last = time.perf_counter()

        self._expect_room()
        return self._given(evaluate(self.program, inputs, show))

    def _given(self, results: list[object]) -> list[object]:
        return [_fresh(value, ins.shape) for value, ins in zip(results, self.program.main.results())]

    def kernels(self) -> list[KernelSource]:
        """Return an empty list: no kernel is generated."""
        return []

    def fallback_reasons(self) -> dict[str, str]:
        """Return an empty dictionary: every instruction runs on the host by intention."""
        return {}

    def rewrite_log(self) -> RewriteLog:
        return self.program.log

    def kept_plan(self) -> None:
        """Return None: there is no plan."""

    def machine_code(self) -> dict[str, object]:
        """Raise an error: there is no machine code.

        Raises:
            OptionError: always.
        """
        raise OptionError("the target ref makes no machine code")


def _fresh(value: object, shape: Shape) -> object:
    """Return a row-major copy with the shape's rank: a result may be a view of an input or of a literal."""
    if isinstance(value, (tuple, list)):
        return [_fresh(v, s) for v, s in zip(value, shape.sub_shapes)]
    if shape.element is not None:
        return value
    copy = copied(np.asarray(value))
    return copy.reshape(()) if shape.without_axes else copy


def _arrays(value: object) -> list[np.ndarray]:
    return [a for v in value for a in _arrays(v)] if isinstance(value, (tuple, list)) else [np.asarray(value)]
