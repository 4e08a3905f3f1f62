"""The context of one call of `run`: its arena, its copies of the tables, and views of the memory that a plan names."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...core.dim import Dim
from ...core.types import numpy_dtype
from ...errors import MgxError, ShapeError
from ..memory import address_of, aligned_array, aligned_empty, copied, expect_room, scratch, view_of
from ..plan import FallbackStep, Plan, Pointer, Region, TensorView
from .binding import Binding, Made
from .jumps import DriverOperation, driving_code
from .plan_tables import PlanTables
from .spmd import Job, StepRecord, TraceRow
from .threads import restore_error


class Context:
    """Arena, argument blocks, step states and job block of one call at a time; reused by later calls."""

    def __init__(self, plan: Plan, tables: PlanTables, pool_address: int, threads: int) -> None:
        """Allocate a context.

        Raises:
            MgxError: there is not enough memory for the arena.
        """
        self.arena = scratch(0) if plan.symbols else _arena(plan, tables)
        slots = aligned_empty(tables.slots.shape, "int64")
        slots[:] = tables.slots
        slots[tables.arena_slots] = tables.arena_offsets + address_of(self.arena)
        steps = aligned_empty(tables.steps.shape, "int64")
        steps[:] = tables.steps
        steps[:-1, StepRecord.ARGS] = address_of(slots) + 8 * tables.starts
        bases = aligned_empty((tables.bases,), "int64")
        job = aligned_empty((Job.WORDS,), "int64")
        job[:] = 0
        job[Job.STEPS] = address_of(steps)
        job[Job.SLOTS] = address_of(slots)
        job[Job.BASES] = address_of(bases)
        job[Job.POOL] = pool_address
        job[Job.THREADS] = threads
        job[Job.BRIEF] = tables.brief
        job[Job.LONG] = tables.long
        job[Job.SELF] = address_of(job)
        patches = tables.patches.copy() if plan.symbols else tables.patches
        job[Job.PATCHES] = address_of(patches)
        taken = aligned_empty((len(steps) * threads,), "int64")
        job[Job.TAKEN] = address_of(taken)
        held = aligned_empty((len(plan.parameters),), "int64")
        job[Job.HELD] = address_of(held)
        self.kept = (slots, steps, taken, held, patches)
        self.bases: memoryview = bases.data
        self.job_address = address_of(job)
        self.job: memoryview = job.data
        if plan.jumps:
            job[Job.OPERATIONS], job[Job.LEADER] = address_of(tables.operations), driving_code()[0]
        self.slots: memoryview = slots.data
        self._tables = tables
        slots[tables.fault_slots] = self.job_address + 8 * Job.FAULT
        self._fixed_outputs = tables.outputs
        self.binding: Binding | None = None
        if tables.binding is not None:
            self.binding = Binding(tables.binding, job, steps.copy())
            job[Job.BINDING] = self.binding.address
        self._arena_views: dict[TensorView, np.ndarray] = {}

    @property
    def outputs(self) -> list[Made | None]:
        """Lens, dtype and bytes of a call's outputs; None where only a fallback step's result determines them."""
        return self._fixed_outputs if self.binding is None else self.binding.outputs

    def records(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of records in the job's table for a range of native steps."""
        return (begin, end) if self.binding is None else self.binding.records(begin, end)

    def entry(self, steps: int) -> tuple[int, int]:
        """Return the address of the kernel that runs all native steps, and the end of the range that it takes."""
        lead, drive = driving_code()
        if self._tables.operation_ranges:
            return drive, self._tables.operation_ranges[0, steps][1]
        return lead, self.records(0, steps)[1]

    def ranges(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of native steps of a range of operations, each after all steps before it have run."""
        rows = self._tables.operations.reshape(-1, DriverOperation.WORDS).tolist()
        at = begin
        while at < end:
            kind, first, second = rows[at]
            at += 1
            if kind == DriverOperation.RUN:
                yield first, second
            elif (self.number(first) != 0) == (kind == DriverOperation.IF_SET):
                at = second

    def number(self, slot: int) -> int:
        """Return the int64 to which an argument slot points."""
        return ctypes.c_int64.from_address(self.slots[slot]).value

    def place(self, inputs: Sequence[np.ndarray]) -> None:
        """Set the addresses of a call's inputs."""
        self.job[Job.FAULT] = 0
        for number, array in enumerate(inputs):
            self.bases[number] = address_of(array)

    def bind(self, inputs: Sequence[np.ndarray], places: Sequence[np.ndarray | None] | None = None) -> list[Any]:
        """Set the addresses of a call's inputs, and make its outputs; None for outputs whose shape only a fallback step
        determines.

        ``places`` has memory for outputs, None for outputs that are new.

        Raises:
            MgxError: there is not enough memory for an output.
        """
        self.place(inputs)
        bases = self.bases
        number = len(inputs)
        outputs = []
        for k, made in enumerate(self.outputs):
            output = None if places is None else places[k]
            if output is not None:
                bases[number] = address_of(output)
            elif made is not None:
                try:
                    output = aligned_array(*made)
                except MemoryError as error:
                    raise MgxError(f"run: not enough memory for a result of {made[2]} bytes: {error}") from error
                bases[number] = address_of(output)
            outputs.append(output)
            number += 1
        return outputs

    def trace(self, steps: int) -> tuple[np.ndarray, int]:
        """Let the next calls record when each thread works on each of ``steps`` steps, until `untrace`.

        Returns:
            The threads' rows (`TraceRow`), and the number of words of a row.
        """
        width = TraceRow.EVENTS + steps * TraceRow.EVENT_WORDS
        self._trace = np.zeros(self.job[Job.THREADS] * width, np.int64)
        self.job[Job.TRACE], self.job[Job.TRACED_STEPS] = address_of(self._trace), steps
        return self._trace, width

    def untrace(self) -> None:
        """Stop recording."""
        self.job[Job.TRACE] = 0

    def raise_error(self) -> None:
        """Raise the error that a signal handler raised during the steps, if any."""
        if self.job[Job.STOPPED]:
            self.job[Job.STOPPED] = 0
            restore_error(*self.job[Job.ERROR : Job.ERROR + 3])

    def arena_view(self, view: TensorView) -> np.ndarray:
        """Return a tensor in the arena, the same array for the same view. For a symbolic plan the array is made
        anew."""
        if self.binding is not None:
            return _strided(self.binding.arena, view)
        array = self._arena_views.get(view)
        if array is None:
            array = self._arena_views[view] = _strided(self.arena, view)
        return array


class Frame:
    """One call: its context, the caller's inputs, the outputs being made, and host values."""

    def __init__(
        self,
        plan: Plan,
        tables: PlanTables,
        context: Context,
        inputs: Sequence[np.ndarray],
        places: Sequence[np.ndarray | None] | None = None,
    ) -> None:
        self.context = context
        self.inputs = inputs
        self.outputs: list[np.ndarray | None] = context.bind(inputs, places)
        self._plan = plan
        self._tables = tables
        self._host: dict[int, np.ndarray] = {}

    def view(self, view: TensorView) -> np.ndarray:
        """Return a view's tensor as an array over the same memory, whose contents change with later steps and calls.

        Raises:
            ShapeError: no step has made this host value, or output without declared lens, yet.
        """
        if self.context.binding is not None:
            view = self.context.binding.view(view)
        region, index = view.pointer.region, view.pointer.index
        if region is Region.ARENA:
            return self.context.arena_view(view)
        if region is Region.HOST or self._is_dynamic(view.pointer):
            array = self._host.get(index) if region is Region.HOST else self.outputs[index]
            if array is None:
                raise ShapeError(f"{region.name} {index} is read before any step has made it")
            return array
        memory: dict[Region, Sequence[Any]] = {
            Region.CONSTANT: self._plan.constants,
            Region.PARAMETER: self.inputs,
            Region.OUTPUT: self.outputs,
        }
        array = memory[region][index]
        if array.dtype.hasobject:
            return array.reshape(view.lens) if view.lens else array
        return _strided(_bytes(array), view)

    def run_fallback_step(self, step: FallbackStep) -> None:
        """Call a fallback step's function and store its results as the plan says.

        Raises:
            ShapeError: a result differs from the plan's declaration. Errors of the function pass through.
        """
        arguments = [self._argument(view) for view in step.inputs]
        binding = self.context.binding
        results = (step.function if binding is None else binding.function(step))(arguments)
        if len(results) != len(step.outputs):
            raise ShapeError(f"{_title(step)}: returned {len(results)} arrays, expected {len(step.outputs)}")
        for result, view in zip(results, step.outputs, strict=True):
            self._put(step, np.asarray(result), view)

    def _argument(self, view: TensorView) -> np.ndarray:
        """Return an input of a fallback step; a constant's array is the same in all calls."""
        known = self._tables.constant_arrays
        found = known.get(id(view))
        if found is None:
            found = self.view(view).view()
            found.flags.writeable = False
            numbers = (view.pointer.offset, *view.lens, *view.strides)
            if view.pointer.region is Region.CONSTANT and not any(isinstance(n, Dim) for n in numbers):
                known[id(view)] = found
        return found

    def _put(self, step: FallbackStep, result: np.ndarray, view: TensorView) -> None:
        expected = numpy_dtype(view.dtype)
        if result.dtype != expected:
            raise ShapeError(f"{_title(step)}: returned {result.dtype}, expected {expected}")
        pointer = view.pointer
        if pointer.region is Region.HOST:
            kept = self._host[pointer.index] = result if self._stays(result) else _owned(result)
            self.context.bases[self._tables.base(Region.HOST, pointer.index)] = address_of(kept)
        elif self._is_dynamic(pointer):
            kept = self.outputs[pointer.index] = _owned(result)
            self.context.bases[self._tables.base(Region.OUTPUT, pointer.index)] = address_of(kept)
        else:
            lens = view.lens if self.context.binding is None else self.context.binding.view(view).lens
            if result.shape != tuple(lens):
                raise ShapeError(f"{_title(step)}: returned shape {result.shape}, expected {tuple(lens)}")
            np.copyto(self.view(view), result)

    def _stays(self, array: np.ndarray) -> bool:
        """Return whether an array is a contiguous view of another host value, whose memory nothing reuses."""
        return array.flags.c_contiguous and any(array.base is value for value in self._host.values())

    def _is_dynamic(self, pointer: Pointer) -> bool:
        return pointer.region is Region.OUTPUT and self._plan.outputs[pointer.index].lens is None


def bytes_of_results(tables: PlanTables) -> int:
    """Return the bytes of the results of a plan that is not symbolic."""
    return sum(made[2] for made in tables.outputs if made is not None)


def _arena(plan: Plan, tables: PlanTables) -> np.ndarray:
    """Return the arena of a plan that is not symbolic."""
    results = bytes_of_results(tables)
    size = plan.arena_bytes + results
    try:
        expect_room(size, f"results of {results} bytes and what is computed on the way to them, in all")
    except MemoryError as error:
        raise MgxError(f"run: {error}") from error
    try:
        return scratch(plan.arena_bytes)
    except MemoryError as error:
        raise MgxError(f"run: not enough memory for what is computed on the way to results: {error}") from error


def _title(step: FallbackStep) -> str:
    return f"fallback step {step.label or step.instruction or getattr(step.function, '__name__', 'function')}"


def _owned(array: np.ndarray) -> np.ndarray:
    """Return the array if it owns its memory and is C-contiguous, else a copy: a view may refer to memory that is
    reused."""
    return array if array.flags.owndata and array.flags.c_contiguous else copied(array)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _strided(memory: np.ndarray, view: TensorView) -> np.ndarray:
    return view_of(memory, view.lens, numpy_dtype(view.dtype), view.pointer.offset, view.strides)
