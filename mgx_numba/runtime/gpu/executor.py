"""Running a plan on an engine: its kernels recorded once for each context, host steps in Python between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from ...codegen.launch import Grid
from ...codegen.store import Store
from ...errors import CompileError, ShapeError
from ..memory import numpy_dtype
from ..plan import HostStep, MappedTensor, ParameterSpec, Plan, Pointer, Region, Step, TensorView
from .engine import Engine, Progress, Queue

__all__ = ["DeviceExecutable"]

_FAULT_BYTES = 24
"""Bytes of a fault record, see `codegen.launch.Mark`; it follows the results."""
_NO_FAULT = np.zeros(_FAULT_BYTES, np.uint8)
_ALIGNMENT = 256
"""Bytes that parameters and results start at multiples of, as allocations of a device do."""

View = Callable[[TensorView], np.ndarray]
TraceCallback = Callable[[int, "Step | HostStep", float, View], None]


class DeviceExecutable:
    """A plan ready to run on one engine; any number of threads may call `run`, each in a context of its own."""

    def __init__(
        self, plan: Plan, engine: Engine, progress: Progress | None = None, store: Store | None = None
    ) -> None:
        """Load the plan's kernels and upload its constants, once.

        Raises:
            CompileError: a kernel cannot be compiled.
            DeviceError: there is not enough memory.
        """
        self.plan = plan
        self.engine = engine
        kernels = plan.kernels()
        self.functions = dict(zip(kernels, engine.load(kernels, progress, store)))
        self.host_constants = [np.asarray(array, order="C") for array in plan.constants]
        self.constants = _Packed([a.nbytes for a in self.host_constants])
        self.constant_memory = _Owned(engine, self.constants.size, "the program's constants")
        queue = engine.queue()
        for array, start in zip(self.host_constants, self.constants.starts):
            if array.nbytes and not array.dtype.hasobject:
                queue.upload(self.constant_memory.address + start, array.reshape(-1).view(np.uint8))
        queue.wait()
        self._idle: list[_Context] = []
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the plan once; the outputs are new arrays.

        ``inputs`` has one C-contiguous array of the declared dtype and shape for each of `Plan.parameters`.

        Raises:
            DeviceError: a kernel failed, or there is not enough memory.
        """
        context = self._take()
        try:
            return context.run(inputs)
        finally:
            self._give(context)

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        """Run the plan one step at a time, calling ``callback(index, step, seconds, view)`` after each; seconds are
        the device's."""
        context = self._take()
        try:
            return context.run_traced(inputs, callback)
        finally:
            self._give(context)

    def time_steps(self, inputs: Sequence[np.ndarray], repeats: int = 20) -> list[float]:
        """Seconds that the device takes for each step: of a kernel the mean of ``repeats`` in a row, after as many to
        warm up; the steps have run once before, in order, so that kernels read what they will read."""
        context = self._take()
        try:
            context.run(inputs)
            return [context.time_step(step, repeats) for step in self.plan.steps]
        finally:
            self._give(context)

    def _take(self) -> _Context:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Context(self)

    def _give(self, context: _Context) -> None:
        """Keep a context for the next call."""
        with self._lock:
            self._idle.append(context)


def _bytes_of(spec: ParameterSpec) -> int:
    return prod(spec.lens) * numpy_dtype(spec.dtype).itemsize


class _Packed:
    """Places one after the other."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.starts: list[int] = []
        self.size = 0
        for size in sizes:
            self.starts.append(self.size)
            self.size += -(-size // _ALIGNMENT) * _ALIGNMENT


class _Owned:
    """Memory of the engine, given back with this object."""

    def __init__(self, engine: Engine, size: int, name: str) -> None:
        self._engine = engine
        self.address = engine.allocate(size, name)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            self._engine.free(address)


class _Context:
    """What one call owns: memory, a queue, and what was recorded on it."""

    def __init__(self, executable: DeviceExecutable) -> None:
        plan, engine = executable.plan, executable.engine
        self._executable = executable
        self._queue: Queue = engine.queue()
        given = [0 if numpy_dtype(p.dtype).hasobject else _bytes_of(p) for p in plan.parameters]
        made = [0 if o.lens is None else prod(o.lens) * numpy_dtype(o.dtype).itemsize for o in plan.outputs]
        self._in, self._out = _Packed(given), _Packed([*made, _FAULT_BYTES])
        self._fault_start = self._out.starts[-1]
        self._arena = _Owned(engine, plan.arena_bytes, "what is computed on the way to results")
        self._parameters = _Owned(engine, self._in.size, "the parameters")
        self._results = _Owned(engine, self._out.size, "the results")
        self._staged_in, self._staged_out = engine.staging(self._in.size), engine.staging(self._out.size)
        self._outputs: list[np.ndarray | None] = []
        self._hosted: dict[int, np.ndarray] = {}
        self._objects: dict[int, np.ndarray] = {}
        self._words = {id(step): self._arguments(step) for step in plan.steps if isinstance(step, Step)}
        self._segments = self._recorded(plan)

    def _arguments(self, step: Step) -> np.ndarray:
        words = np.zeros(max(len(step.args), 1), np.int64)
        mapped: list[tuple[int, np.ndarray]] = []
        for k, arg in enumerate(step.args):
            if isinstance(arg, Pointer):
                words[k] = self._address(arg)
            elif isinstance(arg, MappedTensor):
                described = self._executable.engine.tensor_map(arg.layout, self._address(arg.pointer))
                mapped.append((k, described))
            elif isinstance(arg, int):
                words[k] = arg
            else:
                raise CompileError(f"{step.label}: a kernel of this target calls no other one")
        for k, described in mapped:
            words[k : k + described.size] = described
        return words

    def _address(self, place: Pointer) -> int:
        """Address on the device.

        Raises:
            CompileError: the place is in memory that kernels cannot reach.
        """
        executable = self._executable
        if place.region is Region.ARENA:
            return self._arena.address + place.offset
        if place.region is Region.CONSTANT:
            return executable.constant_memory.address + executable.constants.starts[place.index] + place.offset
        if place.region is Region.PARAMETER:
            return self._parameters.address + self._in.starts[place.index] + place.offset
        if place.region is Region.FAULT:
            return self._results.address + self._fault_start + place.offset
        if place.region is Region.OUTPUT:
            return self._results.address + self._out.starts[place.index] + place.offset
        raise CompileError(f"a kernel reads {place.region.name} {place.index}, which is not on the device")

    def _recorded(self, plan: Plan) -> list[Callable[[], None]]:
        """What the steps do, in order; copies and kernels between host steps are recorded together."""
        segments: list[Callable[[], None]] = []
        asked: list[Callable[[], None]] = [self._upload]

        def close() -> None:
            if asked:
                segments.append(self._queue.recorded(partial(_all, tuple(asked))))
                asked.clear()

        for step in plan.steps:
            if isinstance(step, Step):
                asked.append(partial(self._launch, step))
            else:
                close()
                segments.append(partial(self._run_host_step, step))
        asked.append(self._download)
        close()
        return segments

    def _upload(self) -> None:
        self._queue.upload(self._parameters.address, self._staged_in)
        self._queue.upload(self._results.address + self._fault_start, _NO_FAULT)

    def _download(self) -> None:
        self._queue.download(self._staged_out, self._results.address)

    def _launch(self, step: Step) -> None:
        assert isinstance(step.geometry, Grid)
        self._queue.launch(self._executable.functions[step.kernel], self._words[id(step)], step.geometry)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """See `DeviceExecutable.run`."""
        self._begin(inputs)
        for segment in self._segments:
            segment()
        self._queue.wait()
        return self._finished()

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        """See `DeviceExecutable.run_traced`."""
        self._begin(inputs)
        self._queue.recorded(self._upload)()
        for index, step in enumerate(self._executable.plan.steps):
            if isinstance(step, Step):
                seconds = self._queue.timed(self._queue.recorded(partial(self._launch, step)))
            else:
                seconds = self._queue.timed(partial(self._run_host_step, step))
            callback(index, step, seconds, self._view)
        self._queue.recorded(self._download)()
        self._queue.wait()
        return self._finished()

    def time_step(self, step: Step | HostStep, repeats: int) -> float:
        """See `DeviceExecutable.time_steps`."""
        if isinstance(step, HostStep):
            return self._queue.timed(partial(self._run_host_step, step))
        again = self._queue.recorded(partial(_all, (partial(self._launch, step),) * repeats))
        again()
        return self._queue.timed(again) / repeats

    def _begin(self, inputs: Sequence[np.ndarray]) -> None:
        self._objects = {k: array for k, array in enumerate(inputs) if array.dtype.hasobject}
        for k, (array, start) in enumerate(zip(inputs, self._in.starts, strict=True)):
            if k in self._objects:
                continue
            self._staged_in[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._hosted.clear()
        self._outputs = [None] * len(self._executable.plan.outputs)

    def _check(self) -> None:
        """Raise what a kernel of this call has met."""
        record = self._staged_out[self._fault_start : self._fault_start + _FAULT_BYTES].view(np.int64)
        number, check, index = record.tolist()
        if number:
            step = self._executable.plan.steps[number - 1]
            assert isinstance(step, Step)
            who, what = step.checks[check]
            raise ShapeError(f"{who}: index {index} is out of range for {what}")

    def _finished(self) -> list[np.ndarray]:
        self._check()
        results = []
        for spec, start, kept in zip(self._executable.plan.outputs, self._out.starts, self._outputs):
            if spec.lens is None:
                assert kept is not None
                results.append(kept)
                continue
            made = np.empty(spec.lens, numpy_dtype(spec.dtype))
            made.reshape(-1).view(np.uint8)[:] = self._staged_out[start : start + made.nbytes]
            results.append(made)
        return results

    def _view(self, view: TensorView) -> np.ndarray:
        """A tensor as it is now, as a new array or one that the host has anyway."""
        place = view.pointer
        if place.region is Region.HOST:
            return self._hosted[place.index]
        if place.region is Region.OUTPUT and self._executable.plan.outputs[place.index].lens is None:
            kept = self._outputs[place.index]
            assert kept is not None
            return kept
        dtype = numpy_dtype(view.dtype)
        if dtype.hasobject:
            constant = place.region is Region.CONSTANT
            array = self._executable.host_constants[place.index] if constant else self._objects[place.index]
            return (array.reshape(view.lens) if view.lens else array).view()
        low, high = _extent(view, dtype.itemsize)
        if place.region is Region.CONSTANT:
            memory = self._executable.host_constants[place.index].reshape(-1).view(np.uint8)[place.offset + low :]
        else:
            memory = self._copied(place, low, high)
        return np.ndarray(view.lens, dtype, memory, -low, [s * dtype.itemsize for s in view.strides])

    def _copied(self, place: Pointer, low: int, high: int) -> np.ndarray:
        memory = np.empty(high - low, np.uint8)
        self._queue.download(memory, self._address(place) + low)
        self._queue.wait()
        return memory

    def _run_host_step(self, step: HostStep) -> None:
        """Call a host step's function and put its results where the plan says.

        Raises:
            ShapeError: a result differs from what the plan declares. What the function raises passes through.
        """
        arguments = [self._view(view) for view in step.inputs]
        for argument in arguments:
            argument.flags.writeable = False
        results = step.function(arguments)
        if len(results) != len(step.outputs):
            raise ShapeError(f"host step {step.label}: returned {len(results)} arrays, expected {len(step.outputs)}")
        for result, view in zip(results, step.outputs):
            self._put(step, np.asarray(result), view)

    def _put(self, step: HostStep, result: np.ndarray, view: TensorView) -> None:
        dtype, place = numpy_dtype(view.dtype), view.pointer
        if result.dtype != dtype:
            raise ShapeError(f"host step {step.label}: returned {result.dtype}, expected {dtype}")
        if place.region is Region.HOST:
            self._hosted[place.index] = result.copy()
            return
        if place.region is Region.OUTPUT and self._executable.plan.outputs[place.index].lens is None:
            self._outputs[place.index] = result.copy()
            return
        if result.shape != tuple(view.lens):
            raise ShapeError(f"host step {step.label}: returned shape {result.shape}, expected {tuple(view.lens)}")
        low, high = _extent(view, dtype.itemsize)
        whole = high - low == result.nbytes
        memory = np.empty(high - low, np.uint8) if whole else self._copied(place, low, high)
        target = np.ndarray(view.lens, dtype, memory, -low, [s * dtype.itemsize for s in view.strides])
        np.copyto(target, result)
        self._queue.upload(self._address(place) + low, memory)
        self._queue.wait()


def _all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _extent(view: TensorView, size: int) -> tuple[int, int]:
    """The bytes that a view covers, from the place that it points to."""
    if 0 in view.lens:
        return 0, 0
    ends = [(n - 1) * s * size for n, s in zip(view.lens, view.strides)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0) + size
