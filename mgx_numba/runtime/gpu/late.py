"""What the host decides while values stay on the device: how long results are, which branch runs, how often a loop.

Bodies inside of which lengths are known only when they run get a plan for each set of lengths.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ...codegen.store import Store
from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import Type
from ...errors import MgxError
from ...ops.control import Loop
from ..plan import Plan
from .call_form import VECTOR_ALIGNMENT
from .constants import DeviceConstants
from .engine import Engine, Queue
from .executor import DeviceExecutable
from .transfers import OneValue, to_device

__all__ = ["FirstRows", "LateBody", "LateBranch", "LateLoop"]

MOST_PLANS = 256
"""Sets of lengths whose plans a body keeps, the least recently used goes first: as many as a decoder may write
positions in one call."""
NUMBERS = 1024
"""Numbers of iterations that are on the device at once: 16 KiB, each where a vector begins."""

Tensor = np.ndarray | DeviceArray
Lens = tuple[tuple[int, ...], ...]


class LengthPlans(Protocol):
    """Plans of a body; its parameters, then what it takes from outside."""

    def planned(self, lens: Lens) -> Plan:
        """For the lengths of all of these."""


class LateBody:
    """A body on one engine; calls come one after the other from any thread."""

    def __init__(self, plans: LengthPlans, store: Store | None) -> None:
        self._plans = plans
        self._store = store
        self._lock = threading.Lock()
        self._constants: DeviceConstants | None = None
        self._ready: OrderedDict[Lens, DeviceExecutable] = OrderedDict()

    def run(self, engine: Engine, queue: Queue, inputs: Sequence[DeviceArray]) -> list[Tensor]:
        """Ask a queue for a run; results are new.

        Raises:
            MgxError: as of `DeviceExecutable.run`, or lengths do not fit the body.
        """
        executable = self._for(engine, tuple([array.shape.array_lens for array in inputs]))
        shapes = executable.result_shapes()
        made: list[Tensor]
        if None in shapes:
            queue.wait()
            made = executable.run(inputs, [None] * len(shapes))
        else:
            new = [_new(engine, queue, shape) for shape in shapes if shape is not None]
            executable.run_within(queue, inputs, new)
            made = list(new)
        for array in (*inputs, *made):
            if isinstance(array, DeviceArray):
                array.stream = None  # all is in the order of one queue
                if array.owner is not None:
                    array.owner.used_by(queue)
        return made

    def _for(self, engine: Engine, lens: Lens) -> DeviceExecutable:
        with self._lock:
            found = self._ready.get(lens)
            if found is not None:
                self._ready.move_to_end(lens)
                return found
            if self._constants is None:
                self._constants = DeviceConstants(engine)
            while len(self._ready) >= MOST_PLANS:
                self._ready.popitem(last=False)
            found = DeviceExecutable(self._plans.planned(lens), engine, None, self._store, self._constants)
            self._ready[lens] = found
            return found


class FirstRows:
    """The first rows of a table, so many as a tensor of one element says."""

    def __init__(self) -> None:
        self._value = OneValue()

    def __call__(self, engine: Engine, queue: Queue, arguments: Sequence[Tensor]) -> list[Tensor]:
        """``arguments`` are the table and the tensor."""
        table = _there(engine, queue, arguments[0])
        count = int(self._value(engine, queue, arguments[1]))
        rows = _new(engine, queue, Shape(table.shape.type, (count, *table.shape.lens[1:])))
        queue.copy(rows.address, table.address, rows.shape.bytes)
        rows.owner.used_by(queue)
        return [rows]


class LateBranch:
    """What an ``if`` does with a condition and the values that its bodies take: ``taken`` says which, for each, and
    ``places`` what errors in them begin with."""

    def __init__(self, bodies: Sequence[LateBody], taken: Sequence[Sequence[int]], places: Sequence[str]) -> None:
        self._bodies, self._taken, self._places = bodies, taken, places
        self._value = OneValue()

    def __call__(self, engine: Engine, queue: Queue, arguments: Sequence[Tensor]) -> list[Tensor]:
        """The results of one of the bodies."""
        chosen = 0 if self._value(engine, queue, arguments[0]) else 1
        given = [_there(engine, queue, arguments[k]) for k in self._taken[chosen]]
        try:
            return self._bodies[chosen].run(engine, queue, given)
        except MgxError as error:
            raise type(error)(f"{self._places[chosen]}: {error}") from error


class LateLoop:
    """What a ``loop`` does with a trip count, a condition, carried values and those that its body takes from outside.

    Attributes:
        carried: how many values are carried.
        taken: which arguments the body takes from outside.
        goes_on: whether the condition stays as it is.
        most: iterations that may run; ``too_long`` gives what is raised if more were to.
        place: gives what errors in an iteration begin with.
        scans: for each scan output how many rows it has, None for as many as there were iterations, and whether they
            lie from its end.
    """

    def __init__(
        self,
        body: LateBody,
        carried: int,
        taken: Sequence[int],
        goes_on: bool,
        most: int,
        too_long: Callable[[int], Exception],
        place: Callable[[int], str],
        scans: Sequence[tuple[int | None, bool]],
    ) -> None:
        self._body, self._carried, self._taken = body, carried, taken
        self._goes_on, self._most, self._too_long, self._scans = goes_on, most, too_long, scans
        self._place = place
        self._value = OneValue()

    def __call__(self, engine: Engine, queue: Queue, arguments: Sequence[Tensor]) -> list[Tensor] | None:
        """The carried values after the last iteration, and the scan outputs; None if there is no iteration, of which
        lengths of rows are unknown."""
        trips = int(self._value(engine, queue, arguments[0]))
        if trips <= 0 or not self._value(engine, queue, arguments[1]):
            return None
        condition, *carried = (_there(engine, queue, a) for a in arguments[1 : 2 + self._carried])
        outer = [_there(engine, queue, arguments[k]) for k in self._taken]
        rows: list[list[DeviceArray]] = [[] for _ in self._scans]
        done, going = 0, True
        while done < trips and going:
            if done >= self._most:
                raise self._too_long(trips)
            if done % NUMBERS == 0:
                numbers = _numbers(engine, queue, done, min(trips - done, NUMBERS))
            number = DeviceArray(_NUMBER, numbers.address + done % NUMBERS * VECTOR_ALIGNMENT, engine.number)
            try:
                made = self._body.run(engine, queue, [number, condition, *carried, *outer])
                results = [_there(engine, queue, r) for r in made]
                for kept, row in zip(rows, results[1 + self._carried :], strict=True):
                    kept.append(row)
                    Loop.check_row(kept[0].shape.lens, row.shape.lens)
            except MgxError as error:
                raise type(error)(f"{self._place(done)}: {error}") from error
            condition, carried = results[0], results[1 : 1 + self._carried]
            done += 1
            going = self._goes_on or done == trips or bool(self._value(engine, queue, condition))
        return [*carried, *(_stacked(engine, queue, own, *how) for own, how in zip(rows, self._scans))]


_NUMBER = Shape(Type.int64_type)


def _new(engine: Engine, queue: Queue, shape: Shape) -> DeviceArray:
    block = engine.kept.take(shape.bytes, "a value inside of a loop or a branch", queue)
    return DeviceArray(shape, block.address, engine.number, block)


def _there(engine: Engine, queue: Queue, value: Tensor) -> DeviceArray:
    """A value on the device, where the queue will work on it."""
    if isinstance(value, DeviceArray):
        return value
    made = to_device(engine, value, "a value of a loop or a branch", queue)
    made.owner.used_by(queue)
    return made


def _numbers(engine: Engine, queue: Queue, first: int, count: int) -> DeviceArray:
    """Numbers of iterations, each where a vector begins."""
    table = np.zeros((count, VECTOR_ALIGNMENT // 8), np.int64)
    table[:, 0] = np.arange(first, first + count)
    return _there(engine, queue, table)


def _stacked(
    engine: Engine, queue: Queue, rows: Sequence[DeviceArray], count: int | None, backwards: bool
) -> DeviceArray:
    """A scan output of the rows of all iterations, with zeros for those that did not run."""
    shape, size = rows[0].shape, rows[0].shape.bytes
    length = len(rows) if count is None else count
    whole = _new(engine, queue, Shape(shape.type, (length, *shape.lens)))
    if length > len(rows):
        zeros = np.zeros((length - len(rows)) * size, np.uint8)
        queue.upload(whole.address + (0 if backwards else len(rows) * size), zeros)
        queue.wait()
    for k, row in enumerate(rows):
        queue.copy(whole.address + (length - 1 - k if backwards else k) * size, row.address, size)
    whole.owner.used_by(queue)
    return whole
