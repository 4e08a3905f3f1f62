"""The engine of an AMD device: its memory, streams as queues, and recordings that launch each kernel anew.

Never run on an AMD GPU: tests use a stand-in for the library.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from ctypes import byref, c_size_t, c_uint, c_void_p
from typing import Any

import numpy as np

from ...codegen.gpu.architecture import lowering_on
from ...codegen.gpu.driver.hip import hip_device
from ...codegen.gpu.libraries.calls import BoundCall
from ...codegen.kernel import KernelSource
from ...codegen.launch import DYNAMIC_ALIGNMENT, Grid, TensorLayout
from ...codegen.store import Store
from ...errors import DeviceError
from ..memory import address_of
from .driver_engine import DriverEngine, DriverEvent, DriverNames, DriverQueue, OpenedEngines
from .engine import Progress, Queue, Recording
from .open_plan import PlanLaunches

_BLOCKING_STREAM = 0  # hipStreamDefault: synchronises with the default stream
_NAMES = DriverNames(
    take="hipMalloc",
    give="hipFree",
    take_pinned="hipHostMalloc",
    give_pinned="hipHostFree",
    create_event="hipEventCreateWithFlags",
    record_event="hipEventRecord",
    query_event="hipEventQuery",
    wait_for_event="hipEventSynchronize",
    elapsed="hipEventElapsedTime",
    destroy_event="hipEventDestroy",
    follow_event="hipStreamWaitEvent",
    wait_for_stream="hipStreamSynchronize",
    destroy_stream="hipStreamDestroy",
)
_numbers = itertools.count(1)


class HipEngine(DriverEngine):
    """See `Engine`."""

    names = _NAMES

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Return the handles of the kernels' functions on this device."""
        with lowering_on(self.number):
            return self.functions_of(kernels, progress, store)

    def batch(self, launches: PlanLaunches) -> PlanLaunches:
        return launches

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        raise DeviceError(f"{self.name} has no copy engine for tensors")

    def registered(self, size: int) -> np.ndarray | None:
        """Return None: how HIP treats registered memory is untested. See `Engine.registered`."""
        return None

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return False: HIP's answers about a pointer differ by version. See `Engine.is_pinned`."""
        return False

    def queue(self, stream: int | None = None) -> HipQueue:
        return HipQueue(self, stream)


class HipRecording:
    """A recording as a list of launches, which are enqueued again; see `Recording`."""

    def __init__(self, queue: HipQueue, actions: list[Callable[[HipQueue], None]], last: DriverEvent) -> None:
        self._queue = queue
        self._actions = actions
        self._last = last

    def __call__(self, queue: Queue | None = None) -> None:
        on = queue or self._queue
        assert isinstance(on, HipQueue)
        on.follow(self._last)
        for action in self._actions:
            action(on)
        self._last.record(on)

    def change(self, number: int) -> None:
        """Do nothing: HIP reads argument blocks when a kernel is launched. See `Recording.change`."""


class HipQueue(DriverQueue):
    """A queue as a HIP stream; see `Queue`."""

    _engine: HipEngine

    def __init__(self, engine: HipEngine, stream: int | None = None) -> None:
        """Create a new stream, or wrap a stream of the process, which cannot be distinguished from an earlier stream
        with its handle."""
        super().__init__(engine, stream)
        self.identity = next(_numbers)
        self._recording: list[Callable[[HipQueue], None]] | None = None
        if self._own:
            with engine.use():
                self._driver.call("hipStreamCreateWithFlags", byref(self.stream), c_uint(_BLOCKING_STREAM))

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        if self._recording is not None:
            self._recording.append(lambda queue: queue.launch(function, words, geometry))
            return
        geometry.check()
        if geometry.cooperative:
            raise DeviceError(f"{self._engine.name}: blocks that wait for each other are launched on NVIDIA's alone")
        shared = geometry.shared_bytes + DYNAMIC_ALIGNMENT * bool(geometry.shared_bytes)  # kernels align to it
        parameters = (c_void_p * 1)(address_of(words))
        self._driver.call(
            "hipModuleLaunchKernel", c_void_p(function), *map(c_uint, geometry.blocks), *map(c_uint, geometry.threads),
            c_uint(shared), self.stream, parameters, None,
        )  # fmt: skip

    def launch_all(self, batch: PlanLaunches, begin: int, end: int) -> None:
        batch.launch_each(self._engine, self, begin, end)

    def call(self, call: BoundCall, words: np.ndarray) -> None:
        """Raise `DeviceError`: the libraries are NVIDIA's. See `Queue.call`."""
        raise DeviceError("NVIDIA's libraries have no calls on a device of AMD's")

    def upload(self, address: int, source: np.ndarray) -> None:
        self._copy("hipMemcpyHtoDAsync", address, address_of(source), source.nbytes, source)

    def download(self, target: np.ndarray, address: int) -> None:
        self._copy("hipMemcpyDtoHAsync", address_of(target), address, target.nbytes, target)

    def copy(self, address: int, source: int, size: int) -> None:
        self._copy("hipMemcpyDtoDAsync", address, source, size)

    def _copy(self, name: str, target: int, source: int, size: int, kept: object = None) -> None:
        """Enqueue a copy; a recording keeps ``kept``, the owner of the memory, alive."""
        if not size:
            return
        if self._recording is not None:
            self._recording.append(lambda queue: queue._copy(name, target, source, size, kept))
            return
        self._driver.call(name, c_void_p(target), c_void_p(source), c_size_t(size), self.stream)

    def recorded(self, ask: Callable[[], None]) -> Recording:
        actions = self._recording = []
        try:
            ask()
        finally:
            self._recording = None
        return HipRecording(self, actions, self._engine.event())


_engines = OpenedEngines(lambda number: HipEngine(hip_device(number)))
hip_engine = _engines.of
hip_engines = _engines.used
