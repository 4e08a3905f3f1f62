"""A symbolic plan in one way of calling it, with the numbers for the lengths of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.types import numpy_dtype
from ...garbage import uncollected
from ..plan import ControlStep, HostStep, ParameterSpec, Step, TensorSpec
from .call_form import CallData, ContextMemory, Segment
from .engine import Queue, Recording
from .host_copies import HostParameters, HostResults
from .open_plan import BoundLengths, PlanLaunches

if TYPE_CHECKING:
    from .executor import DeviceExecutable

__all__ = ["DirectForm", "RecordedForm"]

RunBetween = Callable[[HostStep | ControlStep, Queue], None]


class DirectForm(CallData):
    """Kernels are launched one by one. `bind` takes the numbers of a call's lengths, then `aim` its addresses."""

    def __init__(
        self,
        executable: DeviceExecutable,
        queue: Queue,
        memory: ContextMemory,
        given: Sequence[bool],
        keeps: bool,
        run_between: RunBetween,
        bound: BoundLengths,
        launches: PlanLaunches,
        batch: Any = None,
    ) -> None:
        """``launches`` are those of the context, ``batch`` what the engine has made of them; ``bound`` has the numbers
        of the first call's lengths. Others are as of `CallForm`."""
        super().__init__(executable, queue, memory, given, keeps, self._sizes_at(executable, bound))
        self._launches, self._batch, self.bound = launches, batch, bound
        self._run_between = run_between
        self.segments = [self._send, *self._in_order(self._launch), self._download]

    def bind(self, bound: BoundLengths, memory: ContextMemory) -> None:
        """Take the numbers of a call's lengths, and the context's memory."""
        self._memory = memory
        if bound is self.bound:
            return
        self.bound = bound
        into, out = self._take_sizes(*self._sizes_at(self._executable, bound))
        engine = self._executable.engine
        self._have(HostParameters(engine, into, self._in), HostResults(engine, out, self._out, lends=False))

    def aim(self, addresses: Sequence[int]) -> None:
        """See `CallData.aim`."""
        self._check_apart(addresses)
        self._places.update(zip(self._coming, addresses))
        self._launches.settle(self.bound, self.address)

    def _in_order(self, launch: Callable[[int, int, Queue], None]) -> list[Segment]:
        """Return what does the plan's steps, of which ``launch`` does kernels in a row."""
        segments: list[Segment] = []
        begin = end = 0
        for step in self._plan.steps:
            if isinstance(step, Step):
                end += 1
                continue
            if end > begin:
                segments.append(partial(launch, begin, end))
            begin = end
            segments.append(partial(self._run_between, step))
        if end > begin:
            segments.append(partial(launch, begin, end))
        return segments

    def _launch(self, begin: int, end: int, queue: Queue) -> None:
        queue.launch_all(self._batch, begin, end)

    def _send(self, queue: Queue) -> None:
        if not all(self.given):
            self._in.upload(queue)
            self._in.send(self._in.large, queue)

    @staticmethod
    def _sizes_at(executable: DeviceExecutable, bound: BoundLengths) -> tuple[list[int], list[int]]:
        plan = executable.plan
        into = [_bytes(spec, lens) for spec, lens in zip(plan.parameters, bound.parameter_lens)]
        return into, [_bytes(spec, lens) for spec, lens in zip(plan.outputs, bound.output_lens)]


class RecordedForm(DirectForm):
    """The kernels between other steps are recorded, for one set of lengths; `aim` puts other addresses into the
    recordings."""

    def __init__(self, *arguments: Any) -> None:
        """Arguments are those of `DirectForm`, but ``launches`` are nobody else's, and there is no batch."""
        super().__init__(*arguments)
        self._aimed: list[int] = []
        self._written: list[tuple[int, int, np.ndarray, Recording]] = []
        self.segments = []

    def aim(self, addresses: Sequence[int]) -> None:
        """See `CallData.aim`."""
        aimed = [*addresses, self._memory.arena.address]
        if self.segments and aimed == self._aimed:
            return
        self._aimed = []  # nothing is known if this does not come to its end
        super().aim(addresses)
        if not self.segments:
            with uncollected():  # a graph of hundreds of kernels is as many objects as a plan
                self.segments = [self._send, *self._in_order(self._launch), self._download]
                self._record()
        else:
            self._change()
        self._aimed = aimed

    def _record(self) -> None:
        """Record kernels in a row; `segments` have the recordings in their places."""
        self._written.clear()
        segments: list[Segment] = []
        for segment in self.segments:
            if isinstance(segment, partial) and segment.func == self._launch:
                begin, end = segment.args
                launch = partial(self._launches.launch_each, self._executable.engine, self._queue, begin, end)
                recording = self._queue.recorded(launch)
                first, last = (self._launches.numbers.starts[k] for k in (begin, end))
                self._written.append((begin, end, self._launches.slots[first:last].copy(), recording))
                segments.append(recording)
            else:
                segments.append(segment)
        self.segments = segments

    def _change(self) -> None:
        """Write the numbers and addresses of the call, and tell the recordings which argument blocks changed."""
        launches, engine = self._launches, self._executable.engine
        for k, (begin, end, before, recording) in enumerate(self._written):
            running = launches.rewrite(engine, begin, end)
            first = launches.numbers.starts[begin]
            now = launches.slots[first : launches.numbers.starts[end]]
            changed = np.flatnonzero(now != before)
            owners = np.searchsorted(launches.numbers.starts, changed + first, side="right") - 1
            number = {kernel: place for place, kernel in enumerate(running)}
            for kernel in dict.fromkeys(owners.tolist()):
                recording.change(number[kernel])
            self._written[k] = begin, end, now.copy(), recording


def _bytes(spec: ParameterSpec | TensorSpec, lens: tuple[int, ...] | None) -> int:
    """Return the bytes of a tensor on the device; 0 of one that only the host has."""
    dtype: np.dtype = numpy_dtype(spec.dtype)
    return 0 if lens is None or dtype.hasobject else prod(lens) * dtype.itemsize
