"""Compiled submodules that fallback steps run: branches and loop bodies."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import numpy as np

from ...codegen.kernel import KernelSource
from ...core.dim import Dim, evaluate, symbols_of
from ...errors import UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ...graph.substitution import lengths_of, settled
from ...runtime.cpu.executor import Executable
from ...runtime.cpu.native_call import Entry
from ...runtime.cpu.repeat import may_repeat, repeat
from ...runtime.explicit_lengths import explicit_lengths, with_explicit_lengths
from ...runtime.plan import Plan
from ...runtime.plan_json import LengthsReader, LengthsWriter
from ..base import Kept, Outgrown
from ..kept_file import read_kept, written_kept
from ..lowering.fallback_call import EvaluatedBody, evaluated
from ..lowering.fallback_values import has_symbols
from ..lowering.rules import Body
from ..options import TargetOptions
from .compiled import LoweredProgram

Run = Callable[[Sequence[np.ndarray]], list]
MOST_KNOWN = 16
"""Maximum number of sets of outer lengths for which a `DataDependentProgram` keeps compiled programs."""


class CompiledBody:
    """A submodule with fixed or symbolic lengths, compiled to a plan of its own.

    Arguments that do not match the plan's parameters are evaluated by the module's NumPy meaning. A body with symbolic
    lengths runs `at` a set of lengths; one executable serves all.

    Attributes:
        plan: the plan.
    """

    kernels: Sequence[KernelSource] = ()

    def __init__(
        self,
        module: Module,
        plan: Plan,
        captured: Sequence[Instruction],
        options: TargetOptions,
        evaluated: Callable[[], EvaluatedBody],
    ) -> None:
        """Create the body of a submodule from its plan.

        Args:
            module: the submodule; only its parameters and results are read.
            plan: plan whose parameters are those of the module, the captured values, and told lengths.
            captured: values that the submodule takes from outside.
            options: options of the compilation.
            evaluated: returns the body that evaluates the submodule by its NumPy meaning.
        """
        self.plan = plan
        self._module = module
        self._at: Mapping[Dim, int] = {}
        self._captured = captured
        self._loaded = functools.cache(functools.partial(_load, plan, options))
        self._names = [spec.name for spec in plan.parameters]
        self._evaluated = functools.cache(evaluated)

    def at(self, values: Mapping[Dim, int]) -> CompiledBody:
        """Return the body with the symbols replaced by values."""
        bound = copy.copy(self)
        bound.__dict__.pop("_lens", None)
        bound._at = values
        return bound

    @functools.cached_property
    def _lens(self) -> list[tuple[int, ...]]:
        """Lengths of the plan's parameters."""
        known: dict[Dim, int] = {}
        return [tuple([evaluate(n, self._at, known) for n in spec.lens]) for spec in self.plan.parameters]

    def within(self, outer: Mapping[Instruction, object]) -> Run:
        """Return a function that runs the body on arguments, with captured values ``outer``."""
        module, plan = self._module, self.plan
        executable, enter = self._loaded()
        names = self._names
        given = self._given(plan, outer)
        scalars = [k for k, value in enumerate(module.results()) if value.shape.without_axes]  # one axis in the IR

        def run(arguments: Sequence[np.ndarray]) -> list:
            given.update(zip(names, arguments))
            results = enter(given)
            if results is None:
                for name, lens, argument in zip(names, self._lens, arguments):
                    if argument.size != prod(lens):
                        body = self._evaluated()
                        return (body.at(self._at) if self._at else body).within(outer)(arguments)
                    given[name] = argument.reshape(lens)
                results = executable.run([np.ascontiguousarray(given[name]) for name in names])
            for k in scalars:
                results[k] = results[k].reshape(1)
            return results

        return run

    def repeat(
        self,
        outer: Mapping[Instruction, object],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Run the body as a loop; see `RunModule.repeat`. None if the plan has fallback steps, or does not serve the
        lengths."""
        plan = self.plan
        if not may_repeat(plan, len(carried)):
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
        shapes = [value.shape.lens for value in self._module.results()]  # one axis in the IR
        lens = [tuple([evaluate(n, self._at, known) for n in own]) for own in shapes]
        last, rows = done
        return (
            [value.reshape(n) for value, n in zip(last, lens)],
            [value.reshape(len(value), *n) for value, n in zip(rows, lens[len(last) :], strict=True)],
        )

    def _given(self, plan: Plan, outer: Mapping[Instruction, object]) -> dict[str, np.ndarray]:
        """Return the captured values and told lengths, as the plan's last parameters."""
        given = {}
        for k, value in enumerate(self._captured, len(self._module.parameters())):
            array, rank = np.ascontiguousarray(outer[value]), len(plan.parameters[k].lens)
            given[self._names[k]] = array if array.ndim == rank else array.reshape(self._lens[k])
        return given | explicit_lengths(plan, self._at)

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        """See `Body.write`. A body read from the file cannot evaluate the module, whose constants are in no file."""
        return "plan", lengths.writer.plan(self.plan), self._captured


def compiled_body(module: Module, options: TargetOptions, lower: Callable[[Program], Plan]) -> Body:
    """Return a submodule as a body with the plan that ``lower`` makes.

    The body is evaluated instead if lengths are unknown before a run, or if it has values that no plan holds.
    """
    values = [*module.parameters(), *module.captured(), *module.results()]
    if any(v.shape.is_dynamic or v.shape.sub_shapes for v in values):
        return evaluated(module)
    program, captured = Program.of_module(module)
    plan = lower(program)
    open_lengths = any(has_symbols(ins) for ins in program.main)
    plan = with_explicit_lengths(plan) if open_lengths else replace(plan, symbols=(), condition=1)
    return CompiledBody(module, plan, captured, options, lambda: evaluated(module))


def _load(plan: Plan, options: TargetOptions) -> tuple[Executable, Entry | Callable[[object], None]]:
    """Return the plan's executable and its native entry; all kernels are loaded at the first call."""
    executable = Executable(plan, options.num_threads or None, store=options.store)
    return executable, executable.direct(np.ndarray) or _declined


def _declined(inputs: object) -> None:
    return None


class DataDependentProgram:
    """A submodule whose lengths are known only when it runs, compiled as a program with dynamic inputs.

    The submodule may also have symbolic lengths of the outer program. It is then compiled for each set of values of
    these symbols.
    """

    plan: Plan | None = None

    def __init__(
        self,
        module: Module,
        captured: Sequence[Instruction],
        symbols: Sequence[Dim],
        compiled_for: Callable[[Mapping[Dim, int]], Any],
        known: Mapping[tuple[int, ...], Any],
    ) -> None:
        """Create the body of a submodule.

        Args:
            module: the submodule; only its parameters and results are read.
            captured: values that it takes from outside.
            symbols: symbols of the outer program.
            compiled_for: returns the compiled program for values of ``symbols``.
            known: compiled programs for some values.
        """
        self._module = module
        self._captured = captured
        self._symbols = symbols
        self._make = compiled_for
        self._known = OrderedDict(known)
        self._compiled: Any = next(iter(self._known.values()), None)
        self._names = [f"p{k}" for k in range(len(module.parameters()))]

    def at(self, values: Mapping[Dim, int]) -> DataDependentProgram:
        bound = copy.copy(self)
        bound._compiled = self._compiled_for(values)
        return bound

    def _compiled_for(self, values: Mapping[Dim, int]) -> object:
        key = tuple([values[symbol] for symbol in self._symbols])
        found = self._known.pop(key, None)
        if found is None:
            found = self._make(values)
        self._known[key] = found
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found

    @property
    def kernels(self) -> Sequence[KernelSource]:
        return self._compiled.kernels()  # type: ignore[no-any-return]

    def within(self, outer: Mapping[Instruction, object]) -> Run:
        given = {f"outer{k}": np.asarray(outer[value]) for k, value in enumerate(self._captured)}
        scalars = [k for k, value in enumerate(self._module.results()) if value.shape.without_axes]

        def run(arguments: Sequence[np.ndarray]) -> list:
            results: list = self._compiled.run({**dict(zip(self._names, arguments)), **given})
            for k in scalars:  # one axis in the IR
                results[k] = results[k].reshape(1)
            return results

        return run

    def repeat(
        self,
        outer: Mapping[Instruction, object],
        trips: int,
        condition: np.ndarray,
        carried: Sequence[np.ndarray],
        place: Callable[[int], str],
    ) -> None:
        """Return None: each iteration may have other lengths, so the caller repeats the body."""

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        known = []
        for key, compiled in self._known.items():
            kept = compiled.kept_plan()
            if kept is None:
                raise UnsupportedError("a submodule has no plan that a file can hold")
            known.append([key, written_kept(kept, lengths.writer)])
        return "late", [list(map(lengths.writer.symbol, self._symbols)), known], self._captured


def data_dependent_program(
    module: Module, compile: Callable[[Program], object], examples: Mapping[Dim, int]
) -> DataDependentProgram:
    """Return a submodule as a body that is compiled once its lengths are known.

    Args:
        module: the submodule.
        compile: returns a compiled program.
        examples: values of the outer program's symbols for which it is compiled at once, so that its kernels exist.
    """
    program, captured = Program.of_module(module)
    symbols = symbols_of(lengths_of(program))

    def compiled_for(values: Mapping[Dim, int]) -> object:
        return compile(settled(program, values) if symbols else program)

    first = {tuple([examples[symbol] for symbol in symbols]): compiled_for(examples)}
    return DataDependentProgram(module, captured, symbols, compiled_for, first)


def read_body(
    module: Module,
    kind: str,
    content: Any,
    captured: Sequence[Instruction],
    lengths: LengthsReader,
    how: TargetOptions,
    runnable: Callable[[Kept, TargetOptions, Callable[[], Program]], LoweredProgram],
) -> Body:
    """Return the body that `Body.write` wrote.

    Args:
        module: module with the shapes of the parameters and results.
        kind: kind of the body.
        content: JSON values; for a plan the plan itself.
        captured: values that the body takes from outside.
        lengths: reader of the outer plan's lengths.
        how: options of the compilation.
        runnable: `restored.runnable`.
    """
    if kind == "plan":
        return CompiledBody(module, content, captured, how, _outgrown)
    symbols, known = content
    found = {tuple(key): runnable(read_kept(kept, lengths.reader), how, _outgrown) for key, kept in known}
    return DataDependentProgram(module, captured, list(map(lengths.reader.symbol, symbols)), _outgrown, found)


def _outgrown(*values: object) -> NoReturn:
    raise Outgrown("a submodule has to be compiled")
