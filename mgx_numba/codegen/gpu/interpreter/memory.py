"""Memory as interpreted kernels see it: every access is checked for its bounds, and for races with other threads."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ....dataclass import dataclass
from ....errors import MgxError
from ...launch import TensorLayout, TensorMap
from ..architecture import WARP

__all__ = ["EPOCH", "GENERATION", "Allocation", "KernelFault", "Memory", "Place", "Thread", "block_number"]

_NOBODY = -1
"""Thread number of a byte that none has touched."""
_SEVERAL = -2
"""Thread number of a byte that several have read."""
_WARP_READERS = -3
"""Less the number of a warp: several threads of it have read a byte, and no other."""
_KIN_READERS = -3
"""Less the number of a cluster's first block: several of its blocks have read a byte, and no other."""
EPOCH = 1 << 20
"""A block's epoch: barriers of a warp between two of the block are fewer."""
GENERATION = 1 << 20
"""Epochs of a block between two barriers of its cluster are fewer."""
_X_BITS, _Y_BITS = 24, 20
"""Bits of a block's number for its first two indices: interpreted grids are small."""


class KernelFault(MgxError):
    """An interpreted kernel did what no kernel may do; the message says which thread, where and what."""


@dataclass
class Thread:
    """Whose turn it is: a thread of a block, and the barriers that its block has passed: ``epoch`` of the block
    counted in steps of `EPOCH`, plus those of the thread's warp since; a barrier of its cluster begins the next
    multiple of `GENERATION` epochs. ``kin`` are the number of the first block of the cluster, or of the cooperative
    launch, and of the first one behind it."""

    block: tuple[int, int, int] = (0, 0, 0)
    index: int = 0
    number: int = 0
    epoch: int = 0
    kin: tuple[int, int] = (0, 0)


class _Visit:
    """Who touched bytes, and when: a thread or several (`_SEVERAL` and its like), the block and the epoch, and whose
    cluster (`Thread.kin`) they are of. One object stands for all accesses between two barriers."""

    __slots__ = ("block", "epoch", "kin", "number")

    def __init__(self, number: int, block: int, epoch: int, kin: tuple[int, int]) -> None:
        self.number, self.block, self.epoch, self.kin = number, block, epoch, kin


class Allocation:
    """Bytes that kernels may touch, with who touched each of them last."""

    def __init__(self, data: np.ndarray, name: str, shared: bool = False) -> None:
        """``data`` are bytes; ``shared`` those of one block, undefined at first. ``coming`` are the bytes that other
        blocks send: from, to, and whether a thread knows that they have come."""
        self.data = data
        self.name = name
        self.shared = shared
        self.written = bytearray(data.size) if shared else None
        self.coming: list[tuple[int, int, Callable[[Thread], bool]]] = []
        self.forget()

    def forget(self) -> None:
        """A new launch: what earlier ones did is complete."""
        self._writers: list[_Visit | None] | None = None  # of each byte; no list before the first access
        self._readers: list[_Visit | None] | None = None
        self._reads: list[tuple[int, int, _Visit]] = []
        self._visit = _Visit(_NOBODY, _NOBODY, _NOBODY, (0, 0))

    def define(self, start: int, end: int) -> None:
        """Note that these bytes have values, whoever wrote them."""
        if self.written is not None:
            self.written[start:end] = b"\1" * (end - start)

    def touch(self, start: int, size: int, who: Thread, block: int, write: bool) -> None:
        """Note an access.

        Raises:
            KernelFault: it is outside, undefined, or races with another thread's.
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
        if visit.number != who.number or visit.epoch != who.epoch or visit.block != block:
            visit = self._visit = _Visit(who.number, block, who.epoch, who.kin)
        if self._writers is not None:
            self._check(self._writers, start, end, visit, "wrote", write)
        if not write:
            self._reads.append(
                (start, end, visit)
            )  # who has read is asked when somebody writes; most memory nobody does
            return
        if self._reads:
            self._note_reads(visit)
        if self._readers is not None:
            self._check(self._readers, start, end, visit, "read", write)
        if self._writers is None:
            self._writers = [None] * self.data.size
        self._writers[start:end] = [visit] * size

    def _note_reads(self, now: _Visit) -> None:
        """Bring who has read up to an access."""
        alone = self.shared and now.kin[1] - now.kin[0] <= 1
        # Before this epoch, all that touched this memory had passed a barrier with who does so now.
        since = now.epoch // EPOCH * EPOCH if alone else _NOBODY
        for start, end, visit in self._reads:
            if visit.epoch < since:
                continue
            readers = self._readers
            if readers is None:
                readers = self._readers = [None] * self.data.size
            before = readers[start:end]
            known = {last: _joined(last, visit) for last in set(before)}
            readers[start:end] = [known[last] for last in before] if len(known) > 1 else [*known.values()] * len(before)
        self._reads.clear()

    def _check(self, touched: list[_Visit | None], start: int, end: int, now: _Visit, did: str, write: bool) -> None:
        racing = {last for last in set(touched[start:end]) if last is not None and last is not now and _race(last, now)}
        if not racing:
            return
        at, last = next((at, last) for at, last in enumerate(touched[start:end], start) if last in racing)
        assert last is not None
        whom = f"thread {last.number}" if last.number >= 0 else "several threads"
        verb = "writes" if write else "reads"
        raise KernelFault(
            f"{verb} byte {at} of {self.name}, which {whom} of block {last.block} {did} without a barrier between"
        )


def _race(last: _Visit, now: _Visit) -> bool:
    """Whether no barrier that both have passed lies between accesses of several threads."""
    return (last.number != now.number or last.block != now.block) and not _past(last, now)


def _joined(last: _Visit | None, now: _Visit) -> _Visit:
    """Who has read bytes when another thread reads them, too."""
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
    """Whether an access was before a barrier that both its threads and another one have passed."""
    if last.block == now.block and (
        last.epoch // EPOCH < now.epoch // EPOCH or (last.epoch < now.epoch and _of_warp(last.number, now.number))
    ):
        return True
    steps = EPOCH * GENERATION
    return _of_kin(last.block, now.kin) and last.epoch // steps < now.epoch // steps


def _of_kin(block: int, kin: tuple[int, int]) -> bool:
    """Whether a block, or all readers of a cluster, is of a cluster (`Thread.kin`) of several."""
    first, end = kin
    return end - first > 1 and (first <= block < end or block == _KIN_READERS - first)


def _of_warp(number: int, other: int) -> bool:
    """Whether a thread, or all readers of a warp, is of another thread's warp."""
    warp = other // WARP
    return number // WARP == warp or number == _WARP_READERS - warp


class Memory:
    """The allocations of a device, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[Allocation] = []
        self._maps: list[tuple[TensorLayout, int]] = []

    def add_map(self, layout: TensorLayout, address: int) -> np.ndarray:
        """Words that stand for a tensor at an address; `map_of` knows the first."""
        self._maps.append((layout, address))
        words = np.zeros(TensorMap.WORDS, np.int64)
        words[0] = len(self._maps)
        return words

    def map_of(self, number: int) -> tuple[TensorLayout, int]:
        """The tensor that a word stands for.

        Raises:
            KernelFault: none.
        """
        if not 0 < number <= len(self._maps):
            raise KernelFault(f"word {number} of an argument block describes no tensor")
        return self._maps[number - 1]

    def add(self, address: int, data: np.ndarray, name: str) -> Allocation:
        """Make bytes known at their address."""
        at = bisect.bisect_left(self._starts, address)
        allocation = Allocation(data, name)
        self._starts.insert(at, address)
        self._found.insert(at, allocation)
        return allocation

    def remove(self, address: int) -> None:
        """Forget the allocation that starts at an address."""
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address:
            raise KernelFault(f"no memory was allocated at address {address:#x}")
        del self._starts[at], self._found[at]

    def forget(self) -> None:
        """Begin a launch."""
        for allocation in self._found:
            allocation.forget()

    def find(self, address: int) -> tuple[Allocation, int]:
        """The allocation that an address lies in, and how many bytes from its start.

        Raises:
            KernelFault: there is none.
        """
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address - self._starts[at] > self._found[at].data.size:
            raise KernelFault(f"address {address:#x} lies in no memory of the device")
        return self._found[at], address - self._starts[at]


class Place(NamedTuple):
    """A typed place: ``start`` bytes into an allocation."""

    allocation: Allocation
    start: int
    dtype: np.dtype
    who: Thread

    def moved(self, elements: int) -> Place:
        """The place so many elements further."""
        return Place(self.allocation, self.start + elements * self.dtype.itemsize, self.dtype, self.who)

    def read(self, index: int, lanes: int) -> np.ndarray:
        """So many elements from an index on."""
        start, size = self.start + int(index) * self.dtype.itemsize, lanes * self.dtype.itemsize
        self.allocation.touch(start, size, self.who, self._block(), write=False)
        return np.frombuffer(self.allocation.data[start : start + size].tobytes(), self.dtype)

    def write(self, index: int, values: np.ndarray) -> None:
        """Elements from an index on."""
        start, size = self.start + int(index) * self.dtype.itemsize, values.size * self.dtype.itemsize
        self.allocation.touch(start, size, self.who, self._block(), write=True)
        data = values if values.dtype == self.dtype else values.astype(self.dtype)
        self.allocation.data[start : start + size] = np.frombuffer(data.tobytes(), np.uint8)

    def misaligned(self, index: int, size: int) -> int:
        """Bytes by which the place of an index is off a multiple of ``size``."""
        return (self.start + int(index) * self.dtype.itemsize) % size

    def _block(self) -> int:
        return block_number(self.who.block)


def block_number(block: tuple[int, int, int]) -> int:
    """A block's number in its grid, as accesses are noted with: neighbours along the first axis follow one another."""
    x, y, z = block
    return x + (y << _X_BITS) + (z << _X_BITS + _Y_BITS)
