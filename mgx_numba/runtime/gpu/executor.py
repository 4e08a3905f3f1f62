"""Running a plan on an engine: its kernels recorded once for each context, host steps in Python between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.store import Store
from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import from_numpy, numpy_dtype
from ...errors import DeviceError
from ..plan import ControlStep, HostStep, Plan, Step, TensorSpec
from .constants import DeviceConstants
from .context import DeviceContext, Tensor, TraceCallback
from .engine import Engine, Progress, Queue

__all__ = ["DeviceExecutable"]

MOST_CONTEXTS = 8
"""Contexts beyond those of running calls: each has an arena, and lets a call on another stream go on at once."""

TIMED_REPEATS = 20
"""Launches of a kernel that are timed as one, beside which what an event takes does not count. No figures kept."""

_NOBODYS = 0
"""Stream that results are noted to be written on which a plan hands on to itself; nobody asks for it."""


class DeviceExecutable:
    """A plan ready to run on one engine; any number of threads may call `run`, each in a context of its own.

    ``result_shapes`` are those of the results, None of one whose shape a host step tells; ``checked`` says whether
    kernels check indices, ``hosted`` whether there are host steps; ``bodies`` are what control steps run, by the
    identity of their plans.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        progress: Progress | None = None,
        store: Store | None = None,
        constants: DeviceConstants | None = None,
    ) -> None:
        """Load the plan's kernels and upload its constants, once; those of ``constants`` are there.

        Raises:
            CompileError: a kernel cannot be compiled.
            DeviceError: there is not enough memory.
        """
        self.plan = plan
        self.engine = engine
        kernels = plan.kernels()
        self.functions = dict(zip(kernels, engine.load(kernels, progress, store)))
        self.host_constants = [np.asarray(array, order="C") for array in plan.constants]
        constants = constants or DeviceConstants(engine)
        self.constants = constants.placed(self.host_constants)
        inner = [p for step in plan.steps if isinstance(step, ControlStep) for p in step.plans]
        self.bodies = {id(p): DeviceExecutable(p, engine, progress, store, constants) for p in inner}
        self.result_shapes = [_shape_of(spec) for spec in plan.outputs]
        self.checked = any(isinstance(step, Step) and step.checks for step in plan.steps)
        self.hosted = any(isinstance(step, HostStep) for step in plan.steps)
        self._idle: list[DeviceContext] = []
        self._lock = threading.Lock()

    def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[DeviceArray | None] | None = None,
        stream: int | None = None,
    ) -> list[Any]:
        """Run the plan once.

        Args:
            inputs: for each of `Plan.parameters` a C-contiguous array of the declared dtype and shape, of the host or
                on the engine's device.
            outputs: None for results on the host, which are new arrays; otherwise they stay on the device, each in the
                memory that is given for it, or in new memory.
            stream: a handle of the driver's; the run takes its place in the order of that stream. Nothing waits for it
                if inputs and results lie on the device and no host step comes last; otherwise, and without a stream,
                the results are complete.

        Raises:
            DeviceError: a kernel failed, or there is not enough memory.
            ParameterError: results share memory with each other or with inputs.
            ShapeError: an index is out of range, in this run or in an earlier one that nothing has waited for.
        """
        with self.engine.use():
            queue = None if stream is None else self.engine.queue(stream)
            context = self._take(queue)
            try:
                return context.run(inputs, outputs, queue, stream)
            finally:
                self._give(context)

    def run_within(self, queue: Queue, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> None:
        """Ask a queue for a run, as part of what a plan around this one does; arguments otherwise as of `run`. Waits
        for it where kernels check indices.

        Raises:
            DeviceError, ShapeError: as `run`.
        """
        context = self._take(queue)
        try:
            context.run(inputs, outputs, queue, None if self.checked else _NOBODYS)
        finally:
            self._give(context)

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        """Run the plan one step at a time, calling ``callback(index, step, seconds, view)`` after each; seconds are
        the device's."""
        with self.engine.use():
            context = self._take(None)
            try:
                return context.run_traced(inputs, callback)
            finally:
                self._give(context)

    def time_steps(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Seconds that the device takes for each step: of a kernel the mean of `TIMED_REPEATS` in a row, after as many
        to warm up; the steps have run once before, in order, so that kernels read what they will read."""
        with self.engine.use():
            context = self._take(None)
            try:
                return context.time_steps(inputs, TIMED_REPEATS)
            finally:
                self._give(context)

    def seconds(self, inputs: Sequence[DeviceArray]) -> float:
        """Seconds that the device takes for one run whose data lies there, results included."""
        with self.engine.use():
            context = self._take(None)
            try:
                return context.seconds(inputs)
            finally:
                self._give(context)

    def _take(self, queue: Queue | None) -> DeviceContext:
        """A context that has nothing else to do, a new one, or one whose work on another queue comes first."""
        with self._lock:
            for k in range(len(self._idle) - 1, -1, -1):
                if self._idle[k].idle_for(queue):
                    return self._idle.pop(k)
            if len(self._idle) >= MOST_CONTEXTS:
                return self._idle.pop(0)
        try:
            return DeviceContext(self)
        except DeviceError:
            with self._lock:
                if not self._idle:
                    raise
                return self._idle.pop(0)

    def _give(self, context: DeviceContext) -> None:
        """Keep a context for the next call."""
        with self._lock:
            if len(self._idle) < MOST_CONTEXTS:
                self._idle.append(context)


def _shape_of(spec: TensorSpec) -> Shape | None:
    if spec.lens is None:
        return None
    type_ = from_numpy(numpy_dtype(spec.dtype))
    return Shape(type_, spec.lens) if spec.lens else Shape(type_)
