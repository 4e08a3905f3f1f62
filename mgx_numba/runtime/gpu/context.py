"""The context of one call of a plan on a device: its scratch memory, its queue and its recordings."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.launch import fault_error
from ...core.device_array import DeviceArray, is_in_a_row
from ...core.shape import Shape
from ...core.types import Type, from_numpy, numpy_dtype
from ...errors import DeviceError, MgxError, ShapeError
from ..host.plan_numbers import runs
from ..memory import view_of
from ..plan import ControlStep, FallbackStep, PlannedStep, Pointer, Region, Step, TensorSpec, TensorView
from .call_form import FAULT_BYTES, VECTOR_ALIGNMENT, CallForm, ContextMemory, in_turn
from .device_allocator import GRAIN, DeviceBlock, owned
from .device_control import Control
from .direct_form import DirectForm, parts_of
from .engine import Queue
from .open_plan import BoundLengths, PlanLaunches
from .transfers import to_device

if TYPE_CHECKING:
    from .executor import DeviceExecutable

_UNKNOWN = Shape(Type.float_type)
"""Placeholder for a result whose shape a fallback step determines."""
MOST_FORMS = 4
"""Maximum number of cached forms of call: data on the host, data on the device, and two mixed forms."""
MOST_PREPARED = 16 << 20
"""Most bytes of memory that is allocated for the first run, whose lengths are not known yet."""
_ARENA_NAME = "what is computed on the way to results"

Tensor = np.ndarray | DeviceArray
View = Callable[[TensorView], np.ndarray]
TraceCallback = Callable[[int, "PlannedStep", float, View], None]


class DeviceContext:
    """The context of one call at a time (see the module). Work for another queue than the last waits for the last
    queue's work."""

    def __init__(self, executable: DeviceExecutable, held: bool = False) -> None:
        """Create the context; ``held``: its only call is that of `hold`."""
        engine = executable.engine
        # A weak reference, since the executable holds this context: device memory is freed without garbage collection.
        self._executable: DeviceExecutable = weakref.proxy(executable)
        self._engine = engine
        self.queue = engine.queue()
        plan = executable.plan
        self._memory = ContextMemory(
            owned(engine, 0 if plan.symbols else plan.arena_bytes, _ARENA_NAME),
            owned(engine, FAULT_BYTES, "the record of faults"),
            engine.staging(FAULT_BYTES),
        )
        self._bound: BoundLengths | None = None
        self._at_lengths: dict[int, PlannedStep] = {}
        self._behind = engine.event()
        self._last = 0
        self.forms: OrderedDict[Hashable, CallForm | DirectForm] = OrderedDict()
        if executable.launches is not None:
            self._launches = PlanLaunches(executable.launches)
            self._batch: Any = None if held else engine.batch(self._launches)
        self._outputs: list[Tensor | None] = []
        self._hosted: dict[int, Tensor] = {}
        self._inputs: Sequence[Tensor] = ()
        self._form: CallForm | DirectForm
        self._control: Control | None = None
        self._forget_fault()

    def prepare(self) -> None:
        """Prepare runs of a symbolic plan, whose lengths are not known yet."""
        executable = self._executable
        assert executable.lengths is not None and executable.launches is not None
        parts = [part for part in parts_of(executable.plan) if isinstance(part, tuple)]
        roomy, most = None, -1
        for usual in executable.lengths.usual():
            size = usual.arena_bytes + sum(usual.parameter_bytes) + sum(usual.output_bytes)
            if most < size <= MOST_PREPARED:
                roomy, most = usual, size
            self._launches.settle(usual, [0] * len(executable.launches.bases))
            with contextlib.suppress(MgxError):  # a grid or a number may be too large for usual lengths
                for part in parts:
                    self._batch.prepare(*part, self.queue)
        if roomy is None:
            return
        with contextlib.suppress(DeviceError):  # the first run raises it
            self._engine.kept.take(GRAIN, "results")  # allocates the slab from which results are cut
            self._bind(roomy)
            for there in (True, False):
                self._form_of((there,) * len(executable.plan.parameters), there)

    def idle_for(self, queue: Queue | None) -> bool:
        """Return whether a call on ``queue``, or on the context's own queue, would wait for nothing but that queue's
        own work."""
        return self._last == 0 or (queue is not None and self._last == queue.identity) or self._behind.done()

    def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[DeviceArray | None] | None = None,
        queue: Queue | None = None,
        stream: int | None = None,
        bound: BoundLengths | None = None,
    ) -> list[Tensor]:
        """See `DeviceExecutable.run`; ``bound`` has the numbers of a symbolic plan."""
        on = queue or self.queue
        self._raise_fault("an earlier asynchronous run of this program: ")
        self._begin_on(on)
        if bound is not None:
            self._bind(bound)
        aligned: list[DeviceBlock] = []
        addresses = [self._given(a, aligned, on) for a in inputs if type(a) is DeviceArray]
        made: list[Any] = []
        if outputs is not None:
            made = self._made(outputs, on, stream)
            addresses += [array.address for array in made]
        form = self._form_of(tuple([type(a) is DeviceArray for a in inputs]), outputs is not None)
        form.aim(addresses)
        self._begin(form, inputs)
        try:
            for segment in form.segments:
                segment(on)
            if outputs is None:
                form.copy_large(on)
        except BaseException:
            self._leave(on)
            if not all(form.given) or outputs is None or self._executable.checked:
                self._give_up(form, on)
            raise
        if outputs is not None and stream is not None and all(form.given):
            self._leave(on)
            for owner in (*aligned, *(a.owner for a in (*made, *inputs))):  # type: ignore[union-attr]
                if type(owner) is DeviceBlock:
                    owner.used_by(on)
            return self._completed(made, on)
        self._wait(on)
        self._end(form)
        self._raise_fault("")
        if outputs is None:
            return self._finished()
        for array in made:
            array.stream = None
        return self._completed(made, on)

    def run_traced(self, inputs: Sequence[np.ndarray], callback: TraceCallback) -> list[np.ndarray]:
        with self._call_on_host(inputs) as form:
            form.upload(self.queue)
            for index, step in enumerate(self._executable.plan.steps):
                if not runs(step):
                    continue
                if isinstance(step, Step):
                    seconds = self.queue.timed(self.queue.recorded(partial(form.launch, step, self.queue)))
                else:
                    seconds = self.queue.timed(partial(self._run_between, step, self.queue))
                callback(index, step, seconds, self._view)
            form.download(self.queue)
        return self._finished()

    def time_steps(self, inputs: Sequence[np.ndarray], repeats: int) -> list[float]:
        self.run(inputs)
        seconds = []
        with self._call_on_host(inputs) as form:
            for step in filter(runs, self._executable.plan.steps):
                if isinstance(step, Step):
                    again = self.queue.recorded(partial(in_turn, (partial(form.launch, step, self.queue),) * repeats))
                    again()
                    seconds.append(self.queue.timed(again) / repeats)
                else:
                    seconds.append(self.queue.timed(partial(self._run_between, step, self.queue)))
        return seconds

    def seconds(self, inputs: Sequence[DeviceArray]) -> float:
        self._begin_on(self.queue)
        made = self._made([None] * len(self._executable.plan.outputs), self.queue, None)
        form = self._form_of((True,) * len(inputs), True)
        form.aim([array.address for array in (*inputs, *made)])
        self._begin(form, inputs)
        with self._to_the_end(form):
            return self.queue.timed(partial(in_turn, [partial(segment, self.queue) for segment in form.segments]))

    def hold(
        self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray | None], bound: BoundLengths | None
    ) -> list[DeviceArray]:
        """Set the data of a call that `enqueue` enqueues as often as wanted; return the results' memory."""
        if bound is not None:
            self._bind(bound)
        made = self._made(outputs, self.queue, None)
        self._form = self._form_of((True,) * len(inputs), True)
        self._form.place([array.address for array in (*inputs, *made)])
        return made

    def enqueue(self, queue: Queue) -> None:
        """Enqueue the kernels of the call of `hold` one by one, as parts of a recording."""
        self._form.enqueue(queue)
        for block in (self._memory.arena, self._memory.fault):
            block.used_by(queue)

    def raise_fault(self) -> None:
        """Raise the error that a kernel of a completed call recorded, if any.

        Raises:
            IndexRangeError: an index is out of range.
        """
        self._raise_fault("")

    def _leave(self, queue: Queue) -> None:
        """Return without waiting for the work of a queue; later calls on other queues wait for it."""
        self._behind.record(queue)
        self._last = queue.identity

    @contextlib.contextmanager
    def _call_on_host(self, inputs: Sequence[np.ndarray]) -> Iterator[CallForm]:
        """Lend the form of a call on the context's own queue with all data on the host; the call is complete at the
        end."""
        self._begin_on(self.queue)
        form = self._form_of((False,) * len(inputs), False)
        assert isinstance(form, CallForm)
        form.aim(())
        self._begin(form, inputs)
        with self._to_the_end(form):
            yield form

    @contextlib.contextmanager
    def _to_the_end(self, form: CallForm | DirectForm) -> Iterator[None]:
        """Complete the work of the context's own queue, or give it up after an error."""
        try:
            yield
        except BaseException:
            self._give_up(form, self.queue)
            raise
        self._wait(self.queue)
        self._end(form)
        self._raise_fault("")

    def _begin_on(self, queue: Queue) -> None:
        """Make later work of ``queue`` wait for the context's work on another queue."""
        if self._last not in (0, queue.identity):
            queue.follow(self._behind)

    def _wait(self, queue: Queue) -> None:
        """Wait for all work of this context, of which ``queue`` has the last."""
        queue.wait()
        self._last = 0

    def _form_of(self, given: tuple[bool, ...], keeps: bool) -> CallForm | DirectForm:
        found = self.forms.get((given, keeps))
        if found is None:
            while len(self.forms) >= MOST_FORMS:
                self.forms.popitem(last=False)
            between = partial(DeviceContext._run_between, weakref.proxy(self))
            common = self._executable, self.queue, self._memory, given, keeps, between
            if self._bound is None:
                found = CallForm(*common)
            else:
                found = DirectForm(*common, self._bound, self._launches, self._batch)
            self.forms[given, keeps] = found
        elif len(self.forms) > 1:
            self.forms.move_to_end((given, keeps))
        if isinstance(found, DirectForm) and self._bound is not None:
            found.bind(self._bound, self._memory)
        return found

    def _bind(self, bound: BoundLengths) -> None:
        """Use the numbers for a call's lengths; the arena grows if they need more memory.

        Raises:
            DeviceError: there is not enough memory.
        """
        if bound is self._bound:
            return
        self._bound = bound
        self._at_lengths = {}
        memory, needed = self._memory, bound.arena_bytes
        if needed > memory.arena.size:
            spare = needed // 4 if memory.arena.size > GRAIN else 0  # for growing lengths, such as a cache's
            self._memory = ContextMemory(owned(self._engine, needed + spare, _ARENA_NAME), memory.fault, memory.told)

    def _numbered(self, step: PlannedStep) -> PlannedStep:
        """Return the step with its expressions replaced by the numbers for the call's lengths."""
        if self._bound is None:
            return step
        found = self._at_lengths.get(id(step))
        if found is None:
            parts = self._executable.numbers.parts(self._bound.given)
            found = self._at_lengths[id(step)] = parts.bound(parts(step))
        return found

    def _given(self, array: DeviceArray, aligned: list[DeviceBlock], queue: Queue) -> int:
        """Return the device address of a parameter: its own, or that of a copy if it is not aligned to vectors."""
        self._after(array, queue)
        if array.address % VECTOR_ALIGNMENT == 0:
            return array.address
        block = self._engine.kept.take(array.shape.bytes, "an aligned copy of a parameter", queue)
        queue.copy(block.address, array.address, array.shape.bytes)
        aligned.append(block)
        return block.address

    def _after(self, array: DeviceArray, queue: Queue) -> None:
        """Make later work of ``queue`` wait for the work that writes an array."""
        if array.stream is None:
            return
        writer = self._engine.queue(array.stream)
        if writer.identity != queue.identity:
            event = self._engine.event()
            event.record(writer)
            queue.follow(event)

    def _made(self, outputs: Sequence[DeviceArray | None], queue: Queue, stream: int | None) -> list[DeviceArray]:
        """Return the arrays for the results: those that the caller gave, or new ones."""
        made = []
        for k, (array, shape) in enumerate(zip(outputs, self._executable.result_shapes(self._bound))):
            if array is None:
                block = None if shape is None else self._engine.kept.take(shape.bytes, f"result {k}", queue)
                address = 0 if block is None else block.address
                array = DeviceArray(shape or _UNKNOWN, address, self._engine.number, block)
            else:
                self._after(array, queue)
            array.stream = stream
            made.append(array)
        return made

    def _completed(self, made: list[Any], queue: Queue) -> list[Tensor]:
        """Return the results, including results of fallback steps; strings stay on the host."""
        for k, kept in enumerate(self._outputs):
            if isinstance(kept, DeviceArray):
                kept.stream = made[k].stream
                made[k] = kept
            elif kept is not None and not kept.dtype.hasobject:
                made[k] = to_device(self._engine, kept, f"result {k}", queue)
            elif kept is not None:
                made[k] = kept
        return made

    def _begin(self, form: CallForm | DirectForm, inputs: Sequence[Tensor]) -> None:
        self._form, self._inputs = form, inputs
        form.begin(inputs)
        if self._executable.has_fallbacks:
            self._hosted.clear()
            self._outputs = [None] * len(self._executable.plan.outputs)

    def _give_up(self, form: CallForm | DirectForm, queue: Queue) -> None:
        """Wait until no work reads the caller's data any more, and clear the fault record, so that the next run does
        not report it."""
        with contextlib.suppress(Exception):
            form.stop()
            self._wait(queue)
            self._forget_fault()
            self._end(form)

    def _end(self, form: CallForm | DirectForm) -> None:
        """Drop the references to the caller's inputs."""
        self._inputs = ()
        form.end()

    def _raise_fault(self, when: str) -> None:
        """Raise the error that a kernel recorded, if any, and clear the record.

        Raises:
            IndexRangeError: an index is out of range.
        """
        if not self._executable.checked:
            return
        number, check, index, _ = self._memory.told.view(np.int64).tolist()
        if number:
            self._forget_fault()
            step = self._numbered(self._executable.plan.steps[number - 1])
            assert isinstance(step, Step)
            who, what = step.checks[check]
            raise fault_error(when, who, what, index)

    def _forget_fault(self) -> None:
        if self._executable.checked:
            self._begin_on(self.queue)
            self._memory.told[:] = 0
            self.queue.upload(self._memory.fault.address, self._memory.told)
            self._wait(self.queue)

    def _finished(self) -> list[Any]:
        results = []
        for k, spec in enumerate(self._executable.plan.outputs):
            if self._bound is not None:
                spec = TensorSpec(spec.dtype, self._bound.output_lens[k])
            kept = self._outputs[k] if self._outputs else None
            results.append(self._form.result(k, spec) if kept is None else self._on_host(kept, self.queue))
        return results

    def _on_host(self, value: Tensor, queue: Queue) -> np.ndarray:
        """Return a value that a fallback step has made as a host array."""
        if not isinstance(value, DeviceArray):
            return value
        found = np.empty(value.shape.array_lens, value.shape.type.numpy)
        queue.download(found, value.address)
        queue.wait()
        return found

    def _view(self, view: TensorView) -> np.ndarray:
        """Return the current contents of a tensor as a new array, or as an array that the host holds already."""
        return self._read(view, self.queue)

    def _read(self, view: TensorView, queue: Queue) -> np.ndarray:
        place = view.pointer
        made = self._made_between(place)
        if made is not None:
            return self._on_host(made, queue)
        dtype = numpy_dtype(view.dtype)
        if 0 in view.lens:  # its address may be the end of memory
            return np.empty(view.lens, dtype)
        if dtype.hasobject:
            constant = place.region is Region.CONSTANT
            array = self._executable.host_constants[place.index] if constant else self._inputs[place.index]
            assert isinstance(array, np.ndarray)
            return (array.reshape(view.lens) if view.lens else array).view()
        low, high = _extent(view, dtype.itemsize)
        if place.region is Region.CONSTANT:
            memory = self._executable.host_constants[place.index].reshape(-1).view(np.uint8)[place.offset + low :]
        else:
            memory = self._copied(place, low, high, queue)
        return view_of(memory, view.lens, dtype, -low, view.strides)

    def _made_between(self, place: Pointer) -> Tensor | None:
        """Return a value that a fallback step made and whose shape was not known before; None for other addresses."""
        if place.region is Region.HOST:
            return self._hosted[place.index]
        if place.region is Region.OUTPUT and self._executable.plan.outputs[place.index].lens is None:
            return self._outputs[place.index]
        return None

    def _tensor(self, view: TensorView, queue: Queue) -> Tensor:
        """Return a tensor's current value: a host array for a single element that the host holds, else a contiguous
        device tensor."""
        made = self._made_between(view.pointer)
        if made is not None:
            return made
        dtype = numpy_dtype(view.dtype)
        kind = None if dtype.hasobject else from_numpy(dtype)
        if kind is None or not view.lens or not is_in_a_row(Shape(kind, view.lens, view.strides)):
            return self._read(view, queue)
        known = self._known(view.pointer) if prod(view.lens) == 1 else None
        if known is not None:
            return known[: dtype.itemsize].view(dtype).reshape(view.lens)
        return DeviceArray(Shape(kind, view.lens), self._form.address(view.pointer), self._engine.number)

    def _copied(self, place: Pointer, low: int, high: int, queue: Queue) -> np.ndarray:
        memory = np.empty(high - low, np.uint8)
        queue.download(memory, self._form.address(place) + low)
        queue.wait()
        return memory

    def _run_between(self, step: FallbackStep | ControlStep, queue: Queue) -> None:
        """Run a step that is no kernel."""
        step = self._numbered(step)  # type: ignore[assignment]
        if isinstance(step, FallbackStep):
            self._run_fallback_step(step, queue)
            return
        if self._control is None:
            self._control = Control(self._executable)
        self._control.run(step.control, queue, self._form.address, self._known)

    def _known(self, place: Pointer) -> np.ndarray | None:
        """Return the bytes at an address that the host holds: a constant, or a parameter on the host; None
        otherwise."""
        if place.region is Region.CONSTANT:
            return self._executable.host_constants[place.index].reshape(-1).view(np.uint8)[place.offset :]
        given = self._inputs[place.index] if place.region is Region.PARAMETER else None
        return given.reshape(-1).view(np.uint8)[place.offset :] if isinstance(given, np.ndarray) else None

    def _run_fallback_step(self, step: FallbackStep, queue: Queue) -> None:
        """Call a fallback step's function and store its results as the plan says.

        Raises:
            ShapeError: a result differs from the plan's declaration. Errors of the function pass through.
        """
        if step.on_device is not None:
            made = step.on_device(self._engine, queue, [self._tensor(view, queue) for view in step.inputs])
            if made is not None:
                for value, view in zip(made, step.outputs, strict=True):
                    self._place(step, value, view, queue)
                return
        arguments = [self._read(view, queue) for view in step.inputs]
        for argument in arguments:
            argument.flags.writeable = False
        results = step.function(arguments)
        if len(results) != len(step.outputs):
            raise ShapeError(
                f"fallback step {step.label}: returned {len(results)} arrays, expected {len(step.outputs)}"
            )
        for result, view in zip(results, step.outputs):
            self._put(step, np.asarray(result), view, queue)

    def _place(self, step: FallbackStep, made: Tensor, view: TensorView, queue: Queue) -> None:
        """Keep a fallback step's result on the device, or copy it to the address that the plan gives."""
        place = view.pointer
        if not isinstance(made, DeviceArray):
            self._put(step, made, view, queue)
        elif place.region is Region.HOST:
            self._hosted[place.index] = made
        elif place.region is Region.OUTPUT and self._executable.plan.outputs[place.index].lens is None:
            self._outputs[place.index] = made
        elif made.shape.lens == tuple(view.lens) and is_in_a_row(Shape(made.shape.type, view.lens, view.strides)):
            queue.copy(self._form.address(place), made.address, made.shape.bytes)
        else:
            self._put(step, self._on_host(made, queue).reshape(made.shape.lens), view, queue)

    def _put(self, step: FallbackStep, result: np.ndarray, view: TensorView, queue: Queue) -> None:
        dtype, place = numpy_dtype(view.dtype), view.pointer
        if result.dtype != dtype:
            raise ShapeError(f"fallback step {step.label}: returned {result.dtype}, expected {dtype}")
        if place.region is Region.HOST:
            self._hosted[place.index] = result.copy()
            return
        if place.region is Region.OUTPUT and self._executable.plan.outputs[place.index].lens is None:
            self._outputs[place.index] = result.copy()
            return
        if result.shape != tuple(view.lens):
            raise ShapeError(f"fallback step {step.label}: returned shape {result.shape}, expected {tuple(view.lens)}")
        if not result.size:
            return
        low, high = _extent(view, dtype.itemsize)
        whole = high - low == result.nbytes
        memory = np.empty(high - low, np.uint8) if whole else self._copied(place, low, high, queue)
        target = view_of(memory, view.lens, dtype, -low, view.strides)
        np.copyto(target, result)
        queue.upload(self._form.address(place) + low, memory)
        queue.wait()


def _extent(view: TensorView, size: int) -> tuple[int, int]:
    """Return the range of bytes that a view covers, relative to its address."""
    if 0 in view.lens:
        return 0, 0
    ends = [(n - 1) * s * size for n, s in zip(view.lens, view.strides)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0) + size
