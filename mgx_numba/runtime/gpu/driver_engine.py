"""Engines, queues and events of CUDA and HIP, whose drivers have functions that differ only in name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_size_t, c_uint, c_void_p
from typing import ClassVar, Generic, TypeVar

import numpy as np

from ...codegen.backend import backend
from ...codegen.gpu.driver.library import DriverDevice
from ...codegen.gpu.kernel import NAME
from ...codegen.kernel import KernelSource
from ...codegen.store import Store
from ...dataclass import dataclass
from ...errors import DeviceError
from .device_allocator import DeviceBlock, KeptBlocks
from .engine import Event, Progress, Queue

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE and hipHostMallocPortable
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING and hipEventDisableTiming
SLAB = 1 << 20
"""Size (bytes) of a slab of pinned memory, from which blocks of up to half a slab are cut: plans of many sets of
lengths need several kilobytes each."""

E = TypeVar("E")


@dataclass(frozen=True)
class DriverNames:
    """Names of a driver's functions."""

    take: str
    give: str
    take_pinned: str
    give_pinned: str
    create_event: str
    record_event: str
    query_event: str
    wait_for_event: str
    elapsed: str
    destroy_event: str
    follow_event: str
    wait_for_stream: str
    destroy_stream: str


class DriverEngine:
    """The part of an engine that both drivers have; see `Engine`."""

    names: ClassVar[DriverNames]

    def __init__(self, opened: DriverDevice, slab: int = 0) -> None:
        """Make the engine of a device; its memory is cut from slabs of `slab` bytes, see `KeptBlocks`."""
        self.device = opened
        self.driver = opened.driver
        self.number = opened.number
        self.name = opened.name
        self.use = opened.use
        self.synchronize = opened.synchronize
        self.kept = KeptBlocks(self, slab)
        self._pinned = PinnedMemory(self)
        self.record = self.driver.bound(self.names.record_event)
        self.wait = self.driver.bound(self.names.wait_for_stream)

    def functions_of(
        self, kernels: Sequence[KernelSource], progress: Progress | None, store: Store | None
    ) -> list[int]:
        """Return the handles of the kernels' functions on the device; kernels are compiled and loaded if need be."""
        loaded = self.device.functions
        new = {source.symbol: source for source in kernels if source.symbol not in loaded}
        for symbol, code in backend(NAME).objects(list(new.values()), progress, store).items():
            self.device.function(symbol, code)
        return [loaded[source.symbol] for source in kernels]

    def allocate(self, size: int, name: str) -> int:
        place = c_void_p()
        try:
            with self.use():
                self.driver.call(self.names.take, byref(place), c_size_t(max(size, 1)))
        except DeviceError as error:
            raise DeviceError(f"{name} of {size} bytes: {error}{self._free_bytes()}") from None
        assert place.value is not None
        return place.value

    def _free_bytes(self) -> str:
        """Return a text about the free memory, for error messages; empty where the device does not answer."""
        try:
            free, total = self.device.room()
        except DeviceError:
            return ""
        return f"; {free} of its {total} bytes are free"

    def free(self, address: int) -> None:
        with self.use():
            self.driver.call(self.names.give, c_void_p(address))

    def staging(self, size: int) -> np.ndarray:
        return self._pinned.staging(size)

    def event(self) -> DriverEvent:
        return DriverEvent(self)


class DriverEvent:
    """See `Event`."""

    def __init__(self, engine: DriverEngine) -> None:
        self._engine = engine
        self.handle = c_void_p()
        with engine.use():
            engine.driver.call(engine.names.create_event, byref(self.handle), c_uint(_NO_TIMING))

    def record(self, queue: Queue) -> None:
        assert isinstance(queue, DriverQueue)
        self._engine.record(self.handle, queue.stream)

    def done(self) -> bool:
        return self._engine.driver.succeeds(self._engine.names.query_event, self.handle)

    def wait(self) -> None:
        self._engine.driver.call(self._engine.names.wait_for_event, self.handle)

    def __del__(self) -> None:
        with contextlib.suppress(DeviceError), self._engine.use():
            self._engine.driver.call(self._engine.names.destroy_event, self.handle)


class DriverQueue:
    """The part of a queue that both drivers have; see `Queue`."""

    def __init__(self, engine: DriverEngine, stream: int | None) -> None:
        """Wrap a stream of the caller; None leaves the making of a stream to the subclass."""
        self._engine: DriverEngine = engine
        self._driver = engine.driver
        self._own = stream is None
        self.stream = c_void_p(stream or 0)

    def timed(self, ask: Callable[[], None]) -> float:
        call, names = self._driver.call, self._engine.names
        with self._engine.use():
            start, end = c_void_p(), c_void_p()
            for event in (start, end):
                call(names.create_event, byref(event), c_uint(0))
            try:
                call(names.record_event, start, self.stream)
                ask()
                call(names.record_event, end, self.stream)
                call(names.wait_for_event, end)
                milliseconds = c_float()
                call(names.elapsed, byref(milliseconds), start, end)
                return milliseconds.value / 1e3
            finally:
                for event in (start, end):
                    call(names.destroy_event, event)

    def follow(self, event: Event) -> None:
        assert isinstance(event, DriverEvent)
        self._driver.call(self._engine.names.follow_event, self.stream, event.handle, c_uint(0))

    def wait(self) -> None:
        self._engine.wait(self.stream)

    def release(self) -> None:
        """Destroy the stream."""
        with contextlib.suppress(DeviceError), self._engine.use():
            self._driver.call(self._engine.names.destroy_stream, self.stream)

    def __del__(self) -> None:
        if self._own and self.stream.value:
            self.release()


class PinnedMemory:
    """Pinned host memory, which a device accesses by itself. See `MemorySource`.

    Allocating and freeing it are system calls that lock pages, so freed memory is cached in ``kept``.
    """

    def __init__(self, engine: DriverEngine) -> None:
        self._engine = engine
        self.synchronize = engine.synchronize
        self.kept = KeptBlocks(self, SLAB)

    def allocate(self, size: int, name: str) -> int:
        place = c_void_p()
        with self._engine.use():
            self._engine.driver.call(
                self._engine.names.take_pinned, byref(place), c_size_t(max(size, 1)), c_uint(_PORTABLE)
            )
        assert place.value is not None
        return place.value

    def free(self, address: int) -> None:
        with self._engine.use():
            self._engine.driver.call(self._engine.names.give_pinned, c_void_p(address))

    def staging(self, size: int) -> np.ndarray:
        """Return pinned memory as uint8 ``[size]``, which is released with the array."""
        block = self.kept.take(size, "memory to copy from and to")
        block.shown()
        return np.asarray(_Pinned(block, size))


class _Pinned:
    """A block with NumPy's array interface, released when no array refers to it."""

    def __init__(self, block: DeviceBlock, size: int) -> None:
        self._block = block
        self._size = size

    @property
    def __array_interface__(self) -> dict[str, object]:
        """The block's bytes."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._block.address, False), "version": 3}


class OpenedEngines(Generic[E]):
    """The engines of a process, one for each device number; thread-safe."""

    def __init__(self, opened: Callable[[int], E]) -> None:
        self._opened = opened
        self._engines: dict[int, E] = {}
        self._lock = threading.Lock()

    def of(self, number: int = 0) -> E:
        """Return the engine of a device, the same object for the same number.

        Raises:
            DeviceError: the device cannot be opened.
        """
        with self._lock:
            if number not in self._engines:
                self._engines[number] = self._opened(number)
            return self._engines[number]

    def used(self) -> list[E]:
        """Return the engines that this process has used, by number."""
        with self._lock:
            return [self._engines[number] for number in sorted(self._engines)]
