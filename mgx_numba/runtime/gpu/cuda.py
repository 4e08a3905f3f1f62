"""An NVIDIA device as an engine: its memory, streams as queues, graphs as what is recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

import numpy as np

from ...codegen.backend import backend
from ...codegen.gpu.driver.device import Device, device
from ...codegen.gpu.driver.tensor_maps import encoded
from ...codegen.gpu.kernel import NAME
from ...codegen.kernel import KernelSource
from ...codegen.launch import DYNAMIC_ALIGNMENT, Grid, TensorLayout
from ...codegen.store import Store
from ...errors import DeviceError
from ..memory import address_of
from .engine import Progress

__all__ = ["CudaEngine", "cuda_engine"]

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
MOST_PLANES = 65535
"""Blocks of a grid along its second and third axis: CUDA C++ programming guide, technical specifications."""


class CudaEngine:
    """See `Engine`."""

    def __init__(self, opened: Device) -> None:
        self.device = opened
        self.driver = opened.driver

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Handles of the kernels' functions on this device."""
        distinct = {source.symbol: source for source in kernels}
        objects = backend(NAME).objects(list(distinct.values()), progress, store)
        return [self.device.function(source.symbol, objects[source.symbol]) for source in kernels]

    def allocate(self, size: int, name: str) -> int:
        """See `Engine.allocate`."""
        self.device.use()
        place = c_void_p()
        try:
            self.driver.call("cuMemAlloc_v2", byref(place), c_size_t(max(size, 1)))
        except DeviceError as error:
            raise DeviceError(f"{name} of {size} bytes: {error}") from None
        assert place.value is not None
        return place.value

    def free(self, address: int) -> None:
        """See `Engine.free`."""
        self.device.use()
        self.driver.call("cuMemFree_v2", c_void_p(address))

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """See `Engine.tensor_map`."""
        self.device.use()
        return encoded(self.driver, layout, address)

    def staging(self, size: int) -> np.ndarray:
        """Pinned memory, which is given back with the array."""
        return _Pinned(self, size).array()

    def queue(self) -> CudaQueue:
        """See `Engine.queue`."""
        return CudaQueue(self)


class _Pinned:
    """Pinned memory of the host, given back when nothing refers to it any more."""

    def __init__(self, engine: CudaEngine, size: int) -> None:
        engine.device.use()
        self._engine = engine
        self._size = size
        place = c_void_p()
        engine.driver.call("cuMemHostAlloc", byref(place), c_size_t(max(size, 1)), c_uint(_PORTABLE))
        assert place.value is not None
        self._address = place.value

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes, as NumPy asks for them."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def array(self) -> np.ndarray:
        """The bytes as an array, which keeps them."""
        return np.asarray(self)

    def __del__(self) -> None:
        try:
            self._engine.device.use()
            self._engine.driver.call("cuMemFreeHost", c_void_p(self._address))
        except DeviceError:
            pass  # the process has been forked, or the device is lost: the memory goes with it


class CudaQueue:
    """See `Queue`: a stream."""

    def __init__(self, engine: CudaEngine) -> None:
        self._device, self._driver = engine.device, engine.driver
        self._device.use()
        self.stream = c_void_p()
        self._driver.call("cuStreamCreate", byref(self.stream), c_uint(_NON_BLOCKING))

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        """See `Queue.launch`."""
        parameters = (c_void_p * 1)(address_of(words))
        blocks, threads = geometry.blocks, geometry.threads
        if max(blocks[1:]) > MOST_PLANES:
            raise DeviceError(f"a launch of {blocks} blocks; axes 1 and 2 can have {MOST_PLANES}")
        shared = geometry.shared_bytes
        if shared:
            shared += DYNAMIC_ALIGNMENT  # kernels round up to it: the driver aligns to less
            self._device.allow_shared(function, shared)
        self._driver.call(
            "cuLaunchKernel", c_void_p(function), *map(c_uint, blocks), *map(c_uint, threads),
            c_uint(shared), self.stream, parameters, None,
        )  # fmt: skip

    def upload(self, address: int, source: np.ndarray) -> None:
        """See `Queue.upload`."""
        if source.nbytes:
            place = c_void_p(address_of(source))
            self._driver.call("cuMemcpyHtoDAsync_v2", c_void_p(address), place, c_size_t(source.nbytes), self.stream)

    def download(self, target: np.ndarray, address: int) -> None:
        """See `Queue.download`."""
        if target.nbytes:
            place = c_void_p(address_of(target))
            self._driver.call("cuMemcpyDtoHAsync_v2", place, c_void_p(address), c_size_t(target.nbytes), self.stream)

    def recorded(self, ask: Callable[[], None]) -> Callable[[], None]:
        """See `Queue.recorded`: a graph."""
        self._device.use()
        graph, executable = c_void_p(), c_void_p()
        self._driver.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        try:
            ask()
        finally:
            self._driver.call("cuStreamEndCapture", self.stream, byref(graph))
        self._driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
        self._driver.call("cuGraphDestroy", graph)
        device, driver, stream = self._device, self._driver, self.stream

        def again() -> None:
            device.use()
            driver.call("cuGraphLaunch", executable, stream)

        return again

    def timed(self, ask: Callable[[], None]) -> float:
        """See `Queue.timed`."""
        self._device.use()
        start, end = c_void_p(), c_void_p()
        for event in (start, end):
            self._driver.call("cuEventCreate", byref(event), c_uint(0))
        try:
            self._driver.call("cuEventRecord", start, self.stream)
            ask()
            self._driver.call("cuEventRecord", end, self.stream)
            self._driver.call("cuEventSynchronize", end)
            milliseconds = c_float()
            self._driver.call("cuEventElapsedTime", byref(milliseconds), start, end)
            return milliseconds.value / 1e3
        finally:
            for event in (start, end):
                self._driver.call("cuEventDestroy_v2", event)

    def wait(self) -> None:
        """See `Queue.wait`."""
        self._driver.call("cuStreamSynchronize", self.stream)


def cuda_engine(number: int = 0) -> CudaEngine:
    """The engine of a device; the same object for the same number.

    Raises:
        DeviceError: there is none.
    """
    return _engine_of(device(number))


@functools.lru_cache(maxsize=64)
def _engine_of(opened: Device) -> CudaEngine:
    return CudaEngine(opened)
