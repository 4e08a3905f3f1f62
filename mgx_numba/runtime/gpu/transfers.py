"""Tensors between host and device, complete when a function returns."""

from __future__ import annotations

import numpy as np

from ...core.copying import row_major
from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import from_numpy
from .engine import Engine, Queue

__all__ = ["OneValue", "copy_within", "fill", "new_array", "to_device", "to_host"]

_LARGEST = 8
"""Bytes of what is read at once: an int64."""


def to_device(engine: Engine, array: np.ndarray, name: str, queue: Queue | None = None) -> DeviceArray:
    """A row-major copy of an array in new memory of a device; ``name`` is for messages.

    Raises:
        DeviceError: there is not so much memory.
    """
    source = row_major(array)
    kind = from_numpy(source.dtype)
    block = engine.kept.take(source.nbytes, name, queue)
    made = DeviceArray(Shape(kind, array.shape) if array.ndim else Shape(kind), block.address, engine.number, block)
    fill(engine, made, source, queue)
    return made


def new_array(engine: Engine, queue: Queue, shape: Shape) -> DeviceArray:
    """Return a new tensor for work that is asked of a queue next."""
    block = engine.kept.take(shape.bytes, "a value inside of a loop or a branch", queue)
    return DeviceArray(shape, block.address, engine.number, block)


def fill(engine: Engine, target: DeviceArray, source: np.ndarray, queue: Queue | None = None) -> None:
    """Copy a C-contiguous array to a row-major tensor of a device that has as many bytes."""
    with engine.use():
        on = queue or engine.queue(0)
        on.upload(target.address, source)
        on.wait()


def copy_within(engine: Engine, target: DeviceArray, source: DeviceArray) -> None:
    """Copy a row-major tensor of a device to another of the same bytes."""
    with engine.use():
        on = engine.queue(0)
        on.copy(target.address, source.address, source.shape.bytes)
        on.wait()


def to_host(engine: Engine, value: DeviceArray) -> np.ndarray:
    """The element space of a tensor of a device, flat, once all that the device was asked for is done."""
    flat = np.empty(value.shape.element_space, value.shape.type.numpy)
    engine.synchronize()
    with engine.use():
        queue = engine.queue(0)
        queue.download(flat, value.address)
        queue.wait()
    return flat


class OneValue:
    """Reads single elements from a device, by pinned memory; from any thread."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def __call__(self, engine: Engine, queue: Queue, value: np.ndarray | DeviceArray) -> int | bool:
        """The one element of a tensor."""
        if not isinstance(value, DeviceArray):
            return value.reshape(-1)[0].item()  # type: ignore[no-any-return]
        try:
            told = self._free.pop()
        except IndexError:
            told = engine.staging(_LARGEST)
        dtype = np.dtype(value.shape.type.numpy)
        found = told[: dtype.itemsize]
        queue.download(found, value.address)
        queue.wait()
        number = found.view(dtype)[0].item()
        self._free.append(told)
        return number  # type: ignore[no-any-return]
