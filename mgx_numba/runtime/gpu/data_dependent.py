"""Decisions that the host takes during a run while values stay on the device: result lengths, branches, trip counts.

Bodies with lengths that are known only when they run are programs with dynamic inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import Type
from ...errors import MgxError
from ...ops.control import Loop
from .call_form import VECTOR_ALIGNMENT
from .engine import Engine, Queue
from .transfers import OneValue, new_array, to_device

NUMBERS = 1024
"""Number of iteration numbers that are on the device at once: 16 KiB, each aligned to a vector."""

Tensor = np.ndarray | DeviceArray


class BodyProgram(Protocol):
    """A compiled body."""

    def run_on(self, queue: Queue, inputs: Mapping[str, DeviceArray]) -> list[Tensor]:
        """Enqueue a run; return new results."""


class DataDependentBody:
    """A body whose lengths are known only when it runs."""

    def __init__(self, program: BodyProgram, shapes: Mapping[str, Shape]) -> None:
        """Wrap a program; ``shapes`` are the shapes of its inputs by name, captured values last."""
        self._program = program
        self._ranks = {name: shape.rank or 0 for name, shape in shapes.items()}

    def run(self, queue: Queue, inputs: Sequence[DeviceArray]) -> list[Tensor]:
        """Enqueue a run; return new results.

        Raises:
            MgxError: as `DeviceExecutable.run`, or lengths do not fit the body.
        """
        pairs = zip(self._ranks.items(), inputs, strict=True)
        return self._program.run_on(queue, {name: _of_rank(array, rank) for (name, rank), array in pairs})


class FirstRows:
    """Returns the first rows of a table; a tensor of one element has their number."""

    def __init__(self) -> None:
        self._value = OneValue()

    def __call__(self, engine: Engine, queue: Queue, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Return the rows; ``arguments`` are the table and the tensor with their number."""
        table = _there(engine, queue, arguments[0])
        count = int(self._value(engine, queue, arguments[1]))
        rows = new_array(engine, queue, Shape(table.shape.type, (count, *table.shape.lens[1:])))
        queue.copy(rows.address, table.address, rows.shape.bytes)
        rows.owner.used_by(queue)
        return [rows]


class DataDependentBranch:
    """An ``if`` whose bodies have late lengths.

    ``taken`` has for each body the positions of its arguments, ``places`` the prefixes of its errors.
    """

    def __init__(
        self, bodies: Sequence[DataDependentBody], taken: Sequence[Sequence[int]], places: Sequence[str]
    ) -> None:
        self._bodies, self._taken, self._places = bodies, taken, places
        self._value = OneValue()

    def __call__(self, engine: Engine, queue: Queue, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Run the body that the condition selects, and return its results."""
        chosen = 0 if self._value(engine, queue, arguments[0]) else 1
        given = [_there(engine, queue, arguments[k]) for k in self._taken[chosen]]
        try:
            return self._bodies[chosen].run(queue, given)
        except MgxError as error:
            raise type(error)(f"{self._places[chosen]}: {error}") from error


class DataDependentLoop:
    """A ``loop`` whose body has late lengths. Its arguments are a trip count, a condition, carried values and captured
    values.

    Attributes:
        carried: number of carried values.
        taken: positions of the arguments that the body captures.
        goes_on: whether the condition never changes.
        most: maximum trip count; ``too_long`` returns the error for a larger one.
        place: returns the prefix of errors in an iteration.
        scans: for each scan output its number of rows (None: the trip count), and whether rows are stored from its end.
    """

    def __init__(
        self,
        body: DataDependentBody,
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
        """Return the carried values after the last iteration, and the scan outputs.

        None if there is no iteration, and the body does not determine the lengths of scan rows.
        """
        trips = int(self._value(engine, queue, arguments[0]))
        goes = trips > 0 and self._value(engine, queue, arguments[1])
        condition, *carried = (_there(engine, queue, a) for a in arguments[1 : 2 + self._carried])
        outer = [_there(engine, queue, arguments[k]) for k in self._taken]
        if not goes:
            return self._without_iteration(engine, queue, [condition, *carried], outer)
        rows: list[list[DeviceArray]] = [[] for _ in self._scans]
        done, going = 0, True
        while done < trips and going:
            if done >= self._most:
                raise self._too_long(trips)
            if done % NUMBERS == 0:
                numbers = _numbers(engine, queue, done, min(trips - done, NUMBERS))
            number = DeviceArray(_NUMBER, numbers.address + done % NUMBERS * VECTOR_ALIGNMENT, engine.number)
            try:
                made = self._body.run(queue, [number, condition, *carried, *outer])
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

    def _without_iteration(
        self, engine: Engine, queue: Queue, values: Sequence[DeviceArray], outer: Sequence[DeviceArray]
    ) -> list[Tensor] | None:
        """Return the carried values unchanged, and zero-filled scan outputs, whose rows have the lengths that the first
        iteration gives."""
        rows: list[DeviceArray] = []
        if self._scans:
            try:
                table = _numbers(engine, queue, 0, 1)
                number = DeviceArray(_NUMBER, table.address, engine.number)
                made = self._body.run(queue, [number, *values, *outer])
            except MgxError:
                return None
            rows = [_there(engine, queue, r) for r in made[1 + self._carried :]]
        lens = [(count or 0, *row.shape.lens) for row, (count, _) in zip(rows, self._scans)]
        return [*values[1:], *(np.zeros(n, row.shape.type.numpy) for n, row in zip(lens, rows))]


_NUMBER = Shape(Type.int64_type)


def _there(engine: Engine, queue: Queue, value: Tensor) -> DeviceArray:
    """Return a value on the device, for work of the queue."""
    if isinstance(value, DeviceArray):
        return value
    made = to_device(engine, value, "a value of a loop or a branch", queue)
    made.owner.used_by(queue)
    return made


def _of_rank(array: DeviceArray, rank: int) -> DeviceArray:
    """Return the tensor; a one-element tensor gets ``rank`` axes."""
    if len(array.shape.array_lens) == rank or array.shape.elements != 1:
        return array
    return DeviceArray(Shape(array.shape.type, (1,) * rank), array.address, array.device, array.owner, array.stream)


def _numbers(engine: Engine, queue: Queue, first: int, count: int) -> DeviceArray:
    """Return iteration numbers on the device, each aligned to a vector."""
    table = np.zeros((count, VECTOR_ALIGNMENT // 8), np.int64)
    table[:, 0] = np.arange(first, first + count)
    return _there(engine, queue, table)


def _stacked(
    engine: Engine, queue: Queue, rows: Sequence[DeviceArray], count: int | None, backwards: bool
) -> DeviceArray:
    """Return a scan output with the rows of all iterations, and zeros for iterations that did not run."""
    shape, size = rows[0].shape, rows[0].shape.bytes
    length = len(rows) if count is None else count
    whole = new_array(engine, queue, Shape(shape.type, (length, *shape.lens)))
    if length > len(rows):
        zeros = np.zeros((length - len(rows)) * size, np.uint8)
        queue.upload(whole.address + (0 if backwards else len(rows) * size), zeros)
        queue.wait()
    for k, row in enumerate(rows):
        queue.copy(whole.address + (length - 1 - k if backwards else k) * size, row.address, size)
    whole.owner.used_by(queue)
    return whole
