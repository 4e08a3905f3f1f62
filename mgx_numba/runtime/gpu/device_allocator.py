"""Caching allocators for device memory, and for the host memory that a device copies from and to.

A driver's own allocation and release wait for all work of a device, so memory that each call needs anew is cached here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol

from ...errors import DeviceError
from .engine import Engine, Queue

GRAIN = 512
"""Bytes to which sizes are rounded up: the driver's granularity for small allocations, as in PyTorch's allocator."""
MOST_KEPT = 1 << 28
"""Maximum size (bytes) of cached device memory: the results of a few calls of most models, and a small part of a
device's memory."""
DEVICE_SLAB = 8 << 20
"""Size (bytes) of a slab of device memory, from which blocks of up to half a slab are cut. So results that grow with a
cache seldom need a driver call, which takes 0.1 ms."""
CLASSES = 4
"""Size classes of larger blocks: sizes are multiples of a sixteenth to an eighth of themselves, so that similar lengths
share blocks."""
_ALIGNMENT = 256
"""Alignment of parameters and results in bytes, that of device allocations."""
_MIXED = -1
"""Order of a block with work that is not in the order of a single queue: several queues, or an unknown queue."""


class MemorySource(Protocol):
    """A source of memory: an `Engine`, or the driver's pinned host memory."""

    def allocate(self, size: int, name: str) -> int:
        """See `Engine.allocate`."""

    def free(self, address: int) -> None:
        """See `Engine.free`."""

    def synchronize(self) -> None:
        """See `Engine.synchronize`."""


class DeviceBlock:
    """A block of device memory, returned to ``kept`` when it is deleted; ``size`` in bytes is at least the requested
    size."""

    __slots__ = ("__weakref__", "_order", "address", "kept", "size")

    def __init__(self, kept: KeptBlocks, address: int, size: int) -> None:
        self.kept = kept
        self.address = address
        self.size = size
        self._order = 0

    def used_by(self, queue: Queue) -> None:
        """Record that a queue's work uses the block, and may still be running when the block is released."""
        self._order = queue.identity if self._order in (0, queue.identity) else _MIXED

    def shown(self) -> None:
        """Record that the block's address left this module, so that unknown work may use the block."""
        self._order = _MIXED

    def __del__(self) -> None:
        with contextlib.suppress(DeviceError):  # the device, and so its memory, is lost or the parent process's
            self.kept.give(self.address, self.size, self._order)


class KeptBlocks:
    """A cache of released blocks of one memory source, by size; the oldest are freed first when the cache is full."""

    def __init__(self, source: MemorySource, slab: int = 0) -> None:
        """Create the cache; blocks of up to half a ``slab`` (bytes) are cut from slabs in powers of two, and are never
        freed."""
        self._source = source
        self._slab = slab
        self._cut: set[int] = set()
        self._next = self._left = 0
        self._lock = threading.Lock()
        self._given: deque[tuple[int, int, int]] = deque()
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()  # size and order, by address
        self._fitting: dict[int, list[int]] = {}  # addresses of cached blocks, by size
        self._bytes = 0

    def take(self, size: int, name: str, queue: Queue | None = None) -> DeviceBlock:
        """Return a block for the next work of ``queue``, or of any queue if ``queue`` is None.

        Raises:
            DeviceError: there is not enough memory.
        """
        size = -(-max(size, 1) // GRAIN) * GRAIN
        in_slab = 2 * size <= self._slab
        if in_slab:
            size = 1 << (size - 1).bit_length()
        elif self._slab:
            size = -(-size // (grain := max(GRAIN, 1 << size.bit_length() >> CLASSES))) * grain
        with self._lock:
            self._settle()
            ready = self._ready(size, 0 if queue is None else queue.identity)
        if ready is not None:
            return DeviceBlock(self, ready, size)
        new = self._piece if in_slab else self._source.allocate
        try:
            return DeviceBlock(self, new(size, name), size)
        except DeviceError:
            if not self.release():
                raise
        return DeviceBlock(self, new(size, name), size)

    def _piece(self, size: int, name: str) -> int:
        """Return a new piece of a slab; a new slab replaces a slab with too little left, whose rest stays unused."""
        with self._lock:
            if self._left < size:
                self._next, self._left = self._source.allocate(self._slab, name), self._slab
            address = self._next
            self._cut.add(address)
            self._next += size
            self._left -= size
            return address

    def _ready(self, size: int, own: int) -> int | None:
        """Return a cached block, the last released first; None if there is none.

        A repeated call so gets the addresses of the call before, for which its recording was made.
        """
        fitting = self._fitting.get(size, [])
        ready = next((a for a in reversed(fitting) if self._waiting[a][1] in (0, own)), None)
        if ready is None and fitting:
            self._source.synchronize()
            self._waiting = OrderedDict((address, (other, 0)) for address, (other, _) in self._waiting.items())
            ready = fitting[0]
        if ready is not None:
            self._take_out(ready)
        return ready

    def _take_out(self, address: int) -> None:
        size, _ = self._waiting.pop(address)
        fitting = self._fitting[size]
        fitting.remove(address)
        if not fitting:
            del self._fitting[size]
        self._bytes -= size * (address not in self._cut)

    def give(self, address: int, size: int, order: int) -> None:
        """Put a block into the cache; its work, in the order of queue ``order``, may still be running."""
        self._given.append((address, size, order))
        if self._lock.acquire(blocking=False):  # else the lock's holder (maybe this thread) or the next caller settles
            try:
                self._settle()
            finally:
                self._lock.release()

    def release(self) -> bool:
        """Free all cached blocks except slabs; return whether there were any."""
        with self._lock:
            self._settle()
            found = self._bytes > 0
            while self._bytes:
                self._drop()
        return found

    def _settle(self) -> None:
        while self._given:
            address, size, order = self._given.popleft()
            self._waiting[address] = (size, order)
            self._fitting.setdefault(size, []).append(address)
            self._bytes += size * (address not in self._cut)
        while self._bytes > MOST_KEPT:
            self._drop()

    def _drop(self) -> None:
        address = next(address for address in self._waiting if address not in self._cut)
        self._take_out(address)
        self._source.free(address)


def owned(engine: Engine, size: int, name: str) -> DeviceBlock:
    """Return a block that any queue may still be using when it is released."""
    block = engine.kept.take(size, name)
    block.shown()
    return block


class Packed:
    """A layout of consecutive pieces: the ``starts`` of each in bytes, and their total ``size``."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.starts: list[int] = []
        self.size = 0
        for size in sizes:
            self.starts.append(self.size)
            self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
