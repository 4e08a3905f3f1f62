"""Submodules that host steps run, compiled: branches, and what loops repeat."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ....codegen.kernel import KernelSource
from ....core.dim import Dim, SymbolicLengthError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.program import Program
from ....graph.substitution import settled
from ....runtime.cpu.direct import Entry
from ....runtime.cpu.executor import Executable
from ....runtime.cpu.repeat import may_repeat, repeat
from ....runtime.plan import Plan
from ....runtime.plan_numbers import plan_at
from ...lowering.host_values import has_symbols
from ...options import TargetOptions
from ...ref.interpreter import evaluate_module

__all__ = ["CompiledBody", "LateProgram"]

Run = Callable[[Sequence[Any]], list]


class CompiledBody:
    """A submodule whose parameters and values from outside have fixed or symbolic lengths, as a plan of its own.

    Attributes:
        plan: None where lengths are not fixed; the module then runs by its NumPy meaning, as it does on arguments that
            are not what the plan declares. One of symbolic lengths is run `at` lengths.
    """

    kernels: Sequence[KernelSource] = ()

    def __init__(self, module: Module, options: TargetOptions, lower: Callable[[Program], Plan]) -> None:
        """``lower`` makes the plan."""
        self.plan: Plan | None = None
        self._module = module
        self._settled: Module | None = None
        self._options = options
        self._captured: list[Instruction] = []
        self._executable: Executable | None = None
        self._enter: Entry | Callable[[Any], None] = _declined
        values = [*module.parameters(), *module.captured()]
        if not any(v.shape.is_dynamic or v.shape.sub_shapes for v in [*values, *module.results()]):
            program, self._captured = Program.of_module(module)
            plan = lower(program)
            open_lengths = any(has_symbols(ins) for ins in program.main)
            self.plan = plan if open_lengths else replace(plan, symbols=(), condition=1)

    def at(self, values: Mapping[Dim, int]) -> CompiledBody:
        """Return the body for values of its symbols."""
        program, captured = Program.of_module(self._module)
        bound = copy.copy(self)
        bound._settled, bound._captured = settled(program, values).main, captured
        bound.plan = None if self.plan is None else plan_at(self.plan, values)
        bound._executable, bound._enter = None, _declined
        return bound

    def within(self, outer: Mapping[Instruction, Any]) -> Run:
        """What runs the module on arguments, with values from outside."""
        module, plan = self._settled or self._module, self.plan

        def interpreted(arguments: Sequence[Any]) -> list:
            if self._settled is not None:  # its parameters are also the values from outside
                return evaluate_module(module, [*arguments, *(outer[value] for value in self._captured)])
            return evaluate_module(module, arguments, outer)

        if plan is None:
            return interpreted
        executable, enter = self._loaded(plan), self._enter
        specs = plan.parameters
        own = [(spec.name, spec.lens, prod(spec.lens)) for spec in specs[: len(specs) - len(self._captured)]]
        given = self._given(plan, outer)
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

    def repeat(
        self,
        outer: Mapping[Instruction, Any],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """See `RunModule.repeat`, with values from outside; None where the plan has host steps or other lengths."""
        plan = self.plan
        if plan is None or not may_repeat(plan, len(carried)):
            return None
        specs = plan.parameters
        arguments = [np.zeros(1, np.int64), condition, *carried]
        if len(arguments) != len(specs) - len(self._captured):
            return None
        if any(a.size != prod(spec.lens) for a, spec in zip(arguments, specs)):
            return None
        inputs = [*map(np.ascontiguousarray, arguments), *self._given(plan, outer).values()]
        done = repeat(self._loaded(plan), inputs, len(carried), trips, place)
        if done is None:
            return None
        lens = [
            value.shape.lens for value in (self._settled or self._module).results()
        ]  # of scalars, too: one axis in the IR
        last, rows = done
        return (
            [value.reshape(n) for value, n in zip(last, lens)],
            [value.reshape(len(value), *n) for value, n in zip(rows, lens[len(last) :], strict=True)],
        )

    def _loaded(self, plan: Plan) -> Executable:
        """The plan ready to run, from the first call on: by then the kernels are there, with those of all steps."""
        if self._executable is None:
            executable = Executable(plan, self._options.num_threads or None, store=self._options.store)
            self._enter = executable.direct(np.ndarray) or _declined
            self._executable = executable
        return self._executable

    def _given(self, plan: Plan, outer: Mapping[Instruction, Any]) -> dict[str, np.ndarray]:
        """The values from outside, as the plan's last parameters."""
        specs = plan.parameters[len(plan.parameters) - len(self._captured) :]
        return {
            spec.name: np.ascontiguousarray(outer[value]).reshape(spec.lens)
            for spec, value in zip(specs, self._captured, strict=True)
        }


def _declined(inputs: Any) -> None:
    return None


class LateProgram:
    """A submodule as a program with dynamic inputs, which gets a plan for each set of lengths that it meets."""

    plan: Plan | None = None

    def __init__(self, module: Module, compile: Callable[[Program], Any]) -> None:
        """``compile`` gives a compiled program."""
        program, self._captured = Program.of_module(module)
        self._module = module
        self._compiled = compile(program)
        self._names = [f"p{k}" for k in range(len(module.parameters()))]

    def at(self, values: Mapping[Dim, int]) -> LateProgram:
        """See `Body.at`.

        Raises:
            SymbolicLengthError: always: the module's lengths are ranges, not symbols.
        """
        raise SymbolicLengthError(f"lengths inside of {self._module.name!r} are known when it runs, not before")

    @property
    def kernels(self) -> Sequence[KernelSource]:
        """See `Body.kernels`."""
        return self._compiled.kernels()  # type: ignore[no-any-return]

    def within(self, outer: Mapping[Instruction, Any]) -> Run:
        """See `CompiledBody.within`."""
        given = {f"outer{k}": np.asarray(outer[value]) for k, value in enumerate(self._captured)}
        scalars = [k for k, value in enumerate(self._module.results()) if value.shape.without_axes]

        def run(arguments: Sequence[Any]) -> list:
            results: list = self._compiled.run({**dict(zip(self._names, arguments)), **given})
            for k in scalars:  # in the IR: one axis
                results[k] = results[k].reshape(1)
            return results

        return run

    def repeat(
        self,
        outer: Mapping[Instruction, Any],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> None:
        """None: each iteration may have other lengths."""
