"""Contractions whose operands come to a ring in a block's memory, 16 bytes at a time.

A slice has rows of the left operand and columns of the right one, each with the positions of the sum side by side, or
rows of positions where columns lie so. While a block multiplies one slice the next ones are on their way: copied beside
what is computed (sm_80), else to registers, from where they are stored after it. Where there are few tiles, several
blocks add parts of each sum, and a second launch adds the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from ....core.dim import SharedLength, ceil_div, known_in, permitted
from ....dataclass import dataclass
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..cluster.indexing import whole_vectors
from ..driver.device import known_architecture
from ..kernel import gpu_kernel, plane_grid
from .operands import Extent, ProductOperands, RowPlace
from .parts import add_parts
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText

__all__ = [
    "COPIED", "LEAST_SLICES", "RingForm", "RingText", "RingTile", "ring_form", "ring_refusal", "ring_solution",
    "slices_of",
]  # fmt: skip

ROW_PAD = 4
"""Words from one row of a slice to the next besides its own: the eight rows of an instruction then lie in different
banks."""
TURNED_PAD = 32
"""Bytes between rows of positions besides their own, for the same reason."""
STAGING_PAD = 8
"""Words between rows of staged sums besides their own: pairs of columns of eight rows then lie in different banks."""
LEAST_SHARED = 96 << 10
"""Bytes of shared memory that blocks have at least where slices are copied: those of sm_86 and sm_89."""
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
    """Rows and columns of a block's tile, and how many waves, of so many threads, share either."""

    rows: int
    columns: int
    down: int
    across: int
    wave: int = WARP

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.wave * self.down * self.across


@dataclass(frozen=True)
class RingForm:
    """How slices come to a block's memory.

    Attributes:
        words: words (32 bits) of the sum that a slice has of each row and column.
        stages: of a ring at most.
        copied: whether they are copied beside other work, else they pass through registers.
    """

    words: int
    stages: int
    copied: bool


COPIED = RingForm(32, 4, True)
"""A slice takes as long to multiply as the next one is on its way; more stages did not help. No figures kept."""
HELD = RingForm(16, 2, False)
"""Of a slice each thread holds up to 64 bytes of either operand, and two of the largest tile take 40 KiB: blocks of
sm_75 and of AMD's devices have 64."""


def ring_form() -> RingForm:
    """That of the architecture."""
    arch = known_architecture()
    return COPIED if arch is None or arch.copies else HELD


def slices_of(placed: PlacedRequest, form: RingForm) -> SharedLength:
    """Slices of each sum."""
    return ceil_div(Extent.of(placed.problem).depth, form.words * 4 // ITEMSIZE[placed.problem.types.a])


def ring_refusal(placed: PlacedRequest) -> str:
    """Why operands cannot come to a ring; empty if they can."""
    problem = placed.request.problem
    lanes = VECTOR_BYTES // ITEMSIZE[problem.types.a]
    if isinstance(problem, GemmProblem):
        rank = len(problem.batch)
        left, right = problem.a_strides, problem.b_strides
        if not known_in(left[-1], 1) or not permitted(whole_vectors(lanes, problem.k, *left[:-1])):
            return "the left operand's rows are no whole vectors"
        along = known_in(right[rank], 1) and permitted(whole_vectors(lanes, *right[:rank], right[-1]))
        across = known_in(right[-1], 1) and permitted(whole_vectors(lanes, problem.n, *right[:-1]))
        if across and not along and ITEMSIZE[problem.types.b] == 1:
            return f"columns of {problem.types.b} cannot be turned"
        return "" if along or across else "the right operand has no whole vectors"
    if not permitted(whole_vectors(lanes, problem.group_in, *problem.x_strides)):
        return "the channels of a group are no whole vectors"
    return ""


def ring_solution(text: RingText, how: str) -> Solution:
    """The launches of a contraction; weights of a convolution lie in the order `weights.COLUMNS`. ``how`` is for
    readers.

    Raises:
        UnsupportedError: an operation around the contraction has no kernel.
    """
    placed = text.placed
    request = placed.request
    lines, problem, epilogue = text.lines(), request.problem, request.epilogue
    kind = "gemm" if isinstance(problem, GemmProblem) else "convolution"
    name = f"{kind}_{how}_{problem.types.out}"
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}"
    tile, blocks = text.tile, text._tiles(text.tile.rows, text.tile.columns)
    split = text.splits > 1
    launch = Launch(
        kernel=gpu_kernel(
            f"{name}{work * (not split)}_kernel", lines, tile.threads, len(text.arguments.values), blocks=text.blocks
        ),
        args=text.arguments.values,
        geometry=plane_grid(blocks, text.operands.planes, tile.threads, text.splits, text.shared_bytes),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    return add_parts(placed, launch, text.splits) if split else Solution((launch,))


class _SliceVector(NamedTuple):
    """One of a slice: pointer and place, the condition under which there is one, and of what a prologue makes of it the
    position along the sum and the image."""

    source: str
    condition: str
    prologue: tuple[str, str] | None


class RingText(ContractionText):
    """The text of one contraction; subclasses say how slices are multiplied.

    Attributes:
        tiles: those that a block can have, from the one that reads least of memory for its work to the one that leaves
            most blocks.
        split_tile: that of sums in parts.
        blocks: those that shall fit on a multiprocessor.
        spread: columns that are neighbours lie as many parts of a slice apart that has its positions side by side.
    """

    blocks: ClassVar[int] = 1
    spread: ClassVar[int] = 1
    tiles: ClassVar[tuple[RingTile, ...]]
    split_tile: ClassVar[RingTile]

    def __init__(self, placed: PlacedRequest, tile: RingTile | None = None, splits: int = 0) -> None:
        """``tile`` and ``splits``, in how many parts each sum is computed, are chosen if they are not given."""
        super().__init__(placed)
        problem = self.request.problem
        self.size = size = ITEMSIZE[problem.types.a]
        self.lanes = VECTOR_BYTES // size
        self.form = form = self.form_of(placed)
        self.depth = form.words * 4 // size
        self.pitch = (form.words + ROW_PAD) * 4 // size
        self.operands.in_slices(self.depth)
        planes, slices = self.operands.planes, slices_of(placed, form)
        self.tile, self.splits = (tile, splits) if tile and splits else self.chosen(placed)
        part = ceil_div(slices, self.splits)
        self.splits = 1 if self.splits == 1 else ceil_div(slices, part)
        self.arguments.integer("part", part * self.depth)
        if self.splits > 1:
            self.arguments.pointer("p_scratch", "scratch", self.accumulator)
            self.arguments.integer("planes", planes)
        self.along = not isinstance(problem, GemmProblem) or known_in(problem.b_strides[len(problem.batch)], 1)
        self.width = placed.lanes(self.operands.columns, VECTOR_BYTES // ITEMSIZE[self.out_dtype])
        rows, columns = self.tile.rows, self.tile.columns
        self.turned_pitch = columns + TURNED_PAD // size
        self.left_slot = rows * self.pitch
        self.right_slot = columns * self.pitch if self.along else self.depth * self.turned_pitch
        stage = size * (self.left_slot + self.right_slot)
        self.stages = max(2, min(form.stages, self._ring_bytes() // stage))
        self.shared_bytes = max(self.stages * stage, ITEMSIZE[self.accumulator] * self._staged())

    @classmethod
    def form_of(cls, placed: PlacedRequest) -> RingForm:
        """How slices come to a block's memory."""
        return ring_form()

    @staticmethod
    def _ring_bytes() -> int:
        """Those that the ring of a block may have: half of a multiprocessor's, so that two blocks share it."""
        arch = known_architecture()
        return max(LEAST_SHARED if arch is None else arch.shared_bytes // 2, LEAST_SHARED)

    @classmethod
    def chosen(cls, placed: PlacedRequest) -> tuple[RingTile, int]:
        """The tile of a contraction, and in how many parts each sum is computed."""
        extent, slices = Extent.of(placed.problem), slices_of(placed, cls.form_of(placed))
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
        buffer.line(
            f"ring_a = dynamic_{types.a}(0)",
            f"ring_b = dynamic_{types.b}({self.size * self.stages * self.left_slot})",
            f"staged = dynamic_{self.accumulator}(0)",
            f"warp = idiv(thread, {tile.wave})",
            f"lane = thread - warp * {tile.wave}",
        )
        self._start(buffer)
        left, right = self._left_places(buffer), self._right_places(buffer)
        buffer.line("begin = block_index(2) * part")
        self._enter(buffer, right)
        buffer.line("end = imin(depth, begin + part)")
        if self.form.copied:
            self._sums_of_copied(buffer, left, right)
        else:
            self._sums_of_held(buffer, left, right)
        self._finish(buffer)
        return buffer.lines

    def _sums_of_copied(self, buffer: CodeBuffer, left: list, right: list) -> None:
        """Emit the sums of slices that are copied to a stage while those before are multiplied."""
        with buffer.block(f"for stage in range({self.stages - 1}):"):
            self._copy_slice(buffer, left, right, f"begin + stage * {self.depth}", "stage")
        buffer.line("start = begin")
        buffer.line("slot = 0")
        buffer.line(f"free = {self.stages - 1}")
        with buffer.block("while start < end:"):
            buffer.line(f"copy_wait({self.stages - 2})")
            buffer.line("barrier()")
            self._copy_slice(buffer, left, right, f"start + {(self.stages - 1) * self.depth}", "free")
            self._add_slice(buffer)
            buffer.line("free = slot")
            buffer.line("slot = slot + 1")
            with buffer.block(f"if slot == {self.stages}:"):
                buffer.line("slot = 0")
            buffer.line(f"start = start + {self.depth}")
        buffer.line("copy_wait(0)")
        buffer.line("barrier()")

    def _sums_of_held(self, buffer: CodeBuffer, left: list, right: list) -> None:
        """Emit the sums of slices that are loaded before one is multiplied, and stored to the other stage after it."""
        self._load_slice(buffer, left, right, "begin")
        self._put_slice(buffer, left, right, "0")
        buffer.line("barrier()")
        buffer.line("start = begin")
        buffer.line("slot = 0")
        with buffer.block("while start < end:"):
            self._load_slice(buffer, left, right, f"start + {self.depth}")
            self._add_slice(buffer)
            buffer.line("slot = 1 - slot")
            self._put_slice(buffer, left, right, "slot")
            buffer.line("barrier()")
            buffer.line(f"start = start + {self.depth}")

    def _left_places(self, buffer: CodeBuffer) -> list[tuple[str, RowPlace]]:
        """For each vector that a thread gathers of the left operand: its place in a stage, and what is known of its
        row; all have the same position in the slice, ``along``."""
        vectors = self.depth // self.lanes
        apart = self.tile.threads // vectors
        first = buffer.emit(f"idiv(thread, {vectors})")
        buffer.line(f"along = (thread - {first} * {vectors}) * {self.lanes}")
        buffer.line(f"home_a = {first} * {self.pitch} + along")
        found = []
        for i in range(max(1, self.tile.rows // apart)):
            row = buffer.emit(f"first_row + {first} + {i * apart}")
            found.append((f"home_a + {i * apart * self.pitch}", self.operands.row_place(buffer, row)))
        self.operands.taps_of_rows(buffer, [place for _, place in found])
        return found

    def _right_places(self, buffer: CodeBuffer) -> list[tuple[str, str, str]]:
        """For each vector of the right operand: its place in a stage, its column in the tile, and its position in the
        slice."""
        count = max(1, self.tile.columns * self.depth // self.lanes // self.tile.threads)
        per = (self.depth if self.along else self.tile.columns) // self.lanes
        apart = self.tile.threads // per
        first = buffer.emit(f"idiv(thread, {per})")
        inside = buffer.emit(f"(thread - {first} * {per}) * {self.lanes}")
        line, pitch = first, self.pitch if self.along else self.turned_pitch
        spread = self.spread if self.along else 1
        if spread > 1:
            part = buffer.emit(f"idiv({first}, {spread})")
            line = buffer.emit(f"({first} - {part} * {spread}) * {self.tile.columns // spread} + {part}")
        buffer.line(f"home_b = {line} * {pitch} + {inside}")
        found = []
        for i in range(count):
            own = buffer.emit(f"{first} + {i * apart}") if i else first
            home = f"home_b + {i * apart // spread * pitch}"
            found.append((home, own, inside) if self.along else (home, inside, own))
        return found

    def _copy_slice(self, buffer: CodeBuffer, left: list, right: list, start: str, slot: str) -> None:
        """Emit the copies of the slice that begins at ``start`` to a stage; what lies outside is 0."""
        places = self._places_in(left, right, slot)
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < end:"):
            for (side, to), vector in zip(places, self._sources(buffer, left, right, begin)):
                if vector.prologue is None:
                    buffer.line(f"copy_async(ring_{side}, {to}, {vector.source}, {vector.condition})")
                    continue
                self._zero(buffer, "given", side)
                self._fill(buffer, "given", vector)
                buffer.line(f"store_aligned(ring_{side}, {to}, given)")
            self._advance(buffer)
        buffer.line("copy_commit()")

    def _load_slice(self, buffer: CodeBuffer, left: list, right: list, start: str) -> None:
        """Emit the loads of the slice that begins at ``start``; what lies outside is 0."""
        names = [f"next_{side}{k}" for side, own in (("a", left), ("b", right)) for k in range(len(own))]
        for name in names:
            self._zero(buffer, name, name[5])
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < end:"):
            for name, vector in zip(names, self._sources(buffer, left, right, begin)):
                self._fill(buffer, name, vector)
            self._advance(buffer)

    def _put_slice(self, buffer: CodeBuffer, left: list, right: list, slot: str) -> None:
        """Emit the stores of what `_load_slice` has loaded."""
        for k, (side, to) in enumerate(self._places_in(left, right, slot)):
            buffer.line(f"store_aligned(ring_{side}, {to}, next_{side}{k - len(left) * (side == 'b')})")

    def _zero(self, buffer: CodeBuffer, name: str, side: str) -> None:
        buffer.line(f"{name} = const_{getattr(self.request.problem.types, side)}(0, {self.lanes})")

    def _fill(self, buffer: CodeBuffer, name: str, vector: _SliceVector) -> None:
        with buffer.block(f"if {vector.condition}:"):
            loaded = f"load_aligned({vector.source}, {self.lanes})"
            if vector.prologue is not None:
                loaded = self._prologue(buffer, loaded, *vector.prologue)
            buffer.line(f"{name} = {loaded}")

    def _places_in(self, left: list, right: list, slot: str) -> list[tuple[str, str]]:
        """For each vector of a slice its operand, ``a`` or ``b``, and its place in a stage."""
        found = [("a", f"{slot} * {self.left_slot} + {home}") for home, _ in left]
        return [*found, *(("b", f"{slot} * {self.right_slot} + {home}") for home, _, _ in right)]

    def _sources(self, buffer: CodeBuffer, left: list, right: list, begin: str) -> Iterator[_SliceVector]:
        """Emit where the vectors of a slice come from, one after the other."""
        before = self.request.problem.prologue
        self.operands.step(buffer, buffer.emit(f"{begin} + along"))
        for _, place in left:
            condition, offset, channel = self.operands.left(buffer, place)
            yield _SliceVector(f"r_x, {offset}", condition, None if before is None else (channel, place.image))
        for i, (_, column, along) in enumerate(right):
            k, n = buffer.emit(f"{begin} + {along}"), buffer.emit(f"first_column + {column}")
            within = f"{n} < columns" if self.operands.whole else f"({k} < depth) & ({n} < columns)"
            condition = buffer.emit(within)
            yield _SliceVector(f"r_w, right + {i} * apart_b", condition, None)

    def _advance(self, buffer: CodeBuffer) -> None:
        """Emit what is known of the slice after the one that was asked for last."""
        self.operands.advance(buffer, self.depth)
        buffer.line(f"right = right + {self._right(str(self.depth), '0')}")

    def _enter(self, buffer: CodeBuffer, right: list) -> None:
        """Emit what is known of the first slice, and where the first of a thread's vectors of the right operand lies,
        and how far from it the next one."""
        self.operands.enter(buffer, "begin + along")
        _, column, along = right[0]
        apart = self.tile.threads * self.lanes // (self.depth if self.along else self.tile.columns)
        buffer.line(f"right = {self._right(f'(begin + {along})', f'(first_column + {column})')}")
        buffer.line(f"apart_b = {self._right('0', str(apart)) if self.along else self._right(str(apart), '0')}")

    def _right(self, k: str, column: str) -> str:
        """Offset of the right operand's element at a position and in a column."""
        if isinstance(self.operands, ProductOperands):
            return self.operands.right_offset(k, column)
        return f"{column} * depth + {k}"

    def _store_staged(
        self, buffer: CodeBuffer, places: Sequence[str], turns: int, per_row: int, row: str, column: str
    ) -> None:
        """Emit the stores of rows that the warp has staged: ``turns`` vectors of each lane, ``per_row`` of each row.

        ``places``, of parts of the sums that are added, ``row`` and ``column`` are expressions of the vector's line
        ``below`` and first column ``side``.
        """
        lanes = self.width
        load, store = ("load_aligned", "store_aligned") if lanes > 1 else ("load", "store")
        with buffer.block(f"for turn in range({turns}):"):
            buffer.line(
                f"item = turn * {self.tile.wave} + lane",
                f"below = idiv(item, {per_row})",
                f"side = (item - below * {per_row}) * {lanes}",
                f"row = {row}",
                f"column = {column}",
            )
            with buffer.block("if (row < rows) & (column < columns):"):
                sums = buffer.emit(f"{load}(staged, {places[0]}, {lanes})")
                for place in places[1:]:
                    sums = buffer.emit(f"add({sums}, {load}(staged, {place}, {lanes}))")
                if self.splits == 1:
                    self._store(buffer, [sums], "row", "column", lanes, True)
                else:
                    first = "(block_index(2) * planes + plane) * rows"
                    buffer.line(f"{store}(p_scratch, ({first} + row) * columns + column, {sums})")
