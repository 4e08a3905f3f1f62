"""Parameters that a call brings from the host, and results that it takes there.

Small ones lie side by side in pinned memory and are copied with what is recorded. Large ones have pinned memory, and a
copy, each of their own: in pieces, so that the device copies one while CPUs copy the next ones.
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
from .blocks import MOST_KEPT, DeviceBlock, Packed, owned
from .engine import Engine, Event, Queue

__all__ = ["HostParameters", "HostResults"]

LARGE = 2 << 20
"""Bytes of all parameters, or of all results, from which on there are large ones: until then, on the 16 CPUs beside an
H200, one thread takes 0.15 ms and the device 0.05, and asking for one more copy is 5 to 10 us."""
ALONE = 256 << 10
"""Bytes of a large one at least: one thread copies them in 20 us, and asking for a copy takes 5 to 10."""
PIECE, MOST_OF_A_PIECE = 2 << 20, 4 << 20
"""Bytes of a piece, and of one of much memory. From NumPy's memory to an H200 18.4 MiB take 0.75 ms in pieces of 2 MiB
by six threads, 1.2 of 1 MiB and 0.8 of 4, and 1.9 in one by one thread; 73.5 MiB 1.9 ms in pieces of 4, 2.6 of 2, and
13 in one (PCIe's share is 0.35 and 1.4)."""
MOST_THREADS = 6
"""Threads that copy: with eight nothing became faster there, with four 73.5 MiB took 2.2 ms."""
LOANS = 2
"""Arrays over memory that the device copies to by itself, of each large result: the caller has one while the next run
makes the other."""
LEAST_LENT = 2 << 20
"""Bytes of a result that is lent: those of a huge page."""

_threads = KeptThreads(allowed_cpus())  # more cannot work at once


class _Forks:
    """How often this process was forked. What callers had then is not copied to any more: their forks may share it."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._forked)

    def _forked(self) -> None:
        self.count += 1


_forks = _Forks()


def _alone(sizes: Sequence[int]) -> list[bool]:
    """Which of some parameters or results are large."""
    least = ALONE if sum(sizes) >= LARGE else sum(sizes) + 1
    return [size >= least for size in sizes]


@dataclass(frozen=True)
class _Piece:
    """Bytes of pinned memory that the device copies at once, and the ``other`` ones that the host copies from or to
    them; ``address`` is the device's, ``event`` behind a copy to the host."""

    staged: np.ndarray
    other: np.ndarray
    address: int
    event: Event | None = None


def _starts(size: int) -> range:
    """Where the pieces of so many bytes begin."""
    return range(0, size, min(max(PIECE, size // (2 * MOST_THREADS)), MOST_OF_A_PIECE))


def _threads_for(size: int) -> int:
    return max(1, min(allowed_cpus(), MOST_THREADS, size // PART_BYTES))


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


class _HostTensors:
    """Memory for parameters, or for results: on the device small ones side by side, then large ones, and pinned memory
    for the small ones; and threads that copy.

    Attributes:
        large: numbers of the large ones.
        addresses: of all on the device.
    """

    def __init__(self, engine: Engine, sizes: Sequence[int], name: str, before: _HostTensors | None = None) -> None:
        """``sizes`` in bytes; ``name`` is for messages. The memory of ``before`` is taken over if it is enough."""
        self._engine = engine
        self._memory: tuple[DeviceBlock, np.ndarray]
        alone = _alone(sizes)
        self.large = [k for k, own in enumerate(alone) if own]
        self._small = Packed([0 if own else size for own, size in zip(alone, sizes)])
        apart = Packed([size if own else 0 for own, size in zip(alone, sizes)])
        size, small = self._small.size + apart.size, self._small.size
        spare = 4 if before is not None else 0  # 16ths: lengths that grow step by step find room for a while
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
        """Let no thread copy for a call any more that was interrupted. Whether one did."""
        return self._helpers.end()


class HostParameters(_HostTensors):
    """Memory on the device for parameters that calls bring from the host; `send` copies ``large`` ones, `upload` the
    others."""

    def __init__(self, engine: Engine, sizes: Sequence[int], before: HostParameters | None = None) -> None:
        """``sizes`` in bytes are 0 of parameters that lie on the device, or that the host alone has."""
        super().__init__(engine, sizes, "the parameters", before)
        self._sizes = sizes
        self._own: dict[int, np.ndarray] = {} if before is None else before._own
        self._inputs: Sequence[Any] = ()

    def take(self, inputs: Sequence[Any]) -> None:
        """Put a call's small parameters where `upload` takes them from; `send` will take the others."""
        self._inputs = inputs
        alone = set(self.large)
        for k, (size, start) in enumerate(zip(self._sizes, self._small.starts)):
            if size and k not in alone:
                self._staged[start : start + size] = _bytes(inputs[k])

    def end(self) -> None:
        """Refer to no call's inputs any more."""
        self._inputs = ()

    def upload(self, queue: Queue) -> None:
        """Ask for the copy of the small ones."""
        queue.upload(self._block.address, self._staged)

    def send(self, numbers: Sequence[int], queue: Queue) -> None:
        """Ask for the copies of some of the large ones, from where they lie if that is pinned memory."""
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
    """Memory as NumPy wants it: as long as an array sees this, nothing else is copied there."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes."""
        return self._memory.__array_interface__


class _LargeResult:
    """A result that is copied by itself: to memory that the caller then has, or, while callers have all of that, in
    pieces to a new array."""

    def __init__(
        self, engine: Engine, size: int, address: int, lends: bool = True, staged: np.ndarray | None = None
    ) -> None:
        self._engine, self._size, self._address = engine, size, address
        self._loans: list[tuple[np.ndarray, weakref.ref[_Loan]]] = []
        self._most = LOANS if lends and LEAST_LENT <= size <= MOST_KEPT else 0
        self._forks = _forks.count
        self.staged = staged
        self._made: np.ndarray | None = None

    def bring(self, queue: Queue) -> list[_Piece]:
        """Ask for the copy; what the host has to copy then."""
        self._made = None  # of a run that has failed
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
        """Memory that no caller has."""
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
        """The bytes that the last copy has brought, which are the caller's now."""
        made, self._made = self._made, None
        assert made is not None
        return made


class HostResults(_HostTensors):
    """Memory on the device for results that go to the host; `bring` copies ``large`` ones, `download` the others."""

    def __init__(
        self, engine: Engine, sizes: Sequence[int], before: HostResults | None = None, lends: bool = True
    ) -> None:
        """``sizes`` in bytes are 0 of results that stay on the device, or that a host step makes; ``lends``: callers
        may get the memory that the device copies to."""
        super().__init__(engine, sizes, "the results", before)
        self._large_results: dict[int, _LargeResult] = {}
        for k in self.large:
            known = before._large_results.get(k) if before is not None else None
            staged = None if known is None else known.staged
            self._large_results[k] = _LargeResult(engine, sizes[k], self.addresses[k], lends, staged)

    def download(self, queue: Queue) -> None:
        """Ask for the copy of the small ones."""
        queue.download(self._staged, self._block.address)

    def bring(self, queue: Queue) -> None:
        """Ask for the copies of the large ones, and wait for as many of them as the host has to copy."""
        pieces = [piece for large in self._large_results.values() for piece in large.bring(queue)]

        if not pieces:
            return

        def brought(piece: _Piece) -> None:
            assert piece.event is not None
            with self._engine.use():
                piece.event.wait()
            np.copyto(piece.other, piece.staged)

        brought(pieces.pop(0))  # by then kernels are done: threads that wait for a device keep their CPUs busy
        on_threads(brought, pieces, _threads_for(sum(p.other.size for p in pieces)), self._helpers.helper)
        self._helpers.end()

    def result(self, number: int, spec: TensorSpec) -> np.ndarray:
        """A result that the last call has brought, as an array that is the caller's."""
        lens, dtype = spec.lens or (), numpy_dtype(spec.dtype)
        if number in self._large_results:
            return self._large_results[number].made().view(dtype).reshape(lens)
        made, start = np.empty(lens, dtype), self._small.starts[number]
        made.reshape(-1).view(np.uint8)[:] = self._staged[start : start + made.nbytes]
        return made
