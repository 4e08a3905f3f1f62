"""A symbolic plan in one way of calling it: kernels are launched one by one, with the numbers for a call's lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.types import numpy_dtype
from ..plan import ControlStep, HostStep, ParameterSpec, Step, TensorSpec
from .call_form import CallData, ContextMemory
from .engine import Queue
from .host_copies import HostParameters, HostResults
from .open_plan import BoundLengths, PlanLaunches

if TYPE_CHECKING:
    from .executor import DeviceExecutable

__all__ = ["DirectForm"]


class DirectForm(CallData):
    """See the module. `bind` takes the numbers of a call's lengths, then `aim` its addresses."""

    def __init__(
        self,
        executable: DeviceExecutable,
        queue: Queue,
        memory: ContextMemory,
        given: Sequence[bool],
        keeps: bool,
        run_between: Callable[[HostStep | ControlStep, Queue], None],
        bound: BoundLengths,
    ) -> None:
        """Arguments are those of `CallForm`, and the numbers of the first call's lengths."""
        super().__init__(executable, queue, memory, given, keeps, self._sizes_at(executable, bound))
        assert executable.launches is not None
        self._launches = PlanLaunches(executable.launches)
        self._batch = executable.engine.batch(self._launches)
        self._bound = bound
        self.segments = [self._send, *self._in_order(run_between), self._bring_small]

    def bind(self, bound: BoundLengths, memory: ContextMemory) -> None:
        """Take the numbers of a call's lengths, and the context's memory."""
        self._memory = memory
        if bound is self._bound:
            return
        self._bound = bound
        into, out = self._take_sizes(*self._sizes_at(self._executable, bound))
        engine = self._executable.engine
        self._have(HostParameters(engine, into, self._in), HostResults(engine, out, self._out, lends=False))

    def aim(self, addresses: Sequence[int]) -> None:
        """See `CallData.aim`."""
        self._check_apart(addresses)
        self._places.update(zip(self._coming, addresses))
        self._launches.settle(self._bound, self.address)

    def _in_order(self, run_between: Callable[[Any, Queue], None]) -> list[Callable[[Queue], None]]:
        """Return what does the plan's steps, kernels in a row together."""
        segments: list[Callable[[Queue], None]] = []
        begin = end = 0
        for step in self._plan.steps:
            if isinstance(step, Step):
                end += 1
                continue
            if end > begin:
                segments.append(partial(self._launch, begin, end))
            begin = end
            segments.append(partial(run_between, step))
        if end > begin:
            segments.append(partial(self._launch, begin, end))
        return segments

    def _launch(self, begin: int, end: int, queue: Queue) -> None:
        queue.launch_all(self._batch, begin, end)

    def _send(self, queue: Queue) -> None:
        if not all(self.given):
            self._in.upload(queue)
            self._in.send(self._in.large, queue)

    def _bring_small(self, queue: Queue) -> None:
        self._download(queue)

    @staticmethod
    def _sizes_at(executable: DeviceExecutable, bound: BoundLengths) -> tuple[list[int], list[int]]:
        plan = executable.plan
        into = [_bytes(spec, lens) for spec, lens in zip(plan.parameters, bound.parameter_lens)]
        return into, [_bytes(spec, lens) for spec, lens in zip(plan.outputs, bound.output_lens)]


def _bytes(spec: ParameterSpec | TensorSpec, lens: tuple[int, ...] | None) -> int:
    """Return the bytes of a tensor on the device; 0 of one that only the host has."""
    dtype: np.dtype = numpy_dtype(spec.dtype)
    return 0 if lens is None or dtype.hasobject else prod(lens) * dtype.itemsize
