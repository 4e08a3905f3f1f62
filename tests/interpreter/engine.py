"""The interpreter of the kernel language as an engine: runs plans without a device, and checks every access.

Work runs as late as its order allows, when a caller waits for it. So a caller that does not wait reads the previous
contents, mostly poison.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.libraries.calls import BoundCall, described
from mgx_numba.codegen.gpu.open_grids import cluster_of, open_axes
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid, TensorLayout
from mgx_numba.codegen.store import Store
from mgx_numba.core.pages import memory_owner
from mgx_numba.errors import DeviceError
from mgx_numba.runtime.gpu.device_allocator import KeptBlocks
from mgx_numba.runtime.gpu.engine import Event, Progress, Queue, Recording
from mgx_numba.runtime.gpu.engines import substituted
from mgx_numba.runtime.gpu.open_plan import PlanLaunches
from mgx_numba.runtime.memory import address_of, scratch

from .lanes import KernelFault
from .memory import Memory
from .run import interpret

__all__ = ["InterpreterEngine", "interpreted"]

_POISON = 0xA5
"""Byte that fills new memory, so that reads before writes show."""
_numbers = itertools.count(1)


@contextlib.contextmanager
def interpreted(devices: int = 1) -> Iterator[None]:
    """Substitute the interpreter for ``devices`` devices while the block runs, in this thread; no device is needed."""
    with substituted([InterpreterEngine(number) for number in range(devices)]):
        yield


class InterpreterEngine:
    """An engine that interprets kernels and checks every access; see `Engine`.

    ``calls`` makes library calls: none in general; tests have stand-ins that work on host memory.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.name = ""
        self.memory = Memory()
        self.calls: Callable[[KernelSource, int], BoundCall] = _no_calls
        self.lock = threading.RLock()
        self.kept = KeptBlocks(self)
        self._arrays: dict[int, np.ndarray] = {}
        self._pinned: dict[int, int] = {}
        self._streams: dict[int, _Stream] = {}
        self._all_streams: weakref.WeakSet[_Stream] = weakref.WeakSet()

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """Return the kernels themselves: nothing is compiled.

        Raises:
            DeviceError: a kernel is a library call, and there are no ``calls``.
        """
        return [kernel if described(kernel) is None else self.calls(kernel, self.number) for kernel in kernels]

    def batch(self, launches: PlanLaunches) -> PlanLaunches:
        return launches

    def use(self) -> AbstractContextManager[None]:
        """Return a context manager that does nothing; see `Engine.use`."""
        return contextlib.nullcontext()

    def allocate(self, size: int, name: str) -> int:
        array = scratch(max(size, 1) + 256)
        start = -address_of(array) % 256
        data = array[start : start + size]
        data.fill(_POISON)
        address = address_of(array) + start
        with self.lock:
            self._arrays[address] = array
            self.memory.add(address, data, name)
        return address

    def free(self, address: int) -> None:
        with self.lock:
            self.synchronize()
            self.memory.remove(address)
            del self._arrays[address]

    def holds(self, address: int) -> bool:
        """Return whether an address belongs to this engine's memory."""
        with self.lock, contextlib.suppress(KernelFault):
            self.memory.find(address)
            return True
        return False

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """Return the number under which the interpreter's memory stores the layout; see `Engine.tensor_map`."""
        with self.lock:
            return self.memory.add_map(layout, address)

    def staging(self, size: int) -> np.ndarray:
        made = scratch(max(size, 1))[:size]
        weakref.finalize(memory_owner(made), self._pinned.pop, address_of(made), None)
        self._pinned[address_of(made)] = size
        return made

    def registered(self, size: int) -> np.ndarray | None:
        return self.staging(size)

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return whether the array lies in memory from `staging`; see `Engine.is_pinned`."""
        first = address_of(array)
        return any(a <= first and first + array.nbytes <= a + size for a, size in list(self._pinned.items()))

    def queue(self, stream: int | None = None) -> InterpreterQueue:
        """See `Engine.queue`; any number is a stream."""
        with self.lock:
            found = _Stream(self.lock) if stream is None else self._streams.setdefault(stream, _Stream(self.lock))
            self._all_streams.add(found)
        return InterpreterQueue(self, found)

    def event(self) -> InterpreterEvent:
        return InterpreterEvent()

    def synchronize(self) -> None:
        with self.lock:
            for stream in list(self._all_streams):
                stream.advance()


def _no_calls(kernel: KernelSource, number: int) -> BoundCall:
    raise DeviceError(f"{kernel.name}: the interpreter has no libraries")


def _wider(kernel: KernelSource, geometry: Grid) -> Grid:
    """Return a grid with blocks that must do nothing, if the kernel allows them, as nodes of graphs have them."""
    blocks = list(geometry.blocks)
    for axis in [axis for axis, is_open in enumerate(open_axes(kernel)) if is_open][:1]:
        blocks[axis] += cluster_of(kernel)
    return Grid((blocks[0], blocks[1], blocks[2]), geometry.threads, geometry.shared_bytes, geometry.cooperative)


class _Stream:
    """Work that is not done yet; all of an engine's work runs under one lock."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.identity = next(_numbers)
        self._lock = lock
        self._asked: deque[tuple[int, Callable[[], None]]] = deque()
        self.asked = 0
        self._busy = False

    def ask(self, work: Callable[[], None]) -> None:
        """Add work."""
        with self._lock:
            self.asked += 1  # before the append: an interrupt in between only skips a number
            self._asked.append((self.asked, work))

    def advance(self, end: int | None = None) -> None:
        """Do the enqueued work up to the ``end``-th, or all of it; must not be called from within such work."""
        with self._lock:
            if self._busy:
                return
            try:
                self._busy = True
                while self._asked and (end is None or self._asked[0][0] <= end):
                    _, work = self._asked.popleft()
                    work()
            finally:
                self._busy = False

    def past(self, end: int) -> bool:
        """Return whether the work up to the ``end``-th is done."""
        try:
            return self._asked[0][0] > end
        except IndexError:  # no work is left
            return True


class InterpreterEvent:
    """See `Event`."""

    def __init__(self) -> None:
        self._behind: tuple[_Stream, int] | None = None

    def record(self, queue: Queue) -> None:
        assert isinstance(queue, InterpreterQueue)
        self._behind = queue.stream, queue.stream.asked

    def done(self) -> bool:
        return self._behind is None or self._behind[0].past(self._behind[1])

    def wait(self) -> None:
        self.reach()()

    def reach(self) -> Callable[[], None]:
        """Return a function that runs all work queued before the event was last recorded."""
        behind = self._behind
        return (lambda: None) if behind is None else partial(behind[0].advance, behind[1])


class InterpreterRecording:
    """See `Recording`."""

    def __init__(self, queue: InterpreterQueue, actions: list[Callable[[InterpreterQueue], None]]) -> None:
        self._queue = queue
        self._actions = actions
        self._last = InterpreterEvent()

    def __call__(self, queue: Queue | None = None) -> None:
        on = queue or self._queue
        assert isinstance(on, InterpreterQueue)
        on.follow(self._last)
        for action in self._actions:
            action(on)
        self._last.record(on)

    def change(self, number: int) -> None:
        """Do nothing: argument blocks are read when a call enqueues the kernel. See `Recording.change`."""


class InterpreterQueue:
    """A queue whose work runs when a caller waits for it; see `Queue`."""

    def __init__(self, engine: InterpreterEngine, stream: _Stream) -> None:
        self._engine = engine
        self.stream = stream
        self.identity = stream.identity
        self._recording: list[Callable[[InterpreterQueue], None]] | None = None

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        geometry.check()
        geometry = _wider(function, geometry)
        if self._recording is not None:
            self._recording.append(lambda queue: queue.launch(function, words, geometry))
            return
        memory = self._engine.memory
        self.stream.ask(partial(interpret, function, words.tolist(), geometry, memory))

    def launch_all(self, batch: PlanLaunches, begin: int, end: int) -> None:
        batch.launch_each(self._engine, self, begin, end)

    def call(self, call: BoundCall, words: np.ndarray) -> None:
        if self._recording is not None:
            self._recording.append(lambda queue: queue.call(call, words))
            return
        self.stream.ask(partial(call.enqueue, words.copy(), 0))

    def upload(self, address: int, source: np.ndarray) -> None:
        if self._recording is not None:
            self._recording.append(lambda queue: queue.upload(address, source))
            return

        def work() -> None:
            self._bytes(address, source.nbytes)[:] = source.reshape(-1).view(np.uint8)

        self.stream.ask(work)

    def download(self, target: np.ndarray, address: int) -> None:
        if self._recording is not None:
            self._recording.append(lambda queue: queue.download(target, address))
            return

        def work() -> None:
            target.reshape(-1).view(np.uint8)[:] = self._bytes(address, target.nbytes)

        self.stream.ask(work)

    def copy(self, address: int, source: int, size: int) -> None:
        if self._recording is not None:
            self._recording.append(lambda queue: queue.copy(address, source, size))
            return

        def work() -> None:
            self._bytes(address, size)[:] = self._bytes(source, size)

        self.stream.ask(work)

    def _bytes(self, address: int, size: int) -> np.ndarray:
        """Return bytes of the engine's memory.

        Raises:
            KernelFault: some of the bytes are not allocated.
        """
        allocation, start = self._engine.memory.find(address)
        if start + size > allocation.data.size:
            raise KernelFault(f"a copy of bytes {start} to {start + size} of {allocation.name} reaches outside of it")
        return allocation.data[start : start + size]

    def recorded(self, ask: Callable[[], None]) -> Recording:
        actions = self._recording = []
        try:
            ask()
        finally:
            self._recording = None
        return InterpreterRecording(self, actions)

    def timed(self, ask: Callable[[], None]) -> float:
        """Return 0, since the interpreter's time says nothing about a device's; see `Queue.timed`."""
        ask()
        self.wait()
        return 0.0

    def follow(self, event: Event) -> None:
        assert isinstance(event, InterpreterEvent)
        self.stream.ask(event.reach())

    def wait(self) -> None:
        self.stream.advance()
