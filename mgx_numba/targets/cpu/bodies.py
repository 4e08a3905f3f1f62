"""Compiled submodules that fallback steps run: branches and loop bodies."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import numpy as np

from ...codegen.kernel import KernelSource
from ...core.dim import Dim, Scope, evaluate, symbols_of
from ...errors import MgxError, UnsupportedError
from ...graph.instruction import Instruction
from ...graph.module import Module
from ...graph.program import Program
from ...graph.substitution import lengths_of
from ...ops.concat import Concat
from ...runtime.cpu.executor import Executable
from ...runtime.cpu.native_call import Entry
from ...runtime.cpu.repeat import may_repeat, repeat
from ...runtime.explicit_lengths import explicit_length, explicit_lengths, explicit_name, with_explicit_lengths
from ...runtime.plan import Plan
from ...runtime.plan_json import LengthsReader, LengthsWriter
from ..base import Kept, Outgrown
from ..kept_file import read_kept, written_kept
from ..lowering.fallback_call import EvaluatedBody, evaluated
from ..lowering.fallback_values import has_symbols
from ..lowering.rules import Body
from ..options import TargetOptions
from .compiled import LoweredProgram

Run = Callable[[Sequence[Any]], list]


class CompiledBody:
    """A submodule with fixed or symbolic lengths, compiled to a plan of its own.

    Arguments that do not match the plan's parameters are evaluated by the module's NumPy meaning. A body with symbolic
    lengths runs `at` a set of lengths; one executable serves all.
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

    def keep_growth(self, keep: object) -> None:
        """See `Body.keep_growth`."""

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

    Where the submodule has symbolic lengths of the outer program, the compiled program takes them as further inputs.
    """

    plan: Plan | None = None

    def __init__(
        self,
        module: Module,
        captured: Sequence[Instruction],
        symbols: Sequence[Dim],
        compiled: LoweredProgram,
        appended: Mapping[int, int],
    ) -> None:
        """Create the body of a submodule.

        Args:
            module: the submodule; only its parameters and results are read.
            captured: values that it takes from outside.
            symbols: symbols of the outer program in the submodule.
            compiled: the compiled program.
            appended: for each loop-carried value that iterations only append to, by number, the axis. The compiled
                program returns what an iteration appends.
        """
        self._module = module
        self._appended = appended
        self._captured = captured
        self._symbols = symbols
        self._compiled = compiled
        self._lengths: dict[str, np.ndarray] = {}
        self._names = [f"p{k}" for k in range(len(module.parameters()))]

    def at(self, values: Mapping[Dim, int]) -> DataDependentProgram:
        bound = copy.copy(self)
        bound._lengths = {explicit_name(symbol): explicit_length(values[symbol]) for symbol in self._symbols}
        return bound

    @property
    def kernels(self) -> Sequence[KernelSource]:
        return self._compiled.kernels()

    def within(self, outer: Mapping[Instruction, object]) -> Run:
        run, appended = self._iteration(outer), self._appended.items()
        if not appended:
            return run

        def joined(arguments: Sequence[object]) -> list:
            results = run(arguments)
            for k, axis in appended:
                results[1 + k] = np.concatenate([arguments[2 + k], results[1 + k]], axis)
            return results

        return joined

    def _iteration(self, outer: Mapping[Instruction, Any]) -> Run:
        """Return a function that runs the compiled program on arguments, with captured values ``outer``."""
        given = {f"outer{k}": _ranked(value, np.asarray(outer[value])) for k, value in enumerate(self._captured)}
        given |= self._lengths
        parameters = self._module.parameters()
        scalars = [k for k, value in enumerate(self._module.results()) if value.shape.without_axes]
        enter = self._compiled.direct(np.ndarray) or _declined

        def run(arguments: Sequence[Any]) -> list:
            given.update(zip(self._names, map(_ranked, parameters, arguments)))
            results = enter(given)
            if results is None:
                results = self._compiled.run(given)
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
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Run the body as a loop; see `RunModule.repeat`. Values that iterations append to are joined once, at the end:
        otherwise each iteration copies all earlier elements. None if there is no such value, or a scan output."""
        if not self._appended or len(self._module.results()) != 1 + len(carried):
            return None
        run, values = self._iteration(outer), list(carried)
        rows = {k: [values[k]] for k in self._appended}
        for iteration in range(trips):
            try:
                condition, *made = run([np.array([iteration], np.int64), condition, *values])
            except MgxError as error:
                raise type(error)(f"{place(iteration)}: {error}") from error
            for k, value in enumerate(made):
                if k in rows:
                    rows[k].append(value)
                else:
                    values[k] = value
            if not condition.reshape(-1)[0]:
                break
        for k, axis in self._appended.items():
            values[k] = np.concatenate(rows[k], axis)
        return [condition, *values], []

    def keep_growth(self, keep: Callable[[object], None]) -> None:
        """See `Body.keep_growth`."""
        self._compiled.keep_growth(keep)

    def write(self, lengths: LengthsWriter) -> tuple[str, object, Sequence[Instruction]]:
        kept = self._compiled.kept_plan()
        if kept is None:
            raise UnsupportedError("a submodule has no plan that a file can hold")
        symbols = list(map(lengths.writer.symbol, self._symbols))
        content = [symbols, written_kept(kept, lengths.writer), list(self._appended.items())]
        return "late", content, self._captured


def _ranked(value: Instruction, array: np.ndarray) -> np.ndarray:
    """Return the array of a value, without axes for a scalar."""
    return array.reshape(()) if value.shape.without_axes else array


def data_dependent_program(
    module: Module,
    compile: Callable[[Program, Scope | None], LoweredProgram],
    outer: Scope | None,
    loops: bool,
) -> DataDependentProgram:
    """Return a submodule as a body that is compiled for all lengths.

    Args:
        module: the submodule.
        compile: returns the compiled program of a submodule; takes ``outer``, too.
        outer: the scope of the outer program; None: it has no symbols.
        loops: whether the submodule is a loop's body.
    """
    program, captured = Program.of_module(module)
    appended = _appended(program.main, len(module.parameters())) if loops else {}
    symbols = symbols_of(lengths_of(program))
    return DataDependentProgram(module, captured, symbols, compile(program, outer), appended)


def _appended(body: Module, parameters: int) -> dict[int, int]:
    """Return the loop-carried values that a body only appends to, by number, and the axis of each.

    The body then returns what it appends, and has no parameter for such a value.
    """
    found: dict[int, int] = {}
    results, own = body.results(), [body.parameter(f"p{k}") for k in range(parameters)]
    for k, parameter in enumerate(own[2:]):
        joined = results[1 + k]
        if joined.name != "concat" or len(joined.inputs) != 2 or joined.inputs[0] is not parameter:
            continue
        if len(parameter.users) == len(joined.users) == results.count(joined) == 1 and parameter not in results:
            found[k] = joined.operator(Concat).axis % parameter.shape.ndim
            results[1 + k] = joined.inputs[1]
    if found:
        body.replace_return(results)
        body.remove_unused()
        for k in found:
            body.remove_instruction(own[2 + k])  # type: ignore[arg-type]
    return found


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
    symbols, kept, appended = content
    compiled = runnable(read_kept(kept, lengths.reader), how, _outgrown)
    return DataDependentProgram(
        module, captured, list(map(lengths.reader.symbol, symbols)), compiled, dict(map(tuple, appended))
    )


def _outgrown(*values: object) -> NoReturn:
    raise Outgrown("a submodule has to be compiled")
