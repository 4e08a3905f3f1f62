"""A form of call of a symbolic plan, with the numbers for the lengths of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from ..plan import ControlStep, FallbackStep, Plan, Region, Step
from .call_form import CallData, ContextMemory, Segment
from .engine import Queue
from .host_copies import HostParameters, HostResults
from .open_plan import BoundLengths, PlanLaunches

if TYPE_CHECKING:
    from .executor import DeviceExecutable

_ARENA, _FAULT = (Region.ARENA, 0), (Region.FAULT, 0)
RunBetween = Callable[[FallbackStep | ControlStep, Queue], None]


class DirectForm(CallData):
    """Runs the kernels of a symbolic plan. `bind` sets the numbers for a call's lengths, then `aim` its addresses."""

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
        batch: object = None,
    ) -> None:
        """Create the form; other arguments are as in `CallForm`.

        Args:
            bound: numbers for the first call's lengths.
            launches: launches of the context.
            batch: the engine's prepared form of ``launches``.
        """
        super().__init__(executable, queue, memory, given, keeps, (bound.parameter_bytes, bound.output_bytes))
        self._launches, self._batch, self.bound = launches, batch, bound
        self._run_between = run_between
        self._parts = parts_of(self._plan)

    @property
    def segments(self) -> list[Segment]:
        """See `CallData.segments`. They are not cached: a reference cycle with the form would wait for garbage
        collection."""
        steps = [
            partial(self._launch, *one) if isinstance(one, tuple) else partial(self._run_between, one)
            for one in self._parts
        ]
        return [self._send, *steps, self._download]

    def bind(self, bound: BoundLengths, memory: ContextMemory) -> None:
        """Set the numbers for a call's lengths, and the context's memory."""
        self._memory = memory
        if bound is self.bound:
            return
        self.bound = bound
        into, out = self._take_sizes(bound.parameter_bytes, bound.output_bytes)
        if not (all(self.given) and self._keeps):
            engine = self._executable.engine
            self._have(
                HostParameters(engine, into, self.host_parameters),
                HostResults(engine, out, self.host_results, lends=False),
            )

    def aim(self, addresses: Sequence[int]) -> None:
        self.place(addresses)
        self._settle()

    def _settle(self) -> None:
        known = self._places | {_ARENA: self._memory.arena.address, _FAULT: self._memory.fault.address}
        self._launches.settle(self.bound, [known[place] for place in self._launches.numbers.bases])

    def enqueue(self, queue: Queue) -> None:
        self._settle()
        count = len(self._launches.numbers.steps)
        self._launches.launch_each(self._executable.engine, queue, 0, count, self._copies_in_place())
        self._download(queue)

    def _launch(self, begin: int, end: int, queue: Queue) -> None:
        queue.launch_all(self._batch, begin, end)

    def _send(self, queue: Queue) -> None:
        if not all(self.given):
            self.host_parameters.upload(queue)
            self.host_parameters.send(self.host_parameters.large, queue)


def parts_of(plan: Plan) -> list[tuple[int, int] | FallbackStep | ControlStep]:
    """Return the plan's steps in order, with each run of kernels as a range (begin, end)."""
    parts: list[tuple[int, int] | FallbackStep | ControlStep] = []
    end = 0
    for is_kernel, steps in groupby(plan.steps, lambda step: isinstance(step, Step)):
        if is_kernel:
            begin, end = end, end + sum(1 for _ in steps)
            parts.append((begin, end))
        else:
            parts += steps  # type: ignore[arg-type]
    return parts
