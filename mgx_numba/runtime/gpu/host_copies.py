"""Copy parameters from the host to the device, and results from the device to the host.

Small tensors lie side by side in pinned memory and are copied within the recording. Each large tensor has pinned memory
and copies of its own, in pieces, so that the device copies one piece while CPUs copy the next.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.types import numpy_dtype
from ...dataclass import dataclass
from ...parallel import PART_BYTES, Helpers, KeptThreads, allowed_cpus, on_threads
from ..memory import scratch
from ..plan import TensorSpec
from .device_allocator import MOST_KEPT, DeviceBlock, Packed, owned
from .engine import Engine, Event, Queue

LARGE = 2 << 20
"""Least total size (bytes) of all parameters, or of all results, for which some are large. Below, on the 16 CPUs beside
an H200, one thread takes 0.15 ms and the device 0.05 ms, and enqueuing another copy takes 5 to 10 us."""
ALONE = 256 << 10
"""Least size (bytes) of a large tensor: one thread copies as much in 20 us, and enqueuing a copy takes 5 to 10 us."""
PIECE, MOST_OF_A_PIECE = 2 << 20, 4 << 20
"""Size (bytes) of a piece, and maximum size of a piece of a very large tensor. From NumPy's memory to an H200, six
threads copy 18.4 MiB in 0.75 ms in pieces of 2 MiB, in 1.2 ms in pieces of 1 MiB, and in 0.8 ms in pieces of 4 MiB. One
thread takes 1.9 ms in one piece. 73.5 MiB take 1.9 ms in pieces of 4 MiB, 2.6 ms in pieces of 2 MiB, and 13 ms in one
piece. PCIe's share is 0.35 ms and 1.4 ms."""
MOST_THREADS = 6
"""Maximum number of copying threads: on the same machine eight were no faster, and with four 73.5 MiB took 2.2 ms."""
LOANS = 2
"""Number of pinned arrays for each large result, to which the device copies directly: the caller holds one while the
next run fills the other."""
LEAST_DONATED = 2 << 20
"""Least size (bytes) of a result that is lent to the caller: that of a huge page."""

_threads = KeptThreads(allowed_cpus())  # more threads than CPUs do not help


class _Forks:
    """Counts the forks of this process. Memory lent to callers before a fork is not reused: forked processes may share
    it."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._forked)

    def _forked(self) -> None:
        self.count += 1


_forks = _Forks()


def _alone(sizes: Sequence[int]) -> list[bool]:
    """Return for each parameter or result whether it is large."""
    least = ALONE if sum(sizes) >= LARGE else sum(sizes) + 1
    return [size >= least for size in sizes]


@dataclass(frozen=True)
class _Piece:
    """A piece of a copy: pinned memory (``staged``) for the device, and the host memory (``other``) copied to or from
    it.

    ``address`` is on the device. ``event`` follows a copy to the host.
    """

    staged: np.ndarray
    other: np.ndarray
    address: int
    event: Event | None = None


def _starts(size: int) -> range:
    """Return the offsets of the pieces of ``size`` bytes."""
    return range(0, size, min(max(PIECE, size // (2 * MOST_THREADS)), MOST_OF_A_PIECE))


def _threads_for(size: int) -> int:
    return max(1, min(allowed_cpus(), MOST_THREADS, size // PART_BYTES))


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


class _HostTensors:
    """Device memory for parameters or results, pinned memory for the small tensors, and copying threads.

    In the device memory small tensors lie side by side, before the large tensors.

    Attributes:
        large: numbers of the large tensors.
        addresses: device addresses of all tensors.
    """

    def __init__(self, engine: Engine, sizes: Sequence[int], name: str, before: _HostTensors | None = None) -> None:
        """Allocate memory; ``sizes`` are in bytes, ``name`` is for messages. The memory of ``before`` is reused if it
        is large enough."""
        self._engine = engine
        self._memory: tuple[DeviceBlock, np.ndarray]
        alone = _alone(sizes)
        self.large = [k for k, own in enumerate(alone) if own]
        self._small = Packed([0 if own else size for own, size in zip(alone, sizes)])
        apart = Packed([size if own else 0 for own, size in zip(alone, sizes)])
        size, small = self._small.size + apart.size, self._small.size
        spare = 4 if before is not None else 0  # sixteenths of spare room, for lengths that grow step by step
        block, staging = (None, None) if before is None else before._memory
        if block is None or block.size < size:
            block = owned(engine, size + size * spare // 16, name)
        if staging is None or staging.size < small:
            staging = engine.staging(small + small * spare // 16)
        self._memory = block, staging
        self._block, self._staged = block, staging[:small]
        first = self._block.address
        self.addresses = [
            first + (self._small.size + there if own else here)
            for own, here, there in zip(alone, self._small.starts, apart.starts)
        ]
        self._helpers = Helpers(_threads)

    def stop(self) -> bool:
        """Stop the copying threads of a call that was interrupted; return whether any was running."""
        return self._helpers.end()


class HostParameters(_HostTensors):
    """Device memory for parameters that calls copy from the host; `send` copies ``large`` tensors, `upload` the
    others."""

    def __init__(self, engine: Engine, sizes: Sequence[int], before: HostParameters | None = None) -> None:
        """Allocate memory; ``sizes`` (bytes) are 0 for parameters that lie on the device, or that only the host
        holds."""
        super().__init__(engine, sizes, "the parameters", before)
        self._sizes = sizes
        self._own: dict[int, np.ndarray] = {} if before is None else before._own
        self._inputs: Sequence[Any] = ()

    def take(self, inputs: Sequence[Any]) -> None:
        """Copy a call's small parameters to the memory for `upload`; `send` copies the large parameters."""
        self._inputs = inputs
        alone = set(self.large)
        for k, (size, start) in enumerate(zip(self._sizes, self._small.starts)):
            if size and k not in alone:
                self._staged[start : start + size] = _bytes(inputs[k])

    def end(self) -> None:
        """Drop the references to a call's inputs."""
        self._inputs = ()

    def upload(self, queue: Queue) -> None:
        """Enqueue the copy of the small parameters."""
        queue.upload(self._block.address, self._staged)

    def send(self, numbers: Sequence[int], queue: Queue) -> None:
        """Enqueue copies of the large parameters with these numbers, directly from the caller's memory if it is
        pinned."""
        pieces = []
        for k in numbers:
            source, address = _bytes(self._inputs[k]), self.addresses[k]
            if self._engine.is_pinned(source):
                queue.upload(address, source)
                continue
            staged = self._own.get(k)
            if staged is None or staged.size < source.size:
                staged = self._own[k] = self._engine.staging(source.size)
            starts = _starts(source.size)
            for s in starts:
                part = source[s : s + starts.step]
                pieces.append(_Piece(staged[s : s + part.size], part, address + s))

        def sent(piece: _Piece) -> None:
            np.copyto(piece.staged, piece.other)
            with self._engine.use():
                queue.upload(piece.address, piece.staged)

        if pieces:
            on_threads(sent, pieces, _threads_for(sum(p.other.size for p in pieces)), self._helpers.helper)
            self._helpers.end()


class _Loan:
    """Memory with NumPy's array interface; while an array refers to the object, the memory is not reused."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    @property
    def __array_interface__(self) -> dict[str, object]:
        """The memory's bytes."""
        return self._memory.__array_interface__


class _LargeResult:
    """A result with a copy of its own: to pinned memory that is lent to the caller, or in pieces to a new array.

    It is copied in pieces while callers hold all of the result's pinned memory.
    """

    def __init__(
        self, engine: Engine, size: int, address: int, lends: bool = True, staged: np.ndarray | None = None
    ) -> None:
        self._engine, self._size, self._address = engine, size, address
        self._loans: list[tuple[np.ndarray, weakref.ref[_Loan]]] = []
        self._most = LOANS if lends and LEAST_DONATED <= size <= MOST_KEPT else 0
        self._forks = _forks.count
        self.staged = staged
        self._made: np.ndarray | None = None

    def copy_large(self, queue: Queue) -> list[_Piece]:
        """Enqueue the copy; return the pieces that the host then has to copy."""
        self._made = None  # left by a failed run
        loan = self._loan()
        if loan is not None:
            self._made = np.asarray(loan)
            queue.download(self._made, self._address)
            return []
        made = self._made = scratch(self._size)
        if self.staged is None or self.staged.size < self._size:
            self.staged = self._engine.staging(self._size)
        starts, pieces = _starts(self._size), []
        for s in starts:
            event, staged = self._engine.event(), self.staged[s : min(s + starts.step, self._size)]
            queue.download(staged, self._address + s)
            event.record(queue)
            pieces.append(_Piece(staged, made[s : s + starts.step], self._address + s, event))
        return pieces

    def _loan(self) -> _Loan | None:
        """Return pinned memory that no caller holds; None if there is none."""
        if self._forks != _forks.count:
            self._forks = _forks.count
            self._loans.clear()
        free = next((k for k, (_, lent) in enumerate(self._loans) if lent() is None), None)
        if free is not None:
            memory, _ = self._loans.pop(free)
        elif len(self._loans) >= self._most:
            return None
        else:
            found = self._engine.registered(self._size)
            if found is None:
                self._most = 0
                return None
            memory = found
        loan = _Loan(memory)
        self._loans.append((memory, weakref.ref(loan)))
        return loan

    def made(self) -> np.ndarray:
        """Return the bytes of the last copy, which then belong to the caller."""
        made, self._made = self._made, None
        assert made is not None
        return made


class HostResults(_HostTensors):
    """Device memory for results that are copied to the host; `copy_large` copies ``large`` tensors, `download` the
    others."""

    def __init__(
        self, engine: Engine, sizes: Sequence[int], before: HostResults | None = None, lends: bool = True
    ) -> None:
        """Allocate memory; ``sizes`` (bytes) are 0 for results that stay on the device, or that a fallback step makes.

        ``lends``: callers may get the memory to which the device copies.
        """
        super().__init__(engine, sizes, "the results", before)
        self._large_results: dict[int, _LargeResult] = {}
        for k in self.large:
            known = before._large_results.get(k) if before is not None else None
            staged = None if known is None else known.staged
            self._large_results[k] = _LargeResult(engine, sizes[k], self.addresses[k], lends, staged)

    def download(self, queue: Queue) -> None:
        """Enqueue the copy of the small results."""
        queue.download(self._staged, self._block.address)

    def copy_large(self, queue: Queue) -> None:
        """Enqueue copies of the large results, and wait for the pieces that the host has to copy."""
        pieces = [piece for large in self._large_results.values() for piece in large.copy_large(queue)]

        if not pieces:
            return

        def copy_piece(piece: _Piece) -> None:
            assert piece.event is not None
            with self._engine.use():
                piece.event.wait()
            np.copyto(piece.other, piece.staged)

        copy_piece(pieces.pop(0))  # then kernels are done: waiting for a device spins, so more threads only help now
        on_threads(copy_piece, pieces, _threads_for(sum(p.other.size for p in pieces)), self._helpers.helper)
        self._helpers.end()

    def result(self, number: int, spec: TensorSpec) -> np.ndarray:
        """Return a result of the last call, as an array of the caller."""
        lens, dtype = spec.lens or (), numpy_dtype(spec.dtype)
        if number in self._large_results:
            return self._large_results[number].made().view(dtype).reshape(lens)
        made, start = np.empty(lens, dtype), self._small.starts[number]
        made.reshape(-1).view(np.uint8)[:] = self._staged[start : start + made.nbytes]
        return made
