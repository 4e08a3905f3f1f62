"""Memory of interpreted kernels: every access is checked for bounds and for data races."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.launch import TensorLayout, TensorMap
from mgx_numba.dataclass import dataclass
from mgx_numba.errors import MgxError

__all__ = ["EPOCH", "GENERATION", "Allocation", "KernelFault", "Memory", "Place", "Thread", "block_number"]

_NOBODY = -1
"""Thread number of an untouched byte."""
_SEVERAL = -2
"""Thread number of a byte that several threads have read."""
_WARP_READERS = -3
"""This minus a warp's number: only threads of that warp have read the byte."""
_KIN_READERS = -3
"""This minus the number of a cluster's first block: only blocks of that cluster have read the byte."""
EPOCH = 1 << 20
"""Step of a block's epoch; exceeds the warp barriers between two block barriers."""
GENERATION = 1 << 20
"""Epochs per cluster barrier; exceeds the block barriers between two cluster barriers."""
_PAGE_BITS = 10
"""Bits of a byte's place in a page: the last accesses are kept in pages, since most launches touch a small part of an
arena, and a list of a whole one takes longer to make than most kernels to run."""
_PAGE = 1 << _PAGE_BITS
_X_BITS, _Y_BITS = 24, 20
"""Bits of a block's number for its first two indices; interpreted grids are small."""


class KernelFault(MgxError):
    """Illegal behaviour of an interpreted kernel; the message names the thread, the line and the violation."""


@dataclass
class Thread:
    """The running thread, and the barriers that its block has passed.

    ``number`` is the thread's number in its block, ``place`` the block's number (`block_number`).
    ``epoch`` is the block's epoch in steps of `EPOCH` plus the warp's barriers since; a cluster barrier starts the next
    multiple of `GENERATION` epochs. ``kin`` is the range of block numbers of the cluster, or of the cooperative launch.
    """

    block: tuple[int, int, int] = (0, 0, 0)
    place: int = 0
    number: int = 0
    epoch: int = 0
    kin: tuple[int, int] = (0, 0)


class _Visit:
    """Accesses between two barriers: the thread (or `_SEVERAL` and the like), block, epoch, and cluster
    (`Thread.kin`)."""

    __slots__ = ("block", "epoch", "kin", "number")

    def __init__(self, number: int, block: int, epoch: int, kin: tuple[int, int]) -> None:
        self.number, self.block, self.epoch, self.kin = number, block, epoch, kin


_Pages = dict[int, list["_Visit | None"]]
"""The last access to each byte, by page; pages that nobody has touched are absent."""


def _pages_of(start: int, end: int) -> Sequence[tuple[int, int, int]]:
    """Return the number of each page of a range of bytes, and the places in it where the range begins and ends."""
    page = start >> _PAGE_BITS
    base = page << _PAGE_BITS
    if end - base <= _PAGE:  # as most accesses are
        return ((page, start - base, end - base),)
    bases = range(base, end, _PAGE)
    return [(base >> _PAGE_BITS, max(start - base, 0), min(end - base, _PAGE)) for base in bases]


class Allocation:
    """Bytes that kernels may access, with the last accesses to each byte."""

    def __init__(self, data: np.ndarray, name: str, shared: bool = False) -> None:
        """Wrap ``data``; ``shared``: shared memory of a block, initially undefined.

        ``coming`` lists byte ranges that other blocks send, with a predicate that a thread knows of their arrival.
        """
        self.data = data
        self._bytes = memoryview(data)
        self.name = name
        self.shared = shared
        self.written = bytearray(data.size) if shared else None
        self.coming: list[tuple[int, int, Callable[[Thread], bool]]] = []
        self.forget()

    def forget(self) -> None:
        """Reset for a new launch: all earlier accesses are complete."""
        self._writers: _Pages = {}
        self._readers: _Pages = {}
        self._reads: list[tuple[int, int, _Visit]] = []
        self._visit = _Visit(_NOBODY, _NOBODY, _NOBODY, (0, 0))

    def define(self, start: int, end: int) -> None:
        """Mark bytes as initialised."""
        if self.written is not None:
            self.written[start:end] = b"\1" * (end - start)

    def read(self, start: int, lanes: int, dtype: np.dtype, who: Thread) -> np.ndarray:
        """Return ``lanes`` elements from byte ``start``, checked by `touch`."""
        size = lanes * dtype.itemsize
        self.touch(start, size, who, write=False)
        return np.frombuffer(self._bytes[start : start + size].tobytes(), dtype)

    def write(self, start: int, values: np.ndarray, who: Thread) -> None:
        """Write elements from byte ``start``, checked by `touch`."""
        self.touch(start, values.nbytes, who, write=True)
        self._bytes[start : start + values.nbytes] = values.tobytes()

    def touch(self, start: int, size: int, who: Thread, write: bool) -> None:
        """Record an access.

        Raises:
            KernelFault: it is out of bounds, reads undefined bytes, or races with another thread.
        """
        end = start + size
        if start < 0 or end > self.data.size:
            verb = "writes" if write else "reads"
            raise KernelFault(f"{verb} bytes {start} to {end} of {self.name}, which has {self.data.size}")
        if self.written is not None:
            if write:
                self.define(start, end)
            elif self.written.find(0, start, end) >= 0:
                raise KernelFault(f"reads bytes {start} to {end} of {self.name}, which nobody has written")
        for first, stop, known in self.coming:
            if first < end and start < stop and not known(who):
                raise KernelFault(
                    f"touches bytes {start} to {end} of {self.name}, to which a value is still on the way"
                )
        visit = self._visit
        if visit.number != who.number or visit.epoch != who.epoch or visit.block != who.place:
            visit = self._visit = _Visit(who.number, who.place, who.epoch, who.kin)
        if self._writers:
            self._check(self._writers, start, end, visit, "wrote", write)
        if not write:
            self._reads.append(
                (start, end, visit)
            )  # who has read is asked when somebody writes; most memory nobody does
            return
        if self._reads:
            self._note_reads(visit)
        if self._readers:
            self._check(self._readers, start, end, visit, "read", write)
        for page, first, stop in _pages_of(start, end):
            writers = self._writers.get(page) or self._writers.setdefault(page, [None] * _PAGE)
            writers[first:stop] = [visit] * (stop - first)

    def _note_reads(self, now: _Visit) -> None:
        """Merge pending reads into the per-byte records."""
        alone = self.shared and now.kin[1] - now.kin[0] <= 1
        # Before this epoch, all that touched this memory had passed a barrier with who does so now.
        since = now.epoch // EPOCH * EPOCH if alone else _NOBODY
        for start, end, visit in self._reads:
            if visit.epoch < since:
                continue
            for page, first, stop in _pages_of(start, end):
                readers = self._readers.get(page) or self._readers.setdefault(page, [None] * _PAGE)
                before = readers[first:stop]
                known = {last: _joined(last, visit) for last in set(before)}
                alike = [*known.values()] * len(before)
                readers[first:stop] = [known[last] for last in before] if len(known) > 1 else alike
        self._reads.clear()

    def _check(self, pages: _Pages, start: int, end: int, now: _Visit, did: str, write: bool) -> None:
        for page, first, stop in _pages_of(start, end):
            touched = pages.get(page)
            if touched is None:
                continue
            found = touched[first:stop]
            last = found[0] if found else None
            alike = found.count(last) == len(found)  # most accesses are to bytes that one thread has touched together
            if alike and (last is None or last is now or not _race(last, now)):
                continue
            racing = {last for last in set(found) if last is not None and last is not now and _race(last, now)}
            for at, last in enumerate(found, (page << _PAGE_BITS) + first):
                if last is not None and last in racing:
                    whom = f"thread {last.number}" if last.number >= 0 else "several threads"
                    verb = "writes" if write else "reads"
                    raise KernelFault(
                        f"{verb} byte {at} of {self.name}, which {whom} of block {last.block} {did} without a barrier "
                        "between"
                    )


def _race(last: _Visit, now: _Visit) -> bool:
    """Return whether accesses of different threads are not separated by a barrier that both have passed."""
    return (last.number != now.number or last.block != now.block) and not _past(last, now)


def _joined(last: _Visit | None, now: _Visit) -> _Visit:
    """Return the record of bytes that an additional thread reads."""
    if last is None or last is now or (last.number == now.number and last.block == now.block) or _past(last, now):
        return now
    number = block = _SEVERAL
    if last.block == now.block:
        block = now.block
        if _of_warp(last.number, now.number):
            number = _WARP_READERS - now.number // WARP
    elif _of_kin(last.block, now.kin):
        block = _KIN_READERS - now.kin[0]
    if (number, block, now.epoch) == (last.number, last.block, last.epoch):
        return last
    return _Visit(number, block, now.epoch, now.kin)


def _past(last: _Visit, now: _Visit) -> bool:
    """Return whether an access precedes a barrier that the current thread and all threads of the access have passed."""
    if last.block == now.block and (
        last.epoch // EPOCH < now.epoch // EPOCH or (last.epoch < now.epoch and _of_warp(last.number, now.number))
    ):
        return True
    steps = EPOCH * GENERATION
    return _of_kin(last.block, now.kin) and last.epoch // steps < now.epoch // steps


def _of_kin(block: int, kin: tuple[int, int]) -> bool:
    """Return whether a block, or all readers of a cluster, belongs to the cluster ``kin`` of several blocks."""
    first, end = kin
    return end - first > 1 and (first <= block < end or block == _KIN_READERS - first)


def _of_warp(number: int, other: int) -> bool:
    """Return whether a thread, or all readers of a warp, belongs to the warp of ``other``."""
    warp = other // WARP
    return number // WARP == warp or number == _WARP_READERS - warp


class Memory:
    """The allocations of a device by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[Allocation] = []
        self._maps: list[tuple[TensorLayout, int]] = []

    def add_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """Return the words of a tensor map; the first is its number for `map_of`."""
        self._maps.append((layout, address))
        words = np.zeros(TensorMap.WORDS, np.int64)
        words[0] = len(self._maps)
        return words

    def map_of(self, number: int) -> tuple[TensorLayout, int]:
        """Return the layout and address of a tensor map.

        Raises:
            KernelFault: there is no such map.
        """
        if not 0 < number <= len(self._maps):
            raise KernelFault(f"word {number} of an argument block describes no tensor")
        return self._maps[number - 1]

    def add(self, address: int, data: np.ndarray, name: str) -> Allocation:
        """Register an allocation at its address."""
        at = bisect.bisect_left(self._starts, address)
        allocation = Allocation(data, name)
        self._starts.insert(at, address)
        self._found.insert(at, allocation)
        return allocation

    def remove(self, address: int) -> None:
        """Unregister the allocation at an address."""
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address:
            raise KernelFault(f"no memory was allocated at address {address:#x}")
        del self._starts[at], self._found[at]

    def forget(self) -> None:
        """Start a launch."""
        for allocation in self._found:
            allocation.forget()

    def find(self, address: int) -> tuple[Allocation, int]:
        """Return the allocation that contains an address, and the offset in it.

        Raises:
            KernelFault: there is none.
        """
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address - self._starts[at] > self._found[at].data.size:
            raise KernelFault(f"address {address:#x} lies in no memory of the device")
        return self._found[at], address - self._starts[at]


class Place(NamedTuple):
    """A typed pointer: an allocation and a byte offset ``start``."""

    allocation: Allocation
    start: int
    dtype: np.dtype
    who: Thread

    def moved(self, elements: int) -> Place:
        """Return the pointer ``elements`` elements further."""
        allocation, start, dtype, who = self
        return tuple.__new__(Place, (allocation, start + elements * dtype.itemsize, dtype, who))  # without a call more

    def read(self, index: int, lanes: int) -> np.ndarray:
        """Read ``lanes`` elements from ``index``."""
        return self.allocation.read(self.start + int(index) * self.dtype.itemsize, lanes, self.dtype, self.who)

    def write(self, index: int, values: np.ndarray) -> None:
        """Write elements from ``index``."""
        data = values if values.dtype == self.dtype else values.astype(self.dtype)
        self.allocation.write(self.start + int(index) * self.dtype.itemsize, data, self.who)

    def misaligned(self, index: int, size: int) -> int:
        """Return the byte offset of element ``index`` modulo ``size``."""
        return (self.start + int(index) * self.dtype.itemsize) % size


def block_number(block: tuple[int, int, int]) -> int:
    """Return a block's number in its grid; neighbours along axis 0 are consecutive."""
    x, y, z = block
    return x + (y << _X_BITS) + (z << _X_BITS + _Y_BITS)
