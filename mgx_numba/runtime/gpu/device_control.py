"""Branches and loops of a plan on a device: their bodies are plans of their own, whose results stay on the device.

The host reads a condition through pinned memory, and enqueues the body that it selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import from_numpy, numpy_dtype
from ...errors import MgxError
from ..plan import PlannedBody, PlannedBranch, Pointer, Repetition, TensorView
from .engine import Queue
from .transfers import OneValue

if TYPE_CHECKING:
    from .executor import DeviceExecutable

Address = Callable[[Pointer], int]
Known = Callable[[Pointer], np.ndarray | None]
"""Returns the bytes at an address that the host holds; None if the device has to be read."""


class Control:
    """Runs the control steps of one context; one call at a time."""

    def __init__(self, executable: DeviceExecutable) -> None:
        self._executable = executable
        self._value = OneValue()

    def run(self, control: PlannedBranch | Repetition, queue: Queue, address: Address, known: Known) -> None:
        """Enqueue a control step; ``address`` returns the device addresses of its views.

        Raises:
            DeviceError, ShapeError: a body failed, or a loop exceeds its maximum trip count.
        """
        if isinstance(control, PlannedBranch):
            chosen = 0 if self._read(control.condition, queue, address, known) else 1
            self._run_body(control.bodies[chosen], queue, address, {}, lambda: control.places[chosen])
        else:
            self._repeat(control, queue, address, known)

    def _repeat(self, loop: Repetition, queue: Queue, address: Address, known: Known) -> None:
        trips = int(self._read(loop.trips, queue, address, known))
        goes = bool(self._read(loop.condition, queue, address, known))
        for one in loop.carried:
            queue.copy(address(one.now.pointer), address(one.initial.pointer), _bytes(one.now))
        turns = {one.now: one.following for one in loop.carried} | {one.following: one.now for one in loop.carried}
        done = 0
        while done < trips and goes:
            if done >= loop.most:
                raise loop.too_long(trips)
            self._run_body(loop.body, queue, address, turns if done % 2 else {}, partial(loop.place, done))
            for scan in loop.scans:
                size = _bytes(scan.row)
                row = scan.whole.lens[0] - 1 - done if scan.backwards else done
                queue.copy(address(scan.whole.pointer) + row * size, address(scan.row.pointer), size)
            if loop.going is not None:
                state = loop.carried[loop.going]
                goes = bool(self._read(state.now if done % 2 else state.following, queue, address, known))
            done += 1
        for one in loop.carried if done % 2 else ():
            queue.copy(address(one.now.pointer), address(one.following.pointer), _bytes(one.now))

    def _run_body(
        self,
        body: PlannedBody,
        queue: Queue,
        address: Address,
        instead: Mapping[TensorView, TensorView],
        where: Callable[[], str],
    ) -> None:
        """Enqueue a body, with some views replaced by those in ``instead``; ``where`` returns the prefix of errors."""
        number = self._executable.engine.number
        arguments, results = (
            [_array(instead.get(view, view), address, number) for view in views]
            for views in (body.arguments, body.results)
        )
        try:
            self._executable.bodies[id(body.plan)].run_within(queue, arguments, results)
        except MgxError as error:
            raise type(error)(f"{where()}: {error}") from error

    def _read(self, view: TensorView, queue: Queue, address: Address, known: Known) -> int | bool:
        """Return the single element of a view."""
        engine, found = self._executable.engine, known(view.pointer)
        if found is None:
            return self._value(engine, queue, _array(view, address, engine.number))
        dtype = numpy_dtype(view.dtype)
        return self._value(engine, queue, found[: dtype.itemsize].view(dtype))


def _bytes(view: TensorView) -> int:
    return prod(view.lens) * numpy_dtype(view.dtype).itemsize


def _array(view: TensorView, address: Address, device: int) -> DeviceArray:
    kind = from_numpy(numpy_dtype(view.dtype))
    return DeviceArray(Shape(kind, view.lens) if view.lens else Shape(kind), address(view.pointer), device)
