"""A plan recorded for one form of call: which parameters lie on the device, and whether results stay there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.launch import Grid, TensorLayout
from ...core.types import numpy_dtype
from ...dataclass import dataclass
from ...errors import CompileError, ParameterError
from ...garbage import uncollected
from ..plan import (
    ControlStep,
    FallbackStep,
    MappedTensor,
    ParameterSpec,
    PlannedStep,
    Pointer,
    Region,
    Step,
    TensorSpec,
)
from .device_allocator import DeviceBlock
from .engine import Queue, Recording
from .host_copies import HostParameters, HostResults

if TYPE_CHECKING:
    from .executor import DeviceExecutable

FAULT_BYTES = 32
"""Size of a fault record in bytes: the three words of `codegen.launch.Mark`, and a word that fills a vector for
copies."""
VECTOR_ALIGNMENT = 16
"""Required alignment (bytes) of a caller's parameters and results: that of the widest access and of the copy engine
(CUDA C++ programming guide, device memory accesses; `CUtensorMap`'s global address)."""
_COMING = (Region.PARAMETER, Region.OUTPUT)
"""Regions whose memory a call may provide."""

Segment = Callable[[Queue], None]


def bytes_of(spec: ParameterSpec | TensorSpec) -> int:
    """Return the bytes of a tensor on the device; 0 for a tensor that only the host holds."""
    dtype = numpy_dtype(spec.dtype)
    return 0 if spec.lens is None or dtype.hasobject else prod(spec.lens) * dtype.itemsize


def in_turn(actions: Sequence[Callable[[], None]]) -> None:
    """Call the actions in order."""
    for action in actions:
        action()


@dataclass(frozen=True)
class ContextMemory:
    """Memory of a context, for all its forms: the ``arena``, the ``fault`` record, and ``told``, its copy on the
    host."""

    arena: DeviceBlock
    fault: DeviceBlock
    told: np.ndarray


@dataclass(frozen=True)
class _Occurrence:
    """A use of the address of a tensor that a call provides: the recording, the kernel's number in it, and the slot of
    its argument block. ``layout`` is set for a use in a tensor map."""

    segment: int
    number: int
    words: np.ndarray
    slot: int
    offset: int
    layout: TensorLayout | None


class CallData:
    """The location of a call's data: on the device in the caller's memory, or in memory from and to which it is copied.

    Attributes:
        given: for each parameter whether calls provide it on the device.
    """

    def __init__(
        self,
        executable: DeviceExecutable,
        queue: Queue,
        memory: ContextMemory,
        given: Sequence[bool],
        keeps: bool,
        sizes: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        """Allocate memory for the data that is copied.

        Args:
            executable: the plan.
            queue: queue of the calls.
            memory: memory of the context.
            given: for each parameter whether calls provide it on the device.
            keeps: whether results stay on the device, in memory that calls provide.
            sizes: bytes of all parameters, and of all results.
        """
        plan = executable.plan
        self._executable, self._memory, self._plan, self._queue = executable, memory, plan, queue
        self.given = tuple(given)
        self._keeps = keeps
        self._names = [f"parameter {p.name}" for p, there in zip(plan.parameters, given) if there]
        self._first_result = len(self._names)
        self._coming = [(Region.PARAMETER, k) for k, there in enumerate(given) if there]
        if keeps:
            self._names += [f"result {k}" for k in range(len(plan.outputs))]
            self._coming += [(Region.OUTPUT, k) for k in range(len(plan.outputs))]
        number = {place: k for k, place in enumerate(self._coming)}
        pairs = [((Region.OUTPUT, output), (Region.PARAMETER, own)) for output, own in plan.updates]
        # numbers of results and parameters, in the order of `aim`, that may be the same memory
        self._updated = {(number[a], number[b]) for a, b in pairs if a in number and b in number}
        self._places: dict[tuple[Region, int], int] = dict.fromkeys(self._coming, 0)
        self._segments: list[Segment] = []
        into, out = self._take_sizes(*sizes)
        self._have(HostParameters(executable.engine, into), HostResults(executable.engine, out))

    @property
    def segments(self) -> list[Segment]:
        """The actions that run the plan's steps, in order."""
        return self._segments

    def _take_sizes(self, parameters: Sequence[int], outputs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Record the bytes of all parameters and results; return these with 0 for data that is not copied."""
        given, keeps = self.given, self._keeps
        self._sizes = [size for size, there in zip(parameters, given) if there] + (list(outputs) if keeps else [])
        into = [0 if there else size for size, there in zip(parameters, given)]
        return into, [0 if keeps else size for size in outputs]

    def _have(self, parameters: HostParameters, results: HostResults) -> None:
        """Use this memory for the copies."""
        self.host_parameters, self.host_results = parameters, results
        copied = {(Region.PARAMETER, k): address for k, address in enumerate(parameters.addresses)}
        copied |= {(Region.OUTPUT, k): address for k, address in enumerate(results.addresses)}
        self._places |= {place: address for place, address in copied.items() if place not in self._coming}

    def aim(self, addresses: Sequence[int]) -> None:
        """Set the addresses of the data that a call provides: parameters on the device, then results if they stay
        there.

        Raises:
            ParameterError: results overlap other data of the call, or are not aligned to vectors.
        """
        raise NotImplementedError

    def _check_apart(self, addresses: Sequence[int]) -> None:
        for name, address in zip(self._names, addresses):
            if address % VECTOR_ALIGNMENT:
                raise ParameterError(
                    f"{name} starts at {address:#x} on the device, expected a multiple of {VECTOR_ALIGNMENT} bytes"
                )
        spans = sorted((a, a + size, k) for k, (a, size) in enumerate(zip(addresses, self._sizes)) if size)
        beside: list[tuple[int, int, int]] = []
        for span in spans:
            beside = [other for other in beside if other[1] > span[0]]
            for other in beside:
                first, last = sorted((other[2], span[2]))
                if last >= self._first_result and not (other[:2] == span[:2] and (last, first) in self._updated):
                    raise ParameterError(
                        f"{self._names[first]} and {self._names[last]} share memory on the device; results need memory"
                        " of their own"
                    )
            beside.append(span)

    def address(self, place: Pointer) -> int:
        """Return the device address of a pointer.

        Raises:
            CompileError: kernels cannot access the memory.
        """
        executable = self._executable
        if place.region is Region.ARENA:
            return self._memory.arena.address + place.offset
        if place.region is Region.CONSTANT:
            return executable.constants[place.index].address + place.offset
        if place.region is Region.FAULT:
            return self._memory.fault.address + place.offset
        found = self._places.get((place.region, place.index))
        if found is None:
            raise CompileError(f"a kernel reads {place.region.name} {place.index}, which is not on the device")
        return found + place.offset

    def place(self, addresses: Sequence[int]) -> None:
        """Set the addresses of a call with all data on the device, whose kernels `enqueue` enqueues.

        Args:
            addresses: as of `aim`.

        Raises:
            ParameterError: as of `aim`.
        """
        self._check_apart(addresses)
        self._places.update(zip(self._coming, addresses))

    def enqueue(self, queue: Queue) -> None:
        """Enqueue all kernels and the copy of the fault record one by one, as parts of a recording."""
        raise NotImplementedError

    def _copies_in_place(self) -> set[int]:
        """Return the ids of the steps that copy a parameter to a result in the same memory; see `Plan.updates`.

        The copy is the only step that uses both.
        """
        number = {place: k for k, place in enumerate(self._coming)}
        pairs = [((Region.OUTPUT, output), (Region.PARAMETER, own)) for output, own in self._plan.updates]
        same = [
            {a, b}
            for a, b in pairs
            if self._places[a] == self._places[b] and self._sizes[number[a]] == self._sizes[number[b]]
        ]
        return {id(step) for step in self._plan.steps if any(pair <= _places_of(step) for pair in same)}

    def begin(self, inputs: Sequence[object]) -> None:
        """Set a call's inputs; ``segments`` copy them to the device."""
        if self.stop():
            self._queue.wait()
        if not all(self.given):
            self.host_parameters.take(inputs)

    def stop(self) -> bool:
        """Stop the copying threads of a call that was interrupted; return whether any was running."""
        return self.host_parameters.stop() | self.host_results.stop()

    def end(self) -> None:
        """Drop the references to a call's inputs, which are copied by now."""
        self.host_parameters.end()

    def upload(self, queue: Queue) -> None:
        """Enqueue copies of all parameters that the host holds, now."""
        queue.recorded(partial(self.host_parameters.upload, queue))()
        self.host_parameters.send(self.host_parameters.large, queue)

    def download(self, queue: Queue) -> None:
        """Enqueue copies of all results for the host, and of the fault record, now."""
        queue.recorded(partial(self._download, queue))()
        self.copy_large(queue)

    def copy_large(self, queue: Queue) -> None:
        """Enqueue copies of large results, which are not part of ``segments``."""
        self.host_results.copy_large(queue)

    def _download(self, queue: Queue) -> None:
        self.host_results.download(queue)
        if self._executable.checked:
            queue.download(self._memory.told, self._memory.fault.address)

    def result(self, index: int, spec: TensorSpec) -> np.ndarray:
        """Return a result that the last call copied to the host, as an array of the caller."""
        return self.host_results.result(index, spec)


class CallForm(CallData):
    """A recorded form of call (see the module). `aim` records it at the first call, and patches new addresses into the
    recording later."""

    def __init__(
        self,
        executable: DeviceExecutable,
        queue: Queue,
        memory: ContextMemory,
        given: Sequence[bool],
        keeps: bool,
        run_between: Callable[[FallbackStep | ControlStep, Queue], None],
    ) -> None:
        """Create the form; ``run_between`` runs a step that is no kernel. Other arguments are as in `CallData`."""
        plan = executable.plan
        sizes = [bytes_of(p) for p in plan.parameters], [bytes_of(o) for o in plan.outputs]
        super().__init__(executable, queue, memory, given, keeps, sizes)
        self._aimed = [0] * len(self._coming)
        self._uses: dict[tuple[Region, int], list[_Occurrence]] = {place: [] for place in self._coming}
        self._words: dict[int, np.ndarray] = {}
        self._run_between = run_between
        self._recordings: list[Recording] = []

    def aim(self, addresses: Sequence[int]) -> None:
        if addresses == self._aimed and self._segments:
            return
        self._check_apart(addresses)
        changed: dict[tuple[int, int], None] = {}
        known, self._aimed = self._aimed, [0] * len(self._coming)  # all unknown if an error interrupts this
        for place, before, now in zip(self._coming, known, addresses):
            if before == now and before:
                continue
            self._places[place] = now
            for use in self._uses[place]:
                self._write(use.words, use.slot, now + use.offset, use.layout)
                changed[use.segment, use.number] = None
        if not self._segments:
            with uncollected():  # a graph of hundreds of kernels makes as many objects as a plan
                self._record()
        else:
            for segment, number in changed:
                self._recordings[segment].change(number)
        self._aimed = list(addresses)

    def enqueue(self, queue: Queue) -> None:
        skipped = self._copies_in_place()
        for step in self._plan.steps:
            assert isinstance(step, Step)
            if id(step) not in skipped:
                self.launch(step, queue)
        self._download(queue)

    def launch(self, step: Step, queue: Queue) -> None:
        """Enqueue a step's kernel or library call; nothing if its grid is empty."""
        if step.geometry.empty:
            return
        if id(step) not in self._words:
            self._words[id(step)] = self._arguments(step)
        function, words = self._executable.functions[step.kernel], self._words[id(step)]
        if isinstance(step.geometry, Grid):
            queue.launch(function, words, step.geometry)
        else:
            queue.call(function, words)

    def _record(self) -> None:
        """Record the copies and kernels between other steps, each sequence as one recording.

        A large parameter is copied before the first step that reads it, so that kernels run while CPUs copy later
        parameters.
        """
        self._recordings = []
        segments: list[Segment] = []
        for uses in self._uses.values():
            uses.clear()
        asked: list[Callable[[], None]] = [partial(self.host_parameters.upload, self._queue)]
        number, sent = 0, set[int]()
        for step in self._plan.steps:
            read = _parameters_of(step) - sent if self.host_parameters.large else ()
            late = [k for k in self.host_parameters.large if k in read]
            if late:
                if number:
                    self._close(asked, segments)
                    asked, number = [], 0
                sent.update(late)
                segments.append(partial(self.host_parameters.send, late))
            if isinstance(step, Step):
                if step.geometry.empty:
                    continue
                asked.append(partial(self.launch, step, self._queue))
                self._words[id(step)] = self._arguments(step, len(self._recordings), number)
                number += 1
            else:
                self._close(asked, segments)
                asked, number = [], 0
                segments.append(partial(self._run_between, step))
        asked.append(partial(self._download, self._queue))
        self._close(asked, segments)
        self._segments = segments

    def _close(self, asked: Sequence[Callable[[], None]], segments: list[Segment]) -> None:
        if asked:
            recording = self._queue.recorded(partial(in_turn, asked))
            self._recordings.append(recording)
            segments.append(recording)

    def _arguments(self, step: Step, segment: int = 0, number: int = 0) -> np.ndarray:
        """Return the argument block of a step's kernel; record for `aim` the addresses in it that a call provides."""
        values: list[object] = list(step.args)
        placed: list[tuple[int, Pointer, TensorLayout | None]] = []
        for slot, arg in [(slot, arg) for slot, arg in enumerate(values) if type(arg) is not int]:
            if isinstance(arg, Pointer):
                values[slot] = self.address(arg)
                if arg.region in _COMING:
                    placed.append((slot, arg, None))
            elif isinstance(arg, MappedTensor):
                values[slot] = 0  # the tensor map also fills the following slots, which are 0 already
                placed.append((slot, arg.pointer, arg.layout))
            else:
                raise CompileError(f"{step.label}: a kernel of this target calls no other one")
        words = np.array(values or [0], np.int64)
        for slot, place, layout in placed:
            if layout is not None:
                self._write(words, slot, self.address(place), layout)
            uses = self._uses.get((place.region, place.index))
            if uses is not None:
                uses.append(_Occurrence(segment, number, words, slot, place.offset, layout))
        return words

    def _write(self, words: np.ndarray, slot: int, address: int, layout: TensorLayout | None) -> None:
        if layout is None:
            words[slot] = address
            return
        described = self._executable.engine.tensor_map(layout, address)
        words[slot : slot + described.size] = described


def _parameters_of(step: PlannedStep) -> set[int]:
    """Return the numbers of the parameters that a step uses."""
    if not isinstance(step, Step):
        return {view.pointer.index for view in step.inputs if view.pointer.region is Region.PARAMETER}
    return {index for region, index in _places_of(step) if region is Region.PARAMETER}


def _places_of(step: PlannedStep) -> set[tuple[Region, int]]:
    """Return the memory that a kernel uses, by region and number."""
    if not isinstance(step, Step):
        return set()
    pointers = [arg.pointer if isinstance(arg, MappedTensor) else arg for arg in step.args]
    return {(p.region, p.index) for p in pointers if isinstance(p, Pointer)}
