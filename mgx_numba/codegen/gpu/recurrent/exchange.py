"""Exchange of hidden states between the blocks of a persistent recurrent kernel, from one step to the next.

A state is [rows, padded] of the sequences of a slice: ``now`` before a step, ``following`` after it. ``reset_at``
passes the first phase of GRU to the second. Padding elements are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ....core.types import Type
from ....errors import CompileError
from ...arguments import Arguments
from ...launch import Operand
from ...printer import CodeBuffer
from ...problems.recurrence import RecurrenceProblem
from ..printer import dtype_name
from .tiles import WORDS, PersistentTile, ProductLanes

_ALIGNMENT = 64
"""Bytes around the block counter that nothing else uses: at least one cache line."""
_WORD = 8
"""Bytes of a value with its tag, see `lang.tagged`."""
_NEVER = 1 << 30
"""A number of blocks that never finish before a launch clears their counter."""


class Exchange(Protocol):
    """Text of a persistent kernel that reads and writes states.

    Uses the names ``direction``, ``begin`` (first row of the slice), ``count`` (its rows), and per lane ``own_row`` and
    ``unit``.

    Attributes:
        wide: type of states.
        scratch: bytes of scratch memory; states come first.
        shared: dynamic shared memory per block (bytes).
        elements: elements of scratch memory that a preceding launch initialises, one thread each; 0 without such a
            launch.
    """

    wide: Type
    scratch: int
    shared: int
    elements: int

    def declare(self, arguments: Arguments) -> None:
        """Declare the operands."""

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the code before the first step; ``rounds`` is the number of the thread's steps."""

    def begin_step(self, buffer: CodeBuffer) -> None:
        """Emit the addresses of a step's states."""

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        """Emit the wait for the states that phase ``number`` of a step reads; all threads take part."""

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """Emit the publication of the lane's state element to all blocks."""

    def end(self, buffer: CodeBuffer) -> None:
        """Emit the code after the last step."""

    def first_lines(self) -> list[str]:
        """Return the statements of the preceding launch for element ``i``, which may exceed the last one."""


class _States:
    """Base class of exchanges through device memory."""

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        self.problem, self.tile, self.wide = problem, tile, wide
        self.padded = ProductLanes.of(problem).padded
        self.phases = len(problem.phases)
        self.rows = tile.planned_rows(problem.batch)
        self.scratch = self.shared = self.elements = 0

    def count_blocks(self, states: int, arguments: Arguments) -> None:
        """Declare the block counter, which follows ``states`` bytes of states."""
        counter = states + -states % _ALIGNMENT
        arguments.pointer("counter", Operand("scratch", counter), "int32")
        slices = self.tile.used_slices(self.problem.batch)
        arguments.integers(meeting=self.tile.directions * slices * self.tile.blocks)

    def first_lines(self) -> list[str]:
        return []

    def places(self, buffer: CodeBuffer, row_at: str) -> None:
        """Emit the addresses of states."""
        buffer.line(f"now = offset(states, imod(step, 2) * state_size + {row_at})")
        buffer.line(f"following = offset(states, imod(step + 1, 2) * state_size + {row_at})")
        if self.phases > 1:
            buffer.line(f"reset_at = offset(states, 2 * state_size + {row_at})")


def _first_lines(source_row: str, wide: str, within: Sequence[str]) -> list[str]:
    """Return statements that initialise element ``i`` of all states: the initial states, and zeros in padding and in
    the second buffer."""
    conditions = " & ".join(f"({c})" for c in ("i < state_size", "k < hidden", *within))
    return [
        "r = idiv(imod(i, state_size), padded)",
        "k = imod(i, padded)",
        f"value = const_{wide}(0, 0)",
        f"if {conditions}:",
        f"    value = load_scalar(first, ({source_row}) * hidden + k)",
        "store_scalar(states, i, value)",
    ]


class GridExchange(_States):
    """Exchange through device memory with a grid-wide barrier."""

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        self.size = problem.lanes * problem.batch * self.padded
        self.elements = (1 + self.phases) * self.size
        self.scratch = self.elements * wide.size + 2 * _ALIGNMENT

    def declare(self, arguments: Arguments) -> None:
        arguments.pointer("states", Operand("scratch"), dtype_name(self.wide))
        arguments.integers(state_size=self.size)
        self.count_blocks(self.elements * self.wide.size, arguments)

    def begin(self, buffer: CodeBuffer) -> None:
        buffer.line(f"row_at = (direction * batch + begin) * {self.padded}")
        buffer.line("rounds = last_step + 1")

    def begin_step(self, buffer: CodeBuffer) -> None:
        self.places(buffer, "row_at")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        if number:
            buffer.line("grid_barrier(counter, (2 * step + 1) * meeting)")
            return
        with buffer.block("if step > 0:"):
            buffer.line(f"grid_barrier(counter, step * {self.phases} * meeting)")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        buffer.line(f"store_scalar({place}, own_row * {self.padded} + unit, {value})")

    def end(self, buffer: CodeBuffer) -> None:
        buffer.line(f"grid_leave(counter, rounds * {self.phases} * meeting)")

    def first_lines(self) -> list[str]:
        inner = _first_lines("r", dtype_name(self.wide), ())
        return ["if i == 0:", "    store_scalar(counter, 0, 0)", "if i < elements:", *("    " + x for x in inner)]


class TaggedExchange(_States):
    """Exchange through tagged words in device memory, which each block copies to its shared memory.

    A tag holds the step. A block that has all values of a step knows that all blocks have copied those of the previous
    step, so two buffers alternate. Steps are counted on across repeated launches; ``counter`` counts the finished
    blocks.
    """

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        self.size = problem.lanes * problem.batch * self.padded
        self.elements = (1 + self.phases) * self.size
        self.scratch = self.elements * _WORD + 2 * _ALIGNMENT
        self.shared = (1 + self.phases) * self.rows * self.padded * wide.size

    def declare(self, arguments: Arguments) -> None:
        arguments.pointer("words", Operand("scratch"), "int64")
        arguments.pointer("first", "first", dtype_name(self.wide))
        arguments.integers(word_size=self.size, state_size=self.rows * self.padded)
        self.count_blocks(self.elements * _WORD, arguments)

    def begin(self, buffer: CodeBuffer) -> None:
        padded, threads = self.padded, self.tile.threads
        buffer.line("states = dynamic_float32(0)")
        buffer.line(f"row_at = (direction * batch + begin) * {padded}")
        buffer.line("rounds = last_step + 1")
        buffer.line("tags = idiv(cast_int64(load_scalar(counter, 0)), meeting) * (rounds + 1) + 1")
        with buffer.block(f"for i in range(thread_index(0), {1 + self.phases} * state_size, {threads}):"):
            buffer.line("store_scalar(states, i, const_float32(0, 0))")
        own = f"(block_index(0) - team * blocks) * {threads} + thread_index(0)"
        with buffer.block(f"for i in range({own}, count * hidden, blocks * {threads}):"):
            buffer.line("r = idiv(i, hidden)")
            buffer.line("value = load_scalar(first, (direction * batch + begin) * hidden + i)")
            buffer.line(f"tagged_store(words, row_at + i + r * ({padded} - hidden), value, tags)")
        buffer.line("barrier()")

    def begin_step(self, buffer: CodeBuffer) -> None:
        buffer.line("now = offset(states, imod(step, 2) * state_size)")
        buffer.line("following = offset(words, imod(step + 1, 2) * word_size + row_at)")
        if self.phases > 1:
            buffer.line("reset_at = offset(states, 2 * state_size)")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        source, to = ("2", "reset_at") if number else ("imod(step, 2)", "now")
        buffer.line(f"source = offset(words, {source} * word_size + row_at)")
        with buffer.block(f"for i in range(thread_index(0) * {WORDS}, count * hidden, {WORDS * self.tile.threads}):"):
            buffer.line(f"at = i + idiv32(i, hidden) * ({self.padded} - hidden)")
            buffer.line(f"store_aligned({to}, at, tagged_load4(source, at, tags + step))")
        buffer.line("barrier()")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """See `Exchange`. States after the last step are not published."""
        at = f"own_row * {self.padded} + unit"
        if place == "reset_at":
            buffer.line(f"tagged_store(offset(words, 2 * word_size + row_at), {at}, {value}, tags + step)")
            return
        with buffer.block("if step < last_step:"):
            buffer.line(f"tagged_store(following, {at}, {value}, tags + step + 1)")

    def end(self, buffer: CodeBuffer) -> None:
        buffer.line(f"grid_leave(counter, {_NEVER})")

    def first_lines(self) -> list[str]:
        return ["if i == 0:", "    store_scalar(counter, 0, 0)", "if i < elements:", "    store_scalar(words, i, 0)"]


class ClusterExchange(_States):
    """Exchange through distributed shared memory of a cluster, with mbarriers.

    Raises:
        CompileError: the cluster has one block; remote stores are illegal in a launch without a cluster.
    """

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        if tile.blocks < 2:
            raise CompileError(f"a cluster of {tile.blocks} blocks; expected 2 or more")
        self.shared = (1 + self.phases) * self.rows * self.padded * wide.size

    def declare(self, arguments: Arguments) -> None:
        arguments.pointer("first", "first", dtype_name(self.wide))
        arguments.integers(state_size=self.rows * self.padded, padded=self.padded)

    def begin(self, buffer: CodeBuffer) -> None:
        """See `Exchange`. A warp without units runs no steps, because nobody waits for it."""
        wide, barriers = dtype_name(self.wide), 1 + self.phases
        buffer.line(f"states = dynamic_{wide}(0)")
        buffer.line(f"arrived = shared_int64({barriers})")
        buffer.line(f"coming = count * hidden * {self.wide.size}")
        with buffer.block("if thread_index(0) == 0:"):
            for n in range(barriers):
                buffer.line(f"mbarrier_init(offset(arrived, {n}), 1)")
                buffer.line(f"mbarrier_expect(offset(arrived, {n}), coming)")
            buffer.line("mbarrier_fence()")
        with buffer.block(f"for i in range(thread_index(0), {barriers} * state_size, {self.tile.threads}):"):
            buffer.line(*_first_lines("direction * batch + begin + r", wide, ["r < count"]))
        buffer.line("cluster_barrier()")
        buffer.line("rounds = last_step + 1")
        with buffer.block("if begin_unit >= hidden:"):
            buffer.line("rounds = 0")

    def begin_step(self, buffer: CodeBuffer) -> None:
        self.places(buffer, "0")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        if number:
            self._wait(buffer, "2", "imod(step, 2)")
            return
        with buffer.block("if step > 0:"):
            self._wait(buffer, "imod(step, 2)", "imod(idiv(step - 1, 2), 2)")

    @staticmethod
    def _wait(buffer: CodeBuffer, barrier: str, parity: str) -> None:
        """Emit the wait for a phase of an mbarrier, and the expected bytes of its next phase (first thread)."""
        buffer.line(f"mbarrier_wait(offset(arrived, {barrier}), {parity})")
        with buffer.block("if thread_index(0) == 0:"):
            buffer.line(f"mbarrier_expect(offset(arrived, {barrier}), coming)")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """See `Exchange`. States after the last step are not published: the receiving block may have exited."""
        barrier = "2" if place == "reset_at" else "imod(step + 1, 2)"
        with buffer.block("if step < last_step:" if place == "following" else "if step <= last_step:"):
            for rank in range(self.tile.blocks):
                to = f"{place}, own_row * padded + unit, {value}, {rank}, offset(arrived, {barrier})"
                buffer.line(f"cluster_send({to})")

    def end(self, buffer: CodeBuffer) -> None:
        """See `Exchange`: nothing; all remote stores have arrived before the last step."""


EXCHANGES: dict[str, type[GridExchange | TaggedExchange | ClusterExchange]] = {
    "grid": GridExchange, "tagged": TaggedExchange, "cluster": ClusterExchange,
}  # fmt: skip
"""Exchanges by `PersistentTile.kind`."""
