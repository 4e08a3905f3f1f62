"""Submodules that host steps run, compiled: branches, and what loops repeat."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ....codegen.kernel import KernelSource
from ....core.dim import Dim, evaluate, symbols_of
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....graph.program import Program
from ....graph.substitution import lengths_of, settled
from ....runtime.cpu.direct import Entry
from ....runtime.cpu.executor import Executable
from ....runtime.cpu.repeat import may_repeat, repeat
from ....runtime.plan import Plan
from ....runtime.told_lengths import told_lengths, with_told_lengths
from ...lowering.host_values import has_symbols
from ...options import TargetOptions
from ...ref.interpreter import evaluate_module

__all__ = ["CompiledBody", "LateProgram"]

Run = Callable[[Sequence[Any]], list]
MOST_KNOWN = 16
"""Sets of lengths of the program around for which a `LateProgram` stays compiled."""


class CompiledBody:
    """A submodule whose parameters and values from outside have fixed or symbolic lengths, as a plan of its own.

    Attributes:
        plan: None where lengths are not fixed; the module then runs by its NumPy meaning, as it does on arguments that
            are not what the plan declares. A body of symbolic lengths is run `at` lengths, all by one executable.
    """

    kernels: Sequence[KernelSource] = ()

    def __init__(self, module: Module, options: TargetOptions, lower: Callable[[Program], Plan]) -> None:
        """``lower`` makes the plan."""
        self.plan: Plan | None = None
        self._module = module
        self._at: Mapping[Dim, int] = {}
        self._captured: list[Instruction] = []
        values = [*module.parameters(), *module.captured()]
        if not any(v.shape.is_dynamic or v.shape.sub_shapes for v in [*values, *module.results()]):
            program, self._captured = Program.of_module(module)
            plan = lower(program)
            open_lengths = any(has_symbols(ins) for ins in program.main)
            self.plan = with_told_lengths(plan) if open_lengths else replace(plan, symbols=(), condition=1)
            self._loaded = functools.cache(functools.partial(_load, self.plan, options))
            self._names = [spec.name for spec in self.plan.parameters]  # own, from outside, told lengths

    def at(self, values: Mapping[Dim, int]) -> CompiledBody:
        """Return the body for values of its symbols."""
        bound = copy.copy(self)
        for name in ("_lens", "_numbered"):
            bound.__dict__.pop(name, None)
        bound._at = values
        return bound

    @functools.cached_property
    def _lens(self) -> list[tuple[int, ...]]:
        """Lengths of the plan's parameters."""
        known: dict[Dim, int] = {}
        assert self.plan is not None
        return [tuple([evaluate(n, self._at, known) for n in spec.lens]) for spec in self.plan.parameters]

    @functools.cached_property
    def _numbered(self) -> Module:
        """The module with numbers in the place of symbols; its parameters are also the values from outside."""
        return settled(Program.of_module(self._module)[0], self._at).main

    def within(self, outer: Mapping[Instruction, Any]) -> Run:
        """What runs the module on arguments, with values from outside."""
        module, plan = self._module, self.plan

        def interpreted(arguments: Sequence[Any]) -> list:
            if self._at:
                captured = Program.of_module(module)[1]
                return evaluate_module(self._numbered, [*arguments, *(outer[value] for value in captured)])
            return evaluate_module(module, arguments, outer)

        if plan is None:
            return interpreted
        executable, enter = self._loaded()
        names = self._names
        given = self._given(plan, outer)
        scalars = [k for k, value in enumerate(module.results()) if value.shape.without_axes]  # in the IR: one axis

        def run(arguments: Sequence[Any]) -> list:
            given.update(zip(names, arguments))
            results = enter(given)
            if results is None:
                for name, lens, argument in zip(names, self._lens, arguments):
                    if argument.size != prod(lens):
                        return interpreted(arguments)
                    given[name] = argument.reshape(lens)
                results = executable.run([np.ascontiguousarray(given[name]) for name in names])
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
        arguments = [np.zeros(1, np.int64), condition, *carried]
        if len(arguments) != len(self._module.parameters()):
            return None
        if any(a.size != prod(lens) for a, lens in zip(arguments, self._lens)):
            return None
        own = [np.ascontiguousarray(a).reshape(lens) for a, lens in zip(arguments, self._lens)]
        executable, _ = self._loaded()
        done = repeat(executable, [*own, *self._given(plan, outer).values()], len(carried), trips, place)
        if done is None:
            return None
        known: dict[Dim, int] = {}
        shapes = [value.shape.lens for value in self._module.results()]  # of scalars, too: one axis in the IR
        lens = [tuple([evaluate(n, self._at, known) for n in own]) for own in shapes]
        last, rows = done
        return (
            [value.reshape(n) for value, n in zip(last, lens)],
            [value.reshape(len(value), *n) for value, n in zip(rows, lens[len(last) :], strict=True)],
        )

    def _given(self, plan: Plan, outer: Mapping[Instruction, Any]) -> dict[str, np.ndarray]:
        """Return the values from outside and the lengths, as the plan's last parameters."""
        given = {}
        for k, value in enumerate(self._captured, len(self._module.parameters())):
            array, rank = np.ascontiguousarray(outer[value]), len(plan.parameters[k].lens)
            given[self._names[k]] = array if array.ndim == rank else array.reshape(self._lens[k])
        return given | told_lengths(plan, self._at)


def _load(plan: Plan, options: TargetOptions) -> tuple[Executable, Entry | Callable[[Any], None]]:
    """Return the plan ready to run, and its native function; by the first call the kernels of all steps are there."""
    executable = Executable(plan, options.num_threads or None, store=options.store)
    return executable, executable.direct(np.ndarray) or _declined


def _declined(inputs: Any) -> None:
    return None


class LateProgram:
    """A submodule with lengths that are known when it runs, compiled as a program with dynamic inputs.

    The submodule may also have symbolic lengths of the program around it. Then it is compiled for each set of values
    of these symbols.
    """

    plan: Plan | None = None

    def __init__(self, module: Module, compile: Callable[[Program], Any], examples: Mapping[Dim, int]) -> None:
        """``compile`` gives a compiled program; ``examples`` are lengths of the program around for which that is done
        at once, so that its kernels are there."""
        self._program, self._captured = Program.of_module(module)
        self._module = module
        self._symbols = symbols_of(lengths_of(self._program))
        self._compile = compile
        self._known: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._compiled = self._compiled_for(examples)
        self._names = [f"p{k}" for k in range(len(module.parameters()))]

    def at(self, values: Mapping[Dim, int]) -> LateProgram:
        """See `Body.at`."""
        bound = copy.copy(self)
        bound._compiled = self._compiled_for(values)
        return bound

    def _compiled_for(self, values: Mapping[Dim, int]) -> Any:
        key = tuple([values[symbol] for symbol in self._symbols])
        found = self._known.pop(key, None)
        if found is None:
            found = self._compile(settled(self._program, values) if self._symbols else self._program)
        self._known[key] = found
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found

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
