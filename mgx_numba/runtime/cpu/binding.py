"""Bind symbolic plans: evaluate their numbers natively for the lengths of a call, and write these into a context.

A context is bound to one set of symbols' values at a time. For another set, `BIND` evaluates the plan's size program
and writes the results: argument slots, offsets of patches, the table of steps that have tasks, lengths and bytes of
parameters and outputs. Python code runs only where memory has to grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...codegen.launch import TaskRange
from ...core.dim import Dim, Length, evaluate
from ...core.types import numpy_dtype
from ...errors import MgxError, ShapeError, UnsupportedError
from ..host.native import NativeKernel
from ..host.sizes import Evaluator
from ..memory import ALIGNMENT, BIG, address_of, expect_room, scratch
from ..plan import FallbackFunction, FallbackStep, Plan, Pointer, Step, TensorView
from .bind_kernel import MAX_CLAIMS, ROOMS_EACH, Bound, Status

Made: TypeAlias = tuple[tuple[int, ...], np.dtype, int]
"""Lens, dtype and bytes of an output."""
FIRST_ARENA = 1 << 20
"""Size (bytes) of the arena before the first call, with which small models run: a first call that has to grow the arena
takes 0.3 ms longer (an encoder of 12 layers, Zen 4). Memory is used only for pages that are written."""


class BindingTables:
    """Data shared by the bindings of all contexts of a symbolic plan.

    Attributes:
        program: the size program of all numbers of the plan.
        sources: for each symbol the parameter and the axis whose length it is.
        tables: tables of the plan, by the `Bound` words that hold their addresses.
        words: the `Bound` words that are the same for all contexts.
    """

    def __init__(
        self,
        plan: Plan,
        writes: Sequence[Sequence[tuple[int, Length, int]]],
        numbers: Sequence[tuple[Length, Length, Length, Length, int]],
        patch_count: int,
        code: tuple[int, int],
    ) -> None:
        """Compile the size program.

        Args:
            plan: the symbolic plan.
            writes: for each native step the places, expressions and bases of its `Write` entries.
            numbers: tasks, grain, operations, bytes and segment of each native step.
            patch_count: number of patches of the plan.
            code: addresses of `EVALUATE` and `BIND`.

        Raises:
            CompileError: a symbol is no parameter's length.
        """
        self.plan = plan
        self.sources = plan.symbol_axes()
        self._run = NativeKernel(code[1])
        self.program = program = plan.size_program()
        axes = [program.number(length) for p in plan.parameters for length in p.lens]
        condition = program.number(plan.condition)
        checked = program.rows_until([*axes, condition])
        axes += [program.number(length) for o in plan.outputs for length in o.lens or ()]
        outputs = [(o.lens, numpy_dtype(o.dtype).itemsize) for o in plan.outputs]
        sizes = [program.number(0) if lens is None else program.product(lens, item) for lens, item in outputs]
        arena_bytes = program.number(plan.arena_bytes)
        step_words = []
        entries: list[tuple[int, int, int]] = []
        for (*lengths, segment), own in zip(numbers, writes, strict=True):
            step_words.append([*map(program.number, lengths), len(entries), segment])
            entries += [(place, program.number(length), base) for place, length, base in own]
        step_words.append([0, 0, 0, 0, len(entries), 0])
        needed = [number for *numbers, _, _ in step_words for number in numbers] + [number for _, number, _ in entries]
        limits = [(_or(s.low, 0), _or(s.high, (1 << 63) - 1)) for s in plan.symbols]
        self._served: list[tuple[int, ...]] | None = None  # shapes of the last inputs that the plan serves
        self._memory = program.memory()
        self._zero = 8 * len(program.constants)
        self._axes = axes
        tables = {
            Bound.ROWS: program.table(),
            Bound.RANGES: _table(limits),
            Bound.SOURCES: _table(self.sources),
            Bound.NUMBERS: _table(step_words),
            Bound.WRITES: _table(entries),
            Bound.AXES: _table(axes),
            Bound.BYTES: _table(sizes),
        }
        self.tables = tables
        self.words = {word: address_of(table) for word, table in tables.items()} | {
            Bound.GIVEN: len(plan.symbols),
            Bound.EVALUATE: code[0],
            Bound.BIND: code[1],
            Bound.CONDITION: condition,
            Bound.ARENA_BYTES: arena_bytes,
            Bound.CHECKED: checked,
            Bound.ROW_COUNT: program.rows_until([*axes, condition, *sizes, arena_bytes, *needed]),
            Bound.STEP_COUNT: len(numbers),
            Bound.AXIS_COUNT: len(axes),
            Bound.OUTPUT_COUNT: len(sizes),
            Bound.PATCH_COUNT: patch_count,
            Bound.ALLOWED: BIG,
        }

    def block(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a new `Bound` block, the memory of its values, and the part of that memory for the symbols' values."""
        memory = self._memory.copy()
        block = np.zeros(Bound.WORDS, np.int64)
        for word, value in self.words.items():
            block[word] = value
        block[Bound.VALUES] = address_of(memory) + self._zero
        first = self._zero // 8
        return block, memory, memory[first : first + len(self.sources)]

    def run(self, block: int, checking: bool = False) -> None:
        """Bind the context whose block is at address ``block`` to the symbols' values; with ``checking`` only evaluate
        the condition."""
        self._run(block, int(checking), 0)

    def given(self, inputs: Sequence[np.ndarray]) -> list[int]:
        """Return the symbols' values from the shapes of one array for each parameter.

        Raises:
            ShapeError: an array has too few axes for its parameter.
        """
        try:
            return [inputs[parameter].shape[axis] for parameter, axis in self.sources]
        except IndexError:
            parameter = next(p for p, axis in self.sources if len(inputs[p].shape) <= axis)
            raise self.mismatch(inputs, parameter) from None

    def serves(self, inputs: Sequence[np.ndarray]) -> bool:
        """Return whether the plan serves the inputs' shapes."""
        shapes = [array.shape for array in inputs]
        if shapes == self._served:
            return True
        served = self._check(inputs) is Status.BOUND
        if served:
            self._served = shapes
        return served

    def values(self, inputs: Sequence[np.ndarray]) -> dict[Dim, int] | None:
        """Return the symbols' values if they give the inputs' shapes, else None."""
        if self._check(inputs) is None:
            return None
        return dict(zip(self.plan.symbols, self.given(inputs)))

    def _check(self, inputs: Sequence[np.ndarray]) -> Status | None:
        """Return the status of binding to the inputs' lengths; None if no values of the symbols give their shapes."""
        parameters = self.plan.parameters
        if any(len(a.shape) != len(p.lens) for a, p in zip(inputs, parameters, strict=True) if p.lens):
            return None
        block, memory, symbols = self.block()
        symbols[:] = self.given(inputs)
        self.run(address_of(block), checking=True)
        lens = iter(memory[np.array(self._axes, np.int64) + self._zero // 8].tolist())
        for array, parameter in zip(inputs, parameters):
            own = [next(lens) for _ in parameter.lens]
            if own and tuple(own) != array.shape:
                return None
        return Status(block[Bound.STATUS])

    @cached_property
    def view_numbers(self) -> tuple[Evaluator, dict[int, np.ndarray]]:
        """A size program for the tensors of fallback steps; and the numbers of offset, lens and strides of each view,
        by its id."""
        program = self.plan.size_program()
        numbers = {}
        for step in self.plan.steps:
            for view in () if isinstance(step, Step) else (*step.inputs, *step.outputs):
                own = map(program.number, (view.pointer.offset, *view.lens, *view.strides))
                numbers[id(view)] = np.array([*own], np.int64)
        return Evaluator(program), numbers

    def mismatch(self, inputs: Sequence[np.ndarray], number: int) -> ShapeError:
        """Return the error for an input whose shape does not fit the plan."""
        parameter = self.plan.parameters[number]
        wanted = ", ".join(map(str, parameter.lens))
        return ShapeError(f"run: input {parameter.name} has shape {inputs[number].shape}, the plan takes ({wanted})")


class Binding:
    """The binding of one context: its arena, and the numbers for the lengths to which it is bound."""

    def __init__(self, tables: BindingTables, job: np.ndarray, template: np.ndarray) -> None:
        """Create the state of a context that is not bound yet.

        Args:
            tables: tables of the plan.
            job: the context's `Job` block.
            template: records of all native steps, with the addresses of their arguments.
        """
        self._tables = tables
        block, memory, given = tables.block()
        self._block: memoryview = block.data  # single words are read faster than from an array
        self._given: memoryview = given.data
        axes, outputs = tables.words[Bound.AXIS_COUNT], tables.words[Bound.OUTPUT_COUNT]
        self._lens, self._rooms = np.zeros(axes, np.int64), np.zeros(ROOMS_EACH * outputs, np.int64)
        self._positions, self._kept_steps = (np.zeros(len(template), np.int64) for _ in range(2))
        self._memory = (memory, job, template)
        for word, array in (
            (Bound.JOB, job),
            (Bound.TEMPLATE, template),
            (Bound.KEPT, self._kept_steps),
            (Bound.POSITIONS, self._positions),
            (Bound.LENS, self._lens),
            (Bound.ROOMS, self._rooms),
        ):
            block[word] = address_of(array)
        self.address = address_of(block)
        self._seen = 0
        self._view_values: np.ndarray | None = None
        needed = tables.plan.arena_bytes
        self._take_arena(FIRST_ARENA if isinstance(needed, Dim) else min(needed, FIRST_ARENA))

    @property
    def capacity(self) -> int:
        """Size of the arena in bytes."""
        return self._block[Bound.CAPACITY]

    def settle(self, inputs: Sequence[np.ndarray]) -> None:
        """Bind the context to the lengths of a call's inputs, unless it is bound to them.

        Raises:
            ShapeError: the plan does not serve these lengths.
            MgxError: there is not enough memory.
            UnsupportedError: a step has too many tiles.
        """
        given = self._tables.given(inputs)
        if not self._block[Bound.READY] or self._given.tolist() != given:
            for k, value in enumerate(given):
                self._given[k] = value
            status = self._run()
            if status is Status.ROOM:
                self._make_room()
                status = self._run()
            if status is not Status.BOUND:
                raise self._error(status)
        if self._seen != self._block[Bound.BINDINGS]:
            self._note()
        for number, (array, lens) in enumerate(zip(inputs, self._parameters, strict=True)):
            if lens and array.shape != lens:
                raise self._tables.mismatch(inputs, number)

    def view(self, view: TensorView) -> TensorView:
        """Return the view with its expressions replaced by numbers."""
        found = self._views.get(id(view))
        if found is None:
            program, numbers = self._tables.view_numbers
            own = numbers.get(id(view))
            if own is None:  # a view made by an observer
                values = [evaluate(length, self.values) for length in (view.pointer.offset, *view.lens, *view.strides)]
            else:
                if self._view_values is None:
                    self._view_values = program.values(self._given.tolist())
                values = self._view_values[own].tolist()
            axes = len(view.lens)
            pointer = Pointer(view.pointer.region, view.pointer.index, values[0])
            made = TensorView(pointer, view.dtype, tuple(values[1 : 1 + axes]), tuple(values[1 + axes :]))
            found = self._views[id(view)] = (made, view)
        return found[0]

    def function(self, step: FallbackStep) -> FallbackFunction:
        """Return the function of a fallback step for the lengths to which the context is bound."""
        if step.bind is None:
            return step.function
        found = self._functions.get(id(step))
        if found is None:
            found = self._functions[id(step)] = step.bind(self.values)
        return found

    def kept(self) -> list[int]:
        """Return the native step of each record in the job's table."""
        return self._kept_steps[: self._block[Bound.RECORDS]].tolist()

    def records(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of records in the job's table for a range of native steps."""
        return int(self._positions[begin]), int(self._positions[end])

    def _run(self) -> Status:
        self._tables.run(self.address)
        return Status(self._block[Bound.STATUS])

    def _note(self) -> None:
        """Read the numbers that a binding has written."""
        self._seen = self._block[Bound.BINDINGS]
        plan = self._tables.plan
        self.values: dict[Dim, int] = dict(zip(plan.symbols, self._given.tolist()))
        self._views: dict[int, tuple[TensorView, TensorView]] = {}  # by id: comparing lengths evaluates expressions
        self._view_values = None
        self._functions: dict[int, FallbackFunction] = {}
        lens = iter(self._lens.tolist())
        self._parameters = [tuple([next(lens) for _ in parameter.lens]) for parameter in plan.parameters]
        self.outputs: list[Made | None] = []
        for output, room in zip(plan.outputs, self._rooms.tolist()):
            own = None if output.lens is None else tuple([next(lens) for _ in output.lens])
            made = None if own is None else (own, numpy_dtype(output.dtype), room - ALIGNMENT)
            self.outputs.append(made)

    def _make_room(self) -> None:
        """Grow the arena to the size that the last binding needs, and allow its outputs' bytes.

        Raises:
            MgxError: there is not enough memory.
        """
        needed, results = (self._block[word] for word in (Bound.NEEDED, Bound.RESULTS))
        try:
            expect_room(needed + results, f"results of {results} bytes and what is computed on the way to them, in all")
            self._block[Bound.ALLOWED] = max(results, BIG)
            if needed > self.capacity:
                # Spare room for lengths that grow step by step, such as a cache's.
                spare = needed // 4 if self.capacity > FIRST_ARENA else 0
                self._take_arena(0)
                self._take_arena(needed + spare)
        except MemoryError as error:
            raise MgxError(f"run: not enough memory for the lengths {self._lengths()}: {error}") from error

    def _take_arena(self, size: int) -> None:
        self.arena = scratch(size)
        self._block[Bound.ARENA], self._block[Bound.CAPACITY] = address_of(self.arena), size

    def _lengths(self) -> str:
        pairs = zip(self._tables.plan.symbols, self._given.tolist())
        return ", ".join(f"{symbol}={value}" for symbol, value in pairs)

    def _error(self, status: Status) -> MgxError:
        if status is Status.UNSERVED:
            return ShapeError(f"run: the plan does not serve the lengths {self._lengths()}")
        if status is Status.UNCOUNTABLE:
            steps = [step for step in self._tables.plan.steps if isinstance(step, Step)]
            step = steps[self._block[Bound.STEP]]
            assert isinstance(step.geometry, TaskRange)
            tasks = evaluate(step.geometry.tasks, dict(zip(self._tables.plan.symbols, self._given.tolist())))
            return UnsupportedError(
                f"step {step.label or step.kernel.name}: {tasks} tiles for the lengths {self._lengths()}; tiles plus "
                f"one grain a thread must stay below {MAX_CLAIMS}"
            )
        return MgxError(f"run: for the lengths {self._lengths()} sizes exceed the bytes that can be addressed")


def _table(rows: Sequence[object]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1)


def _or(bound: int | None, otherwise: int) -> int:
    return otherwise if bound is None else bound
