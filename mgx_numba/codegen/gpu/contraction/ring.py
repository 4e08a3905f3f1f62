"""Contractions whose operands come to a ring in a block's memory: 16 bytes at a time, beside what is computed (sm_80).

A slice has rows of the left operand and columns of the right one, each with the positions of the sum side by side, or
rows of positions where columns lie so. While a block multiplies one slice the next ones are on their way. Where there
are few tiles, several blocks add parts of each sum, and a second launch adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ....errors import DeviceError
from ...launch import Grid, Launch, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..driver.device import selected_architecture
from ..kernel import gpu_kernel
from .operands import Extent, RowPlace
from .parts import add_parts
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText

__all__ = [
    "LEAST_SLICES", "WORDS", "RingText", "RingTile", "pack_columns", "ring_refusal", "ring_solution", "slices_of",
]  # fmt: skip

WORDS = 32
"""Words (32 bits) of the sum that a slice has of each row and column: as long to multiply as the next slice is on its
way."""
PITCH = WORDS + 4
"""Words from one row of a slice to the next: the eight rows of an instruction then lie in different banks."""
TURNED_PAD = 32
"""Bytes between rows of positions besides their own, for the same reason."""
STAGING_PAD = 8
"""Words between rows of staged sums besides their own: pairs of columns of eight rows then lie in different banks."""
MOST_STAGES = 4
"""Stages of a ring at most: more did not help. No figures kept."""
LEAST_SHARED = 96 << 10
"""Bytes of shared memory that blocks have at least: those of sm_86 and sm_89."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability from which on there are cp.async, and mma of bfloat16 and TF32."""
ENOUGH_BLOCKS = 120
"""Blocks that give the multiprocessors of a large device work."""
SPLIT_BLOCKS = 264
"""Blocks that sums are split for: two for each multiprocessor."""
LEAST_SLICES = 3
"""Slices of a part of a sum: fewer are not worth adding up."""
MANY_SLICES = 24
"""Slices of a sum from which on one of a small tile is computed in parts of larger ones: small tiles bring more of the
operands for what they multiply. No figures kept."""
MOST_SPLITS = 16
"""Parts of a sum at most: each is written and read once more. No figures kept."""


@dataclass(frozen=True)
class RingTile:
    """Rows and columns of a block's tile, and how many warps share either."""

    rows: int
    columns: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.down * self.across


def slices_of(placed: PlacedRequest) -> int:
    """Slices of each sum."""
    return -(-Extent.of(placed.problem).depth // (WORDS * 4 // ITEMSIZE[placed.problem.types.a]))


def ring_refusal(placed: PlacedRequest, capability: tuple[int, int] = LEAST_CAPABILITY) -> str:
    """Why operands cannot come to a ring; empty if they can. ``capability`` is the least that what multiplies needs."""
    problem = placed.request.problem
    try:
        arch = selected_architecture()
    except DeviceError:
        arch = None  # the interpreter
    if arch is not None and arch.capability < capability:
        return f"{arch.name} has no copies beside other work, and no tensor cores of this kind"
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    if isinstance(problem, GemmProblem):
        rank = len(problem.batch)
        left, right = problem.a_strides, problem.b_strides
        if left[-1] != 1 or problem.k % lanes or any(s % lanes for s in left[:-1]):
            return "the left operand's rows are no whole vectors"
        along = right[rank] == 1 and not any(s % lanes for s in (*right[:rank], right[-1]))
        across = right[-1] == 1 and problem.n % lanes == 0 and not any(s % lanes for s in right[:-1])
        if across and not along and ITEMSIZE[problem.types.b] == 1:
            return f"columns of {problem.types.b} cannot be turned"
        return "" if along or across else "the right operand has no whole vectors"
    if problem.group_in % lanes or any(s % lanes for s in problem.x_strides):
        return "the channels of a group are no whole vectors"
    return ""


def pack_columns(problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Weights of `ConvProblem.weight_lens` as (groups, output channels of a group, taps, input channels); a view of
    them where their memory allows it."""
    groups, taps, inputs, outputs = problem.groups, problem.taps, problem.group_in, problem.group_out
    if problem.transposed:
        return weights.reshape(groups, inputs, outputs, taps).transpose(0, 2, 3, 1)
    return weights.reshape(groups, outputs, inputs, taps).transpose(0, 1, 3, 2)


def ring_solution(text: RingText, how: str) -> Solution:
    """The launches of a contraction; of a convolution ``w`` is as `pack_columns` makes it. ``how`` is for readers.

    Raises:
        UnsupportedError: an operation around the contraction has no kernel.
    """
    placed = text.placed
    request = placed.request
    lines, problem, epilogue = text.lines(), request.problem, request.epilogue
    kind = "gemm" if isinstance(problem, GemmProblem) else "convolution"
    name = f"{kind}_{how}_{problem.types.out}"
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}"
    tile, planes = text.tile, text.operands.planes
    blocks = text._tiles(tile.rows, tile.columns), planes, text.splits
    split = text.splits > 1
    launch = Launch(
        kernel=gpu_kernel(f"{name}{work * (not split)}_kernel", lines, tile.threads, len(text.arguments.values)),
        args=text.arguments.values,
        geometry=Grid(blocks, (tile.threads, 1, 1), text.shared_bytes),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    return add_parts(placed, launch, text.splits) if split else Solution((launch,))


class RingText(ContractionText):
    """The text of one contraction; subclasses say how slices are multiplied.

    Attributes:
        tiles: those that a block can have, from the one that reads least of memory for its work to the one that leaves
            most blocks.
        split_tile: that of sums in parts.
    """

    tiles: ClassVar[tuple[RingTile, ...]]
    split_tile: ClassVar[RingTile]

    def __init__(self, placed: PlacedRequest, tile: RingTile | None = None, splits: int = 0) -> None:
        """``tile`` and ``splits``, in how many parts each sum is computed, are chosen if they are not given."""
        super().__init__(placed)
        problem = self.request.problem
        self.size = size = ITEMSIZE[problem.types.a]
        self.lanes = VECTOR_BYTES // size
        self.depth = WORDS * 4 // size
        self.pitch = PITCH * 4 // size
        planes, slices = self.operands.planes, slices_of(placed)
        self.tile, self.splits = (tile, splits) if tile and splits else self.chosen(placed)
        part = -(-slices // self.splits)
        self.splits = -(-slices // part)
        self.arguments.integer("part", part * self.depth)
        if self.splits > 1:
            self.arguments.pointer("p_scratch", "scratch", self.accumulator)
            self.arguments.integer("planes", planes)
        self.along = not isinstance(problem, GemmProblem) or problem.b_strides[len(problem.batch)] == 1
        self.width = placed.lanes(self.operands.columns, VECTOR_BYTES // ITEMSIZE[self.out_dtype])
        rows, columns = self.tile.rows, self.tile.columns
        self.turned_pitch = columns + TURNED_PAD // size
        self.left_slot = rows * self.pitch
        self.right_slot = columns * self.pitch if self.along else self.depth * self.turned_pitch
        stage = size * (self.left_slot + self.right_slot)
        self.stages = max(2, min(MOST_STAGES, _shared_bytes() // stage))
        self.shared_bytes = max(self.stages * stage, ITEMSIZE[self.accumulator] * self._staged())

    @classmethod
    def chosen(cls, placed: PlacedRequest) -> tuple[RingTile, int]:
        """The tile of a contraction, and in how many parts each sum is computed."""
        extent, slices = Extent.of(placed.problem), slices_of(placed)
        fitting = [t for t in cls.tiles if t.columns < 2 * extent.columns] or [cls.tiles[-1]]
        many = [t for t in fitting if extent.tiles(t.rows, t.columns) >= ENOUGH_BLOCKS]
        tile = many[0] if many else fitting[-1]
        small = tile.rows < cls.split_tile.rows
        if (many or slices < 2 * LEAST_SLICES) and not (small and slices >= MANY_SLICES):
            return tile, 1
        tile = cls.split_tile
        blocks = extent.tiles(tile.rows, tile.columns)
        return tile, max(1, min(-(-SPLIT_BLOCKS // blocks), slices // LEAST_SLICES, MOST_SPLITS))

    def _staged(self) -> int:
        """Sums that pass through the block's memory when sums are finished."""
        raise NotImplementedError

    def _start(self, buffer: CodeBuffer) -> None:
        """Emit sums of 0, and where a thread reads slices."""
        raise NotImplementedError

    def _add_slice(self, buffer: CodeBuffer) -> None:
        """Emit the products of the slice in stage ``slot``."""
        raise NotImplementedError

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the end of the sums, whose memory is the ring's."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, tile, types = CodeBuffer(), self.tile, self.request.problem.types
        self._begin(buffer, tile.rows, tile.columns)
        for line in (
            f"ring_a = dynamic_{types.a}(0)",
            f"ring_b = dynamic_{types.b}({self.size * self.stages * self.left_slot})",
            f"staged = dynamic_{self.accumulator}(0)",
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
        ):
            buffer.line(line)
        self._start(buffer)
        left, right = self._left_places(buffer), self._right_places(buffer)
        buffer.line("begin = block_index(2) * part")
        buffer.line("end = imin(depth, begin + part)")
        with buffer.block(f"for stage in range({self.stages - 1}):"):
            self._fetch(buffer, left, right, f"begin + stage * {self.depth}", "stage")
        buffer.line("start = begin")
        buffer.line("slot = 0")
        buffer.line(f"free = {self.stages - 1}")
        with buffer.block("while start < end:"):
            buffer.line(f"copy_wait({self.stages - 2})")
            buffer.line("barrier()")
            self._fetch(buffer, left, right, f"start + {(self.stages - 1) * self.depth}", "free")
            self._add_slice(buffer)
            buffer.line("free = slot")
            buffer.line("slot = slot + 1")
            with buffer.block(f"if slot == {self.stages}:"):
                buffer.line("slot = 0")
            buffer.line(f"start = start + {self.depth}")
        buffer.line("copy_wait(0)")
        buffer.line("barrier()")
        self._finish(buffer)
        return buffer.lines

    def _left_places(self, buffer: CodeBuffer) -> list[tuple[str, str, RowPlace]]:
        """For each vector that a thread gathers of the left operand: its row, position in the slice, and place."""
        vectors = self.depth // self.lanes
        first = buffer.emit(f"idiv(thread, {vectors})")
        along = buffer.emit(f"(thread - {first} * {vectors}) * {self.lanes}")
        found = []
        for i in range(max(1, self.tile.rows * vectors // self.tile.threads)):
            row = buffer.emit(f"{first} + {i * (self.tile.threads // vectors)}") if i else first
            found.append((row, along, self.operands.row_place(buffer, buffer.emit(f"first_row + {row}"))))
        return found

    def _right_places(self, buffer: CodeBuffer) -> list[tuple[str, str]]:
        """For each vector of the right operand: its first column in the tile and first position in the slice."""
        count = max(1, self.tile.columns * self.depth // self.lanes // self.tile.threads)
        per = (self.depth if self.along else self.tile.columns) // self.lanes
        first = buffer.emit(f"idiv(thread, {per})")
        inside = buffer.emit(f"(thread - {first} * {per}) * {self.lanes}")
        found = []
        for i in range(count):
            line = buffer.emit(f"{first} + {i * (self.tile.threads // per)}") if i else first
            found.append((line, inside) if self.along else (inside, line))
        return found

    def _fetch(self, buffer: CodeBuffer, left: list, right: list, start: str, slot: str) -> None:
        """Emit the copies of the slice that begins at ``start`` to a stage; what lies outside is 0."""
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < end:"):
            for row, along, place in left:
                self.operands.step(buffer, buffer.emit(f"{begin} + {along}"))
                condition, offset, channel = self.operands.left(buffer, place)
                to = f"{slot} * {self.left_slot} + {row} * {self.pitch} + {along}"
                if self.request.problem.prologue is None:
                    buffer.line(f"copy_async(ring_a, {to}, r_x, {offset}, {condition})")
                    continue
                buffer.line(f"given = const_{self.request.problem.types.a}(0, {self.lanes})")
                with buffer.block(f"if {condition}:"):
                    loaded = f"load_aligned(r_x, {offset}, {self.lanes})"
                    buffer.line(f"given = {self._prologue(buffer, loaded, channel, place.image)}")
                buffer.line(f"store_aligned(ring_a, {to}, given)")
            for column, along in right:
                k, n = buffer.emit(f"{begin} + {along}"), buffer.emit(f"first_column + {column}")
                to = f"{column} * {self.pitch} + {along}" if self.along else f"{along} * {self.turned_pitch} + {column}"
                condition = buffer.emit(f"({k} < depth) & ({n} < columns)")
                copy = f"r_w, {self._right(buffer, k, n)}, {condition}"
                buffer.line(f"copy_async(ring_b, {slot} * {self.right_slot} + {to}, {copy})")
        buffer.line("copy_commit()")

    def _right(self, buffer: CodeBuffer, k: str, column: str) -> str:
        if isinstance(self.request.problem, ConvProblem):
            return buffer.emit(f"{column} * depth + {k}")
        return self.operands.right(buffer, k, column)

    def _store_staged(self, buffer: CodeBuffer, place: str, turns: int, per_row: int, row: str, column: str) -> None:
        """Emit the stores of rows that the warp has staged: ``turns`` vectors of each lane, ``per_row`` of each row.

        ``place``, ``row`` and ``column`` are expressions of the vector's line ``below`` and first column ``side``.
        """
        lanes = self.width
        load, store = ("load_aligned", "store_aligned") if lanes > 1 else ("load", "store")
        with buffer.block(f"for turn in range({turns}):"):
            for line in (
                "item = turn * 32 + lane",
                f"below = idiv(item, {per_row})",
                f"side = (item - below * {per_row}) * {lanes}",
                f"row = {row}",
                f"column = {column}",
            ):
                buffer.line(line)
            with buffer.block("if (row < rows) & (column < columns):"):
                sums = buffer.emit(f"{load}(staged, {place}, {lanes})")
                if self.splits == 1:
                    self._store(buffer, sums, "row", "column", lanes, True)
                else:
                    first = "(block_index(2) * planes + plane) * rows"
                    buffer.line(f"{store}(p_scratch, ({first} + row) * columns + column, {sums})")


def _shared_bytes() -> int:
    """Those that the ring of a block may have: half of a multiprocessor's, so that two blocks share it."""
    try:
        whole = selected_architecture().shared_bytes
    except DeviceError:  # the interpreter
        whole = LEAST_SHARED
    return max(whole // 2, LEAST_SHARED)
