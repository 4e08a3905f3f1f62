"""Run a kernel's text: each thread of a block is a coroutine that stops at collective operations.

``barrier`` waits for all threads of the block, others for the warp or warpgroup, ``mbarrier_wait`` for a phase. All
participants must be at the same call in the text. Divergence, out-of-bounds accesses and races are reported.
"""

from __future__ import annotations

import ast
import functools
import sys
import types as python_types
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from mgx_numba.codegen.gpu.architecture import WARP
from mgx_numba.codegen.gpu.products import PRODUCTS, Product
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.launch import Grid
from mgx_numba.codegen.toolchain.assignment import Unassigned, check_assignments
from mgx_numba.core.types import numpy_dtype
from mgx_numba.errors import CompileError, MgxError

from .asynchronous import WARPGROUP, BlockAsync, Copies, added_products, kept_by_tf32
from .matrix_cores import MATRIX_NAMES, WAVES
from .memory import EPOCH, GENERATION, Allocation, KernelFault, Memory, Place, Thread, block_number
from .names import DTYPES, elementwise_names, memory_names
from .warpgroups import (
    WARPGROUP_NAMES,
    add_sums,
    finite_sums,
    fma_sums,
    row_of_turns,
    scale_sums,
    sums_in_turns,
    sums_part,
    sums_row,
    wgmma_zero,
)

__all__ = ["COLLECTIVES", "interpret"]


def _shuffle_xor(lanes: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [lanes[k ^ mask][0] for k, (_, mask) in enumerate(lanes)]


def _mma(product: Product, lanes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the MMA of 16 rows by 8 columns; `lang.tensor_cores` documents the fragment layout."""
    own = np.array([lane[0] for lane in lanes], numpy_dtype(product.accumulator)).reshape(8, 4, 4)  # row, column, word
    a = np.array([lane[1] for lane in lanes], np.int32).reshape(8, 4, 4)
    b = np.array([lane[2] for lane in lanes], np.int32).reshape(8, 4, 2)
    rows, columns = np.block([[a[..., 0], a[..., 2]], [a[..., 1], a[..., 3]]]), np.hstack([b[..., 0], b[..., 1]])
    sums = np.vstack([own[..., :2].reshape(8, 8), own[..., 2:].reshape(8, 8)])
    left, right = rows.view(numpy_dtype(product.a)), columns.view(numpy_dtype(product.b))
    if product.a == "float32":
        left, right = kept_by_tf32(left), kept_by_tf32(right)
    sums = added_products(sums, left, right)
    return list(sums.reshape(2, WARP, 2).transpose(1, 0, 2).reshape(WARP, 4))


def _ldmatrix(turned: bool, lanes: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return four tiles of eight 16-byte rows, from the lanes' pointers."""
    tiles = []
    for m in range(4):
        rows = []
        for p, i in lanes[8 * m : 8 * m + 8]:
            if p.misaligned(i, 16):
                raise KernelFault(f"element {i} of {p.allocation.name} is not at a multiple of 16 bytes")
            rows.append(p.read(i, 16 // p.dtype.itemsize))
        whole = np.stack(rows)
        tiles.append(np.ascontiguousarray(whole.T if turned else whole).view(np.int32))
    return list(np.stack([tile.ravel() for tile in tiles], 1))


COLLECTIVES: dict[str, Callable[[Sequence[tuple[Any, ...]]], list[Any]]] = {
    "shuffle_xor": _shuffle_xor,
    "shuffle_halves": lambda lanes: [lanes[k ^ WARP][0] for k in range(2 * WARP)],
    "ldmatrix4": functools.partial(_ldmatrix, False),
    "ldmatrix4_turned": functools.partial(_ldmatrix, True),
    "row_of_turns": row_of_turns,
    "sums_row": sums_row,
    "warp_barrier": lambda lanes: [None] * WARP,
    **{f"mma_{product.name}": functools.partial(_mma, product) for product in PRODUCTS.values()},
    **MATRIX_NAMES,
}
"""Functions that the threads of a warp (or as many as `WAVES` says) call together: each thread's result from all
operands."""

_OF_BLOCKS = ("cluster_barrier", "cluster_wait", "grid_barrier")
"""Functions at which all threads of all co-scheduled blocks meet."""
_STOPPING = frozenset(("barrier", *_OF_BLOCKS, "mbarrier_wait", "tagged_load4", *COLLECTIVES, *WARPGROUP_NAMES))
_POLLED = ("mbarrier_wait", "tagged_load4")
"""Functions at which each thread waits for itself."""
_Site = tuple[str, int]
"""A collective call: the function's name and the line."""
_Steps = Generator[tuple[_Site, tuple[Any, ...]], Any, None]


class _Prepared(ast.NodeTransformer):
    """Rewrites calls of collective functions into yields of the coroutine, and collects constants.

    Attributes:
        constants: statements that compute, once for all threads, the constants in whose place names stand.
    """

    def __init__(self) -> None:
        self.constants: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Yield the site and the operands instead of a collective call; name a constant of literals."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        if node.func.id in _STOPPING:
            site = ast.Constant((node.func.id, node.lineno))
            return _located(ast.Yield(ast.Tuple([site, ast.Tuple(node.args, ast.Load())], ast.Load())), node)
        if node.func.id.startswith("const_") and all(map(_is_literal, node.args)):
            name = f"_constant{len(self.constants)}"
            self.constants.append(_located(ast.Assign([ast.Name(name, ast.Store())], node), node))
            return _located(ast.Name(name, ast.Load()), node)
        return node


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in ("INF", "NAN"))


def _located(made: Any, node: ast.AST) -> Any:
    """Return a new node whose new parts have the location of ``node``."""
    return ast.fix_missing_locations(ast.copy_location(made, node))


@functools.lru_cache(maxsize=256)
def _code(text: str, filename: str) -> python_types.CodeType:
    tree = ast.parse(text, filename)
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    try:
        check_assignments(function)  # as the compiler does: a thread need not come to the place that has no value
    except Unassigned as error:
        raise CompileError(f"{filename}: {error}") from None
    prepared = _Prepared()
    prepared.visit(tree)
    never = ast.parse("if False:\n    yield").body  # makes a generator of a kernel without collectives, too
    function.body = [*never, *function.body]
    tree.body = [*prepared.constants, *tree.body]
    return compile(tree, filename, "exec")


def interpret(source: KernelSource, args: Sequence[int], geometry: Grid, memory: Memory) -> None:
    """Run a launch to its end; ``args`` are the words of its argument block.

    Raises:
        KernelFault: a thread behaved illegally.
    """
    memory.forget()
    filename = f"<{source.name}>"
    code = _code(source.text, filename)
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
    states: list[_BlockState] = []
    for _ in range(0, together, count):
        cluster: list[_BlockState] = []
        for rank in range(count):
            cluster.append(_BlockState(memory, geometry, rank, cluster))
        states += cluster
    kernels = []
    for state in states:
        names = {**elementwise_names(), **memory_names(), **_thread_names(state), **_engine_names(state)}
        exec(code, names)
        kernels.append(names["kernel"])
    lines = source.text.splitlines()
    for z in range(geometry.blocks[2]):
        for y in range(geometry.blocks[1]):
            for x in range(0, geometry.blocks[0], together):
                syncs = [BlockAsync(count * geometry.threads[0], memory) for _ in range(0, together, count)]
                for n, state in enumerate(states):
                    state.begin((x + n, y, z), syncs[n // count], (x, x + together))
                blocks = [_RunningBlock(source.name, lines, filename, k, args, s) for k, s in zip(kernels, states)]
                with np.errstate(all="ignore"):  # once for all names: it takes as long as a vector's sum
                    _run_together(blocks, syncs)


class _BlockState:
    """State of a block that functions refer to: the running thread, shared memory, asynchronous operations.

    Attributes:
        rank: index in its cluster ``cluster``.
        first: number of its first thread in the cluster.
        shared: static shared memory by the line that declares it.
        dynamic: dynamic shared memory.
    """

    def __init__(self, memory: Memory, geometry: Grid, rank: int, cluster: Sequence[_BlockState]) -> None:
        self.memory = memory
        self.threads = geometry.threads[0]
        self.cooperative = geometry.cooperative
        self.rank, self.cluster = rank, cluster
        self.first = rank * self.threads
        self.who = Thread()
        self.copies = Copies(self.who)
        self._dynamic_bytes = geometry.shared_bytes

    @property
    def number(self) -> int:
        """Return the running thread's number in the cluster."""
        return self.first + self.who.number

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
        found = other.shared[lines[0]] if lines else other.dynamic
        return Place(found, place.start, place.dtype, place.who)

    def begin(self, block: tuple[int, int, int], sync: BlockAsync, together: tuple[int, int]) -> None:
        """Start a block; ``together`` is the range of co-scheduled blocks along axis 0."""
        self.who.block, self.who.epoch = block, 0
        self.who.place = block_number(block)
        row = self.who.place - block[0]
        self.who.kin = row + together[0], row + together[1]
        self.shared: dict[int, Allocation] = {}
        self.dynamic = Allocation(np.zeros(self._dynamic_bytes, np.uint8), "the block's dynamic memory", shared=True)
        self.copies.forget()
        self.sync = sync


def _engine_names(state: _BlockState) -> dict[str, Any]:
    """Return the functions of mbarriers, TMA and warpgroup MMA."""

    def load(to: Place, number: int, barrier: Place, place: np.ndarray, *taps: int) -> None:
        state.sync.load(to, number, barrier, place, taps, state.number)

    def load_to(to: Place, number: int, barrier: Place, place: np.ndarray, *rest: int) -> None:
        *taps, blocks, first = rest
        for n in range(blocks.bit_length()):
            if blocks >> n & 1:
                rank = first + n
                own = state.there(to, rank), number, state.there(barrier, rank), place, tuple(taps), state.number
                state.sync.load(*own, early=rank != state.rank)

    def send(to: Place, i: int, x: Any, rank: int, barrier: Place) -> None:
        state.sync.send(state.there(to, rank), i, x, state.there(barrier, rank), state.number)

    def leave(counter: Place, count: int) -> None:
        if state.who.number == 0:
            left = _counted(counter)
            left[0] = (left[0] + 1) % count

    return {
        "mbarrier_init": lambda p, count: state.sync.init(p, count, state.number),
        "mbarrier_fence": lambda: None,
        "mbarrier_arrive": lambda p: state.sync.arrive(p, state.number),
        "mbarrier_arrive_at": lambda p, rank: state.sync.arrive(state.there(p, rank), state.number),
        "mbarrier_expect": lambda p, count: state.sync.arrive(p, state.number, count),
        "cluster_rank": lambda: state.rank,
        "cluster_arrive": lambda: None,
        "grid_leave": leave,
        "tagged_store": _tagged_store,
        "cluster_send": send,
        "copy_async": state.copies.ask,
        "copy_commit": state.copies.commit,
        "copy_wait": state.copies.wait,
        "tensor_map": lambda args, slot: args[slot],
        "tensor_prefetch": lambda number: None,
        "operand_store": lambda p, row, piece, v: state.sync.store(p, row, piece, v, state.number),
        "operand_fence": lambda: state.sync.fence(state.number),
        "place4": lambda *parts: np.array(parts, np.int32),
        "tensor_load": load,
        "tensor_load_to": load_to,
        "tensor_load_window": load,
        "tensor_load_window_to": load_to,
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
    }


def _thread_names(state: _BlockState) -> dict[str, Any]:
    """Return the functions that depend on the running thread."""
    who = state.who
    names: dict[str, Any] = {
        "thread_index": lambda axis: who.number if axis == 0 else 0,
        "block_index": lambda axis: who.block[axis],
        "warp_index": lambda: who.number // WARP,
    }
    for name in DTYPES:
        dtype = numpy_dtype(name)

        def pointer(args: Sequence[int], slot: int, dtype: np.dtype = dtype) -> Place:
            return Place(*state.memory.find(args[slot]), dtype, who)

        def block_memory(count: int, dtype: np.dtype = dtype) -> Place:
            line, shared = _line_of_caller(), state.shared
            if line not in shared:
                data = np.zeros(count * dtype.itemsize, np.uint8)
                shared[line] = Allocation(data, f"the block's memory of line {line}", shared=True)
            return Place(shared[line], 0, dtype, who)

        def dynamic(start: int, dtype: np.dtype = dtype) -> Place:
            return Place(state.dynamic, start, dtype, who)

        names[f"pointer_{name}"], names[f"shared_{name}"] = pointer, block_memory
        names[f"dynamic_{name}"] = dynamic
    return names


def _line_of_caller() -> int:
    return sys._getframe(2).f_lineno


def _counted(counter: Place) -> np.ndarray:
    """Return the int32 block counter as a one-element array."""
    counted: np.ndarray = counter.allocation.data[counter.start : counter.start + 4].view(np.int32)
    return counted


def _tagged_store(p: Place, i: int, x: Any, tag: int) -> None:
    word = p.moved(int(i))
    if word.start < 0 or word.start + 8 > word.allocation.data.size:
        raise KernelFault(f"there is no word at byte {word.start} of {word.allocation.name}")
    word.allocation.data[word.start : word.start + 8].view(np.uint32)[:] = np.float32(x).view(np.uint32), tag


def _run_together(blocks: Sequence[_RunningBlock], syncs: Sequence[BlockAsync]) -> None:
    """Run the blocks of a cluster or of a cooperative launch to their end."""
    answers = [block.resume_all() for block in blocks]
    while any(answers):
        for block, given in zip(blocks, answers):
            block.advance(given)
        answers = [block.met() for block in blocks]
        if any(answers):
            continue
        places = {block.waits_for_others() for block in blocks}
        if len(places) == 1 and all(places):
            blocks[0].count_blocks(len(blocks))
            answers = [block.resume_all() for block in blocks]
            for sync in syncs:
                sync.meet_all()
    for block in blocks:
        block.expect_ended()


class _RunningBlock:
    """A block during execution."""

    def __init__(
        self, name: str, lines: Sequence[str], filename: str, kernel: Callable[..., _Steps], args: Sequence[int],
        state: _BlockState,
    ) -> None:  # fmt: skip
        self._name = name
        self._lines = lines
        self._filename = filename
        self._who = state.who
        self._sync = state.sync
        self._first = state.first
        self._cooperative = state.cooperative
        self._steps = [kernel(args) for _ in range(state.threads)]
        self._warp_epochs = [0] * (-(-state.threads // WARP))
        self._epoch = 0
        self._waiting: dict[int, tuple[_Site, tuple[Any, ...]]] = {}
        self._polled = any(name in line for line in lines for name in _POLLED)

    def resume_all(self) -> dict[int, Any]:
        """Return an empty answer for every thread: at the start, and after a barrier of several blocks."""
        self._epoch = (self._epoch // GENERATION + 1) * GENERATION
        return dict.fromkeys(range(len(self._steps)))

    def advance(self, answers: dict[int, Any]) -> None:
        """Resume the threads that have an answer, up to their next collective operation."""
        for index, answer in answers.items():
            self._advance(index, answer)

    def waits_for_others(self) -> int:
        """Return the line of a multi-block barrier at which all threads wait; 0 if they do not."""
        name, line = self._everyone_at()
        return line if name in _OF_BLOCKS else 0

    def _everyone_at(self) -> _Site:
        """Return the call at which all threads of the block wait; ("", 0) if they do not."""
        sites = {site for site, _ in self._waiting.values()}
        return sites.pop() if len(self._waiting) == len(self._steps) and len(sites) == 1 else ("", 0)

    def count_blocks(self, blocks: int) -> None:
        """Update the counter of a grid barrier that all threads have reached; nothing for a cluster barrier.

        Raises:
            KernelFault: the launch is not cooperative, or threads expect another number of blocks.
        """
        (name, line), _ = self._waiting[0]
        if name == "grid_barrier":
            self._told(0, line, functools.partial(self._count, blocks))

    def _count(self, blocks: int) -> None:
        if not self._cooperative:
            raise KernelFault("waits for all blocks of a launch that is not cooperative")
        counted = _counted(self._waiting[0][1][0])
        counted[0] += blocks
        wanted = {int(operands[1]) for _, operands in self._waiting.values()}
        if wanted != {int(counted[0])}:
            raise KernelFault(f"waits for {sorted(wanted)} blocks; {counted[0]} have come, by the counter")

    def expect_ended(self) -> None:
        """Require that no thread waits.

        Raises:
            KernelFault: threads wait for others that have ended.
        """
        if self._waiting:
            raise self._stuck()

    def _advance(self, index: int, answer: Any) -> None:
        self._turn(index)
        try:
            self._waiting[index] = self._steps[index].send(answer)
        except StopIteration:
            self._waiting.pop(index, None)
        except Exception as error:
            problem = str(error) if isinstance(error, MgxError) else f"{type(error).__name__}: {error}"
            raise KernelFault(
                f"{self._name}, block {self._who.block}, thread {index}{self._place(error)}: {problem}"
            ) from error

    def _turn(self, index: int) -> None:
        """Make a thread the running one."""
        self._who.number = index
        self._who.epoch = self._epoch * EPOCH + self._warp_epochs[index // WARP]

    def _place(self, error: Exception) -> str:
        """Return a description of the text line that raised an error."""
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._filename:
                line = trace.tb_lineno
            trace = trace.tb_next
        return f", line {line} ({self._lines[line - 1].strip()})" if line else ""

    def met(self) -> dict[int, Any]:
        """Return the answers of threads whose collective operation is complete, by thread."""
        found: dict[int, Any] = {}
        for index, ((name, line), given) in self._waiting.items() if self._polled else ():
            if name == "tagged_load4":
                value = self._told(index, line, functools.partial(self._tagged, *given))
                if value is not None:
                    found[index] = value
            if name == "mbarrier_wait" and self._told(index, line, functools.partial(self._passed, index, *given)):
                found[index] = None
        first = 0
        while first < len(self._steps):
            name, line = self._site(first)
            lanes = WAVES.get(name, WARP)
            operands = self._agreed(range(first, first + lanes)) if name in COLLECTIVES and not first % lanes else []
            if operands:
                if name == "warp_barrier":
                    self._warp_epochs[first // WARP] += 1
                    self._sync.meet(range(self._first + first, self._first + first + WARP))
                self._turn(first)
                results = self._told(first, line, functools.partial(COLLECTIVES[name], operands))
                found.update(zip(range(first, first + lanes), results))
            first += lanes if operands else WARP
        for first in range(0, len(self._steps), WARPGROUP):
            name, line = self._site(first)
            operands = self._agreed(range(first, first + WARPGROUP)) if name in WARPGROUP_NAMES else []
            if operands:
                call = functools.partial(WARPGROUP_NAMES[name], self._sync, self._first + first, operands)
                found.update(zip(range(first, first + WARPGROUP), self._told(first, line, call)))
        if found or self._everyone_at()[0] != "barrier":
            return found
        self._epoch += 1
        self._sync.meet(range(self._first, self._first + len(self._steps)))
        return dict.fromkeys(range(len(self._steps)))

    def _site(self, index: int) -> _Site:
        """Return the call at which a thread waits; ("", 0) if it does not."""
        return self._waiting[index][0] if index in self._waiting else ("", 0)

    def _agreed(self, threads: range) -> list[tuple[Any, ...]]:
        """Return the operands of all ``threads``; none if they do not all wait at one call."""
        requests = [self._waiting[k] for k in threads if k in self._waiting]
        sites = [site for site, _ in requests]
        return [operands for _, operands in requests] if sites.count(sites[0]) == len(threads) else []

    def _passed(self, index: int, barrier: Place, parity: int) -> bool:
        return self._sync.passed(barrier, parity, self._first + index)

    def _tagged(self, p: Place, i: int, tag: int) -> np.ndarray | None:
        """Interpret ``tagged_load4``; None while a tag is lower.

        Raises:
            KernelFault: a tag is higher: a word was overwritten before this thread read it.
        """
        if not self._cooperative:
            raise KernelFault("waits for values of other blocks in a launch that is not cooperative")
        words = p.moved(int(i))
        bits = words.allocation.data[words.start : words.start + 32].view(np.uint32).reshape(-1, 2)
        if words.start < 0 or len(bits) < 4 or words.misaligned(0, 16):
            raise KernelFault(f"bytes {words.start} on of {words.allocation.name} are no four words at 16 bytes")
        tags = bits[:, 1].astype(np.int32)
        if (tags > tag).any():
            raise KernelFault(f"waits for tag {tag} of words that have {tags.tolist()} by now")
        return bits[:, 0].view(np.float32).copy() if (tags == tag).all() else None

    def _told(self, index: int, line: int, action: Callable[[], Any]) -> Any:
        """Run an action; add the thread and line to a fault."""
        try:
            return action()
        except KernelFault as error:
            place = f", line {line} ({self._lines[line - 1].strip()})"
            raise KernelFault(f"{self._name}, block {self._who.block}, thread {index}{place}: {error}") from error

    def _stuck(self) -> KernelFault:
        """Return the fault of a deadlock."""
        places: dict[str, list[int]] = {}
        for index, ((name, line), _) in sorted(self._waiting.items()):
            places.setdefault(f"{name} in line {line}", []).append(index)
        ended = len(self._steps) - len(self._waiting)
        told = [f"{len(who)} threads (the first is {who[0]}) wait at {place}" for place, who in places.items()]
        told += [f"{ended} have ended"] if ended else []
        return KernelFault(f"{self._name}, block {self._who.block}: threads never meet: {'; '.join(told)}")
