"""Submodules that host steps run, compiled: branches, and what loops repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.program import Program
from ....runtime.cpu.direct import Entry
from ....runtime.cpu.executor import Executable
from ....runtime.plan import Plan
from ...options import TargetOptions
from ...ref.interpreter import evaluate_module

__all__ = ["CompiledBody"]

Run = Callable[[Sequence[Any]], list]


class CompiledBody:
    """A submodule whose parameters and values from outside have fixed lengths, as a plan of its own.

    Attributes:
        plan: None where lengths are not fixed; the module then runs by its NumPy meaning, as it does on arguments that
            are not what the plan declares.
    """

    def __init__(self, module: Module, options: TargetOptions, lower: Callable[[Program], Plan]) -> None:
        """``lower`` makes the plan."""
        self.plan: Plan | None = None
        self._module = module
        self._options = options
        self._captured: list[Instruction] = []
        self._executable: Executable | None = None
        self._enter: Entry | Callable[[Any], None] = _declined
        values = [*module.parameters(), *module.captured()]
        if not any(v.shape.is_dynamic or v.shape.sub_shapes for v in [*values, *module.results()]):
            program, self._captured = Program.of_module(module)
            self.plan = lower(program)

    def within(self, outer: Mapping[Instruction, Any]) -> Run:
        """What runs the module on arguments, with values from outside."""
        module, plan = self._module, self.plan

        def interpreted(arguments: Sequence[Any]) -> list:
            return evaluate_module(module, arguments, outer)

        if plan is None:
            return interpreted
        if self._executable is None:  # at the first call: by then the kernels are there, with those of all other steps
            self._executable = Executable(plan, self._options.num_threads or None, store=self._options.store)
            self._enter = self._executable.direct(np.ndarray) or _declined
        executable, enter = self._executable, self._enter
        specs = plan.parameters
        own = [(spec.name, spec.lens, prod(spec.lens)) for spec in specs[: len(specs) - len(self._captured)]]
        given = {
            spec.name: np.ascontiguousarray(outer[value]).reshape(spec.lens)
            for spec, value in zip(specs[len(own) :], self._captured, strict=True)
        }

        scalars = [k for k, value in enumerate(module.results()) if value.shape.without_axes]  # in the IR: one axis

        def run(arguments: Sequence[Any]) -> list:
            for (name, lens, elements), argument in zip(own, arguments):
                if argument.shape != lens:
                    if argument.size != elements:
                        return interpreted(arguments)
                    argument = argument.reshape(lens)
                given[name] = argument
            results = enter(given)
            if results is None:
                results = executable.run([np.ascontiguousarray(given[s.name]) for s in specs])
            for k in scalars:
                results[k] = results[k].reshape(1)
            return results

        return run


def _declined(inputs: Any) -> None:
    return None
