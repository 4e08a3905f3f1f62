"""How blocks that share the units of a recurrent layer give each other states between two steps.

A state is [rows, padded] of the sequences of a slice, beginning at ``now`` before a step and ``following`` after it;
``reset_at`` is what the first phase of gru gives the second one. What no unit has of a row is 0.
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

__all__ = ["EXCHANGES", "Exchange"]

_ALIGNMENT = 64
"""Bytes that the counter of blocks is alone in, at least: a line of a cache has as many or twice as many."""
_WORD = 8
"""Bytes of a value with its tag: `lang.tagged`."""
_NEVER = 1 << 30
"""Blocks that do not come to an end before a launch clears their counter."""


class Exchange(Protocol):
    """What the text of a persistent kernel says of states.

    It names ``direction``, the first row ``begin`` and the ``count`` of rows of the slice, and in a lane its
    ``own_row`` there and its ``unit``.

    Attributes:
        wide: the type of states.
        scratch: bytes of scratch memory, of which states are the first.
        shared: bytes of a block's memory.
        elements: of scratch memory that a launch before this one prepares, a thread for each; 0 if there is none.
    """

    wide: Type
    scratch: int
    shared: int
    elements: int

    def declare(self, arguments: Arguments) -> None:
        """Declare operands."""

    def begin(self, buffer: CodeBuffer) -> None:
        """Print what comes before the first step; ``rounds`` are the steps of the thread."""

    def begin_step(self, buffer: CodeBuffer) -> None:
        """Print where the states of a step are."""

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        """Print the wait for the states that phase ``number`` of a step multiplies; all threads come here once."""

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """Print what gives all blocks the value of the lane's unit and row for a state."""

    def end(self, buffer: CodeBuffer) -> None:
        """Print what comes after the last step."""

    def first_lines(self) -> list[str]:
        """The text of the launch before for element ``i``, which may be one behind the last."""


class _States:
    """What both have in common."""

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        self.problem, self.tile, self.wide = problem, tile, wide
        self.padded = ProductLanes.of(problem).padded
        self.phases = len(problem.phases)
        self.rows = -(-problem.batch // tile.slices)
        self.scratch = self.shared = self.elements = 0

    def count_blocks(self, states: int, arguments: Arguments) -> None:
        """Declare the counter of blocks behind so many bytes of states."""
        counter = states + -states % _ALIGNMENT
        arguments.pointer("counter", Operand("scratch", counter), "int32")
        arguments.integers(meeting=self.tile.directions * self.tile.slices * self.tile.blocks)

    def first_lines(self) -> list[str]:
        """See `Exchange`."""
        return []

    def places(self, buffer: CodeBuffer, row_at: str) -> None:
        """Print where states are."""
        buffer.line(f"now = offset(states, imod(step, 2) * state_size + {row_at})")
        buffer.line(f"following = offset(states, imod(step + 1, 2) * state_size + {row_at})")
        if self.phases > 1:
            buffer.line(f"reset_at = offset(states, 2 * state_size + {row_at})")


def _first_lines(source_row: str, wide: str, within: Sequence[str]) -> list[str]:
    """Statements that store element ``i`` of all states: those before the first step, zeros behind and after it."""
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
    """In the device's memory, with a barrier of all blocks of the launch."""

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        self.size = problem.lanes * problem.batch * self.padded
        self.elements = (1 + self.phases) * self.size
        self.scratch = self.elements * wide.size + 2 * _ALIGNMENT

    def declare(self, arguments: Arguments) -> None:
        """See `Exchange`."""
        arguments.pointer("states", Operand("scratch"), dtype_name(self.wide))
        arguments.integers(state_size=self.size)
        self.count_blocks(self.elements * self.wide.size, arguments)

    def begin(self, buffer: CodeBuffer) -> None:
        """See `Exchange`."""
        buffer.line(f"row_at = (direction * batch + begin) * {self.padded}")
        buffer.line("rounds = last_step + 1")

    def begin_step(self, buffer: CodeBuffer) -> None:
        """See `Exchange`."""
        self.places(buffer, "row_at")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        """See `Exchange`."""
        if number:
            buffer.line("grid_barrier(counter, (2 * step + 1) * meeting)")
            return
        with buffer.block("if step > 0:"):
            buffer.line(f"grid_barrier(counter, step * {self.phases} * meeting)")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """See `Exchange`."""
        buffer.line(f"store_scalar({place}, own_row * {self.padded} + unit, {value})")

    def end(self, buffer: CodeBuffer) -> None:
        """See `Exchange`."""
        buffer.line(f"grid_leave(counter, rounds * {self.phases} * meeting)")

    def first_lines(self) -> list[str]:
        """See `Exchange`."""
        inner = _first_lines("r", dtype_name(self.wide), ())
        return ["if i == 0:", "    store_scalar(counter, 0, 0)", "if i < elements:", *("    " + x for x in inner)]


class TaggedExchange(_States):
    """In words of the device's memory that say of which step they are, from which each block copies them to its own.

    Who has all values of a step knows that all blocks have copied those of the step before: two places for words take
    turns. Steps are counted on over launches that are repeated: ``counter`` counts the blocks that have ended.
    """

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        self.size = problem.lanes * problem.batch * self.padded
        self.elements = (1 + self.phases) * self.size
        self.scratch = self.elements * _WORD + 2 * _ALIGNMENT
        self.shared = (1 + self.phases) * self.rows * self.padded * wide.size

    def declare(self, arguments: Arguments) -> None:
        """See `Exchange`."""
        arguments.pointer("words", Operand("scratch"), "int64")
        arguments.pointer("first", "first", dtype_name(self.wide))
        arguments.integers(word_size=self.size, state_size=self.rows * self.padded)
        self.count_blocks(self.elements * _WORD, arguments)

    def begin(self, buffer: CodeBuffer) -> None:
        """See `Exchange`."""
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
        """See `Exchange`."""
        buffer.line("now = offset(states, imod(step, 2) * state_size)")
        buffer.line("following = offset(words, imod(step + 1, 2) * word_size + row_at)")
        if self.phases > 1:
            buffer.line("reset_at = offset(states, 2 * state_size)")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        """See `Exchange`."""
        source, to = ("2", "reset_at") if number else ("imod(step, 2)", "now")
        buffer.line(f"source = offset(words, {source} * word_size + row_at)")
        with buffer.block(f"for i in range(thread_index(0) * {WORDS}, count * hidden, {WORDS * self.tile.threads}):"):
            buffer.line(f"at = i + idiv32(i, hidden) * ({self.padded} - hidden)")
            buffer.line(f"store_aligned({to}, at, tagged_load4(source, at, tags + step))")
        buffer.line("barrier()")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """See `Exchange`. Nobody waits for what the last step makes."""
        at = f"own_row * {self.padded} + unit"
        if place == "reset_at":
            buffer.line(f"tagged_store(offset(words, 2 * word_size + row_at), {at}, {value}, tags + step)")
            return
        with buffer.block("if step < last_step:"):
            buffer.line(f"tagged_store(following, {at}, {value}, tags + step + 1)")

    def end(self, buffer: CodeBuffer) -> None:
        """See `Exchange`."""
        buffer.line(f"grid_leave(counter, {_NEVER})")

    def first_lines(self) -> list[str]:
        """See `Exchange`."""
        return ["if i == 0:", "    store_scalar(counter, 0, 0)", "if i < elements:", "    store_scalar(words, i, 0)"]


class ClusterExchange(_States):
    """In the memory of each block of a cluster, which count what comes.

    Raises:
        CompileError: of one block; it is launched without a cluster, where sending is an illegal instruction.
    """

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, wide: Type) -> None:
        super().__init__(problem, tile, wide)
        if tile.blocks < 2:
            raise CompileError(f"a cluster of {tile.blocks} blocks; expected 2 or more")
        self.shared = (1 + self.phases) * self.rows * self.padded * wide.size

    def declare(self, arguments: Arguments) -> None:
        """See `Exchange`."""
        arguments.pointer("first", "first", dtype_name(self.wide))
        arguments.integers(state_size=self.rows * self.padded, padded=self.padded)

    def begin(self, buffer: CodeBuffer) -> None:
        """See `Exchange`. A warp without units has no steps: it would not be waited for."""
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
        """See `Exchange`."""
        self.places(buffer, "0")

    def wait(self, buffer: CodeBuffer, number: int) -> None:
        """See `Exchange`."""
        if number:
            self._wait(buffer, "2", "imod(step, 2)")
            return
        with buffer.block("if step > 0:"):
            self._wait(buffer, "imod(step, 2)", "imod(idiv(step - 1, 2), 2)")

    @staticmethod
    def _wait(buffer: CodeBuffer, barrier: str, parity: str) -> None:
        """Print the wait for a phase of a barrier, and what the first thread expects of the next one."""
        buffer.line(f"mbarrier_wait(offset(arrived, {barrier}), {parity})")
        with buffer.block("if thread_index(0) == 0:"):
            buffer.line(f"mbarrier_expect(offset(arrived, {barrier}), coming)")

    def give(self, buffer: CodeBuffer, place: str, value: str) -> None:
        """See `Exchange`. Nobody is there to take what the last step makes."""
        barrier = "2" if place == "reset_at" else "imod(step + 1, 2)"
        with buffer.block("if step < last_step:" if place == "following" else "if step <= last_step:"):
            for rank in range(self.tile.blocks):
                to = f"{place}, own_row * padded + unit, {value}, {rank}, offset(arrived, {barrier})"
                buffer.line(f"cluster_send({to})")

    def end(self, buffer: CodeBuffer) -> None:
        """See `Exchange`: what others send has come before the last step."""


EXCHANGES: dict[str, type[GridExchange | TaggedExchange | ClusterExchange]] = {
    "grid": GridExchange, "tagged": TaggedExchange, "cluster": ClusterExchange,
}  # fmt: skip
"""By `PersistentTile.kind`."""
