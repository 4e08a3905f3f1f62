"""Memory that is given back when nothing refers to it, and kept a while for the next that want as much: a device's, and
what of the host's a device copies from and to.

A driver's own allocation and release wait for all work of a device, so what each call needs anew is kept here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol

from ...errors import DeviceError
from .engine import Engine, Queue

__all__ = ["DeviceBlock", "KeptBlocks", "MemorySource", "Packed", "owned"]

GRAIN = 512
"""Bytes that sizes are rounded up to: the driver's own grain for small allocations, as PyTorch's allocator has it."""
MOST_KEPT = 1 << 28
"""Bytes of a device that are kept: results of a few calls of most models, and little of what a device has."""
DEVICE_SLAB = 8 << 20
"""Bytes of a device that are taken at once for blocks of up to half of it: for results that grow with a cache the
driver is asked seldom, which takes 0.1 ms."""
CLASSES = 4
"""Sizes of larger blocks are multiples of a sixteenth to an eighth of them, so that those of near lengths are alike."""
_ALIGNMENT = 256
"""Bytes that parameters and results start at multiples of, as allocations of a device do."""
_MIXED = -1
"""Work on a block that is not in the order of one queue: several, or one that is not known."""


class MemorySource(Protocol):
    """What has memory: an `Engine`, or the driver's memory of the host."""

    def allocate(self, size: int, name: str) -> int:
        """See `Engine.allocate`."""

    def free(self, address: int) -> None:
        """See `Engine.free`."""

    def synchronize(self) -> None:
        """See `Engine.synchronize`."""


class DeviceBlock:
    """Memory that a device works on. ``kept`` gets it back; ``address`` and ``size`` in bytes, at least those that were
    asked for."""

    __slots__ = ("__weakref__", "_order", "address", "kept", "size")

    def __init__(self, kept: KeptBlocks, address: int, size: int) -> None:
        self.kept = kept
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
            self.kept.give(self.address, self.size, self._order)


class KeptBlocks:
    """Memory of one source that nothing refers to, by size; the oldest goes first where it becomes too much."""

    def __init__(self, source: MemorySource, slab: int = 0) -> None:
        """Blocks of up to half a ``slab``, in bytes, are powers of two that slabs are cut into; those stay."""
        self._source = source
        self._slab = slab
        self._cut: set[int] = set()
        self._next = self._left = 0
        self._lock = threading.Lock()
        self._given: deque[tuple[int, int, int]] = deque()
        self._waiting: OrderedDict[int, tuple[int, int]] = OrderedDict()  # size and order, by address
        self._fitting: dict[int, list[int]] = {}  # addresses of those of a size
        self._bytes = 0

    def take(self, size: int, name: str, queue: Queue | None = None) -> DeviceBlock:
        """A block for work that is asked of ``queue`` next, or of any queue if that is None.

        Raises:
            DeviceError: there is not so much memory.
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
        """A new piece of a slab; what is left of one that has too little is for nobody."""
        with self._lock:
            if self._left < size:
                self._next, self._left = self._source.allocate(self._slab, name), self._slab
            address = self._next
            self._cut.add(address)
            self._next += size
            self._left -= size
            return address

    def _ready(self, size: int, own: int) -> int | None:
        """A block that waits, the last that was given back first: a call that is repeated so has the addresses of the
        one before, which its recording knows."""
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
        """Keep the memory of a block, on which work in this order may not be done."""
        self._given.append((address, size, order))
        if self._lock.acquire(blocking=False):  # else whoever has it, perhaps this thread, or the next one settles
            try:
                self._settle()
            finally:
                self._lock.release()

    def release(self) -> bool:
        """Give all of it back to the driver, but for slabs; whether there was any."""
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
    """Memory that any queue may still work on when it is given back."""
    block = engine.kept.take(size, name)
    block.shown()
    return block


class Packed:
    """Places one after the other: ``starts`` of each in bytes, and their ``size`` together."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.starts: list[int] = []
        self.size = 0
        for size in sizes:
            self.starts.append(self.size)
            self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
