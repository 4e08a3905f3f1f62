"""The interface of engines, which run a plan's kernels: a device, or the interpreter of the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...codegen.kernel import KernelSource
from ...codegen.launch import Grid, TensorLayout
from ...codegen.store import Store

if TYPE_CHECKING:
    from ...codegen.gpu.libraries.calls import BoundCall
    from .device_allocator import KeptBlocks
    from .open_plan import PlanLaunches

Progress = Callable[[int, int, str], None]


class Event(Protocol):
    """A point in the order of a queue's work."""

    def record(self, queue: Queue) -> None:
        """Set the event after all work enqueued so far."""

    def done(self) -> bool:
        """Return whether the device has passed the event."""

    def wait(self) -> None:
        """Wait until the device has passed the event.

        Raises:
            DeviceError: work before the event failed.
        """


class Recording(Protocol):
    """Recorded work of a queue, which can be enqueued again at once and at low cost."""

    def __call__(self, queue: Queue | None = None) -> None:
        """Enqueue the recorded work, by default on the queue that recorded it.

        It runs after earlier calls of the same recording, on whichever queue.
        """

    def change(self, number: int) -> None:
        """Make later calls use the current contents of the argument block of the kernel or library call with this
        number."""


class Queue(Protocol):
    """Work that runs in order, concurrently with other queues' work.

    Only one thread at a time may use a queue, except for `upload` outside of `recorded`, which any number of threads
    may call.
    """

    @property
    def identity(self) -> int:
        """A number that identifies the stream among all streams that this process has or had."""

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        """Enqueue a kernel by its handle from `Engine.load`; ``words`` is its argument block, int64."""

    def launch_all(self, batch: Any, begin: int, end: int) -> None:
        """Enqueue a range of a plan's kernels, prepared by `Engine.batch`, with the numbers of
        `PlanLaunches.settle`."""

    def call(self, call: BoundCall, words: np.ndarray) -> None:
        """Enqueue a library call from `Engine.load`; ``words`` is as in `launch`."""

    def upload(self, address: int, source: np.ndarray) -> None:
        """Enqueue a copy of contiguous host memory to the device; the memory is read when the copy runs."""

    def download(self, target: np.ndarray, address: int) -> None:
        """Enqueue a copy of device memory to contiguous host memory."""

    def copy(self, address: int, source: int, size: int) -> None:
        """Enqueue a copy of ``size`` bytes within device memory."""

    def recorded(self, ask: Callable[[], None]) -> Recording:
        """Return a recording of all work that ``ask`` enqueues on this queue; nothing runs now.

        Host memory in the recording must come from `Engine.staging`.
        """

    def timed(self, ask: Callable[[], None]) -> float:
        """Return the device's seconds for the work that ``ask`` enqueues; waits for the work."""

    def follow(self, event: Event) -> None:
        """Make work enqueued from now on wait for an event."""

    def wait(self) -> None:
        """Wait until all enqueued work is done.

        Raises:
            DeviceError: enqueued work failed.
        """


class Engine(Protocol):
    """The device with this ``number``; thread-safe. ``name`` is its vendor's, empty where times say nothing about a
    device."""

    number: int
    name: str
    kept: KeptBlocks

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Return the kernels, compiled if need be, as handles for `Queue.launch`, and library calls as `Queue.call`
        takes them."""

    def batch(self, launches: PlanLaunches) -> Any:
        """Return a plan's kernels in the form that `Queue.launch_all` takes."""

    def use(self) -> AbstractContextManager[None]:
        """Return a context manager for calls of queues and events, which makes the device the calling thread's current
        device."""

    def allocate(self, size: int, name: str) -> int:
        """Allocate ``size`` bytes and return their address, a multiple of 256; ``name`` is for messages.

        Raises:
            DeviceError: there is not enough memory.
        """

    def free(self, address: int) -> None:
        """Free memory, after waiting for work that may still use it."""

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """Return the tensor map that describes a tensor at an address to the copy engine: `TensorMap.WORDS` int64.

        Raises:
            DeviceError: there is no copy engine, or it does not support the layout.
        """

    def staging(self, size: int) -> np.ndarray:
        """Return pinned host memory, for fastest copies, 64-byte aligned."""

    def registered(self, size: int) -> np.ndarray | None:
        """Return the process's own memory, of at least 2 MiB, pinned for the device; None where that is not supported.

        Unlike memory from `staging`, a forked process has a copy.
        """

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return whether copies from a contiguous, non-empty host array are as fast as from `staging`."""

    def queue(self, stream: int | None = None) -> Queue:
        """Return a new queue, or the queue of a stream of the process: a driver handle, 0 for the default stream."""

    def event(self) -> Event:
        """Return a new event, which counts as done."""

    def synchronize(self) -> None:
        """Wait for all work of all queues.

        Raises:
            DeviceError: enqueued work failed.
        """
