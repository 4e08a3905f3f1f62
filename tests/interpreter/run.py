"""Run a kernel's text: groups of threads are coroutines that stop where threads wait for others.

A group is a block, or a warpgroup of a kernel whose warpgroups have different tasks. Its threads run in lockstep: while
a thread waits in a branch, the group's other threads wait for the branch to end.

``barrier`` waits for all threads of the block, others for the cluster or the grid, ``mbarrier_wait`` for a phase. All
participants must be at the same call in the text. Divergence, out-of-bounds accesses and races are reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid
from mgx_numba.core.types import numpy_dtype
from mgx_numba.errors import MgxError

from .asynchronous import WARPGROUP, BlockAsync, Copies
from .collectives import collective_names
from .lanes import GENERATION, KernelFault, Lanes, StuckFault, is_varying, of_lane
from .memory import Allocation, Memory, Place
from .names import DTYPES, elementwise_names, memory_names
from .translate import translated
from .warpgroups import add_sums, finite_sums, fma_sums, scale_sums, sums_in_turns, sums_part, wgmma_zero

__all__ = ["interpret"]

_OF_BLOCKS = ("cluster_barrier", "cluster_wait", "grid_barrier")
"""Functions at which all threads of all co-scheduled blocks meet."""
_ASYNCHRONOUS = ("mbarrier_", "wgmma_", "operand_store", "tensor_load", "cluster_send")
"""Parts of a text that has asynchronous operations."""
_OF_WARPGROUPS = ("mbarrier_wait", "wgmma_")
"""Parts of a text whose warpgroups have different tasks: one runs while another waits."""
_Steps = Generator[tuple[str, int, tuple[Any, ...]], Any, None]
"""A group's coroutine: it yields the function at which the threads wait, its line, and the operands."""


def interpret(source: KernelSource, args: Sequence[int], geometry: Grid, memory: Memory) -> None:
    """Run a launch to its end; ``args`` are the words of its argument block.

    Raises:
        KernelFault: a thread behaved illegally.
    """
    memory.forget()
    filename = f"<{source.name}>"
    code = translated(source.text, filename)
    defined = dict(elementwise_names())
    exec(code, defined)
    if defined["THREADS"] != geometry.threads[0] or geometry.threads[1:] != (1, 1):
        raise KernelFault(
            f"{source.name} is launched with {geometry.threads} threads a block; it is for {defined['THREADS']}"
        )
    if len(args) > defined["SLOTS"]:
        raise KernelFault(f"{source.name} is launched with {len(args)} arguments; it has {defined['SLOTS']}")
    count = defined.get("CLUSTER", 1)
    if geometry.blocks[0] % count:
        raise KernelFault(f"{source.name} is launched with {geometry.blocks} blocks, in clusters of {count}")
    together = geometry.blocks[0] if geometry.cooperative else count
    if geometry.cooperative and (geometry.blocks[1:] != (1, 1) or count > 1):
        raise KernelFault(
            f"{source.name} is launched with {geometry.blocks} cooperative blocks in clusters of {count}; expected "
            "blocks along one axis, without clusters"
        )
    lines = source.text.splitlines()
    states: list[_BlockState] = []
    for _ in range(0, together, count):
        cluster: list[_BlockState] = []
        for rank in range(count):
            cluster.append(_BlockState(memory, geometry, rank, cluster, source.text))
        states += cluster
    blocks = [_RunningBlock(source.name, lines, filename, code, args, state) for state in states]
    tracks = any(name in source.text for name in _ASYNCHRONOUS)
    for z in range(geometry.blocks[2]):
        for y in range(geometry.blocks[1]):
            for x in range(0, geometry.blocks[0], together):
                syncs = [BlockAsync(count * geometry.threads[0], memory, tracks) for _ in range(0, together, count)]
                for n, block in enumerate(blocks):
                    block.begin((x + n, y, z), syncs[n // count], (x, x + together))
                with np.errstate(all="ignore"):  # once for all names: it takes as long as a vector's sum
                    _run_together(blocks, syncs)


class _BlockState:
    """State of a block that functions refer to: its threads, shared memory, asynchronous operations.

    Attributes:
        rank: index in its cluster ``cluster``.
        first: number of its first thread in the cluster.
        groups: the threads that run together.
        shared: static shared memory by the line that declares it.
        dynamic: dynamic shared memory.
    """

    def __init__(
        self, memory: Memory, geometry: Grid, rank: int, cluster: Sequence[_BlockState], text: str
    ) -> None:  # fmt: skip
        self.memory = memory
        self.threads = geometry.threads[0]
        self.cooperative = geometry.cooperative
        self.rank, self.cluster = rank, cluster
        self.first = rank * self.threads
        size = WARPGROUP if any(name in text for name in _OF_WARPGROUPS) else self.threads
        starts = range(0, self.threads, size)
        self.groups = [Lanes(start, min(size, self.threads - start)) for start in starts]
        self.copies = [Copies(group) for group in self.groups]
        self._geometry = geometry

    def there(self, place: Place, rank: int) -> Place:
        """Return the pointer to the same shared memory of block ``rank``.

        Raises:
            KernelFault: the block does not exist, or has not declared this memory yet.
        """
        if not 0 <= rank < len(self.cluster):
            raise KernelFault(f"a cluster of {len(self.cluster)} blocks has no block {rank}")
        other = self.cluster[rank]
        lines = [line for line, own in self.shared.items() if own is place.allocation]
        if place.allocation is not self.dynamic and (not lines or lines[0] not in other.shared):
            raise KernelFault(f"{place.allocation.name} is not in block {rank} of the cluster")
        return place._replace(allocation=other.shared[lines[0]] if lines else other.dynamic)

    def begin(self, block: tuple[int, int, int], sync: BlockAsync, together: tuple[int, int]) -> None:
        """Start a block; ``together`` is the range of co-scheduled blocks along axis 0."""
        self.block = block
        across, down, _ = self._geometry.blocks
        row = across * (block[1] + down * block[2])
        for group, copies in zip(self.groups, self.copies):
            group.begin(block, row + block[0], (row + together[0], row + together[1]))
            copies.forget()
        self.shared: dict[int, Allocation] = {}
        size = self._geometry.shared_bytes
        self.dynamic = Allocation(np.zeros(size, np.uint8), "the block's dynamic memory", shared=True)
        self.sync = sync


def _engine_names(state: _BlockState, who: Lanes) -> dict[str, Any]:
    """Return the functions of mbarriers, TMA and warpgroup MMA."""
    first = state.first  # what a thread's number is counted from in the cluster

    def load(number: int, to: Place, tensor: int, barrier: Place, place: np.ndarray, *taps: int) -> None:
        state.sync.load(to, tensor, barrier, place, taps, first + number)

    def load_to(number: int, to: Place, tensor: int, barrier: Place, place: np.ndarray, *rest: int) -> None:
        *taps, blocks, start = rest
        for n in range(blocks.bit_length()):
            if blocks >> n & 1:
                rank = start + n
                own = state.there(to, rank), tensor, state.there(barrier, rank), place, tuple(taps), first + number
                state.sync.load(*own, early=rank != state.rank)

    def send(number: int, to: Place, i: int, x: Any, rank: int, barrier: Place) -> None:
        state.sync.send(state.there(to, rank), i, x, state.there(barrier, rank), first + number)

    def leave(number: int, counter: Place, count: int) -> None:
        if number == 0:
            left = _counted(counter)
            left[0] = (left[0] + 1) % count

    def last_block(counter: Place, count: Any) -> np.int32:
        (lane,) = who.active()  # one thread of the block
        place = counter.of_lane(lane)
        counted, blocks = _counted(place), state.memory.arrived.setdefault((place.allocation, place.start), [])
        counted[0] += 1
        blocks.append(who.place)
        last = counted[0] == int(of_lane(count, lane))
        if last:
            counted[0] = 0
            state.memory.forget_blocks(blocks)
            blocks.clear()
        return np.int32(last)

    each, sync = who.each, lambda: state.sync
    return {
        "mbarrier_init": each(lambda n, p, count: state.sync.init(p, count, first + n)),
        "mbarrier_fence": lambda: None,
        "mbarrier_arrive": each(lambda n, p: state.sync.arrive(p, first + n)),
        "mbarrier_arrive_at": each(lambda n, p, rank: state.sync.arrive(state.there(p, rank), first + n)),
        "mbarrier_expect": each(lambda n, p, count: state.sync.arrive(p, first + n, count)),
        "cluster_rank": lambda: state.rank,
        "cluster_arrive": lambda: None,
        "grid_leave": each(leave),
        "last_block": last_block,
        "atomic_add": each(_atomic(np.add)),
        "atomic_mul": each(_atomic(np.multiply)),
        "atomic_min": each(_atomic(np.minimum)),
        "atomic_max": each(_atomic(np.maximum)),
        "tagged_store": each(_tagged_store),
        "cluster_send": each(send),
        "copy_async": state.copies[state.groups.index(who)].ask,
        "copy_commit": state.copies[state.groups.index(who)].commit,
        "copy_wait": state.copies[state.groups.index(who)].wait,
        "tensor_map": lambda args, slot: args[slot],
        "tensor_prefetch": lambda number: None,
        "operand_store": lambda *operands: state.sync.store(*operands, first + who.first),
        "operand_fence": lambda: state.sync.fence(first + who.numbers[who.active_mask()]),
        "tensor_load": each(load),
        "tensor_load_to": each(load_to),
        "tensor_load_window": each(load),
        "tensor_load_window_to": each(load_to),
        "wgmma_fence": lambda: None,
        "wgmma_zero": functools.partial(wgmma_zero, np.float32),
        "wgmma_zero_int32": functools.partial(wgmma_zero, np.int32),
        "wgmma_keep": lambda words: None,
        "add_sums": add_sums,
        "finite_sums": finite_sums,
        "fma_sums": fma_sums,
        "scale_sums": scale_sums,
        "sums_in_turns": sums_in_turns,
        "sums_part": sums_part,
        **collective_names(who, sync, first + who.first),
    }


def _thread_names(state: _BlockState, who: Lanes) -> dict[str, Any]:
    """Return the functions that depend on the running threads."""
    warps = who.numbers // WARP
    names: dict[str, Any] = {
        "lanes": who,
        "nobody": who.nobody,
        "thread_index": lambda axis: who.numbers if axis == 0 else 0,
        "block_index": lambda axis: who.block[axis],
        "warp_index": lambda: warps if who.count > WARP else int(warps[0]),
    }
    for name in DTYPES:
        dtype = numpy_dtype(name)

        def pointer(args: Sequence[int], slot: int, dtype: np.dtype = dtype) -> Place:
            return Place(*state.memory.find(args[slot]), dtype, who)

        def block_memory(count: int, line: int, dtype: np.dtype = dtype) -> Place:
            shared = state.shared
            if line not in shared:
                data = np.zeros(count * dtype.itemsize, np.uint8)
                shared[line] = Allocation(data, f"the block's memory of line {line}", shared=True)
            return Place(shared[line], 0, dtype, who)

        def dynamic(start: int, dtype: np.dtype = dtype) -> Place:
            return Place(state.dynamic, start, dtype, who)

        names[f"pointer_{name}"], names[f"shared_{name}"] = pointer, block_memory
        names[f"dynamic_{name}"] = dynamic
    return names


def _counted(counter: Place) -> np.ndarray:
    """Return the int32 block counter as a one-element array."""
    counted: np.ndarray = counter.allocation.data[counter.start : counter.start + 4].view(np.int32)
    return counted


def _atomic(combine: np.ufunc) -> Callable[..., None]:
    """Return a function that combines a vector with adjacent elements of memory."""

    def update(number: int, p: Place, i: int, v: Any) -> None:
        place, values = p.moved(int(i)), np.atleast_1d(v)
        end = place.start + place.dtype.itemsize * values.size
        if place.start < 0 or end > place.allocation.data.size:
            raise KernelFault(f"there is no element at byte {place.start} of {place.allocation.name}")
        found = place.allocation.data[place.start : end].view(place.dtype)
        with np.errstate(all="ignore"):
            combine(found, values, out=found)

    return update


def _tagged_store(number: int, p: Place, i: int, x: Any, tag: int) -> None:
    word = p.moved(int(i))
    if word.start < 0 or word.start + 8 > word.allocation.data.size:
        raise KernelFault(f"there is no word at byte {word.start} of {word.allocation.name}")
    word.allocation.data[word.start : word.start + 8].view(np.uint32)[:] = np.float32(x).view(np.uint32), tag


def _run_together(blocks: Sequence[_RunningBlock], syncs: Sequence[BlockAsync]) -> None:
    """Run the blocks of a cluster or of a cooperative launch to their end."""
    for block in blocks:
        block.resume_all()
    while not all(block.ended() for block in blocks):
        moved = [block.advance() for block in blocks]  # each in its turn
        if any(moved):
            continue
        places = {block.waits_for_others() for block in blocks}
        if len(places) > 1 or not all(places):
            next(block for block in blocks if not block.ended()).report_stuck()
        blocks[0].count_blocks(len(blocks))
        for sync in syncs:
            sync.meet_all()
        for block in blocks:
            block.resume_all()


class _Group:
    """A coroutine of threads that run together.

    Attributes:
        site: the name and line of the call at which the threads wait; None: they do not.
        operands: operands of that call.
        pending: threads for which a function at which each thread waits for itself has not returned yet.
        values: what it has returned for others.
    """

    def __init__(self, who: Lanes, kernel: Callable[..., _Steps]) -> None:
        self.who = who
        self.kernel = kernel

    def begin(self, args: Sequence[int]) -> None:
        self.steps = self.kernel(args)
        self.site: tuple[str, int] | None = None
        self.operands: tuple[Any, ...] = ()
        self.ended = False
        self.pending = self.values = self.who.everyone


class _RunningBlock:
    """A block during execution."""

    def __init__(
        self, name: str, lines: Sequence[str], filename: str, code: Any, args: Sequence[int], state: _BlockState
    ) -> None:
        self._name = name
        self._lines = lines
        self._filename = filename
        self._args = args
        self._state = state
        self._groups = []
        for who in state.groups:
            names = {**elementwise_names(), **memory_names(who), **_thread_names(state, who)}
            names.update(_engine_names(state, who))
            exec(code, names)
            self._groups.append(_Group(who, names["kernel"]))

    def begin(self, block: tuple[int, int, int], sync: BlockAsync, together: tuple[int, int]) -> None:
        """Start a block of the grid; see `_BlockState.begin`."""
        self._state.begin(block, sync, together)
        self._epoch = 0
        for group in self._groups:
            group.begin(self._args)

    def ended(self) -> bool:
        """Return whether all threads have ended."""
        return all(group.ended for group in self._groups)

    def resume_all(self) -> None:
        """Let all threads continue: at the start, and after a barrier of several blocks."""
        self._start_epoch((self._epoch // GENERATION + 1) * GENERATION)

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        for group in self._groups:
            group.who.set_epoch(epoch)
            group.site = None

    def advance(self) -> bool:
        """Run each group as far as it comes; return whether a group has moved."""
        moved = False
        for group in self._groups:
            answer = None
            if group.site is not None:
                name, line = group.site
                if name not in ("mbarrier_wait", "tagged_load4"):
                    continue
                self._reported(group, line, functools.partial(getattr(self, f"_{name}"), group, *group.operands))
                if group.pending.any():
                    continue
                answer = group.values
            if not group.ended:
                moved = True
                self._step(group, answer)
        if self._everyone_at()[0] == "barrier":
            self._state.sync.meet(range(self._state.first, self._state.first + self._state.threads))
            self._start_epoch(self._epoch + 1)
            moved = True
        return moved

    def waits_for_others(self) -> int:
        """Return the line of a multi-block barrier at which all threads wait; 0 if they do not."""
        name, line = self._everyone_at()
        return line if name in _OF_BLOCKS else 0

    def _everyone_at(self) -> tuple[str, int]:
        """Return the call at which all threads of the block wait; ("", 0) if they do not."""
        sites = {None if group.ended else group.site for group in self._groups}
        site = sites.pop()
        return ("", 0) if sites or site is None else site

    def count_blocks(self, blocks: int) -> None:
        """Update the counter of a grid barrier that all threads have reached; nothing for a cluster barrier.

        Raises:
            KernelFault: the launch is not cooperative, or threads expect another number of blocks.
        """
        group = self._groups[0]
        assert group.site is not None
        if group.site[0] == "grid_barrier":
            self._reported(group, group.site[1], functools.partial(self._count, blocks))

    def _count(self, blocks: int) -> None:
        if not self._state.cooperative:
            raise KernelFault("waits for all blocks of a launch that is not cooperative")
        counted = _counted(self._groups[0].operands[0])
        counted[0] += blocks
        wanted = {int(n) for group in self._groups for n in np.unique(group.operands[1])}
        if wanted != {int(counted[0])}:
            raise KernelFault(f"waits for {sorted(wanted)} blocks; {counted[0]} have come, by the counter")

    def _step(self, group: _Group, answer: Any) -> None:
        """Run a group to the next call at which its threads wait."""
        try:
            name, line, group.operands = group.steps.send(answer)
        except StopIteration:
            group.ended, group.site = True, None
            return
        except Exception as error:
            raise self._fault(group, self._line(error), error) from error
        group.site = name, line
        if name in ("mbarrier_wait", "tagged_load4"):
            group.pending, group.values = group.who.active_mask(), None
        else:
            self._reported(group, line, functools.partial(group.who.expect_whole, group.who.count, name))

    def _line(self, error: Exception) -> int:
        """Return the line of the text that raised an error; 0 if none did."""
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._filename:
                line = trace.tb_lineno
            trace = trace.tb_next
        return line

    def _reported(self, group: _Group, line: int, action: Callable[[], None]) -> None:
        """Run an action; add the thread and line to a fault."""
        try:
            action()
        except KernelFault as error:
            raise self._fault(group, line, error) from error

    def _fault(self, group: _Group, line: int, error: Exception) -> KernelFault:
        """Return the fault that an error means, with the thread and the line."""
        block = f"{self._name}, block {self._state.block}"
        if isinstance(error, StuckFault):
            first, count = error.waiting[0], len(error.waiting)
            return KernelFault(
                f"{block}: threads never meet: {count} threads (the first is {first}) wait at {error.name} in line "
                f"{line}; {error.missing} have not come"
            )
        lane = getattr(error, "lane", None)
        lane = next(iter(group.who.active()), 0) if lane is None else lane
        place = f", line {line} ({self._lines[line - 1].strip()})" if line else ""
        problem = str(error) if isinstance(error, MgxError) else f"{type(error).__name__}: {error}"
        return KernelFault(f"{block}, thread {group.who.first + lane}{place}: {problem}")

    def _mbarrier_wait(self, group: _Group, barrier: Place, parity: Any) -> None:
        """Interpret ``mbarrier_wait`` for the threads that still wait."""
        sync, first = self._state.sync, self._state.first + group.who.first
        if not is_varying(barrier.start) and not is_varying(parity):
            if sync.passed(barrier, parity, first + np.flatnonzero(group.pending)):
                group.pending = group.who.nothing
            return
        pending = group.pending.copy()
        for lane in np.flatnonzero(pending).tolist():
            own = int(parity[lane]) if is_varying(parity) else parity
            pending[lane] = not sync.passed(barrier.of_lane(lane), own, first + lane)
        group.pending = pending

    def _tagged_load4(self, group: _Group, p: Place, i: Any, tag: Any) -> None:
        """Interpret ``tagged_load4`` for the threads that still wait.

        Raises:
            KernelFault: a tag is higher: a word was overwritten before this thread read it.
        """
        if not self._state.cooperative:
            raise KernelFault("waits for values of other blocks in a launch that is not cooperative")
        words, who, size = p.moved(i), group.who, p.allocation.data.size
        starts = np.broadcast_to(words.start, who.count)
        wrong = group.pending & ((starts < 0) | (starts + 32 > size) | (starts % 16 != 0))
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise KernelFault(f"bytes {starts[lane]} on of {words.allocation.name} are no four words at 16 bytes", lane)
        places = np.where(group.pending, starts, 0)[:, None] + np.arange(32)
        bits = words.allocation.data[places].view(np.uint32).reshape(-1, 4, 2)
        tags, wanted = bits[..., 1].astype(np.int32), np.broadcast_to(tag, who.count)[:, None]
        late = group.pending & (tags > wanted).any(axis=1)
        if late.any():
            lane = int(np.argmax(late))
            raise KernelFault(f"waits for tag {wanted[lane, 0]} of words that have {tags[lane].tolist()} by now", lane)
        ready = group.pending & (tags == wanted).all(axis=1)
        values = np.zeros((4, who.count), np.float32) if group.values is None else group.values
        group.values = np.where(ready, bits[..., 0].view(np.float32).T, values)
        group.pending = group.pending & ~ready

    def report_stuck(self) -> None:
        """Raise the fault of a deadlock."""
        places: dict[str, list[int]] = {}
        ended = 0
        for group in self._groups:
            if group.site is None:
                ended += group.who.count
                continue
            name, line = group.site
            waiting = group.pending if name in ("mbarrier_wait", "tagged_load4") else group.who.active_mask()
            places.setdefault(f"{name} in line {line}", []).extend(group.who.numbers[waiting].tolist())
        found = [f"{len(who)} threads (the first is {who[0]}) wait at {place}" for place, who in places.items()]
        found += [f"{ended} have ended"] if ended else []
        raise KernelFault(f"{self._name}, block {self._state.block}: threads never meet: {'; '.join(found)}")
