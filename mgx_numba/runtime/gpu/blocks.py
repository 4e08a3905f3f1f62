"""Memory of a device that is given back when nothing refers to it, and kept a while for the next that want as much.

A driver's own allocation and release wait for all work of a device, so what each call needs anew is kept here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque

from ...errors import DeviceError
from .engine import Engine, Queue

__all__ = ["DeviceBlock", "KeptBlocks"]

GRAIN = 512
"""Bytes that sizes are rounded up to: the driver's own grain for small allocations, as PyTorch's allocator has it."""
MOST_KEPT = 1 << 28
"""Bytes of a device that are kept: results of a few calls of most models, and little of what a device has."""
_MIXED = -1
"""Work on a block that is not in the order of one queue: several, or one that is not known."""


class DeviceBlock:
    """Memory of a device. ``engine`` has it; ``address`` and ``size`` in bytes, at least those that were asked for."""

    __slots__ = ("__weakref__", "_order", "address", "engine", "size")

    def __init__(self, engine: Engine, address: int, size: int) -> None:
        self.engine = engine
        self.address = address
        self.size = size
        self._order = 0

    def used_by(self, queue: Queue) -> None:
        """Work on it was asked of a queue and may not be done when the block is given back."""
        self._order = queue.identity if self._order in (0, queue.identity) else _MIXED

    def shown(self) -> None:
        """Its address was given away: whoever has it may do work on it that is not known here."""
        self._order = _MIXED

    def __del__(self) -> None:
        with contextlib.suppress(DeviceError):  # the device is lost, or not this process's: so is the memory
            self.engine.kept.give(self.address, self.size, self._order)


class KeptBlocks:
    """Memory of one engine that nothing refers to, by size; the oldest goes first where it becomes too much."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._given: deque[tuple[int, int, int]] = deque()
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()  # size and order, by address
        self._bytes = 0

    def take(self, size: int, name: str, queue: Queue | None = None) -> DeviceBlock:
        """A block for work that is asked of ``queue`` next, or of any queue if that is None.

        Raises:
            DeviceError: there is not so much memory.
        """
        size = -(-max(size, 1) // GRAIN) * GRAIN
        with self._lock:
            self._settle()
            ready = self._ready(size, 0 if queue is None else queue.identity)
        if ready is not None:
            return DeviceBlock(self._engine, ready, size)
        try:
            return DeviceBlock(self._engine, self._engine.allocate(size, name), size)
        except DeviceError:
            if not self.release():
                raise
        return DeviceBlock(self._engine, self._engine.allocate(size, name), size)

    def _ready(self, size: int, own: int) -> int | None:
        """A block that waits, the last that was given back first: a call that is repeated so has the addresses of the
        one before, which its recording knows."""
        fitting = [address for address in reversed(self._waiting) if self._waiting[address][0] == size]
        ready = next((a for a in fitting if self._waiting[a][1] in (0, own)), None)
        if ready is None and fitting:
            self._engine.synchronize()
            self._waiting = OrderedDict((address, (other, 0)) for address, (other, _) in self._waiting.items())
            ready = fitting[-1]
        if ready is not None:
            del self._waiting[ready]
            self._bytes -= size
        return ready

    def give(self, address: int, size: int, order: int) -> None:
        """Keep the memory of a block, on which work in this order may not be done."""
        self._given.append((address, size, order))
        if self._lock.acquire(blocking=False):  # else whoever has it, perhaps this thread, or the next one settles
            try:
                self._settle()
            finally:
                self._lock.release()

    def release(self) -> bool:
        """Give all of it back to the driver; whether there was any."""
        with self._lock:
            self._settle()
            found = bool(self._waiting)
            while self._waiting:
                self._drop()
        return found

    def _settle(self) -> None:
        while self._given:
            address, size, order = self._given.popleft()
            self._waiting[address] = (size, order)
            self._bytes += size
        while self._bytes > MOST_KEPT:
            self._drop()

    def _drop(self) -> None:
        address, (size, _) = self._waiting.popitem(last=False)
        self._bytes -= size
        self._engine.free(address)
