"""Run a plan on an engine: its kernels recorded once for each context, fallback steps in Python between them.

Kernels of a symbolic plan get the numbers for a call's lengths in each run (`direct_form`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...codegen.kernel import KernelSource
from ...codegen.store import Store
from ...core.device_array import DeviceArray, lens_of
from ...core.shape import Shape
from ...core.types import from_numpy, numpy_dtype
from ...errors import DeviceError
from ..host.plan_numbers import PlanNumbers
from ..plan import ControlStep, FallbackStep, Plan, Pointer, Step
from .constants import DeviceConstants, PlacedConstant
from .context import DeviceContext, Tensor, TraceCallback
from .engine import Engine, Progress, Queue
from .open_plan import BoundLengths, LaunchNumbers, OpenLengths
from .transfers import new_array

MOST_CONTEXTS = 8
"""Maximum number of idle contexts: each has an arena, and lets a call on another stream start at once."""

TIMED_REPEATS = 20
"""Number of launches of a kernel that are timed together, so that the cost of an event is negligible. No figures
kept."""

MOST_SETTLED = 4
"""Number of sets of lengths of a symbolic plan for which the executable that observes and times its steps is cached."""

_NOBODYS = 0
"""Stream number for results that an enclosing plan passes to itself; no caller uses it."""


class DeviceExecutable:
    """A plan ready to run on one engine; any number of threads may call `run`, each in a context of its own.

    Attributes:
        checked: whether kernels check indices.
        has_fallbacks: whether there are fallback steps.
        bodies: executables of control steps, by the id of their plans.
        lengths: evaluates a symbolic plan's numbers for a call's lengths; None for other plans.
        launches: where a symbolic plan's kernels use these numbers.
        idle: contexts that no call uses.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        progress: Progress | None = None,
        store: Store | None = None,
        constants: DeviceConstants | None = None,
        like: DeviceExecutable | None = None,
    ) -> None:
        """Load the plan's kernels and upload its constants, once.

        Args:
            progress: told of the kernels that are compiled.
            store: object store of the kernels; None: the user's.
            constants: constants that are uploaded already.
            like: executable of the symbolic plan of which ``plan`` is the form with numbers; its kernels and constants
                are shared.

        Raises:
            CompileError: a kernel cannot be compiled.
            DeviceError: there is not enough memory.
        """
        self.plan = plan
        self.engine = engine
        self.host_constants: list[np.ndarray]
        self.functions: dict[KernelSource, Any]
        self.bodies: dict[int, DeviceExecutable]
        self.constants: list[PlacedConstant]
        if like is not None:
            self.functions, self.host_constants, self.constants = like.functions, like.host_constants, like.constants
            self.bodies = like.bodies
        else:
            kernels = plan.kernels()
            self.functions = dict(zip(kernels, engine.load(kernels, progress, store)))
            self.host_constants = [np.asarray(array, order="C") for array in plan.constants]
            constants = constants or DeviceConstants(engine)
            self.constants = constants.placed(self.host_constants)
            inner = [p for step in plan.steps if isinstance(step, ControlStep) for p in step.plans]
            self.bodies = {id(p): DeviceExecutable(p, engine, progress, store, constants) for p in inner}
        self.lengths: OpenLengths | None = None
        self.launches: LaunchNumbers | None = None
        self._settled: OrderedDict[tuple[int, ...], DeviceExecutable] = OrderedDict()
        self._shapes: tuple[BoundLengths | None, list[Shape | None]] = None, []
        if plan.symbols:
            self.lengths = lengths = OpenLengths(plan)
            self.launches = LaunchNumbers(plan, lengths, lambda step: self.functions[step.kernel], self._address)
            self.launches.load(lengths)
        else:
            self._shapes = None, [_shape_of(spec.dtype, spec.lens) for spec in plan.outputs]
        self.checked = any(isinstance(step, Step) and step.checks for step in plan.steps)
        self.has_fallbacks = any(isinstance(step, FallbackStep) for step in plan.steps)
        self._lock = threading.Lock()
        self.idle: list[DeviceContext] = []
        if self.launches is not None:
            with engine.use():  # allocates the first run's context
                self.idle.append(DeviceContext(self))
                self.idle[0].prepare()

    def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[DeviceArray | None] | None = None,
        stream: int | None = None,
    ) -> list[Any]:
        """Run the plan once.

        Args:
            inputs: for each of `Plan.parameters` a C-contiguous array of the declared dtype and shape, on the host or
                on the engine's device.
            outputs: None: results are new host arrays. Otherwise results stay on the device, each in the given memory,
                or in new memory for None.
            stream: a driver handle; the run is enqueued in the order of that stream. The call does not wait if inputs
                and results lie on the device and no fallback step comes last. Otherwise, and without a stream, the
                results are complete on return.

        Raises:
            DeviceError: a kernel failed, or there is not enough memory.
            ParameterError: results share memory with each other or with inputs.
            ShapeError: an index is out of range, in this run or in an earlier run that was not waited for.
        """
        with self.engine.use():
            queue = None if stream is None else self.engine.queue(stream)
            return self._run(inputs, outputs, queue, stream)

    def run_on(self, queue: Queue, inputs: Sequence[DeviceArray]) -> list[Tensor]:
        """Enqueue a run as part of an enclosing plan; return new results.

        Raises:
            DeviceError, ShapeError: as `run`.
        """
        shapes = self.result_shapes(self.bound(inputs))
        made: list[Tensor]
        if None in shapes:
            queue.wait()
            made = self.run(inputs, [None] * len(shapes))
        else:
            new = [new_array(self.engine, queue, shape) for shape in shapes if shape is not None]
            self.run_within(queue, inputs, new)
            made = list(new)
        for array in (*inputs, *made):
            if isinstance(array, DeviceArray):
                array.stream = None  # one queue orders all work
                if array.owner is not None:
                    array.owner.used_by(queue)
        return made

    def run_within(self, queue: Queue, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> None:
        """Enqueue a run as part of an enclosing plan, with results in ``outputs``. Waits for the run if kernels check
        indices.

        Raises:
            DeviceError, ShapeError: as `run`.
        """
        self._run(inputs, outputs, queue, None if self.checked else _NOBODYS)

    def _run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[DeviceArray | None] | None,
        queue: Queue | None,
        stream: int | None,
    ) -> list[Tensor]:
        bound = self.bound(inputs)
        context = self.take_context(queue)
        try:
            return context.run(inputs, outputs, queue, stream, bound)
        finally:
            self.return_context(context)

    def bound(self, inputs: Sequence[Tensor]) -> BoundLengths | None:
        """Return the numbers for the inputs' lengths; None unless the plan is symbolic.

        Raises:
            ShapeError: the plan does not serve the lengths.
        """
        return None if self.lengths is None else self.lengths.expected(tuple([lens_of(value) for value in inputs]))

    def result_shapes(self, bound: BoundLengths | None = None) -> list[Shape | None]:
        """Return the shapes of the results, None for a shape that a fallback step determines; for a symbolic plan with
        ``bound``."""
        known, shapes = self._shapes
        if bound is not known:
            assert bound is not None
            shapes = [_shape_of(o.dtype, lens) for o, lens in zip(self.plan.outputs, bound.output_lens)]
            self._shapes = bound, shapes
        return shapes

    @functools.cached_property
    def numbers(self) -> PlanNumbers:
        """Replaces expressions in parts of the plan by numbers."""
        return PlanNumbers(self.plan)

    def at(self, inputs: Sequence[Tensor]) -> DeviceExecutable:
        """Return the executable of the plan with the numbers for the inputs' lengths."""
        bound = self.bound(inputs)
        return self if bound is None else self._with_numbers(bound)

    def _with_numbers(self, bound: BoundLengths) -> DeviceExecutable:
        with self._lock:
            found = self._settled.pop(bound.given, None)
            if found is None:
                found = DeviceExecutable(self.numbers.at(bound.given), self.engine, like=self)
            self._settled[bound.given] = found
            if len(self._settled) > MOST_SETTLED:
                self._settled.popitem(last=False)
            return found

    def _address(self, place: Pointer) -> int:
        return self.constants[place.index].address + place.offset

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        """Run the plan one step at a time, calling ``callback(index, step, seconds, view)`` after each.

        Seconds are device times. Steps of a symbolic plan have numbers in place of expressions.
        """
        if self.lengths is not None:
            return self.at(inputs).run_traced(inputs, callback)
        with self._in_context() as context:
            return context.run_traced(inputs, callback)

    def time_steps(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Return the device's seconds for each step.

        For a kernel it is the mean of `TIMED_REPEATS` launches in a row, after as many to warm up. All steps run once
        before, in order, so that kernels read realistic data.
        """
        if self.lengths is not None:
            return self.at(inputs).time_steps(inputs)
        with self._in_context() as context:
            return context.time_steps(inputs, TIMED_REPEATS)

    def seconds(self, inputs: Sequence[DeviceArray]) -> float:
        """Return the device's seconds for one run with all data on the device, including results."""
        if self.lengths is not None:
            return self.at(inputs).seconds(inputs)
        with self._in_context() as context:
            return context.seconds(inputs)

    @contextlib.contextmanager
    def _in_context(self) -> Iterator[DeviceContext]:
        """Use the device, and take a context, within the ``with`` block."""
        with self.engine.use():
            context = self.take_context(None)
            try:
                yield context
            finally:
                self.return_context(context)

    def take_context(self, queue: Queue | None) -> DeviceContext:
        """Return an idle context, a new context, or a context whose work on another queue is waited for."""
        with self._lock:
            for k in range(len(self.idle) - 1, -1, -1):
                if self.idle[k].idle_for(queue):
                    return self.idle.pop(k)
            if len(self.idle) >= MOST_CONTEXTS:
                return self.idle.pop(0)
        try:
            return DeviceContext(self)
        except DeviceError:
            with self._lock:
                if not self.idle:
                    raise
                return self.idle.pop(0)

    def return_context(self, context: DeviceContext) -> None:
        """Keep a context for the next call."""
        with self._lock:
            if len(self.idle) < MOST_CONTEXTS:
                self.idle.append(context)


@functools.lru_cache(maxsize=256)
def _shape_of(dtype: str, lens: tuple[int, ...] | None) -> Shape | None:
    if lens is None:
        return None
    type_ = from_numpy(numpy_dtype(dtype))
    return Shape(type_, lens) if lens else Shape(type_)
