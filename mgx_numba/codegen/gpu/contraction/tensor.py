"""Products and convolutions on tensor cores: float16, bfloat16, and float32 as three products in TF32.

A block gathers slices of both operands, 16 bytes at a time, into its memory: rows of the left operand and columns of
the right one, each with the positions of the sum side by side. While it multiplies one slice the next is on its way to
registers. Each warp has a part of the block's tile; sums go through memory of the warp, so that rows are stored whole.
Where there are few tiles, several blocks add parts of each sum, and a second launch adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....errors import DeviceError
from ...launch import Grid, Launch, Solution
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...tuning.request import least_bytes
from ..identity import selected_architecture
from ..kernel import gpu_kernel
from .operands import RowPlace
from .parts import add_parts
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText

__all__ = ["TensorTile", "pack_columns", "refusal", "tensor_solution"]

WORDS = 32
"""Words (32 bits) of the sum that a slice has of each row and column: four instructions' worth, as long to multiply as
the next slice is on its way."""
PITCH = WORDS + 4
"""Words from one row of a slice to the next: the eight rows of an instruction then lie in different banks."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability from which on there are mma of bfloat16 and TF32, and cp.async."""
TYPES = ("float16", "bfloat16", "float32")
MASK = -(1 << 13)
"""Bits of a float32 number that TF32 keeps, as an int32."""


@dataclass(frozen=True)
class TensorTile:
    """Rows and columns of a block's tile, and how many warps share either."""

    rows: int
    columns: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.down * self.across


TILES = (TensorTile(128, 128, 2, 4), TensorTile(64, 64, 2, 2), TensorTile(32, 32, 1, 2))
"""From the one that reads least of memory for its work to the one that leaves most blocks."""
SPLIT_TILE = TILES[1]
"""Of sums in parts."""
ENOUGH_BLOCKS = 120
"""Blocks that give the multiprocessors of a large device work."""
SPLIT_BLOCKS = 264
"""Blocks that sums are split for: two for each multiprocessor."""
LEAST_SLICES = 3
"""Slices of a part of a sum: fewer are not worth adding up."""
MOST_SPLITS = 16
"""Parts of a sum at most: each is written and read once more. No figures kept."""


def refusal(placed: PlacedRequest) -> str:
    """Why tensor cores do not compute a contraction; empty if they do."""
    problem = placed.request.problem
    dtype = problem.types.uniform
    if dtype not in TYPES:
        return f"tensor cores have no products of {problem.types}"
    if dtype == "float32" and placed.precision == "highest":
        return "products of float32 shall be those of float32"
    try:
        arch = selected_architecture()
    except DeviceError:
        arch = None  # the interpreter
    if arch is not None and arch.capability < LEAST_CAPABILITY:
        return f"{arch.name} has no tensor cores of this kind"
    lanes = VECTOR_BYTES // ITEMSIZE[dtype]
    if isinstance(problem, GemmProblem):
        rank = len(problem.batch)
        left, right = problem.a_strides, problem.b_strides
        if left[-1] != 1 or problem.k % lanes or any(s % lanes for s in left[:-1]):
            return "the left operand's rows are no whole vectors"
        along = right[rank] == 1 and not any(s % lanes for s in (*right[:rank], right[-1]))
        across = right[-1] == 1 and problem.n % lanes == 0 and not any(s % lanes for s in right[:-1])
        return "" if along or across else "the right operand has no whole vectors"
    if problem.group_in % lanes or any(s % lanes for s in problem.x_strides):
        return "the channels of a group are no whole vectors"
    return ""


def pack_columns(problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Weights of `ConvProblem.weight_lens` as (groups, output channels of a group, taps, input channels)."""
    groups, taps, inputs, outputs = problem.groups, problem.taps, problem.group_in, problem.group_out
    if problem.transposed:
        return np.ascontiguousarray(weights.reshape(groups, inputs, outputs, taps).transpose(0, 2, 3, 1))
    return np.ascontiguousarray(weights.reshape(groups, outputs, inputs, taps).transpose(0, 1, 3, 2))


def tensor_solution(placed: PlacedRequest) -> Solution:
    """The launch of a contraction that is not refused; of a convolution ``w`` is as `pack_columns` makes it.

    Raises:
        UnsupportedError: an operation around the contraction has no kernel.
    """
    text, request = _TensorText(placed), placed.request
    lines, problem, epilogue = text.lines(), request.problem, request.epilogue
    kind = "gemm" if isinstance(problem, GemmProblem) else "convolution"
    name = f"{kind}_tensor_{problem.types.out}"
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}"
    tile, planes = text.tile, text.operands.planes
    blocks = text._tiles(tile.rows, tile.columns), planes, text.splits
    split = text.splits > 1
    launch = Launch(
        kernel=gpu_kernel(f"{name}{work * (not split)}_kernel", lines, tile.threads, len(text.arguments.values)),
        args=text.arguments.values,
        geometry=Grid(blocks, (tile.threads, 1, 1)),
        flops=problem.flops,
        bytes=least_bytes(problem),
    )
    return add_parts(placed, launch, text.splits) if split else Solution((launch,))


class _TensorText(ContractionText):
    """The text of one contraction."""

    def __init__(self, placed: PlacedRequest) -> None:
        super().__init__(placed)
        problem = self.request.problem
        self.dtype = problem.types.single
        self.lanes = VECTOR_BYTES // ITEMSIZE[self.dtype]
        self.depth = WORDS * 4 // ITEMSIZE[self.dtype]
        self.pitch = PITCH * 4 // ITEMSIZE[self.dtype]
        planes = self.operands.planes
        many = [t for t in TILES if self._tiles(t.rows, t.columns) * planes >= ENOUGH_BLOCKS]
        slices = -(-self.operands.depth // self.depth)
        self.splits = 1
        self.tile = many[0] if many else TILES[-1]
        if not many and slices >= 2 * LEAST_SLICES:
            self.tile = SPLIT_TILE
            blocks = self._tiles(SPLIT_TILE.rows, SPLIT_TILE.columns) * planes
            self.splits = max(1, min(-(-SPLIT_BLOCKS // blocks), slices // LEAST_SLICES, MOST_SPLITS))
        part = -(-slices // self.splits)
        self.splits = -(-slices // part)
        self.arguments.integer("part", part * self.depth)
        if self.splits > 1:
            self.arguments.pointer("p_scratch", "scratch", "float32")
            self.arguments.integer("planes", planes)
        self.along = not isinstance(problem, GemmProblem) or problem.b_strides[len(problem.batch)] == 1
        self.aligned = placed.lanes(self.operands.columns, 4) == 4
        self.vectors = self.depth // self.lanes
        self.gathered = max(1, self.tile.rows * self.vectors // self.tile.threads)

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, tile = CodeBuffer(), self.tile
        self._begin(buffer, tile.rows, tile.columns)
        high, wide = tile.rows // tile.down, tile.columns // tile.across
        for line in (
            f"slice_a = shared_{self.dtype}({tile.rows * self.pitch})",
            f"slice_b = shared_{self.dtype}({tile.columns * self.pitch})",
            "staged = floats_of(slice_a)",
            "words_a = words_of(slice_a)",
            "words_b = words_of(slice_b)",
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            "group = idiv(lane, 4)",
            "word = lane - group * 4",
            f"warp_down = idiv(warp, {tile.across})",
            f"warp_row = warp_down * {high}",
            f"warp_column = (warp - warp_down * {tile.across}) * {wide}",
            f"own_a = (warp_row + group) * {PITCH} + word",
            f"own_b = (warp_column + group) * {PITCH} + word",
        ):
            buffer.line(line)
        for i in range(high // 16):
            for j in range(wide // 8):
                buffer.line(f"acc{i}_{j} = const_float32(0, 4)")
        left, right = self._left_places(buffer), self._right_places(buffer)
        buffer.line("begin = block_index(2) * part")
        buffer.line("end = imin(depth, begin + part)")
        self._gather(buffer, left, right, "begin")
        buffer.line("start = begin")
        with buffer.block("while start < end:"):
            self._keep(buffer, left, right)
            buffer.line("barrier()")
            buffer.line(f"start = start + {self.depth}")
            self._gather(buffer, left, right, "start")
            for step in range(WORDS // 8):
                self._multiply(buffer, high // 16, wide // 8, 8 * step)
            buffer.line("barrier()")
        self._finish(buffer, high // 16, wide)
        return buffer.lines

    def _left_places(self, buffer: CodeBuffer) -> list[tuple[str, str, RowPlace]]:
        """For each vector that a thread gathers of the left operand: its row, position in the slice, and place."""
        first = buffer.emit(f"idiv(thread, {self.vectors})")
        along = buffer.emit(f"(thread - {first} * {self.vectors}) * {self.lanes}")
        found = []
        for i in range(self.gathered):
            row = buffer.emit(f"{first} + {i * (self.tile.threads // self.vectors)}") if i else first
            found.append((row, along, self.operands.row_place(buffer, buffer.emit(f"first_row + {row}"))))
        return found

    def _right_places(self, buffer: CodeBuffer) -> list[tuple[str, str]]:
        """For each vector of the right operand: its first column in the tile and first position in the slice.

        Neighbouring threads store positions side by side, so that they do not meet in one bank.
        """
        count = max(1, self.tile.columns * self.vectors // self.tile.threads)
        per = self.vectors if self.along else self.depth
        first = buffer.emit(f"idiv(thread, {per})")
        along = buffer.emit(f"thread - {first} * {per}")
        if self.along:
            along = buffer.emit(f"{along} * {self.lanes}")
        found = []
        for i in range(count):
            column = buffer.emit(f"{first} + {i * (self.tile.threads // per)}") if i else first
            found.append((column if self.along else buffer.emit(f"{column} * {self.lanes}"), along))
        return found

    def _gather(self, buffer: CodeBuffer, left: list, right: list, start: str) -> None:
        """Load the vectors of the slice that begins at ``start``; what lies outside is 0."""
        for i, (_, along, place) in enumerate(left):
            self.operands.step(buffer, buffer.emit(f"{start} + {along}"))
            condition, offset, channel = self.operands.left(buffer, place)
            buffer.line(f"left{i} = const_{self.dtype}(0, {self.lanes})")
            with buffer.block(f"if {condition}:"):
                loaded = f"load_aligned(r_x, {offset}, {self.lanes})"
                buffer.line(f"left{i} = {self._prologue(buffer, loaded, channel, place.image)}")
        for i, (column, along) in enumerate(right):
            k, n = buffer.emit(f"{start} + {along}"), buffer.emit(f"first_column + {column}")
            buffer.line(f"right{i} = const_{self.dtype}(0, {self.lanes})")
            with buffer.block(f"if ({k} < depth) & ({n} < columns):"):
                buffer.line(f"right{i} = load_aligned(r_w, {self._right(buffer, k, n)}, {self.lanes})")

    def _right(self, buffer: CodeBuffer, k: str, column: str) -> str:
        if isinstance(self.request.problem, ConvProblem):
            return buffer.emit(f"{column} * depth + {k}")
        return self.operands.right(buffer, k, column)

    def _keep(self, buffer: CodeBuffer, left: list, right: list) -> None:
        """Store the vectors to the slices."""
        for i, (row, along, _) in enumerate(left):
            buffer.line(f"store_aligned(slice_a, {row} * {self.pitch} + {along}, left{i})")
        for i, (column, along) in enumerate(right):
            if self.along:
                buffer.line(f"store_aligned(slice_b, {column} * {self.pitch} + {along}, right{i})")
                continue
            for e in range(self.lanes):
                place = f"({column} + {e}) * {self.pitch} + {along}"
                buffer.line(f"store_scalar(slice_b, {place}, extract(right{i}, {e}))")

    def _multiply(self, buffer: CodeBuffer, rows: int, columns: int, first: int) -> None:
        """Add the products of one instruction's words, from word ``first`` of the slices on."""
        split = self.dtype == "float32" and self.placed.precision == "high"
        for i in range(rows):
            at = [f"own_a + {16 * i * PITCH + 8 * PITCH * down + first + 4 * on}" for on in (0, 1) for down in (0, 1)]
            words = [buffer.emit(f"load(words_a, {place}, 1)") for place in at]
            self._joined(buffer, f"a{i}", words, split)
        for j in range(columns):
            at = [f"own_b + {8 * j * PITCH + first + 4 * on}" for on in (0, 1)]
            self._joined(buffer, f"b{j}", [buffer.emit(f"load(words_b, {place}, 1)") for place in at], split)
        for i in range(rows):
            for j in range(columns):
                pairs = [(f"a{i}l", f"b{j}"), (f"a{i}", f"b{j}l")] if split else []
                for a, b in [*pairs, (f"a{i}", f"b{j}")]:
                    buffer.line(f"acc{i}_{j} = mma_{self.dtype}(acc{i}_{j}, {a}, {b})")

    @staticmethod
    def _joined(buffer: CodeBuffer, name: str, words: list[str], split: bool) -> None:
        """Emit words as one vector; of float32 what TF32 keeps of each, and in ``<name>l`` what it leaves."""
        text = f"join{len(words)}({', '.join(words)})"
        if not split:
            buffer.line(f"{name} = {text}")
            return
        buffer.line(f"{name}w = {text}")
        buffer.line(f"{name} = bitwise_and({name}w, const_int32({MASK}, {len(words)}))")
        buffer.line(f"{name}l = bits_int32(sub(bits_float32({name}w), bits_float32({name})))")

    def _finish(self, buffer: CodeBuffer, rows: int, wide: int) -> None:
        """Store the sums, after the epilogue: sixteen rows of the warp at a time."""
        pitch, lanes = wide + 4, 4
        whole = self.operands.columns % lanes == 0
        if self.splits > 1:
            buffer.line("first_part = (block_index(2) * planes + plane) * rows")
        buffer.line(f"area = warp * {16 * pitch}")
        per_row = wide // lanes
        for i in range(rows):
            for j in range(wide // 8):
                for down in (0, 1):
                    place = f"area + (group + {8 * down}) * {pitch} + {8 * j} + word * 2"
                    for k in (0, 1):
                        buffer.line(f"store_scalar(staged, {place} + {k}, extract(acc{i}_{j}, {2 * down + k}))")
            buffer.line("barrier()")
            with buffer.block(f"for part in range({16 * per_row // 32}):"):
                buffer.line("number = part * 32 + lane")
                buffer.line(f"line = idiv(number, {per_row})")
                buffer.line(f"side = (number - line * {per_row}) * {lanes}")
                buffer.line(f"row = first_row + warp_row + {16 * i} + line")
                buffer.line("column = first_column + warp_column + side")
                if whole:
                    with buffer.block("if (row < rows) & (column < columns):"):
                        self._store_part(buffer, f"load_aligned(staged, area + line * {pitch} + side, 4)", "column", 4)
                else:
                    with buffer.block("for e in range(4):"):
                        buffer.line("single = column + e")
                        with buffer.block("if (row < rows) & (single < columns):"):
                            sums = f"load(staged, area + line * {pitch} + side + e, 1)"
                            self._store_part(buffer, sums, "single", 1)
            buffer.line("barrier()")

    def _store_part(self, buffer: CodeBuffer, sums: str, column: str, lanes: int) -> None:
        """Store sums of row ``row``: the result, or the block's part of it."""
        if self.splits == 1:
            self._store(buffer, sums, "row", column, lanes, self.aligned)
        else:
            buffer.line(f"store(p_scratch, (first_part + row) * columns + {column}, {sums})")
