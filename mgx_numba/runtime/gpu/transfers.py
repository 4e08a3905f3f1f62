"""Synchronous copies of tensors between host and device."""

from __future__ import annotations

import numpy as np

from ...core.copying import row_major
from ...core.device_array import DeviceArray
from ...core.shape import Shape
from ...core.types import from_numpy
from .engine import Engine, Queue

_LARGEST = 8
"""Maximum size (bytes) of a single element that is read: an int64."""


def to_device(engine: Engine, array: np.ndarray, name: str, queue: Queue | None = None) -> DeviceArray:
    """Return a row-major copy of an array in new device memory; ``name`` is for messages.

    Raises:
        DeviceError: there is not enough memory.
    """
    source = row_major(array)
    kind = from_numpy(source.dtype)
    block = engine.kept.take(source.nbytes, name, queue)
    made = DeviceArray(Shape(kind, array.shape) if array.ndim else Shape(kind), block.address, engine.number, block)
    fill(engine, made, source, queue)
    return made


def new_array(engine: Engine, queue: Queue, shape: Shape) -> DeviceArray:
    """Return a new tensor for the next work of a queue."""
    block = engine.kept.take(shape.bytes, "a value inside of a loop or a branch", queue)
    return DeviceArray(shape, block.address, engine.number, block)


def fill(engine: Engine, target: DeviceArray, source: np.ndarray, queue: Queue | None = None) -> None:
    """Copy a C-contiguous array to a row-major device tensor of the same size."""
    with engine.use():
        on = queue or engine.queue(0)
        on.upload(target.address, source)
        on.wait()


def copy_within(engine: Engine, target: DeviceArray, source: DeviceArray) -> None:
    """Copy a row-major device tensor to another of the same size."""
    with engine.use():
        on = engine.queue(0)
        on.copy(target.address, source.address, source.shape.bytes)
        on.wait()


def to_host(engine: Engine, value: DeviceArray) -> np.ndarray:
    """Return the element space of a device tensor, flat, after all work of the device is done."""
    flat = np.empty(value.shape.element_space, value.shape.type.numpy)
    engine.synchronize()
    with engine.use():
        queue = engine.queue(0)
        queue.download(flat, value.address)
        queue.wait()
    return flat


class OneValue:
    """Reads single elements from a device through pinned memory; thread-safe."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def __call__(self, engine: Engine, queue: Queue, value: np.ndarray | DeviceArray) -> int | bool:
        """Return the single element of a tensor."""
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
