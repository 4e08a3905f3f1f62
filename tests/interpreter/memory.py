"""Memory of interpreted kernels: every access is checked for bounds and for data races."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mgx_numba.codegen.launch import TensorLayout, TensorMap

from .accesses import MISALIGNED, OUTSIDE, RACES_READ, RACES_WRITE, UNDEFINED, access
from .lanes import KernelFault, Lanes, is_varying

__all__ = ["Allocation", "Memory", "Place"]


class Allocation:
    """Bytes that kernels may access, with the last accesses to each byte."""

    def __init__(self, data: np.ndarray, name: str, shared: bool = False) -> None:
        """Wrap ``data``; ``shared``: shared memory of a block, initially undefined.

        ``coming`` lists byte ranges that other blocks send, with a predicate that a thread of a block knows of their
        arrival.
        """
        self.data = data
        self.name = name
        self.written = np.zeros(data.size if shared else 0, np.uint8)
        self.coming: list[tuple[int, int, Callable[[Lanes, int], bool]]] = []
        self.forget()

    def forget(self) -> None:
        """Reset for a new launch: all earlier accesses are complete."""
        self._records: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        """Forget the accesses of blocks: they precede all later ones."""
        if self._records is not None:
            numbers, of_blocks, _ = self._records
            numbers[np.isin(of_blocks, blocks)] = 0

    def define(self, start: int, end: int) -> None:
        """Mark bytes as initialised."""
        self.written[start:end] = 1

    def access(
        self, starts: np.ndarray, size: int, who: Lanes, values: np.ndarray, write: bool,
        alignment: int = 1, numbers: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Read or write ``size`` bytes for each active thread, in the order of the threads.

        Args:
            starts: the first byte, one number or a number for each thread.
            values: bytes that are written, or the memory for those that are read: [threads or 1, size].
            alignment: the number of bytes of which each start must be a multiple.
            numbers: the threads that count as those who access, where they are not the active threads.

        Raises:
            KernelFault: an access is out of bounds or not aligned, reads undefined bytes, or races with another thread.
        """
        if self.coming:
            self._expect_arrived(starts, size, who)
        if self._records is None:  # pages that nobody touches take no memory
            shape = 2, self.data.size
            self._records = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int64)
        code, lane, at = access(
            write, self.data, self.written, *self._records, starts, size, alignment, who.active_mask(),
            who.numbers if numbers is None else numbers, who.epochs, who.place, *who.kin, values,
        )  # fmt: skip
        if code:
            start = int(starts[lane if starts.size > 1 else 0])
            raise KernelFault(self._fault(code, start, start + size, at, write, alignment), lane)

    def _fault(self, code: int, start: int, end: int, at: int, write: bool, alignment: int) -> str:
        verb = "writes" if write else "reads"
        if code == OUTSIDE:
            return f"{verb} bytes {start} to {end} of {self.name}, which has {self.data.size}"
        if code == MISALIGNED:
            return f"byte {start} of {self.name} is not at a multiple of {alignment} bytes"
        if code == UNDEFINED:
            return f"reads bytes {start} to {end} of {self.name}, which nobody has written"
        assert self._records is not None and code in (RACES_WRITE, RACES_READ)
        kind = 0 if code == RACES_WRITE else 1
        number, block = int(self._records[0][kind, at]), int(self._records[1][kind, at])
        whom = f"thread {number - 1}" if number > 0 else "several threads"
        did = "wrote" if code == RACES_WRITE else "read"
        return f"{verb} byte {at} of {self.name}, which {whom} of block {block} {did} without a barrier between"

    def _expect_arrived(self, starts: np.ndarray, size: int, who: Lanes) -> None:
        for lane in who.active():
            start = int(starts[lane if starts.size > 1 else 0])
            for first, stop, known in self.coming:
                if first < start + size and start < stop and not known(who, who.first + lane):
                    raise KernelFault(
                        f"touches bytes {start} to {start + size} of {self.name}, to which a value is still on the way",
                        lane,
                    )


class Memory:
    """The allocations of a device by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: list[Allocation] = []
        self._maps: list[tuple[TensorLayout, int]] = []
        self.arrived: dict[tuple[Allocation, int], list[int]] = {}
        """Blocks that have called ``last_block``, by counter."""

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
        self.arrived.clear()
        for allocation in self._found:
            allocation.forget()

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        """Forget the accesses of blocks in all allocations."""
        for allocation in self._found:
            allocation.forget_blocks(blocks)

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
    """A typed pointer: an allocation and a byte offset ``start``, one number or a number for each thread."""

    allocation: Allocation
    start: Any
    dtype: np.dtype
    who: Lanes

    def moved(self, elements: Any) -> Place:
        """Return the pointer ``elements`` elements further."""
        allocation, start, dtype, who = self
        return tuple.__new__(Place, (allocation, start + elements * dtype.itemsize, dtype, who))  # without a call more

    def read(self, index: Any, lanes: int, alignment: int = 1, numbers: np.ndarray | None = None) -> np.ndarray:
        """Return vectors of ``lanes`` elements from ``index``: [lanes, threads], or [lanes, 1] from one place."""
        allocation, start, dtype, who = self
        starts = _starts(start, index, dtype.itemsize)
        size = lanes * dtype.itemsize
        values = np.zeros((who.count if starts.size > 1 else 1, size), np.uint8)
        allocation.access(starts, size, who, values, False, alignment, numbers)
        return values.view(dtype).T

    def write(self, index: Any, values: np.ndarray, alignment: int = 1) -> None:
        """Write vectors [lanes, threads or 1] from ``index``."""
        allocation, start, dtype, who = self
        data = values if values.dtype == dtype else values.astype(dtype)
        starts = _starts(start, index, dtype.itemsize)
        rows = np.require(data.T, requirements=("C", "W"))
        allocation.access(starts, len(data) * dtype.itemsize, who, rows.view(np.uint8), True, alignment)

    def expect_aligned(self, index: Any, size: int) -> None:
        """Require that element ``index`` is at a multiple of ``size`` bytes, for all active threads."""
        starts = _starts(self.start, index, self.dtype.itemsize)
        wrong = (starts % size != 0) & self.who.active_mask()
        if wrong.any():
            lane = int(np.argmax(wrong))
            start = starts[lane if starts.size > 1 else 0]
            raise KernelFault(f"byte {start} of {self.allocation.name} is not at a multiple of {size} bytes", lane)

    def of_lane(self, lane: int) -> Place:
        """Return a thread's own pointer."""
        return self._replace(start=int(self.start[lane])) if is_varying(self.start) else self

    def blended(self, mask: np.ndarray, old: Place) -> Place:
        """Return this pointer for active threads (``mask``), and ``old`` for inactive threads."""
        if old.allocation is not self.allocation:
            raise KernelFault("threads that run together have pointers to different memory in one variable")
        return self._replace(start=np.where(mask, self.start, old.start))


def _starts(start: Any, index: Any, itemsize: int) -> np.ndarray:
    starts = start + index * itemsize
    return starts if isinstance(starts, np.ndarray) and starts.ndim else _one(int(starts))


@functools.lru_cache(maxsize=4096)
def _one(start: int) -> np.ndarray:
    return np.array([start], np.int64)
