"""Buffers of caches in the host's memory or in a device's: made, copied row by row, and converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from .decoder import CacheTensor

if TYPE_CHECKING:
    from ..api.device import device_argument
    from ..core.device_array import DeviceArray
    from ..runtime.gpu.engine import Engine

Rows = Sequence[int] | np.ndarray
B = TypeVar("B")


class CacheBuffers(Protocol[B]):
    """Operations on buffers (rows, heads, columns, size), of which a decoder has one for each cache."""

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[B]:
        """Return new buffers of zeros."""

    def copy(self, targets: Sequence[B], rows: Rows, sources: Sequence[B], chosen: Rows, columns: int) -> None:
        """Copy the first ``columns`` columns of the rows ``chosen`` of the sources to ``rows`` of the targets.

        Targets may be the sources: all rows are read before one is written. Columns behind may be copied, too.
        """

    def first(self, buffer: B, rows: int) -> B:
        """Return the first rows of a buffer, which are the same memory."""

    def taken(self, buffer: np.ndarray | B) -> B:
        """Return the buffer itself, or a copy in this memory."""


class HostBuffers:
    """See `CacheBuffers`."""

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[np.ndarray]:
        """See `CacheBuffers.zeros`; pages of memory that were never written take no memory."""
        return [np.zeros((rows, c.heads, columns, c.size), c.dtype) for c in caches]

    def copy(
        self, targets: Sequence[np.ndarray], rows: Rows, sources: Sequence[np.ndarray], chosen: Rows, columns: int
    ) -> None:
        """See `CacheBuffers.copy`."""
        for target, source in zip(targets, sources, strict=True):
            target[rows, :, :columns] = source[chosen, :, :columns]

    def first(self, buffer: np.ndarray, rows: int) -> np.ndarray:
        """See `CacheBuffers.first`."""
        return buffer[:rows]

    def taken(self, buffer: np.ndarray) -> np.ndarray:
        """See `CacheBuffers.taken`."""
        return on_host(buffer)


class DeviceBuffers:
    """See `CacheBuffers`; buffers are row-major `DeviceArray`."""

    def __init__(self, number: int) -> None:
        """Use the device with this number."""
        from ..runtime.gpu.choice import engine

        self._engine: Engine = engine(number)

    def zeros(self, caches: Sequence[CacheTensor], rows: int, columns: int) -> list[DeviceArray]:
        """See `CacheBuffers.zeros`."""
        return [self.taken(np.zeros((rows, c.heads, columns, c.size), c.dtype)) for c in caches]

    def copy(
        self, targets: Sequence[DeviceArray], rows: Rows, sources: Sequence[DeviceArray], chosen: Rows, columns: int
    ) -> None:
        """See `CacheBuffers.copy`; rows of equally long buffers are copied whole, others head by head."""
        into, out = ([int(row) for row in each] for each in (rows, chosen))
        if not into or not columns:
            return
        with self._engine.use():
            queue = self._engine.queue(0)
            for target, source in zip(targets, sources, strict=True):
                moves = _moves(target, into, source, out, columns)
                apart = target.address != source.address
                scratch = None if apart else self._engine.kept.take(sum(n for *_, n in moves), "moved caches")
                at = 0 if scratch is None else scratch.address
                for _, begin, size in moves if scratch is not None else ():
                    queue.copy(at, begin, size)
                    at += size
                at = 0 if scratch is None else scratch.address
                for end, begin, size in moves:
                    queue.copy(end, begin if scratch is None else at, size)
                    at += size
            queue.wait()  # work of other queues may follow

    def first(self, buffer: DeviceArray, rows: int) -> DeviceArray:
        """See `CacheBuffers.first`."""
        from ..core.device_array import DeviceArray
        from ..core.shape import Shape

        shape = Shape(buffer.shape.type, (rows, *buffer.shape.lens[1:]))
        return DeviceArray(shape, buffer.address, buffer.device, buffer.owner)

    def taken(self, buffer: np.ndarray | DeviceArray) -> DeviceArray:
        """See `CacheBuffers.taken`."""
        from ..runtime.gpu.transfers import to_device

        if not isinstance(buffer, np.ndarray):
            return buffer
        return to_device(self._engine, np.ascontiguousarray(buffer), "keys and values")


def _moves(
    target: DeviceArray, rows: list[int], source: DeviceArray, chosen: list[int], columns: int
) -> list[tuple[int, int, int]]:
    """Return target address, source address and bytes of each copy of the columns of rows."""
    _, heads, room, size = target.shape.lens
    line = size * target.shape.type.size
    length, whole = source.shape.lens[2] * line, room * line
    if length == whole:  # a row is copied as a whole
        heads, length, whole, columns = 1, length * heads, whole * heads, room * heads
    return [
        (target.address + (row * heads + k) * whole, source.address + (one * heads + k) * length, columns * line)
        for row, one in zip(rows, chosen, strict=True)
        for k in range(heads)
    ]


def on_host(tensor: np.ndarray | DeviceArray | device_argument) -> np.ndarray:
    """Return an array of the host, or a copy of a tensor on a device."""
    if isinstance(tensor, np.ndarray):
        return tensor
    from ..api.device import device_argument, from_gpu

    return np.asarray(from_gpu(tensor if isinstance(tensor, device_argument) else device_argument.wrap(tensor)))
