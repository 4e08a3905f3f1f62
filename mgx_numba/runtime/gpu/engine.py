"""What a plan needs of whatever runs its kernels: a device, or the interpreter that stands in for one."""

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
    from .blocks import KeptBlocks
    from .open_plan import PlanLaunches

__all__ = ["Engine", "Event", "Progress", "Queue", "Recording"]

Progress = Callable[[int, int, str], None]


class Event(Protocol):
    """A place in the order of a queue's work."""

    def record(self, queue: Queue) -> None:
        """Be behind all that was asked of a queue by now."""

    def done(self) -> bool:
        """Whether the device is past it."""

    def wait(self) -> None:
        """Wait until the device is past it.

        Raises:
            DeviceError: something failed.
        """


class Recording(Protocol):
    """What a queue was asked for, to be asked again at once and for little."""

    def __call__(self, queue: Queue | None = None) -> None:
        """Ask for all of it, by default the queue that recorded it; it comes after earlier calls of the same recording,
        whatever queue these went to."""

    def change(self, number: int) -> None:
        """Let later calls have what is now in the argument block that the kernel, or the library's call, of this number
        was recorded with."""


class Queue(Protocol):
    """Work in order, beside that of other queues; one thread at a time may use it, but for `upload` outside of
    `recorded`, which any number may ask for at once."""

    @property
    def identity(self) -> int:
        """What no other queue of this process has or had, but those of the same stream."""

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        """Ask for a kernel, by what `Engine.load` gave for it; ``words`` is its argument block, int64."""

    def launch_all(self, batch: Any, begin: int, end: int) -> None:
        """Ask for a range of a plan's kernels, as `Engine.batch` gave them, as their grids are now."""

    def call(self, call: BoundCall, words: np.ndarray) -> None:
        """Ask for a library's call, as `Engine.load` gave it; ``words`` as of `launch`."""

    def upload(self, address: int, source: np.ndarray) -> None:
        """Ask for a copy of contiguous host memory to the device; it is read when its turn comes."""

    def download(self, target: np.ndarray, address: int) -> None:
        """Ask for a copy of device memory to contiguous host memory."""

    def copy(self, address: int, source: int, size: int) -> None:
        """Ask for a copy of ``size`` bytes of device memory."""

    def recorded(self, ask: Callable[[], None]) -> Recording:
        """What asks again for all that ``ask`` asks of this queue; nothing is done now. Memory of the host in it is
        that of `Engine.staging`."""

    def timed(self, ask: Callable[[], None]) -> float:
        """Seconds that the device takes for what ``ask`` asks for; waits for it."""

    def follow(self, event: Event) -> None:
        """Let what is asked for from now on wait for an event."""

    def wait(self) -> None:
        """Wait until all that was asked for is done.

        Raises:
            DeviceError: something failed.
        """


class Engine(Protocol):
    """One device, of this ``number``; may be used by any number of threads. ``name`` is its vendor's, empty where times
    say nothing of a device."""

    number: int
    name: str
    kept: KeptBlocks

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Kernels, compiled if need be, as `Queue.launch` takes them, and libraries' calls as `Queue.call` does."""

    def batch(self, launches: PlanLaunches) -> Any:
        """Kernels of a plan as `Queue.launch_all` takes them."""

    def use(self) -> AbstractContextManager[None]:
        """What surrounds calls of queues and events: the device is the calling thread's meanwhile."""

    def allocate(self, size: int, name: str) -> int:
        """Address of ``size`` new bytes, a multiple of 256; ``name`` is for messages.

        Raises:
            DeviceError: there are not so many.
        """

    def free(self, address: int) -> None:
        """Give memory back; waits for what may still use it."""

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """What describes a tensor at an address to the copy engine: `TensorMap.WORDS` int64.

        Raises:
            DeviceError: there is no copy engine, or it does not take the layout.
        """

    def staging(self, size: int) -> np.ndarray:
        """Bytes of the host from which and to which copies are fastest, 64-byte aligned."""

    def registered(self, size: int) -> np.ndarray | None:
        """As `staging`, of at least 2 MiB, but this process's own memory, of which a fork has a copy; None
        where there is none."""

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether copies from a contiguous array of the host, not empty, are as fast as from `staging`."""

    def queue(self, stream: int | None = None) -> Queue:
        """A new queue, or that of a stream of the process: a handle of the driver's, 0 for its default one."""

    def event(self) -> Event:
        """A new event, which is done."""

    def synchronize(self) -> None:
        """Wait for all that was asked of any queue.

        Raises:
            DeviceError: something failed.
        """
