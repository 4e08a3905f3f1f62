"""What a plan needs of whatever runs its kernels: a device, or the interpreter that stands in for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...codegen.kernel import KernelSource
from ...codegen.launch import Grid, TensorLayout
from ...codegen.store import Store

__all__ = ["Engine", "Progress", "Queue"]

Progress = Callable[[int, int, str], None]


class Queue(Protocol):
    """Work in order, beside that of other queues; one thread at a time may use it."""

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        """Ask for a kernel, by what `Engine.load` gave for it; ``words`` is its argument block, int64."""

    def upload(self, address: int, source: np.ndarray) -> None:
        """Ask for a copy of contiguous host memory to the device; it is read when its turn comes."""

    def download(self, target: np.ndarray, address: int) -> None:
        """Ask for a copy of device memory to contiguous host memory."""

    def recorded(self, ask: Callable[[], None]) -> Callable[[], None]:
        """What asks again, at once and for little, for all that ``ask`` asks of this queue; nothing is done now."""

    def timed(self, ask: Callable[[], None]) -> float:
        """Seconds that the device takes for what ``ask`` asks for; waits for it."""

    def wait(self) -> None:
        """Wait until all that was asked for is done.

        Raises:
            DeviceError: something failed.
        """


class Engine(Protocol):
    """One device; may be used by any number of threads."""

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Kernels, compiled if need be, as `Queue.launch` takes them."""

    def allocate(self, size: int, name: str) -> int:
        """Address of ``size`` new bytes, a multiple of 256; ``name`` is for messages.

        Raises:
            DeviceError: there are not so many.
        """

    def free(self, address: int) -> None:
        """Give memory back."""

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """What describes a tensor at an address to the copy engine: `TensorMap.WORDS` int64.

        Raises:
            DeviceError: there is no copy engine, or it does not take the layout.
        """

    def staging(self, size: int) -> np.ndarray:
        """Bytes of the host from which and to which copies are fastest, 64-byte aligned."""

    def queue(self) -> Queue:
        """A new queue."""
