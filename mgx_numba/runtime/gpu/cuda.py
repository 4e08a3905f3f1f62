"""The engine of an NVIDIA device: its memory, streams as queues, graphs as recordings."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.gpu.architecture import chosen, lowering_on
from ...codegen.gpu.driver.device import Device, device
from ...codegen.gpu.driver.graphs import CallNode, CopyNode, Graph, GraphInMaking, KernelNode
from ...codegen.gpu.driver.library import Driver
from ...codegen.gpu.driver.tensor_maps import encoded
from ...codegen.gpu.libraries.calls import BoundCall, bound_call, described
from ...codegen.gpu.transfer import VECTOR_BYTES, transfer, transfer_kernel
from ...codegen.kernel import KernelSource
from ...codegen.launch import DYNAMIC_ALIGNMENT, Grid, TensorLayout
from ...codegen.store import Store
from ...core.pages import memory_owner
from ...errors import DeviceError
from ..memory import address_of, scratch
from .device_allocator import DEVICE_SLAB
from .driver_engine import DriverEngine, DriverNames, DriverQueue, OpenedEngines
from .engine import Progress, Queue, Recording
from .open_plan import PlanLaunches

if TYPE_CHECKING:
    from .cuda_batch import CudaBatch

_WITH_DEFAULT = 0  # CU_STREAM_DEFAULT: synchronises with the default stream in both directions
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE
_NAMES = DriverNames(
    take="cuMemAlloc_v2",
    give="cuMemFree_v2",
    take_pinned="cuMemHostAlloc",
    give_pinned="cuMemFreeHost",
    create_event="cuEventCreate",
    record_event="cuEventRecord",
    query_event="cuEventQuery",
    wait_for_event="cuEventSynchronize",
    elapsed="cuEventElapsedTime",
    destroy_event="cuEventDestroy_v2",
    follow_event="cuStreamWaitEvent",
    wait_for_stream="cuStreamSynchronize",
    destroy_stream="cuStreamDestroy_v2",
)
MOST_STREAMS = 64
"""Maximum number of the caller's streams that are remembered: callers have few, and a forgotten stream costs several
microseconds more. As many unused streams of our own are kept, since the driver takes longer to create a stream than to
launch a graph."""


class CudaEngine(DriverEngine):
    """See `Engine`."""

    names = _NAMES
    device: Device
    driver: Driver

    def __init__(self, opened: Device) -> None:
        super().__init__(opened, DEVICE_SLAB)
        self._stream_id = self.driver.bound("cuStreamGetId")
        self._queues: dict[int, CudaQueue] = {}
        self.transfer_function: int | None = None  # None until kernels are loaded
        self.idle_streams: deque[c_void_p] = deque()

    @property
    def overlaps(self) -> bool:
        """Return whether kernels may start before the preceding launch ends, see `Architecture.overlaps`."""
        return (chosen() or self.device.architecture).overlaps

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Return the handles of the kernels' functions on this device, and the bound calls of libraries among the
        kernels.

        The kernel that copies within recordings is loaded too.
        """
        own = [*(kernel for kernel in kernels if described(kernel) is None), transfer_kernel()]
        with lowering_on(self.number):
            loaded = dict(zip(own, self.functions_of(own, progress, store)))
        self.transfer_function = loaded[own[-1]]
        with self.use():
            return [loaded[k] if k in loaded else bound_call(k, self.number) for k in kernels]

    def batch(self, launches: PlanLaunches) -> CudaBatch:
        from .cuda_batch import CudaBatch  # late: plans from files import no compiler

        return CudaBatch(self, launches, self.overlaps)

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        with self.use():
            return encoded(self.driver, layout, address)

    def registered(self, size: int) -> np.ndarray | None:
        """See `Engine.registered`; the driver may refuse."""
        made = scratch(size)
        address = address_of(made)
        try:
            with self.use():
                self.driver.call("cuMemHostRegister_v2", c_void_p(address), c_size_t(size), c_uint(_PORTABLE))
        except DeviceError:
            return None
        weakref.finalize(memory_owner(made), self._unregister, address).atexit = False
        return made

    def _unregister(self, address: int) -> None:
        with contextlib.suppress(DeviceError), self.use():  # the device is lost, or belongs to the parent process
            self.driver.call("cuMemHostUnregister", c_void_p(address))

    def is_pinned(self, array: np.ndarray) -> bool:
        return self.device.is_pinned(address_of(array), array.nbytes)

    def queue(self, stream: int | None = None) -> CudaQueue:
        """See `Engine.queue`; returns the same object for a stream as long as the stream exists."""
        if stream is None:
            return CudaQueue(self)
        found = self._queues.get(stream)
        if found is None or found.identity != self.identity_of(found.stream):
            if len(self._queues) >= MOST_STREAMS:
                self._queues.clear()
            found = self._queues[stream] = CudaQueue(self, stream)
        return found

    def identity_of(self, stream: c_void_p) -> int:
        """Return a number that identifies a stream among all streams, including destroyed streams with the same
        handle."""
        number = c_ulonglong()
        self._stream_id(stream, byref(number))
        return number.value + 1  # the driver counts from 0


class CudaRecording:
    """A recording as a CUDA graph; see `Recording`."""

    def __init__(self, graph: Graph, queue: CudaQueue) -> None:
        self._graph = graph
        self._queue = queue

    def __call__(self, queue: Queue | None = None) -> None:
        on = queue or self._queue
        assert isinstance(on, CudaQueue)
        self._graph.launch(on.stream)

    def change(self, number: int) -> None:
        self._graph.change(number)


class CudaQueue(DriverQueue):
    """A queue as a CUDA stream; see `Queue`."""

    _engine: CudaEngine

    def __init__(self, engine: CudaEngine, stream: int | None = None) -> None:
        """Wrap a stream of the caller, or take a stream of our own, in which work of an earlier user may still
        precede."""
        super().__init__(engine, stream)
        self._device = engine.device
        self._graph: GraphInMaking | None = None
        with engine.use():
            if self._own:
                try:
                    self.stream = engine.idle_streams.pop()
                except IndexError:
                    self._driver.call("cuStreamCreate", byref(self.stream), c_uint(_WITH_DEFAULT))
            self.identity = engine.identity_of(self.stream)

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        geometry.check()
        blocks, threads = geometry.blocks, geometry.threads
        shared = geometry.shared_bytes
        if shared:
            shared += DYNAMIC_ALIGNMENT  # kernels align to it themselves: the driver aligns to less
            self._device.allow_shared(function, shared)
        if self._graph is not None:
            self._graph.kernel(KernelNode.of(function, words, geometry, shared))
            return
        parameters = (c_void_p * 1)(address_of(words))
        name, extra = ("cuLaunchCooperativeKernel", ()) if geometry.cooperative else ("cuLaunchKernel", (None,))
        self._driver.call(
            name, c_void_p(function), *map(c_uint, blocks), *map(c_uint, threads), c_uint(shared), self.stream,
            parameters, *extra,
        )  # fmt: skip

    def launch_all(self, batch: CudaBatch, begin: int, end: int) -> None:
        batch.launch(self.stream.value or 0, begin, end)

    def call(self, call: BoundCall, words: np.ndarray) -> None:
        if self._graph is not None:
            self._graph.call(CallNode(call, words))
            return
        call.enqueue(words, self.stream.value or 0)

    def upload(self, address: int, source: np.ndarray) -> None:
        size, place = source.nbytes, address_of(source)
        if not size or self._transferred(address, place, size):
            return
        if self._graph is not None:
            self._graph.copy(CopyNode.of(address, place, size, to_device=True, from_device=False))
            return
        self._driver.call("cuMemcpyHtoDAsync_v2", c_void_p(address), c_void_p(place), c_size_t(size), self.stream)

    def download(self, target: np.ndarray, address: int) -> None:
        size, place = target.nbytes, address_of(target)
        if not size or self._transferred(place, address, size):
            return
        if self._graph is not None:
            self._graph.copy(CopyNode.of(place, address, size, to_device=False, from_device=True))
            return
        self._driver.call("cuMemcpyDtoHAsync_v2", c_void_p(place), c_void_p(address), c_size_t(size), self.stream)

    def _transferred(self, target: int, source: int, size: int) -> bool:
        """Record a copy between pinned memory and the device as a kernel, if its addresses and size are whole vectors;
        return whether it is."""
        function = self._engine.transfer_function
        if self._graph is None or function is None or (target | source | size) % VECTOR_BYTES:
            return False
        words, grid = transfer(target, source, size)
        self._graph.transfer(KernelNode.of(function, words, grid, 0))
        return True

    def copy(self, address: int, source: int, size: int) -> None:
        if not size:
            return
        if self._graph is not None:
            self._graph.copy(CopyNode.of(address, source, size, to_device=True, from_device=True))
            return
        self._driver.call("cuMemcpyDtoDAsync_v2", c_void_p(address), c_void_p(source), c_size_t(size), self.stream)

    def recorded(self, ask: Callable[[], None]) -> Recording:
        """See `Queue.recorded`; records a graph."""
        with self._engine.use():
            builder = self._graph = GraphInMaking(self._device, self._engine.overlaps)
            try:
                ask()
                return CudaRecording(builder.finish(), self)
            except BaseException:
                builder.discard()
                raise
            finally:
                self._graph = None

    def release(self) -> None:
        """Keep the stream for a later queue, or destroy it."""
        if len(self._engine.idle_streams) < MOST_STREAMS and not self._driver.forked:
            self._engine.idle_streams.append(self.stream)
        else:
            super().release()


_engines = OpenedEngines(lambda number: CudaEngine(device(number)))
cuda_engine = _engines.of
cuda_engines = _engines.used
