"""Convert a plan to the tables that the executor's kernels walk, before the addresses of a call are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ...codegen.kernel import KernelSource
from ...codegen.launch import TaskRange
from ...core.dim import Dim, Length
from ...core.types import numpy_dtype
from ...errors import CompileError, UnsupportedError
from ..host.sizes import EVALUATE
from ..memory import address_of
from ..plan import FallbackStep, MappedTensor, Plan, Pointer, Region, Step, TensorSpec
from .bind_kernel import BIND, MAX_CLAIMS, Write
from .binding import BindingTables, Made
from .jumps import operations
from .spmd import Patch, StepRecord

_SLOT_ALIGNMENT = 8  # words of a cache line
_BRIEF_SECONDS = 8e-6
"""Approximate cost of waking a worker: a call that takes less is faster on the caller's thread alone."""
_FLOPS_PER_SECOND, _BYTES_PER_SECOND = 1e11, 1e11
"""Rates of one core, rounded, to recognise brief calls. The back end's `Machine` is not needed: orders of magnitude
decide."""
_LOOK_SECONDS = 1e-4
"""Estimated time between two checks for signals; the actual time is seldom ten times as long. A check takes several
hundredths of a microsecond."""

# A run of native steps, as a range of the step table, or one fallback step.
Segment: TypeAlias = "tuple[int, int] | FallbackStep"


class PlanTables:
    """Step table, argument slots, relocations and patches of a plan.

    For a symbolic plan ``binding`` has all data that depends on lengths, and each context has its own numbers. The
    tables then have only the slots' constant values, and the steps' functions and patches; ``outputs`` and
    ``arena_slots`` are empty.

    Attributes:
        steps: int64 (native steps + 1, 8).
        slots: flat int64, with constants' addresses filled in.
        arena_slots, arena_offsets: slots that hold arena addresses, and the offsets to add to the arena's address.
        fault_slots: slots that hold the address of the call's fault record.
        constant_slots: (slot, constant, offset) of each slot that holds a constant's address.
        code_slots: (slot, kernel) of each slot that holds a kernel's address.
        constant_addresses: addresses of the constants.
        patches: (n, 3), applied in each run. Bases are numbered parameters first, then outputs, then host values.
        outputs: lens, dtype and bytes of each output; None where only a fallback step's result determines them.
        constant_arrays: constant inputs of fallback steps, by the id of their views.
        brief: whether one thread runs all steps in several microseconds.
        long: whether some step ends with a check for signals.
        operations: operations of a plan with jumps (`jumps`).
        operation_ranges: range of operations of each segment.
    """

    def __init__(
        self,
        plan: Plan,
        addresses: Mapping[KernelSource, int],
        constants: Sequence[np.ndarray],
        threads: int,
    ) -> None:
        """Build the tables; ``addresses`` has the address of each kernel's machine code.

        Raises:
            UnsupportedError: a step has more tiles than the executor can count.
        """
        self._plan = plan
        self._addresses = addresses
        self.constant_addresses = [address_of(array) for array in constants]
        symbolic = bool(plan.symbols)
        self.constant_arrays: dict[int, np.ndarray] = {}
        self.outputs = [] if symbolic else [_made(spec) for spec in plan.outputs]
        native = [step for step in plan.steps if isinstance(step, Step)]
        self.segments = _segments(plan)
        self.native_index = _native_index(plan)
        self.brief = not symbolic and _is_brief(native)
        self.bases = len(plan.parameters) + len(plan.outputs) + _host_values(plan)
        self.steps = np.zeros((len(native) + 1, StepRecord.WORDS), np.int64)
        self.starts = np.zeros(len(native), np.int64)
        slots: list[int] = []
        arena: list[tuple[int, int]] = []
        patches: list[tuple[int, int, int]] = []
        faults: list[int] = []
        self.constant_slots: list[tuple[int, int, int]] = []
        self.code_slots: list[tuple[int, KernelSource]] = []
        writes: list[list[tuple[int, Length, int]]] = [[] for _ in native]
        for i, step in enumerate(native):
            slots.extend([0] * (-len(slots) % _SLOT_ALIGNMENT))
            self.starts[i] = len(slots)
            record = self.steps[i]
            record[StepRecord.FUNCTION] = addresses[step.kernel]
            if not symbolic:
                _check_countable(step, threads)
                tasks = _task_range(step)
                record[StepRecord.TASKS] = tasks.tasks
                record[StepRecord.GRAIN] = max(1, tasks.grain)
            record[StepRecord.PATCH] = len(patches)
            for value in step.args:
                slot = len(slots)
                if isinstance(value, int):
                    slots.append(value)
                elif isinstance(value, Pointer) and value.region is Region.FAULT:
                    faults.append(slot)
                    slots.append(0)
                elif isinstance(value, (Dim, Pointer)) and symbolic and _is_bound(value):
                    self._note_write(value, slot, writes[i], patches)
                    slots.append(0)
                else:
                    slots.append(self._resolve(value, slot, arena, patches))
        self.steps[-1, StepRecord.PATCH] = len(patches)
        self.binding: BindingTables | None = None
        if symbolic:
            code = addresses[EVALUATE], addresses[BIND]
            self.binding = BindingTables(plan, writes, self._step_numbers(native), len(patches), code)
        else:
            self._link_chains()
            _place_looks(self.steps, native)
        self.long = symbolic or bool(plan.jumps) or bool(self.steps[:-1, StepRecord.PIECE].any())
        ranges = [segment for segment in self.segments if isinstance(segment, tuple)] if plan.jumps else []
        self.operations, self.operation_ranges = operations(plan, ranges, self.native_index, self.starts)
        self.slots = np.array(slots, np.int64)
        self.fault_slots = np.array(faults, np.int64)
        relocations = np.array(arena, np.int64).reshape(-1, 2)
        self.arena_slots, self.arena_offsets = relocations[:, 0], relocations[:, 1]
        self.patches = np.array(patches, np.int64).reshape(-1, Patch.WORDS)

    def base(self, region: Region, index: int) -> int:
        """Return the number of the base address of a parameter, an output or a host value."""
        if region is Region.PARAMETER:
            return index
        if region is Region.OUTPUT:
            return len(self._plan.parameters) + index
        return len(self._plan.parameters) + len(self._plan.outputs) + index

    def _resolve(
        self,
        value: Pointer | MappedTensor | KernelSource,
        slot: int,
        arena: list[tuple[int, int]],
        patches: list[tuple[int, int, int]],
    ) -> int:
        """Return a slot's value before any call; append to ``arena`` or ``patches`` the address that a call must fill
        in."""
        if isinstance(value, KernelSource):
            self.code_slots.append((slot, value))
            return self._addresses[value]
        if isinstance(value, MappedTensor):
            raise CompileError("the CPU has no copy engine that takes a description of a tensor")
        if value.region is Region.CONSTANT:
            self.constant_slots.append((slot, value.index, value.offset))
            return self.constant_addresses[value.index] + value.offset
        if value.region is Region.ARENA:
            arena.append((slot, value.offset))
        else:
            patches.append((slot, self.base(value.region, value.index), value.offset))
        return 0

    def _note_write(
        self,
        value: Dim | Pointer,
        slot: int,
        writes: list[tuple[int, Length, int]],
        patches: list[tuple[int, int, int]],
    ) -> None:
        """Record where a binding writes an expression: into a slot, or into a slot's patch."""
        if isinstance(value, Dim):
            writes.append((slot, value, Write.TO_SLOT))
        elif value.region is Region.ARENA:
            writes.append((slot, value.offset, Write.TO_ARENA))
        elif value.region is Region.CONSTANT:
            writes.append((slot, value.offset, self.constant_addresses[value.index]))
        else:
            writes.append((len(patches) * Patch.WORDS + Patch.OFFSET, value.offset, Write.TO_PATCH))
            patches.append((slot, self.base(value.region, value.index), 0))

    def _step_numbers(self, steps: Sequence[Step]) -> list[tuple[Length, Length, Length, Length, int]]:
        """Return tasks, grain, operations, bytes and segment of each native step of a symbolic plan."""
        ranges = [segment for segment in self.segments if isinstance(segment, tuple)]
        numbers = [number for number, (begin, end) in enumerate(ranges) for _ in range(begin, end)]
        found = ((_task_range(step), step, number) for step, number in zip(steps, numbers, strict=True))
        return [(tasks.tasks, tasks.grain, step.flops, step.bytes, number) for tasks, step, number in found]

    def _link_chains(self) -> None:
        """Store in each step's record the length of the chain of single-claim steps that starts there, within its
        segment."""
        for segment in self.segments:
            if isinstance(segment, tuple):
                length = 0
                for i in range(segment[1] - 1, segment[0] - 1, -1):
                    single = self.steps[i, StepRecord.TASKS] <= self.steps[i, StepRecord.GRAIN]
                    length = length + 1 if single else 0
                    self.steps[i, StepRecord.CHAIN] = length


def _is_bound(value: Dim | Pointer) -> bool:
    """Return whether a binding of a symbolic plan writes this argument."""
    return isinstance(value, Dim) or value.region is Region.ARENA or isinstance(value.offset, Dim)


def _made(spec: TensorSpec) -> Made | None:
    if spec.lens is None:
        return None
    dtype = numpy_dtype(spec.dtype)
    return tuple(spec.lens), dtype, math.prod(spec.lens) * dtype.itemsize


def _check_countable(step: Step, threads: int) -> None:
    """Raise `UnsupportedError` if a step has too many tiles for the counter, which runs past the last tile by a grain
    per thread."""
    tasks = _task_range(step)
    if tasks.tasks + (threads + 1) * max(1, tasks.grain) >= MAX_CLAIMS:
        raise UnsupportedError(
            f"step {step.label or step.kernel.name}: {tasks.tasks} tiles with grain {tasks.grain} on {threads} "
            f"threads; tiles plus one grain a thread must stay below {MAX_CLAIMS}"
        )


def _is_brief(steps: Sequence[Step]) -> bool:
    """Return whether one thread runs these steps in several microseconds; False if the cost of a step is not known."""
    return sum(map(_least_seconds, steps)) < _BRIEF_SECONDS and all(step.flops or step.bytes for step in steps)


def _least_seconds(step: Step) -> float:
    return max(step.flops / _FLOPS_PER_SECOND, step.bytes / _BYTES_PER_SECOND)


def _place_looks(table: np.ndarray, steps: Sequence[Step]) -> None:
    """Set after which steps a call checks for signals, and how many tasks of a long step run between two checks."""
    waited = 0.0
    for record, step in zip(table, steps):
        seconds = _least_seconds(step)
        waited += seconds
        if waited >= _LOOK_SECONDS or not (step.flops or step.bytes):
            grain = int(record[StepRecord.GRAIN])
            together = claims(step) / max(1.0, seconds / _LOOK_SECONDS)
            record[StepRecord.PIECE] = max(1, int(together)) * grain
            waited = 0.0


def _segments(plan: Plan) -> list[Segment]:
    segments: list[Segment] = []
    begin = native = 0
    for step in plan.steps:
        if isinstance(step, FallbackStep):
            if native > begin:
                segments.append((begin, native))
            segments.append(step)
            begin = native
        else:
            native += 1
    if native > begin:
        segments.append((begin, native))
    return segments


def _native_index(plan: Plan) -> list[int]:
    """Return for each step of the plan its number in the step table; -1 for a fallback step."""
    index, native = [], 0
    for step in plan.steps:
        index.append(-1 if isinstance(step, FallbackStep) else native)
        native += not isinstance(step, FallbackStep)
    return index


def _host_values(plan: Plan) -> int:
    """Return the number of ``HOST`` values: one more than the highest index that fallback steps return."""
    views = [view for step in plan.steps if isinstance(step, FallbackStep) for view in step.outputs]
    return max((view.pointer.index + 1 for view in views if view.pointer.region is Region.HOST), default=0)


def claims(step: Step) -> int:
    """Return the number of claims that the tiles of a step take."""
    tasks = _task_range(step)
    return math.ceil(tasks.tasks / max(1, tasks.grain))


def _task_range(step: Step) -> TaskRange:
    if not isinstance(step.geometry, TaskRange):
        raise UnsupportedError(f"step {step.label or step.kernel.name}: threads of a CPU run ranges of tasks, no grids")
    return step.geometry
