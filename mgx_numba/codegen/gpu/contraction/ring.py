"""Contractions with a multi-stage ring of operand slices in shared memory.

A slice holds K elements of each row of the left operand and of each column of the right operand; the right operand's
slice may be transposed (contiguous columns). While a block multiplies one slice, the next ones are in flight: by
asynchronous copies (sm_80 and above), or through registers. With few tiles, several blocks compute partial sums
(split-K), and a second launch adds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from ....core.dim import Length, SharedLength, ceil_div, known_in, permitted
from ....dataclass import dataclass
from ...launch import Grid, Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..architecture import WARP
from ..cluster.flat_index import whole_vectors
from ..driver.device import known_architecture
from ..kernel import gpu_kernel, plane_grid
from ..machine import multiprocessors
from .contraction_text import ContractionText
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import Extent, ProductOperands, RowPlace
from .split_k import add_split_k

ROW_PAD = 4
"""Padding words per slice row, which puts the eight rows of an MMA fragment in different banks."""
TRANSPOSED_PAD = 32
"""Padding bytes per row of a transposed slice, for the same reason."""
STAGING_PAD = 8
"""Padding words per staged accumulator row, which puts pairs of columns of eight rows in different banks."""
LEAST_SHARED = 96 << 10
"""Shared memory per multiprocessor (bytes) of the smallest devices with asynchronous copies: sm_86 and sm_89."""
ENOUGH = 10 / 11
"""Blocks per multiprocessor that occupy a device: 120 of an H200's 132."""
SPLIT_BLOCKS = 2
"""Target number of blocks per multiprocessor of a split-K launch."""
LEAST_SLICES = 3
"""Least slices per split; shorter splits cost more to add up than they save."""
MANY_SLICES = 24
"""Slices of K from which split-K with a larger tile replaces a small tile, which loads more operand bytes per FLOP. No
figures kept."""
MOST_SPLITS = 16
"""Largest split-K factor; each split writes and reads its partial sums once more. No figures kept."""


@dataclass(frozen=True)
class RingTile:
    """A block tile: rows, columns, and the warps (or waves of ``wave`` lanes) along each side."""

    rows: int
    columns: int
    down: int
    across: int
    wave: int = WARP

    @property
    def threads(self) -> int:
        """Return the threads per block."""
        return self.wave * self.down * self.across


@dataclass(frozen=True)
class RingForm:
    """Ring configuration.

    Attributes:
        words: 32-bit words of K per row and column of a slice.
        stages: most stages.
        copied: whether slices are copied asynchronously; otherwise they pass through registers.
    """

    words: int
    stages: int
    copied: bool


COPIED = RingForm(32, 4, True)
"""Ring of asynchronous copies. Multiplying one slice takes as long as the next one is in flight; more stages did not
help. No figures kept."""
HELD = RingForm(16, 2, False)
"""Ring of slices through registers. A thread holds up to 64 bytes of each operand; two slices of the largest tile take
40 KiB of the 64 KiB of sm_75 and of AMD devices."""


NARROW = RingForm(32, 2, False)
"""The same of operands whose rows are no whole vectors: a thread holds twice as much, to wait less often."""


def ring_form() -> RingForm:
    """Return the ring configuration of the current architecture."""
    arch = known_architecture()
    return COPIED if arch is None or arch.copies else HELD


def slices_of(contraction: GpuContraction, form: RingForm) -> SharedLength:
    """Return the slices along K."""
    return ceil_div(Extent.of(contraction.problem).depth, form.words * 4 // ITEMSIZE[contraction.problem.types.a])


def ring_refusal(contraction: GpuContraction) -> str:
    """Return the reason why operands cannot be loaded into a ring; "" if they can."""
    problem = contraction.request.problem
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
    """Return the launches of a contraction; convolution weights have the layout `weights.COLUMNS`. ``how`` is part of
    the kernel's display name.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    contraction = text.contraction
    request = contraction.request
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
        geometry=text.grid(blocks),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    return add_split_k(contraction, launch, text.splits) if split else Solution((launch,))


class _SliceVector(NamedTuple):
    """One vector of a slice: its source address, the condition that it exists, and the prologue's arguments (position
    along K, image)."""

    source: str
    condition: str
    prologue: tuple[str, str] | None


class RingText(ContractionText):
    """Kernel text of one contraction; a subclass emits the multiplication of slices.

    Attributes:
        tiles: declared tiles, from the least memory traffic per FLOP to the most blocks.
        split_tile: tile of split-K launches.
        blocks: resident blocks per multiprocessor to aim at.
        spread: number of slice sections over which neighbouring columns are distributed, if the slice is contiguous
            along K.
    """

    blocks: int = 1
    spread: ClassVar[int] = 1
    tiles: ClassVar[tuple[RingTile, ...]]
    split_tile: ClassVar[RingTile]

    def __init__(self, contraction: GpuContraction, tile: RingTile | None = None, splits: int = 0) -> None:
        """Prepare the text with the given tile and split-K factor, or with the chosen ones."""
        super().__init__(contraction)
        problem = self.request.problem
        self.size = size = ITEMSIZE[problem.types.a]
        self.lanes = VECTOR_BYTES // size
        self.left_lanes, self.right_lanes = self._loaded_lanes()
        self.form = form = self.form_of(contraction)
        self.depth = form.words * 4 // size
        self.pitch = (form.words + ROW_PAD) * 4 // size
        self.operands.in_slices(self.depth)
        planes, slices = self.operands.planes, slices_of(contraction, form)
        self.tile, self.splits = (tile, splits) if tile and splits else self.chosen(contraction)
        part = ceil_div(slices, self.splits)
        self.splits = 1 if self.splits == 1 else ceil_div(slices, part)
        self.arguments.integer("part", part * self.depth)
        if self.splits > 1:
            self.arguments.pointer("p_scratch", "scratch", self.accumulator)
            self.arguments.integer("planes", planes)
        self.along = not isinstance(problem, GemmProblem) or known_in(problem.b_strides[len(problem.batch)], 1)
        self.width = contraction.lanes(self.operands.columns, VECTOR_BYTES // ITEMSIZE[self.out_dtype])
        rows, columns = self.tile.rows, self.tile.columns
        self.transposed_pitch = columns + TRANSPOSED_PAD // size
        self.left_slot = rows * self.pitch
        self.right_slot = columns * self.pitch if self.along else self.depth * self.transposed_pitch
        stage = size * (self.left_slot + self.right_slot)
        self.stages = max(2, min(form.stages, self._ring_bytes() // stage))
        self.shared_bytes = max(self.stages * stage, ITEMSIZE[self.accumulator] * self._staged())

    @classmethod
    def form_of(cls, contraction: GpuContraction) -> RingForm:
        """Return the ring configuration of a request."""
        return ring_form()

    def _loaded_lanes(self) -> tuple[int, int]:
        """Return the elements per load of the left and of the right operand."""
        return self.lanes, self.lanes

    @staticmethod
    def _ring_bytes() -> int:
        """Return the shared memory per block (bytes): half of a multiprocessor's, for two resident blocks."""
        arch = known_architecture()
        return max(LEAST_SHARED if arch is None else arch.shared_bytes // 2, LEAST_SHARED)

    @classmethod
    def chosen(cls, contraction: GpuContraction) -> tuple[RingTile, int]:
        """Return the tile and the split-K factor of a contraction."""
        extent, slices = Extent.of(contraction.problem), slices_of(contraction, cls.form_of(contraction))
        fitting = [t for t in cls.tiles if t.columns < 2 * extent.columns] or [cls.tiles[-1]]
        many = [t for t in fitting if extent.tiles(t.rows, t.columns) >= ENOUGH * multiprocessors()]
        tile = many[0] if many else fitting[-1]
        small = tile.rows < cls.split_tile.rows
        if (many or slices < 2 * LEAST_SLICES) and not (small and slices >= MANY_SLICES):
            return tile, 1
        tile = cls.split_tile
        blocks = extent.tiles(tile.rows, tile.columns)
        return tile, max(1, min(-(-SPLIT_BLOCKS * multiprocessors() // blocks), slices // LEAST_SLICES, MOST_SPLITS))

    def _staged(self) -> int:
        """Return the accumulators that are staged in shared memory at once by the epilogue."""
        raise NotImplementedError

    def _start(self, buffer: CodeBuffer) -> None:
        """Emit the zero accumulators and a thread's read offsets in a slice."""
        raise NotImplementedError

    def _add_slice(self, buffer: CodeBuffer) -> None:
        """Emit the multiply-adds of the slice in stage ``slot``."""
        raise NotImplementedError

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the epilogue; it reuses the ring's shared memory."""
        raise NotImplementedError

    def grid(self, blocks: Length) -> Grid:
        """Return the grid of ``blocks`` blocks per plane."""
        return plane_grid(blocks, self.operands.planes, self.tile.threads, self.splits, self.shared_bytes)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
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
        """Emit the K loop with asynchronous copies: slices are copied ahead while earlier ones are multiplied."""
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
        """Emit the K loop with a double buffer through registers: the next slice is loaded before the current one is
        multiplied, and stored after it."""
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
        """Emit the slice offset and row of each vector that a thread loads of the left operand. All vectors share their
        position along K, ``along``."""
        vectors = self.depth // self.left_lanes
        apart = self.tile.threads // vectors
        first = buffer.emit(f"idiv(thread, {vectors})")
        buffer.line(f"along = (thread - {first} * {vectors}) * {self.left_lanes}")
        buffer.line(f"home_a = {first} * {self.pitch} + along")
        found = []
        for i in range(max(1, self.tile.rows // apart)):
            row = buffer.emit(f"first_row + {first} + {i * apart}")
            found.append((f"home_a + {i * apart * self.pitch}", self.operands.row_place(buffer, row)))
        self.operands.taps_of_rows(buffer, [place for _, place in found])
        return found

    def _right_places(self, buffer: CodeBuffer) -> list[tuple[str, str, str]]:
        """Emit, for each vector of the right operand, its slice offset, its column in the tile and its position in the
        slice."""
        count = max(1, self.tile.columns * self.depth // self.right_lanes // self.tile.threads)
        per = (self.depth if self.along else self.tile.columns) // self.right_lanes
        apart = self.tile.threads // per
        first = buffer.emit(f"idiv(thread, {per})")
        inside = buffer.emit(f"(thread - {first} * {per}) * {self.right_lanes}")
        line, pitch = first, self.pitch if self.along else self.transposed_pitch
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
        """Emit the asynchronous copies of the slice at ``start`` to stage ``slot``; elements outside the operands are
        0."""
        places = self._places_in(left, right, slot)
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < end:"):
            for (side, to), vector in zip(places, self._sources(buffer, left, right, begin)):
                if vector.prologue is None:
                    buffer.line(f"copy_async(ring_{side}, {to}, {vector.source}, {vector.condition})")
                    continue
                self._zero(buffer, "given", side)
                self._fill(buffer, "given", side, vector)
                buffer.line(f"store_aligned(ring_{side}, {to}, given)")
            self._advance(buffer)
        buffer.line("copy_commit()")

    def _load_slice(self, buffer: CodeBuffer, left: list, right: list, start: str) -> None:
        """Emit the loads of the slice at ``start`` to registers; elements outside the operands are 0."""
        names = [f"next_{side}{k}" for side, own in (("a", left), ("b", right)) for k in range(len(own))]
        for name in names:
            self._zero(buffer, name, name[5])
        begin = buffer.emit(start)
        with buffer.block(f"if {begin} < end:"):
            for name, vector in zip(names, self._sources(buffer, left, right, begin)):
                self._fill(buffer, name, name[5], vector)
            self._advance(buffer)

    def _put_slice(self, buffer: CodeBuffer, left: list, right: list, slot: str) -> None:
        """Emit the stores of the registers of `_load_slice` to stage ``slot``."""
        for k, (side, to) in enumerate(self._places_in(left, right, slot)):
            store = "store_aligned" if self._lanes_of(side) > 1 else "store"
            buffer.line(f"{store}(ring_{side}, {to}, next_{side}{k - len(left) * (side == 'b')})")

    def _lanes_of(self, side: str) -> int:
        return self.left_lanes if side == "a" else self.right_lanes

    def _zero(self, buffer: CodeBuffer, name: str, side: str) -> None:
        buffer.line(f"{name} = const_{getattr(self.request.problem.types, side)}(0, {self._lanes_of(side)})")

    def _fill(self, buffer: CodeBuffer, name: str, side: str, vector: _SliceVector) -> None:
        lanes = self._lanes_of(side)
        with buffer.block(f"if {vector.condition}:"):
            loaded = f"load{'_aligned' * (lanes > 1)}({vector.source}, {lanes})"
            if vector.prologue is not None:
                loaded = self._prologue(buffer, loaded, *vector.prologue)
            buffer.line(f"{name} = {loaded}")

    def _places_in(self, left: list, right: list, slot: str) -> list[tuple[str, str]]:
        """Return the operand (``a`` or ``b``) and the ring offset of each vector of a slice."""
        found = [("a", f"{slot} * {self.left_slot} + {home}") for home, _ in left]
        return [*found, *(("b", f"{slot} * {self.right_slot} + {home}") for home, _, _ in right)]

    def _sources(self, buffer: CodeBuffer, left: list, right: list, begin: str) -> Iterator[_SliceVector]:
        """Emit and yield the source addresses of a slice's vectors."""
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
        """Emit the address update from one slice to the next."""
        self.operands.advance(buffer, self.depth)
        buffer.line(f"right = right + {self._right(str(self.depth), '0')}")

    def _enter(self, buffer: CodeBuffer, right: list) -> None:
        """Emit the addresses of the first slice: of the left operand, of the thread's first vector of the right
        operand, and the stride between its vectors."""
        self.operands.enter(buffer, "begin + along")
        _, column, along = right[0]
        apart = self.tile.threads * self.right_lanes // (self.depth if self.along else self.tile.columns)
        buffer.line(f"right = {self._right(f'(begin + {along})', f'(first_column + {column})')}")
        buffer.line(f"apart_b = {self._right('0', str(apart)) if self.along else self._right(str(apart), '0')}")

    def _right(self, k: str, column: str) -> str:
        """Return the offset of the right operand's element ``[k, column]``."""
        if isinstance(self.operands, ProductOperands):
            return self.operands.right_offset(k, column)
        return f"{column} * depth + {k}"

    def _store_staged(
        self, buffer: CodeBuffer, places: Sequence[str], turns: int, per_row: int, row: str, column: str
    ) -> None:
        """Emit the stores of rows that the warp has staged: ``turns`` vectors per lane, ``per_row`` vectors per row.

        Args:
            places: staged offsets of partial sums, which are added.
            row, column: expressions of the vector's staged row ``below`` and first column ``side``.
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
