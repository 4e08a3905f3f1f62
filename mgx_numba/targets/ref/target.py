"""The ``ref`` target as a compiled program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np

from ...graph.instruction import Instruction
from ...graph.passes import run_passes
from ...graph.printer import format_instruction, instruction_names
from ...graph.program import Program
from ..tracing import write_trace
from .interpreter import evaluate

__all__ = ["PASSES", "RefProgram"]

PASSES = ("merge_rnn_outputs",)


class RefProgram:
    """A program that runs by its operators' NumPy meaning."""

    def __init__(self, program: Program) -> None:
        run_passes(program, PASSES)
        self.program = program

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Results for checked inputs by name."""
        return [np.ascontiguousarray(r) if isinstance(r, np.ndarray) else r for r in evaluate(self.program, inputs)]

    def trace(self, inputs: Mapping[str, np.ndarray], level: int, out: TextIO) -> list[Any]:
        """As ``run``, printing each instruction as MIGraphX's ``MIGRAPHX_TRACE_EVAL`` does."""
        names = instruction_names(self.program.reachable_modules())
        start = last = time.perf_counter()

        def show(ins: Instruction, value: Any) -> None:
            nonlocal last
            now = time.perf_counter()
            write_trace(out, format_instruction(ins, names), now - last, now - start, value, level)
            last = time.perf_counter()

        return evaluate(self.program, inputs, show)

    def kernels(self) -> list[Any]:
        """None: nothing is generated."""
        return []
