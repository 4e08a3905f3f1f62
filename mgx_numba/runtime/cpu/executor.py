"""Run plans: kernels in native code on the worker threads, fallback steps in Python between them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...codegen.backend import Progress
from ...codegen.cpu.toolchain.loader import load
from ...codegen.kernel import KernelSource
from ...codegen.launch import OpenAxis, TaskRange, fault_error
from ...codegen.store import Store
from ...codegen.workers.background import BackgroundCompilation
from ...core.dim import Dim, known_less_equal, maximum
from ...dataclass import dataclass
from ...errors import MgxError
from ..host.native import NativeKernel
from ..host.plan_numbers import PlanNumbers, kept_jumps, runs
from ..host.sizes import EVALUATE
from ..memory import address_of, needs_check
from ..plan import FallbackStep, Jump, Plan, PlannedStep, Step, TensorView
from .bind_kernel import BIND
from .binding import FIRST_ARENA, Binding
from .context import Context, Frame, bytes_of_results
from .jumps import DRIVE
from .native_call import DIRECT, Entry, direct_call
from .plan_tables import PlanTables, claims
from .repeat import REPEAT
from .spmd import CONFINE, LEAD, LOOK, WALK, WORKER, Job, TraceRow
from .threads import pool, resolve_num_threads

COMMON_KERNELS = (LEAD, WALK, WORKER, LOOK, CONFINE, DIRECT)
"""Kernels that every plan needs besides its own."""
EXECUTOR_KERNELS = (*COMMON_KERNELS, REPEAT, EVALUATE, BIND, DRIVE)
"""All kernels that a plan may need besides its own."""


def executor_kernels(plan: Plan) -> tuple[KernelSource, ...]:
    """Return the kernels that a plan needs besides its own; all kernels if its steps may run plans of their own."""
    if any(isinstance(step, FallbackStep) and (step.plans or step.kernels) for step in plan.steps):
        return EXECUTOR_KERNELS
    return (*COMMON_KERNELS, *((EVALUATE, BIND) if plan.symbols else ()), *((DRIVE,) if plan.jumps else ()))


IDLE_BYTES = 1 << 30
"""Maximum total arena size (bytes) of idle contexts, besides the last used context."""

View = Callable[[TensorView], np.ndarray]
TraceCallback = Callable[[int, "PlannedStep", float, View], None]


@dataclass(frozen=True)
class StepSpan:
    """The time that one thread spent in one step: the step's index in `Plan.steps`, the thread (0 is the caller), start
    and end in nanoseconds of `time.perf_counter_ns`."""

    step: int
    thread: int
    start: int
    end: int


class Executable:
    """A plan ready to run; any number of threads may call `run` at once, each in a context of its own.

    Attributes:
        tables: the plan's tables.
        shares: whether more than one of ``num_threads`` threads can help.
        arena_bytes: size of a context's arena; for a symbolic plan, that of the last arena that grew, at first
            `FIRST_ARENA`.
        idle: addresses of the jobs of contexts that no call uses; native code pops from the list, too.
        contexts: the idle contexts by address.
        idle_limit: maximum number of idle contexts, in memory that native code reads.
    """

    def __init__(
        self,
        plan: Plan,
        num_threads: int | None = None,
        progress: Progress | None = None,
        store: Store | None = None,
        ahead: BackgroundCompilation | None = None,
    ) -> None:
        """Load (and if need be compile) the plan's kernels.

        Args:
            num_threads: number of threads, including the caller's. None: ``MGX_NUM_THREADS``, or the cores of this
                process.
            progress: called as ``progress(done, total, name)`` for each kernel that had to be compiled.
            store: object store of the kernels; None: the user's.
            ahead: may have begun to compile some kernels.

        Raises:
            CompileError: a kernel cannot be compiled.
            OptionError: a bad number of threads.
            UnsupportedError: a step has too many tiles.
        """
        self.plan = plan
        self.num_threads = resolve_num_threads(num_threads)
        # All kernels are loaded together: an empty store then needs only one set of compile workers.
        kernels = [*plan.kernels(), *executor_kernels(plan)]
        addresses = dict(zip(kernels, load(kernels, progress, store, ahead=ahead), strict=True))
        self._pool = pool()
        self._constants = [np.asarray(array, order="C") for array in plan.constants]
        self.tables = PlanTables(plan, addresses, self._constants, self.num_threads)
        self._drive = NativeKernel(addresses.get(DRIVE, 0))  # 0 in plans without jumps
        fallbacks = any(isinstance(step, FallbackStep) for step in plan.steps)
        self._native_steps = None if fallbacks else len(plan.steps)
        self.shares = _worth_sharing(plan)
        self._threads = self.num_threads if self.shares else 1
        self.contexts: dict[int, Context] = {}
        self.idle: list[int] = []
        # Pops from both in one interpreter step: a context that an interrupt takes out of either is freed.
        self._waiting = map(self.contexts.pop, iter(self.idle.pop, 0))
        # A symbolic plan's size is known once an arena has grown. Native code reads the limit, so it is in memory.
        self.arena_bytes = FIRST_ARENA if plan.symbols else plan.arena_bytes
        self.idle_limit: memoryview = np.array([max(1, IDLE_BYTES // max(1, self.arena_bytes))], np.int64).data

    def direct(self, result_type: type[np.ndarray]) -> Entry | None:
        """Return a fast path that runs the plan on a dictionary of inputs (see `direct_call`); None if there is none.

        The function returns new arrays of ``result_type``, or None where the caller has to use the general path. There
        is none for plans with fallback steps, or on unsupported systems. Worker threads and a context are there
        afterwards, so that the first call need not make them, unless memory must be checked when it is needed.
        """
        if self.plan.symbols or not needs_check(self.plan.arena_bytes + bytes_of_results(self.tables)):
            with contextlib.suppress(MgxError, MemoryError):  # the call will tell
                self.return_context(self.take_context())
        if self._native_steps is None:
            return None
        return direct_call(
            self.plan,
            self.tables,
            result_type,
            pool_address=self._pool.address,
            threads=self._threads,
            idle=self.idle,
            contexts=self.contexts,
            limit=np.asarray(self.idle_limit),
        )

    def values(self, inputs: Sequence[np.ndarray]) -> dict[Dim, int] | None:
        """Return the values of the plan's symbols for which the parameters have the inputs' shapes; None if there are
        none.

        Guards of the plan are not checked. ``inputs`` has one array for each of `Plan.parameters`, of which only the
        shapes are read; parameters without lens take any shape.
        """
        if self.tables.binding is not None:
            return self.tables.binding.values(inputs)
        pairs = zip(inputs, self.plan.parameters, strict=True)
        return {} if all(a.shape == tuple(p.lens) for a, p in pairs if p.lens) else None

    def serves(self, inputs: Sequence[np.ndarray]) -> bool:
        """Return whether the plan serves inputs of these shapes: symbols have values within their ranges, and the
        plan's condition holds."""
        binding = self.tables.binding
        return self.values(inputs) is not None if binding is None else binding.serves(inputs)

    def plan_for(self, inputs: Sequence[np.ndarray]) -> Plan:
        """Return the plan for inputs that it serves.

        For a symbolic plan expressions are replaced by numbers. Steps without tasks for these lengths, such as
        alternatives that are not taken, are removed.
        """
        if self.tables.binding is None:
            return self.plan
        plan = self._at(inputs)
        before = [0, *itertools.accumulate(map(runs, plan.steps))]
        uses = (replace(use, first=before[use.first], last=before[use.last + 1] - 1) for use in plan.uses)
        plan.uses = tuple(use for use in uses if use.first <= use.last)
        plan.jumps = kept_jumps(plan, before)
        plan.steps = [step for step in plan.steps if runs(step)]
        return plan

    def _at(self, inputs: Sequence[np.ndarray]) -> Plan:
        assert self.tables.binding is not None
        return self._numbers.at(self.tables.binding.given(inputs))

    @functools.cached_property
    def _numbers(self) -> PlanNumbers:
        return PlanNumbers(self.plan)

    def run(self, inputs: Sequence[np.ndarray], offered: Sequence[np.ndarray | None] | None = None) -> list[np.ndarray]:
        """Run the plan once; return new arrays, 64-byte aligned where their shape is declared.

        ``inputs`` has one C-contiguous array of the declared dtype and shape for each of `Plan.parameters`. Of the
        arrays in ``offered``, one for each output or None, results are written to the `usable` ones. Errors of host
        steps pass through, and so do errors of signal handlers. In Python's main thread a signal handler runs
        within a twentieth of a second plus the time of one claim.

        Raises:
            MgxError: there is not enough memory.
            IndexRangeError: an index is out of range.
            ShapeError: a symbolic plan does not serve the inputs' lengths.
        """
        context = self.take_context()
        try:
            if context.binding is not None:
                self._settle(context.binding, inputs)
            places = None if offered is None else usable(self.plan, context.outputs, inputs, offered)
            if self._native_steps is not None:
                outputs = context.bind(inputs, places)
                self._lead_all(context, (0, self._native_steps))
                self._check(context)
                return outputs
            frame = Frame(self.plan, self.tables, context, inputs, places)
            for segment in self.tables.segments:
                if isinstance(segment, tuple):
                    self._lead_all(context, segment)
                    self._check(context)
                else:
                    frame.run_fallback_step(segment)
            return _complete(frame.outputs)
        finally:
            self.return_context(context)

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        """Run the plan one step at a time, calling ``callback(index, step, seconds, view)`` after each.

        ``index`` counts `Plan.steps`. ``view`` returns the array of a `TensorView` after that step, valid until the
        callback returns. Seconds include about a microsecond for entering the native code. Steps of a symbolic plan
        have numbers in place of expressions; steps that `plan_for` removes are not reported. Steps of a loop are
        reported in each iteration.
        """
        context = self.take_context()
        try:
            if context.binding is not None:
                self._settle(context.binding, inputs)
            frame = Frame(self.plan, self.tables, context, inputs)
            shown = self.plan.steps if context.binding is None else self._at(inputs).steps
            for index in self._order(context):
                step, told = self.plan.steps[index], shown[index]
                if context.binding is not None and not runs(told):
                    continue
                native = self.tables.native_index[index]
                start = time.perf_counter()
                if isinstance(step, FallbackStep):
                    frame.run_fallback_step(step)
                else:
                    self._lead(context, native, native + 1)
                    self._check(context)
                callback(index, told, time.perf_counter() - start, frame.view)
            return _complete(frame.outputs)
        finally:
            self.return_context(context)

    def run_timed(self, inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[StepSpan]]:
        """Run the plan once as `run` does; also return the time spans of all threads and steps, ordered by start."""
        context = self.take_context()
        rows, width = context.trace(len(self.tables.steps) - 1)
        spans: list[StepSpan] = []
        try:
            if context.binding is not None:
                self._settle(context.binding, inputs)
            frame = Frame(self.plan, self.tables, context, inputs)
            indices = self._native_indices
            if context.binding is not None:
                indices = [indices[native] for native in context.binding.kept()]
            notes = rows.reshape(-1, width)
            for segment in self.tables.segments:
                if not isinstance(segment, tuple):
                    start = time.perf_counter_ns()
                    frame.run_fallback_step(segment)
                    number = next(k for k, step in enumerate(self.plan.steps) if step is segment)
                    spans.append(StepSpan(number, 0, start, time.perf_counter_ns()))
                    continue
                for begin, end in self._ranges(context, segment):
                    self._lead(context, begin, end)
                    self._check(context)
                    for thread, row in enumerate(notes.tolist()):  # each step has at most one event in a row
                        last = TraceRow.EVENTS + row[TraceRow.COUNT] * TraceRow.EVENT_WORDS
                        places = range(TraceRow.EVENTS, last, TraceRow.EVENT_WORDS)
                        spans += (StepSpan(indices[row[at]], thread, row[at + 1], row[at + 2]) for at in places)
                    notes[:, TraceRow.COUNT] = 0
            return _complete(frame.outputs), sorted(spans, key=lambda span: span.start)
        finally:
            context.untrace()
            self.return_context(context)

    def time_steps(self, inputs: Sequence[np.ndarray], iterations: int) -> np.ndarray:
        """Return the seconds of each step, float64 (iterations, steps); a step in a loop counts all its runs."""
        seconds = np.zeros((iterations, len(self.plan.steps)))
        for row in seconds:

            def note(index: int, step: PlannedStep, elapsed: float, view: View, row: np.ndarray = row) -> None:
                row[index] += elapsed

            self.run_traced(inputs, note)
        return seconds

    def _check(self, context: Context) -> None:
        """Raise the error that a kernel of this call recorded, if any."""
        number = context.job[Job.FAULT]
        if number:
            step = self.plan.steps[number - 1]
            assert isinstance(step, Step)
            who, what = step.checks[context.job[Job.FAULT_CHECK]]
            if context.binding is not None and isinstance(what, OpenAxis):
                what = what.at(context.binding.values)
            around = sorted((j for j in self.plan.jumps if j.at < number <= j.to), key=lambda jump: jump.at)
            place = "".join(f"{self._place(context, jump)}: " for jump in around)
            raise fault_error(place, who, what, context.job[Job.FAULT_INDEX])

    def _place(self, context: Context, jump: Jump) -> str:
        """Return the prefix of errors in the steps that a jump skips."""
        if len(jump.place) < 2:
            return "".join(jump.place)
        second = int(self.tables.starts[self.tables.native_index[jump.by]]) + 1
        return f"{jump.place[0]}{context.number(second)}{jump.place[1]}"

    def _settle(self, binding: Binding, inputs: Sequence[np.ndarray]) -> None:
        """Bind a context to the lengths of the inputs."""
        capacity = binding.capacity
        binding.settle(inputs)
        if binding.capacity != capacity:
            self.arena_bytes = binding.capacity
            self.idle_limit[0] = max(1, IDLE_BYTES // binding.capacity)

    def _lead_all(self, context: Context, segment: tuple[int, int]) -> None:
        """Run the native steps between two fallback steps, following the plan's jumps."""
        operations = self.tables.operation_ranges.get(segment)
        if operations is None:
            self._lead(context, *segment)
        else:
            self._drive(context.job_address, *operations)
            context.raise_error()

    def _ranges(self, context: Context, segment: tuple[int, int]) -> Iterable[tuple[int, int]]:
        """Return the ranges of native steps that run between two fallback steps, each after all steps before it have
        run."""
        operations = self.tables.operation_ranges.get(segment)
        return [segment] if operations is None else context.ranges(*operations)

    def _order(self, context: Context) -> Iterator[int]:
        """Yield the numbers of the plan's steps in execution order, each after all steps before it have run."""
        fallbacks = (k for k, step in enumerate(self.plan.steps) if isinstance(step, FallbackStep))
        for segment in self.tables.segments:
            if not isinstance(segment, tuple):
                yield next(fallbacks)
                continue
            for begin, end in self._ranges(context, segment):
                yield from self._native_indices[begin:end]

    @functools.cached_property
    def _native_indices(self) -> list[int]:
        """The number in the plan of each native step."""
        return [k for k, native in enumerate(self.tables.native_index) if native >= 0]

    def _lead(self, context: Context, begin: int, end: int) -> None:
        """Run a range of the plan's native steps."""
        if context.binding is not None:
            begin, end = context.binding.records(begin, end)
        self._pool.lead(context.job_address, begin, end)
        if self.tables.long:
            context.raise_error()

    @contextlib.contextmanager
    def context(self, inputs: Sequence[np.ndarray]) -> Iterator[Context]:
        """Lend a context for running native steps on inputs; at the end raise the error that the steps recorded."""
        context = self.take_context()
        try:
            if context.binding is not None:
                self._settle(context.binding, inputs)
            context.place(inputs)
            yield context
            if self.tables.long:
                context.raise_error()
            self._check(context)
        finally:
            self.return_context(context)

    def take_context(self) -> Context:
        if self._threads > 1:
            self._pool.ensure(self._threads)
        try:
            return next(self._waiting)
        except IndexError:
            return Context(self.plan, self.tables, self._pool.address, self._threads)

    def return_context(self, context: Context) -> None:
        if len(self.idle) < self.idle_limit[0]:
            self.contexts[context.job_address] = context
            self.idle.append(context.job_address)


def _worth_sharing(plan: Plan) -> bool:
    """Return whether more than one thread can help: some step makes, or for a symbolic plan may make, more than one
    claim."""
    if plan.parallel is not None:
        return plan.parallel
    if plan.symbols:
        ranges = [step.geometry for step in plan.steps if isinstance(step, Step)]
        return not all(isinstance(r, TaskRange) and known_less_equal(r.tasks, maximum(1, r.grain)) for r in ranges)
    return any(claims(step) > 1 for step in plan.steps if isinstance(step, Step))


def _complete(outputs: list[np.ndarray | None]) -> list[np.ndarray]:
    return [output for output in outputs if output is not None]


def usable(
    plan: Plan, made: Sequence[Any], inputs: Sequence[np.ndarray], offered: Sequence[np.ndarray | None]
) -> list[np.ndarray | None]:
    """Return the offered arrays that a run writes its results to, None for results that need memory of their own.

    An array is usable if it is writeable, C-contiguous, aligned, of the result's element type and lengths, and shares
    no memory with an input or another offered array. It may be an input if the plan updates that input in place
    (`Plan.updates`).

    Args:
        made: lengths, dtype and bytes of each output of the run, or None.
        inputs: the run's inputs.
        offered: an array, or None, for each output.
    """
    updated = dict(plan.updates)
    taken = [_range(array) for array in offered if array is not None]
    sources = [_range(array) for array in inputs]
    found: list[np.ndarray | None] = []
    for k, (array, output) in enumerate(zip(offered, made, strict=True)):
        fits = array is not None and output is not None and _fits(array, *output[:2])
        if fits:
            assert array is not None
            own = _range(array)
            fits = sum(_meet(own, other) for other in taken) <= 1
            for number, source in enumerate(sources):
                fits = fits and (not _meet(own, source) or (updated.get(k) == number and own == source))
        found.append(array if fits else None)
    return found


def _fits(array: np.ndarray, lens: Sequence[int], dtype: np.dtype) -> bool:
    flags = array.flags
    plain = flags.c_contiguous and flags.writeable and flags.aligned
    return plain and array.dtype == dtype and array.shape == tuple(lens)


def _range(array: np.ndarray) -> tuple[int, int]:
    start = address_of(array)
    return start, start + array.nbytes


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]
