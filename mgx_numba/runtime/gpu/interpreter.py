"""An engine without a device: kernels are interpreted, memory is the host's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.gpu.interpreter.memory import Memory
from ...codegen.gpu.interpreter.run import interpret
from ...codegen.kernel import KernelSource
from ...codegen.launch import Grid, TensorLayout
from ...codegen.store import Store
from ..memory import address_of, scratch
from .engine import Progress

__all__ = ["InterpreterEngine"]

_POISON = 0xA5
"""What new memory is filled with, so that reading before writing shows."""


class InterpreterEngine:
    """See `Engine`. Every access of a kernel is checked."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.lock = threading.Lock()
        self._arrays: dict[int, np.ndarray] = {}
        self._freed: deque[int] = deque()

    def load(
        self, kernels: Sequence[KernelSource], progress: Progress | None = None, store: Store | None = None
    ) -> list[Any]:
        """The kernels themselves: nothing is compiled."""
        return list(kernels)

    def allocate(self, size: int, name: str) -> int:
        """See `Engine.allocate`."""
        array = scratch(max(size, 1) + 256)
        start = -address_of(array) % 256
        data = array[start : start + size]
        data.fill(_POISON)
        address = address_of(array) + start
        with self.lock:
            self._give_back()
            self._arrays[address] = array
            self.memory.add(address, data, name)
        return address

    def free(self, address: int) -> None:
        """See `Engine.free`. A finaliser may call it in the middle of what holds the lock: then it is done later."""
        self._freed.append(address)
        if self.lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self.lock.release()

    def _give_back(self) -> None:
        while self._freed:
            address = self._freed.popleft()
            self.memory.remove(address)
            del self._arrays[address]

    def tensor_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """See `Engine.tensor_map`: the number of what the interpreter's memory knows."""
        with self.lock:
            return self.memory.add_map(layout, address)

    def staging(self, size: int) -> np.ndarray:
        """See `Engine.staging`."""
        return scratch(max(size, 1))[:size]

    def queue(self) -> InterpreterQueue:
        """See `Engine.queue`."""
        return InterpreterQueue(self)


class InterpreterQueue:
    """See `Queue`; everything is done when it is asked for."""

    def __init__(self, engine: InterpreterEngine) -> None:
        self._engine = engine

    def launch(self, function: Any, words: np.ndarray, geometry: Grid) -> None:
        """See `Queue.launch`."""
        with self._engine.lock:
            interpret(function, words.tolist(), geometry, self._engine.memory)

    def upload(self, address: int, source: np.ndarray) -> None:
        """See `Queue.upload`."""
        data, start = self._place(address)
        data[start : start + source.nbytes] = source.reshape(-1).view(np.uint8)

    def download(self, target: np.ndarray, address: int) -> None:
        """See `Queue.download`."""
        data, start = self._place(address)
        target.reshape(-1).view(np.uint8)[:] = data[start : start + target.nbytes]

    def _place(self, address: int) -> tuple[np.ndarray, int]:
        allocation, start = self._engine.memory.find(address)
        return allocation.data, start

    def recorded(self, ask: Callable[[], None]) -> Callable[[], None]:
        """See `Queue.recorded`."""
        return ask

    def timed(self, ask: Callable[[], None]) -> float:
        """See `Queue.timed`; the interpreter's time says nothing of a device's, so it is 0."""
        ask()
        return 0.0

    def wait(self) -> None:
        """See `Queue.wait`."""
