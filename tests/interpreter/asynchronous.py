"""Asynchronous operations in interpreted kernels: mbarriers, TMA loads, warpgroup MMA.

Visibility is tracked with vector clocks: each thread has a clock with an entry for every thread and barrier of its
cluster. Arriving at a barrier merges the thread's clock into the barrier's; waiting merges it back. A TMA load is
visible to threads that know that the phase counting its bytes is complete. An MMA has read its operands once
`wgmma_wait` says so; threads that know this may overwrite them.
"""

from __future__ import annotations

import functools
from dataclasses import field
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.products import Product
from mgx_numba.codegen.launch import TensorLayout
from mgx_numba.core.types import numpy_dtype
from mgx_numba.dataclass import dataclass

from .lanes import KernelFault, Lanes
from .memory import Allocation, Memory, Place

__all__ = ["ROW", "STEP_BYTES", "WARPGROUP", "BlockAsync", "Copies", "added_products", "kept_by_tf32"]

WARPGROUP = 128
"""Threads per warpgroup."""
MOST_BARRIERS = 64
"""Most mbarriers per cluster, the barrier entries of clocks."""
ROW = 128
"""Bytes per row of a TMA box, and bytes of K per MMA call."""
PIECE = 16
"""Bytes of a row that one thread stores."""
STEP_BYTES = 32
"""Bytes of K per MMA instruction."""
_STALE = 0xFF
"""Fill value of row bytes that a TMA box does not write: NaN for floats, so that reads are noticed."""
_TF32 = np.int32(-(1 << 13))


@dataclass
class _Barrier:
    number: int
    expected: int
    pending: int
    phase: int = 0
    bytes: int = 0
    arrived: np.ndarray | None = None
    released: np.ndarray | None = None
    sent: list[tuple[Place, np.ndarray]] = field(default_factory=list)
    made: tuple[int, int] = (0, 0)


@dataclass
class _Landing:
    """Bytes that a TMA load has written; visible to threads that know that a phase of a barrier is complete."""

    allocation: Allocation
    start: int
    stop: int
    entry: int
    phase: int


@dataclass
class _Reading:
    """Bytes that an MMA reads; ``done`` is each warpgroup thread's clock when it was complete."""

    allocation: Allocation
    start: int
    stop: int
    first: int
    done: np.ndarray | None = None


@dataclass
class _Products:
    """A warpgroup's MMAs: reads of the current group, reads of committed groups, and the number of complete groups."""

    current: list[_Reading] = field(default_factory=list)
    committed: list[list[_Reading]] = field(default_factory=list)
    complete: int = 0


@dataclass
class _Stored:
    """Operand pieces that threads have stored, by piece number: the thread, its clock (0 for none), and whether a proxy
    fence followed."""

    allocation: Allocation
    thread: np.ndarray
    time: np.ndarray
    fenced: np.ndarray


class BlockAsync:
    """Barriers, pending loads and MMAs, and clocks of a cluster, whose threads are numbered consecutively over its
    blocks."""

    def __init__(self, threads: int, memory: Memory, tracks: bool) -> None:
        """Begin; ``tracks``: whether the kernel has asynchronous operations, for which clocks are needed."""
        self._threads = threads
        self._tracks = tracks
        self._memory = memory
        self._clocks = np.zeros((threads, threads + MOST_BARRIERS) if tracks else (0, 0), np.int64)
        np.fill_diagonal(self._clocks, 1)
        self._barriers: dict[tuple[int, int], _Barrier] = {}
        self._landings: list[_Landing] = []
        self._readings: list[_Reading] = []
        self._products: dict[int, _Products] = {}
        self._stored: dict[int, _Stored] = {}

    def meet(self, threads: range) -> None:
        """Merge the clocks of threads that have met at a barrier."""
        if not self._tracks:
            return
        part = slice(threads.start, threads.stop)
        self._clocks[part] = self._clocks[part].max(axis=0)
        self._clocks[np.arange(part.start, part.stop), np.arange(part.start, part.stop)] += 1

    def meet_all(self) -> None:
        """Merge the clocks of all threads."""
        self.meet(range(self._threads))

    # Barriers

    def init(self, p: Place, count: int, thread: int) -> None:
        """Interpret ``mbarrier_init``."""
        key = id(p.allocation), p.start
        if key not in self._barriers and len(self._barriers) == MOST_BARRIERS:
            raise KernelFault(f"the blocks of a cluster have more than {MOST_BARRIERS} barriers")
        if count < 1:
            raise KernelFault(f"a barrier of {count} arrivals")
        number = self._threads + len(self._barriers)
        self._barriers[key] = _Barrier(number, count, count, made=(thread, int(self._clocks[thread, thread])))

    def arrive(self, p: Place, thread: int, bytes: int = 0) -> None:
        """Interpret ``mbarrier_arrive``, or ``mbarrier_expect`` of ``bytes`` bytes."""
        barrier = self._find(p)
        if not barrier.pending:
            raise KernelFault("arrives once more than the barrier's phase has arrivals")
        self._note_arrival(barrier, self._clocks[thread], thread)
        barrier.pending -= 1
        barrier.bytes += bytes
        self._complete(barrier)

    @staticmethod
    def _note_arrival(barrier: _Barrier, clock: np.ndarray, thread: int) -> None:
        barrier.arrived = clock.copy() if barrier.arrived is None else np.maximum(barrier.arrived, clock)
        clock[thread] += 1

    def passed(self, p: Place, parity: int, threads: int | np.ndarray) -> bool:
        """Return whether ``mbarrier_wait`` is satisfied; the threads then learn the clocks of all arrivals."""
        barrier = self._find(p)
        if parity not in (0, 1):
            raise KernelFault(f"waits for parity {parity} of a barrier")
        if barrier.phase & 1 == parity:
            return False
        if barrier.released is not None:
            self._clocks[threads] = np.maximum(self._clocks[threads], barrier.released)
        return True

    def _find(self, p: Place) -> _Barrier:
        found = self._barriers.get((id(p.allocation), p.start))
        if found is None:
            raise KernelFault(f"byte {p.start} of {p.allocation.name} is no barrier")
        return found

    def _complete(self, barrier: _Barrier) -> None:
        if barrier.pending or barrier.bytes:
            return
        assert barrier.arrived is not None
        barrier.phase += 1
        for to, data in barrier.sent:
            to.allocation.data[to.start : to.start + data.size] = data
            to.allocation.define(to.start, to.start + data.size)
        barrier.sent.clear()
        barrier.released, barrier.arrived = barrier.arrived, None
        barrier.released[barrier.number] = barrier.phase
        barrier.pending = barrier.expected

    # Copies

    def load(
        self, to: Place, number: int, p: Place, place: np.ndarray, taps: tuple[int, ...], thread: int,
        early: bool = False,
    ) -> None:  # fmt: skip
        """Interpret ``tensor_load``, and with taps ``tensor_load_window``. ``early``: a multicast load of another block
        may arrive before this block expects it."""
        layout, address = self._memory.map_of(number)
        barrier = self._find(p)
        box = _window(self._memory, layout, address, place, taps) if layout.windows else _box(
            self._memory, layout, address, place
        )  # fmt: skip
        if bool(layout.windows) != bool(taps):
            raise KernelFault("a tensor map of images is loaded by tensor_load_window, others by tensor_load")
        data = box.reshape(-1, layout.box[0] * numpy_dtype(layout.dtype).itemsize)
        start, stop = to.start, to.start + len(data) * ROW
        if start % (8 * ROW):
            raise KernelFault(f"a box begins at byte {start} of {to.allocation.name}, which is no multiple of 1024")
        if stop > to.allocation.data.size:
            raise KernelFault(
                f"writes bytes {start} to {stop} of {to.allocation.name}, which has {to.allocation.data.size}"
            )
        self._check_write(to.allocation, np.array([start]), stop - start, np.array([thread]), "loads a box over")
        rows = np.arange(start, stop).reshape(-1, ROW)
        to.allocation.data[start:stop] = _STALE
        to.allocation.data[_swizzled(rows[:, : data.shape[1]])] = data
        to.allocation.define(start, stop)
        self._landings = [x for x in self._landings if not _meets(x, to.allocation, start, stop)]
        self._landings.append(_Landing(to.allocation, start, stop, barrier.number, barrier.phase + 1))
        if barrier.bytes < data.size and not early:
            raise KernelFault(f"a box of {data.size} bytes arrives where {barrier.bytes} are still expected")
        barrier.bytes -= data.size
        self._complete(barrier)

    def _check_write(
        self, allocation: Allocation, starts: np.ndarray, size: int, threads: np.ndarray, does: str
    ) -> None:
        """Check that threads may write ``size`` bytes each: no box is on the way there, and no MMA reads them."""

        def fault(hit: np.ndarray, problem: str) -> KernelFault:
            first = int(starts[np.argmax(hit)])
            return KernelFault(f"{does} bytes {first} to {first + size}{problem}", int(np.argmax(hit)))

        for landing in self._landings:
            if landing.allocation is allocation:
                hit = (landing.start < starts + size) & (starts < landing.stop)
                hit &= self._clocks[threads, landing.entry] < landing.phase
                if hit.any():
                    raise fault(hit, ", to which another box is on the way")
        kept = []
        for reading in self._readings:
            hit = (reading.start < starts + size) & (starts < reading.stop)
            if reading.allocation is not allocation or not hit.any():
                kept.append(reading)
                continue
            if reading.done is not None:
                known = self._clocks[threads, reading.first : reading.first + WARPGROUP]
                hit &= ~(known >= reading.done).any(axis=1)
            if hit.any():
                raise fault(
                    hit, f" of {allocation.name}, which warpgroup {reading.first // WARPGROUP} may still be reading"
                )
        self._readings = kept

    def send(self, to: Place, i: int, value: Any, p: Place, thread: int) -> None:
        """Interpret ``cluster_send``: visible once the phase that counts its bytes is complete."""
        barrier, place = self._find(p), to.moved(int(i))
        data = np.frombuffer(np.asarray(value, to.dtype).tobytes(), np.uint8)
        if place.start < 0 or place.start + data.size > to.allocation.data.size:
            raise KernelFault(
                f"sends bytes {place.start} to {place.start + data.size} of {to.allocation.name}, which has "
                f"{to.allocation.data.size}"
            )
        clock, (maker, when) = self._clocks[thread], barrier.made
        if clock[maker] < when:
            raise KernelFault("sends to a block before it is known to have begun, and to have made its barrier")
        self._note_arrival(barrier, clock, thread)
        barrier.sent.append((place, data))
        barrier.bytes -= data.size
        known = functools.partial(self._knows, barrier.number, barrier.phase + 1)
        to.allocation.coming.append((place.start, place.start + data.size, known))
        self._complete(barrier)

    def _knows(self, entry: int, phase: int, who: Lanes, number: int) -> bool:
        """Return whether a thread knows that a barrier's phase is complete."""
        first, end = who.kin
        thread = (who.place - first) * (self._threads // (end - first)) + number
        return bool(self._clocks[thread, entry] >= phase)

    # Operands that threads store

    def store(self, to: Place, row: Any, piece: Any, value: np.ndarray, first: int) -> None:
        """Interpret ``operand_store`` of the active threads; ``first``: number of the first thread of all."""
        lanes = np.array(to.who.active())
        begins, rows, pieces = (np.broadcast_to(x, to.who.count)[lanes] for x in (to.start, row, piece))
        name, threads, starts = to.allocation.name, first + lanes, begins + rows * ROW + pieces * PIECE
        if (begins % (8 * ROW)).any():
            raise KernelFault(f"an operand begins at byte {begins.max()} of {name}, no multiple of 1024")
        wrong = (pieces < 0) | (pieces >= ROW // PIECE) | (rows < 0) | (starts + PIECE > to.allocation.data.size)
        if wrong.any():
            n = int(np.argmax(wrong))
            raise KernelFault(
                f"there is no piece {pieces[n]} of row {rows[n]} from byte {begins[n]} of {name} on", int(lanes[n])
            )
        self._check_write(to.allocation, starts, PIECE, threads, "stores")
        own, at = self._stored.get(id(to.allocation)), starts // PIECE
        if own is None:
            times = np.zeros((2, to.allocation.data.size // PIECE), np.int64)
            own = self._stored[id(to.allocation)] = _Stored(to.allocation, *times, times[0] > 0)
        open = own.time[at] > self._clocks[threads, own.thread[at]]
        own.thread[at], own.time[at], own.fenced[at] = threads, self._clocks[threads, threads], False
        open |= own.thread[at] != threads  # several threads store one piece
        if open.any():
            n = int(np.argmax(open))
            raise KernelFault(
                f"stores bytes {starts[n]} to {starts[n] + PIECE}, which another thread may be storing", int(lanes[n])
            )
        values = np.broadcast_to(value.astype(to.dtype, copy=False), (len(value), to.who.count)).T[lanes]
        places = _swizzled(starts)[:, None] + np.arange(PIECE)  # the bytes of a piece stay together
        to.allocation.data[places] = np.ascontiguousarray(values).view(np.uint8)

    def fence(self, threads: np.ndarray) -> None:
        """Interpret ``operand_fence``."""
        for own in self._stored.values():
            own.fenced |= np.isin(own.thread, threads)

    def _read_stored(self, allocation: Allocation, start: int, stop: int, clock: np.ndarray) -> np.ndarray | None:
        """Return the mask of bytes that threads have stored, all visible to the multiplying threads; None if there are
        none."""
        own = self._stored.get(id(allocation))
        part = slice(start // PIECE, stop // PIECE)
        if own is None or not (there := own.time[part] > 0).any():
            return None
        unknown = there & (~own.fenced[part] | (clock[own.thread[part]] < own.time[part]))
        if unknown.any():
            thread = own.thread[part][int(np.argmax(unknown))]
            raise KernelFault(f"multiplies bytes {start} to {stop}, which thread {thread} may be storing")
        return np.repeat(there, PIECE)

    # Products

    def multiply(
        self, product: Product, first: int, sums: np.ndarray, a: Place | np.ndarray, b: Place, turned: int, steps: int
    ) -> tuple[np.ndarray, int]:
        """Interpret ``wgmma_<product>`` of the warpgroup with first thread ``first``.

        Args:
            sums: accumulators of 64 rows.
            a: left operand, in shared memory or in registers.
            steps: MMA instructions along K.

        Returns:
            the accumulators, and the number of the MMA group.
        """
        depth, columns = ROW // product.size, sums.shape[1]
        if isinstance(a, Place):
            a = self._operand(a, first, 64 * ROW, numpy_dtype(product.a)).reshape(64, depth)
        lines = -(-columns // depth) * depth if turned else columns  # of those that are turned boxes come whole
        right = self._operand(b, first, lines * ROW, numpy_dtype(product.b))
        if turned:
            right = right.reshape(-1, depth, depth).transpose(0, 2, 1)
        own, used = self._products[first], steps * STEP_BYTES // product.size
        right = right.reshape(lines, depth)[:columns, :used]
        return added_products(sums, a[:, :used], right), own.complete + len(own.committed) + 1

    def _operand(self, p: Place, first: int, size: int, dtype: np.dtype) -> np.ndarray:
        step = p.start % (8 * ROW)  # of the first row
        start = p.start - step
        stop = start + size
        if p.dtype != dtype or step % STEP_BYTES or step >= ROW or stop > p.allocation.data.size:
            raise KernelFault(f"no operand of {dtype} is at byte {start} of {p.allocation.name}")
        clock = self._clocks[first]
        covered = np.zeros(size, bool)
        for landing in self._landings:
            if _meets(landing, p.allocation, start, stop):
                if clock[landing.entry] < landing.phase:
                    raise KernelFault(f"multiplies bytes {start} to {stop}, to which a box is still on the way")
                covered[max(landing.start - start, 0) : landing.stop - start] = True
        stored = self._read_stored(p.allocation, start, stop, clock)
        if stored is None and not covered.any():  # columns behind the last one may have none
            raise KernelFault(f"multiplies bytes {start} to {stop} of {p.allocation.name}, to which no box has come")
        reading = _Reading(p.allocation, start, stop, first)
        self._readings.append(reading)
        self._products.setdefault(first, _Products()).current.append(reading)
        bytes = p.allocation.data[start:stop][_swizzled_offsets(size)]  # ``start`` is a multiple of 8 rows
        bytes[~(covered if stored is None else stored | covered)] = _STALE
        if step:
            rows = bytes.reshape(-1, ROW)
            bytes = np.concatenate([rows[:, step:], np.full((len(rows), step), _STALE, np.uint8)], axis=1).reshape(-1)
        found = bytes.view(dtype)
        if dtype == np.float32:
            found = kept_by_tf32(found)
        return found

    def commit(self, first: int) -> None:
        """Interpret ``wgmma_commit``."""
        own = self._products.setdefault(first, _Products())
        own.committed.append(own.current)
        own.current = []

    def wait(self, first: int, pending: int) -> int:
        """Interpret ``wgmma_wait``; return the number of the warpgroup's complete groups."""
        own = self._products.setdefault(first, _Products())
        self.meet(range(first, first + WARPGROUP))
        threads = np.arange(first, first + WARPGROUP)
        while len(own.committed) > pending:
            own.complete += 1
            for reading in own.committed.pop(0):
                reading.done = self._clocks[threads, threads].copy()
        return own.complete


def added_products(sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``sums + left @ right.T`` of matrices or stacks of them, in the accumulators' dtype; integers wrap."""
    return sums + left.astype(sums.dtype) @ right.astype(sums.dtype).swapaxes(-1, -2)


def kept_by_tf32(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers truncated to TF32."""
    return (numbers.view(np.int32) & _TF32).view(np.float32)


@dataclass
class _Copy:
    """An asynchronous copy of the threads ``mask``, each in the group of this number."""

    to: Place
    index: Any
    data: np.ndarray
    mask: np.ndarray
    groups: np.ndarray


class Copies:
    """Asynchronous copies (cp.async); they take effect when they are waited for."""

    def __init__(self, who: Lanes) -> None:
        self._who = who
        self.forget()

    def forget(self) -> None:
        """Reset for a new block."""
        self._copies: list[_Copy] = []
        self._groups = np.zeros(self._who.count, np.int64)

    def ask(self, to: Place, i: Any, source: Place, j: Any, inside: Any) -> None:
        """Interpret ``copy_async``."""
        who, lanes = self._who, 16 // to.dtype.itemsize
        to.expect_aligned(i, 16)
        data = np.zeros((lanes, who.count), to.dtype)
        branches = who.split(inside)
        if branches.then is not who.nobody:
            who.mask = branches.then
            found = source.read(j, lanes, 16)
            data = np.where(who.active_mask(), found, data)
            who.rejoin(branches.before)
        self._copies.append(_Copy(to, i, data, who.active_mask(), self._groups))

    def commit(self) -> None:
        """Interpret ``copy_commit``."""
        self._groups = self._groups + self._who.active_mask()

    def wait(self, pending: int) -> None:
        """Interpret ``copy_wait``."""
        before, kept = self._who.mask, []
        for copy in self._copies:
            ready = copy.mask & self._who.active_mask() & (copy.groups < self._groups - pending)
            if ready.any():
                self._who.mask = ready
                copy.to.write(copy.index, copy.data)
                self._who.mask = before
                copy.mask = copy.mask & ~ready
            if copy.mask.any():
                kept.append(copy)
        self._copies = kept


def _meets(known: _Landing | _Reading, allocation: Allocation, start: int, stop: int) -> bool:
    return known.allocation is allocation and known.start < stop and start < known.stop


def _swizzled(places: Any) -> Any:
    """Return the swizzled offsets of byte offsets in 128-byte rows."""
    return places ^ (places // ROW % 8 * 16)


@functools.lru_cache(maxsize=64)
def _swizzled_offsets(size: int) -> np.ndarray:
    """Return the swizzled offsets of the first ``size`` bytes; read-only."""
    offsets = _swizzled(np.arange(size))
    offsets.flags.writeable = False
    return offsets


def _box(memory: Memory, layout: TensorLayout, address: int, place: np.ndarray) -> np.ndarray:
    """Return the bytes of a box with its first element at ``place``, contiguous axis first."""
    indices = [int(p) + np.arange(n) for p, n in zip(place, layout.box)]
    return _gathered(memory, layout, address, list(np.meshgrid(*reversed(indices), indexing="ij"))[::-1])


def _window(memory: Memory, layout: TensorLayout, address: int, place: np.ndarray, taps: tuple[int, ...]) -> np.ndarray:
    """Return the bytes of an im2col box: successive filter positions, each moved by a tap."""
    windows = layout.windows
    assert windows is not None
    counts, at = [], []
    for d in (0, 1):
        last = layout.lens[1 + d] - 1 + windows.upper[d]
        counts.append((last - windows.lower[d]) // windows.steps[d] + 1)
        from_first = int(place[1 + d]) - windows.lower[d]
        if from_first % windows.steps[d] or not 0 <= from_first // windows.steps[d] < counts[d]:
            raise KernelFault(f"{int(place[1 + d])} is no position of the filter along dimension {1 + d}")
        at.append(from_first // windows.steps[d])
    flat = (int(place[3]) * counts[1] + at[1]) * counts[0] + at[0] + np.arange(layout.box[1])
    image, rest = flat // (counts[0] * counts[1]), flat % (counts[0] * counts[1])
    y = windows.lower[1] + rest // counts[0] * windows.steps[1] + taps[1]
    x = windows.lower[0] + rest % counts[0] * windows.steps[0] + taps[0]
    channels = int(place[0]) + np.arange(layout.box[0])
    return _gathered(memory, layout, address, [channels[None, :], x[:, None], y[:, None], image[:, None]])


def _gathered(memory: Memory, layout: TensorLayout, address: int, indices: list[np.ndarray]) -> np.ndarray:
    """Return the elements at ``indices`` as bytes; 0 outside the tensor."""
    dtype = numpy_dtype(layout.dtype)
    inside = np.ones(np.broadcast_shapes(*(i.shape for i in indices)), bool)
    offsets = np.zeros(inside.shape, np.int64)
    for index, length, stride in zip(indices, layout.lens, layout.strides):
        inside &= (index >= 0) & (index < length)
        offsets += index * stride
    allocation, start = memory.find(address)
    first = start + np.where(inside, offsets, 0) * dtype.itemsize
    if first.size and inside.any() and int(first[inside].max()) + dtype.itemsize > allocation.data.size:
        raise KernelFault(f"a tensor map reaches beyond {allocation.name}, which has {allocation.data.size} bytes")
    found = allocation.data[(first[..., None] + np.arange(dtype.itemsize)) * inside[..., None]]
    return (found * inside[..., None]).astype(np.uint8).reshape(-1)
