"""Memory as interpreted kernels see it: every access is checked for its bounds, and for races with other threads."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple

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


class _Access(NamedTuple):
    """Bytes of an allocation, and the thread, the block, the epoch and the cluster (`Thread.kin`) that touch them."""

    part: slice
    number: int
    block: int
    epoch: int
    kin: tuple[int, int]


class Allocation:
    """Bytes that kernels may touch, with who touched each of them last."""

    def __init__(self, data: np.ndarray, name: str, shared: bool = False) -> None:
        """``data`` are bytes; ``shared`` those of one block, undefined at first. ``coming`` are the bytes that other
        blocks send: from, to, and whether a thread knows that they have come."""
        self.data = data
        self.name = name
        self.shared = shared
        self.written = np.zeros(data.size, bool) if shared else None
        self.coming: list[tuple[int, int, Callable[[Thread], bool]]] = []
        self.forget()

    def forget(self) -> None:
        """A new launch: what earlier ones did is complete."""
        shape = (3, self.data.size)
        self._writer = np.full(shape, _NOBODY, np.int64)  # thread, block, epoch
        self._reader = np.full(shape, _NOBODY, np.int64)
        self._is_written = self._is_read = False
        self._reads: list[_Access] = []

    def touch(self, start: int, size: int, who: Thread, block: int, write: bool) -> None:
        """Note an access.

        Raises:
            KernelFault: it is outside, undefined, or races with another thread's.
        """
        if start < 0 or start + size > self.data.size:
            verb = "writes" if write else "reads"
            raise KernelFault(f"{verb} bytes {start} to {start + size} of {self.name}, which has {self.data.size}")
        part = slice(start, start + size)
        if self.written is not None:
            if write:
                self.written[part] = True
            elif not self.written[part].all():
                raise KernelFault(f"reads bytes {start} to {start + size} of {self.name}, which nobody has written")
        for first, end, known in self.coming:
            if first < start + size and start < end and not known(who):
                raise KernelFault(
                    f"touches bytes {start} to {start + size} of {self.name}, to which a value is still on the way"
                )
        access = _Access(part, who.number, block, who.epoch, who.kin)
        if self._is_written:
            self._check(self._writer, access, "wrote", write)
        if not write:
            self._reads.append(access)  # who has read is asked when somebody writes, which of most memory nobody does
            return
        if self._reads:
            self._note_reads(access)
        if self._is_read:
            self._check(self._reader, access, "read", write)
        self._writer[0, part], self._writer[1, part], self._writer[2, part] = who.number, block, who.epoch
        self._is_written = True

    def _since(self, access: _Access) -> int:
        """The epoch before which all that touched this memory had passed a barrier with who does so now."""
        alone = self.shared and access.kin[1] - access.kin[0] <= 1
        return access.epoch // EPOCH * EPOCH if alone else _NOBODY

    def _note_reads(self, now: _Access) -> None:
        """Bring who has read up to an access."""
        since = self._since(now)
        for access in self._reads:
            if access.epoch < since:
                continue
            number, block = access.number, access.block
            readers = self._reader[:, access.part]
            before = _alike(readers)
            fresh = (before[0] == _NOBODY) | (before[0] == number) | _past(before, access)
            near = (before[1] == block) & _of_warp(before[0], number)
            same, kin = fresh | (before[1] == block), _of_kin(before[1], access.kin)
            readers[0] = np.where(fresh, number, np.where(near, _WARP_READERS - number // WARP, _SEVERAL))
            readers[1] = np.where(same, block, np.where(kin, _KIN_READERS - access.kin[0], _SEVERAL))
            readers[2] = access.epoch
            self._is_read = True
        self._reads.clear()

    def _check(self, touched: np.ndarray, access: _Access, did: str, write: bool) -> None:
        part = access.part
        last = touched[:, part]
        if (last[0] == _NOBODY).all() or (last[2] < self._since(access)).all():
            return
        others = (last[0] != _NOBODY) & ((last[0] != access.number) | (last[1] != access.block))
        if not others.any():
            return
        others &= ~_past(last, access)
        if others.any():
            at = int(np.argmax(others))
            number = int(last[0, at])
            whom = f"thread {number}" if number >= 0 else "several threads"
            verb = "writes" if write else "reads"
            raise KernelFault(
                f"{verb} byte {part.start + at} of {self.name}, which {whom} of block {int(last[1, at])} {did} without "
                "a barrier between"
            )


def _alike(last: np.ndarray) -> Any:
    """What is known of bytes, (3, bytes): as three numbers if it is the same of all, with which Python is quicker."""
    first = last[:, :1]
    return first.ravel().tolist() if last.size and (last == first).all() else last


def _past(last: Any, access: _Access) -> Any:
    """Which accesses, by thread, block and epoch, were before a barrier that both they and a thread have passed."""
    own = (last[2] < access.epoch) & _of_warp(last[0], access.number)
    within = (last[2] // EPOCH < access.epoch // EPOCH) | own
    past = (last[1] == access.block) & within
    first, end = access.kin
    if end - first > 1:
        steps = EPOCH * GENERATION
        past |= _of_kin(last[1], access.kin) & (last[2] // steps < access.epoch // steps)
    return past


def _of_kin(blocks: Any, kin: tuple[int, int]) -> Any:
    """Which of these, blocks or all readers of a cluster, are of a cluster (`Thread.kin`) of several."""
    first, end = kin
    return (end - first > 1) & ((blocks >= first) & (blocks < end) | (blocks == _KIN_READERS - first))


def _of_warp(numbers: Any, number: int) -> Any:
    """Which of these, threads or all readers of a warp, are of a thread's own warp."""
    warp = number // WARP
    return (numbers // WARP == warp) | (numbers == _WARP_READERS - warp)


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


@dataclass(frozen=True)
class Place:
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
        self.allocation.data[start : start + size] = np.frombuffer(values.astype(self.dtype).tobytes(), np.uint8)

    def misaligned(self, index: int, size: int) -> int:
        """Bytes by which the place of an index is off a multiple of ``size``."""
        return (self.start + int(index) * self.dtype.itemsize) % size

    def _block(self) -> int:
        return block_number(self.who.block)


def block_number(block: tuple[int, int, int]) -> int:
    """A block's number in its grid, as accesses are noted with: neighbours along the first axis follow one another."""
    x, y, z = block
    return x + (y << _X_BITS) + (z << _X_BITS + _Y_BITS)
