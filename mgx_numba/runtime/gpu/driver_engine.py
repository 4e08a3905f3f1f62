"""Code shared by the engines of CUDA and HIP, whose drivers have functions that differ only in name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_size_t, c_uint, c_void_p
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ...codegen.backend import backend
from ...codegen.gpu.kernel import NAME
from ...codegen.kernel import KernelSource
from ...codegen.store import Store
from ...dataclass import dataclass
from .device_allocator import DeviceBlock, KeptBlocks
from .engine import Progress

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE and hipHostMallocPortable
SLAB = 1 << 20
"""Size (bytes) of a slab of pinned memory, from which blocks of up to half a slab are cut: plans of many sets of
lengths need several kilobytes each."""

E = TypeVar("E")


@dataclass(frozen=True)
class DriverNames:
    """Names of a driver's functions."""

    take_pinned: str
    give_pinned: str
    create_event: str
    record_event: str
    wait_for_event: str
    elapsed: str
    destroy_event: str


class _DriverCalls(Protocol):
    def call(self, name: str, *arguments: Any) -> Any:
        """Call a driver function.

        Raises:
            DeviceError: the function fails.
        """


class _Functions(Protocol):
    @property
    def functions(self) -> dict[str, Any]:
        """Handles of the loaded functions, by symbol."""

    def function(self, symbol: str, code: bytes) -> Any:
        """Load a function from object code and return its handle."""


class _Engine(Protocol):
    """An engine with a driver; ``with use()`` makes its device the thread's current device."""

    @property
    def driver(self) -> _DriverCalls: ...

    @property
    def use(self) -> Callable[[], contextlib.AbstractContextManager[None]]: ...

    @property
    def synchronize(self) -> Callable[[], None]: ...


def functions_of(
    device: _Functions, kernels: Sequence[KernelSource], progress: Progress | None, store: Store | None
) -> list[Any]:
    """Return the handles of the kernels' functions on a device; kernels are compiled and loaded if need be."""
    loaded = device.functions
    new = {source.symbol: source for source in kernels if source.symbol not in loaded}
    for symbol, code in backend(NAME).objects(list(new.values()), progress, store).items():
        device.function(symbol, code)
    return [loaded[source.symbol] for source in kernels]


class PinnedMemory:
    """Pinned host memory, which a device accesses by itself. See `MemorySource`.

    Allocating and freeing it are system calls that lock pages, so freed memory is cached in ``kept``.
    """

    def __init__(self, engine: _Engine, names: DriverNames) -> None:
        self._engine = engine
        self._names = names
        self.synchronize = engine.synchronize
        self.kept = KeptBlocks(self, SLAB)

    def allocate(self, size: int, name: str) -> int:
        place = c_void_p()
        with self._engine.use():
            self._engine.driver.call(self._names.take_pinned, byref(place), c_size_t(max(size, 1)), c_uint(_PORTABLE))
        assert place.value is not None
        return place.value

    def free(self, address: int) -> None:
        with self._engine.use():
            self._engine.driver.call(self._names.give_pinned, c_void_p(address))

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
    def __array_interface__(self) -> dict[str, Any]:
        """The block's bytes."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._block.address, False), "version": 3}


def timed(engine: _Engine, names: DriverNames, stream: c_void_p, ask: Callable[[], None]) -> float:
    """Return the seconds between two events around the work of ``ask`` in a stream; see `Queue.timed`."""
    call = engine.driver.call
    with engine.use():
        start, end = c_void_p(), c_void_p()
        for event in (start, end):
            call(names.create_event, byref(event), c_uint(0))
        try:
            call(names.record_event, start, stream)
            ask()
            call(names.record_event, end, stream)
            call(names.wait_for_event, end)
            milliseconds = c_float()
            call(names.elapsed, byref(milliseconds), start, end)
            return milliseconds.value / 1e3
        finally:
            for event in (start, end):
                call(names.destroy_event, event)


class OpenedEngines(Generic[E]):
    """The engines of a process, one for each device number; thread-safe."""

    def __init__(self, opened: Callable[[int], E]) -> None:
        self._opened = opened
        self._engines: dict[int, E] = {}
        self._lock = threading.Lock()

    def of(self, number: int) -> E:
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
