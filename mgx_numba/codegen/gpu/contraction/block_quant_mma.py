"""Products of up to 32 rows with 4-bit block-quantised weights on tensor cores (mma.sync, sm_80 and above).

A warp multiplies 16 columns, whose codes it expands to 16-bit floats in registers, by tiles of eight rows. The float32
accumulators of a block of codes are multiplied by the block's scale. A multiprocessor has one thread block, for some
tiles of 16 columns and all of K. The warps take units of one or two chunks of these tiles in turns. Each warp copies
the codes and scales of its next unit to shared memory during the current one (cp.async), for the first unit before the
preceding launches end. The rows are in shared memory, because loads complete after all copies that were issued before
them. Partial sums of units are added in shared memory, in a fixed order.
"""

from __future__ import annotations

import ast
import re
import threading

import numpy as np

from ....core.dim import Dim
from ....ops.matmul_nbits import MatMulNBits
from ....parallel import allowed_cpus, on_threads
from ...arguments import Value
from ...launch import Grid, Launch, Operand, Solution
from ...nibbles import ROOM, even_before_odd
from ...printer import CodeBuffer, VectorValue
from ...problems.element_types import ITEMSIZE, ElementTypes
from ...problems.gemm import CHUNK_CODES, BlockFormat, BlockWeights, GemmProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import multiprocessors
from ..merged_text import renamed_statements
from ..products import product_of
from .block_quant import blocks_solution
from .contraction_text import ContractionText
from .gpu_contraction import GpuContraction

COLUMNS, TILE_ROWS = 16, 8
"""Columns and rows of one MMA of a warp: PTX ISA, "mma.m16n8k16"."""
MOST_ROWS = 32
"""Most rows, for as many accumulators as a block has threads: `_results`. Unpacking weights for more than 8 rows took
5.6 times as long as 8 rows do: 16 rows, six layers of 4096 elements and the head, 2.55 ms on an H200, and 0.45."""
EXPONENTS = {"float16": 0x64006400, "bfloat16": 0x43004300}
"""Words of two exponents, to which a code is added as low mantissa bits (`lang.codes`). Passed as a kernel argument: an
instruction takes one immediate, and the mask is another."""
ONES = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80}
"""Words of two ones, by IEEE 754 and its first half: a product with them adds up a row."""
CHUNK = 128
"""Codes of a column that four threads load at once, 16 bytes each."""
PARTS = 4
"""Words of a thread's vector; each holds codes of another 32 positions, so blocks have at least 32 codes."""
WARPS = 16
"""Warps per block, of which a multiprocessor has one. Of two blocks of 8 warps the one that started first got more of
the bandwidth: on an H200 it ended after 57 us, the other one after 68."""
THREADS = WARP * WARPS
"""Threads per block."""
AHEAD = 2
"""Chunks in flight per warp, also the most per unit of work: 34 to 40 KiB per multiprocessor. More bytes in flight
delay the loads of the rows, and small kernels before the product: on an H200 a decoder of 4096 elements took 3% longer
with 4 chunks, and 8% with 6."""
MOST_KEPT = 8
"""Most vectors of the rows that a thread loads at once, for 32 registers."""
PART_BYTES = 32 << 10
"""Shared memory for partial sums of more than one tile. No figures kept."""
MOST_SHARE = 8
"""Most lanes that add up one result. No figures kept."""
RESERVED = 4 << 10
"""Shared memory (bytes) of a block that the system and the alignment of dynamic memory may take. No figures kept."""
ROW_PADDING = 32
"""Elements after each row in shared memory, so that the same elements of two rows lie in different banks."""
ROW = "row_"
"""Prefix of the operands and variables of the kernel that computes the only row."""
_ALONE = re.compile(r"CLUSTER|OPEN|block_index\([12]\)|dynamic_|grid_|mma_")
"""What the kernel of a row must not have: clusters, further axes, memory of the launch, matrix products."""
CODE_WORDS = COLUMNS * CHUNK * 4 // 32
"""Words (int32) of a chunk's codes."""


def chunked(problem: GemmProblem) -> bool:
    """Return whether a product's weights are stored in the layout of `pack_chunks` on the current device."""
    form, product = problem.blocks, product_of(problem.types)
    if form is None or product is None or product.size != 2 or form.bits != 4 or form.size < CHUNK // PARTS:
        return False
    arch = known_architecture()
    if arch is None or not arch.copies or arch.capability < product.capability:
        return False
    return problem.k % max(CHUNK, form.size) == 0


def scales_of_chunk(form: BlockFormat) -> int:
    """Return the scales per column of a chunk, at least 1: a chunk may be part of a larger block."""
    return max(1, CHUNK // form.size)


def scale_type(form: BlockFormat) -> str:
    """Return the type of the scales and offsets of a chunk: 2 bytes less for each block of 18 are a tenth of the time
    that a product takes."""
    return "float16" if form.half_scales else "float32"


def halves_hold(blocks: BlockWeights) -> bool:
    """Return whether all scales and offsets are float16 numbers."""
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(rows, rows.astype(np.float16), equal_nan=True)
            for values in (blocks.scales, blocks.offsets)
            if values is not None
            for rows in np.array_split(values, max(1, values.size // CHUNK_CODES))
        )


def chunk_words(form: BlockFormat) -> int:
    """Return the words (int32) per chunk in the layout of `pack_chunks`."""
    block_bytes = ITEMSIZE[scale_type(form)] * (1 + form.offsets) + form.zero_points
    return CODE_WORDS + COLUMNS * scales_of_chunk(form) * block_bytes // 4


def pack_chunks(
    form: BlockFormat,
    codes: np.ndarray,
    scales: np.ndarray,
    points: np.ndarray | None,
    offsets: np.ndarray | None = None,
) -> np.ndarray:
    """Return 4-bit weights as int32 ``[tiles of 16 columns, chunks of 128 codes, words]``.

    Args:
        codes: as in `BlockWeights`.
        scales: float32 ``[n, blocks]``.
        points: zero points, uint8 ``[n, blocks]``.
        offsets: float32 ``[n, blocks]``; without zero points.

    A chunk is all that a warp needs for 128 positions of 16 columns: codes, 16 words per column; then the bits of the
    scales in `scale_type`, column by column; then the zero points, four per word, or the bits of the offsets. Thread q
    of four loads one vector of a column's codes. Its word p holds the codes from position ``32 p + 8 q``, even
    positions in the lower half, odd ones in the upper half. Columns that the last tile lacks are 0.
    """
    count, repeated = codes.shape[1] * form.size // CHUNK, max(1, form.size // CHUNK)
    tiles = -(-len(codes) // COLUMNS)
    out = np.empty((tiles, count, chunk_words(form)), np.int32)
    some = max(1, CHUNK_CODES // (COLUMNS * CHUNK * count))
    own = threading.local()  # memory of a thread: with new arrays the packing of a model took 11 s on 16 cores

    def pack(tile: int) -> None:
        into, rows = out[tile : tile + some], slice(tile * COLUMNS, (tile + some) * COLUMNS)

        def by_tiles(values: np.ndarray) -> np.ndarray:
            """Return values ``[columns, ...]`` as ``[tiles, chunks, columns, ...]``, with zeros for columns that the
            last tile lacks."""
            lacking = len(into) * COLUMNS - len(values)
            whole = (
                np.concatenate([values, np.zeros((lacking, *values.shape[1:]), values.dtype)]) if lacking else values
            )
            return whole.reshape(len(into), COLUMNS, count, -1).swapaxes(1, 2)

        words = np.ascontiguousarray(codes[rows]).view(np.uint32).reshape(-1)
        if not hasattr(own, "room"):
            own.room = np.empty((ROOM, some * COLUMNS * count * CHUNK // 8), np.uint32)
        found = by_tiles(even_before_odd(words, own.room[:, : len(words)]).reshape(len(codes[rows]), -1))
        place = into[..., :CODE_WORDS].reshape(len(into), count, COLUMNS, 4, PARTS)
        place[:] = found.view(np.int32).reshape(*found.shape[:3], PARTS, 4).swapaxes(3, 4)
        end = CODE_WORDS
        for values in (scales, points, offsets):
            if values is not None:
                stored = values[rows] if values is points else values[rows].astype(scale_type(form))
                part = by_tiles(np.repeat(stored, repeated, 1) if repeated > 1 else stored)
                size = part.dtype.itemsize * COLUMNS * part.shape[3] // 4
                into[..., end : end + size].view(part.dtype).reshape(part.shape)[:] = part
                end += size

    on_threads(pack, range(0, tiles, some), allowed_cpus())
    return out


def joins_blocks(op: MatMulNBits, points: bool, depth: int, columns: int, dtype: str) -> bool:
    """Return whether the kernel combines both halves of the ``columns`` of a product."""
    form = BlockFormat(op.bits, op.block_size, points)
    problem = GemmProblem(1, columns, depth, types=ElementTypes(dtype, dtype, dtype, dtype), blocks=form)
    return not op.layout and columns % (2 * COLUMNS) == 0 and chunked(problem)


def block_quant_mma_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the kernel does not apply to a product whose weights are `chunked`; "" if it applies."""
    problem = contraction.request.problem
    assert isinstance(problem, GemmProblem) and problem.blocks is not None
    if not isinstance(problem.m, Dim) and problem.m > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    if problem.a_strides[-1] != 1 or any(s % 8 for s in problem.a_strides[:-1]):
        return "the left operand's rows are no whole vectors"
    if not _sums_fit(contraction, rows_of(problem)):
        return "the partial sums of a tile do not fit in shared memory"
    return ""


def _sums_fit(contraction: GpuContraction, rows: int) -> bool:
    """Return whether the partial sums of a tile of results fit in shared memory."""
    problem = contraction.request.problem
    assert isinstance(problem, GemmProblem) and problem.blocks is not None
    units = -(-problem.k // (CHUNK * AHEAD)) * contraction.request.epilogue.sums
    return AHEAD * WARPS * chunk_words(problem.blocks) * 4 + 4 * units * part_lanes(rows) <= _most_shared()


def open_rows(contraction: GpuContraction) -> list[int]:
    """Return the numbers of rows up to which kernels for a symbolic number of rows are made: whole tiles, each twice as
    many as the one before."""
    return [n for n in (TILE_ROWS, 2 * TILE_ROWS, MOST_ROWS) if _sums_fit(contraction, n)]


def block_quant_mma_solution(contraction: GpuContraction, row: Launch | None = None, most: int = TILE_ROWS) -> Solution:
    """Return the launch of an applicable product; ``w`` has the layout of `pack_chunks`.

    Args:
        row: launch that computes the only row, which `computes_row` accepts: each block then computes it. Its operands
            have the prefix `ROW`, and nothing reads ``x``.
        most: most rows of a symbolic number of rows.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = _ChunksText(contraction, row, most)
    return blocks_solution(text, "_cores", text.lines(), text.blocks, WARPS, 1, text.shared_bytes)


def computes_row(contraction: GpuContraction, row: Launch) -> bool:
    """Return whether a product's blocks can compute the only row by the kernel of a launch: one block of as many
    threads, which needs no shared memory of the launch, and writes the row alone."""
    text = row.kernel.text
    alone = row.geometry == Grid((1, 1, 1), (THREADS, 1, 1)) and not row.checks and not _ALONE.search(text)
    names = [arg.name for arg in row.args if isinstance(arg, Operand)]
    return alone and len([n for n in names if n.startswith("out")]) == 1 and _ChunksText(contraction).kept_rows


class _OfRow(ast.NodeTransformer):
    """Makes the statements of a row's kernel those of each block, which store the row to shared memory."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the number of the kernel's only block for ``block_index(0)``."""
        self.generic_visit(node)
        return ast.Constant(0) if getattr(node.func, "id", "") == "block_index" else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Return the assignment of ``kept`` for that of the result's address."""
        self.generic_visit(node)
        if getattr(node.targets[0], "id", "") == f"{ROW}p_out0":
            node.value = ast.Name("kept", ast.Load())
        return node


class _ChunksText(ContractionText):
    """Kernel text of one product.

    Attributes:
        row: launch that computes the only row; None: the row is in memory.
        rows: rows that the kernel computes; ``tiles``: tiles of them.
        last_row: expression of the last row of the operand.
        inside: scales per column and chunk.
        words: words per chunk.
        ahead: chunks per unit of work.
        turns: units in flight per warp.
        halves: products per result, 2 for a gated linear unit.
        units: units per tile of weights.
        tile_units: units per tile of results.
        exact: whether every unit has all its chunks.
        width: partial sums per column of a unit in shared memory.
        part: float32 from one unit's partial sums to the next.
        together: tiles whose partial sums are added at once.
        blocks: thread blocks per plane.
        kept_rows: whether all rows are copied to shared memory, ``row_lanes`` elements each.
        shared_bytes: dynamic shared memory per block: units in flight, rows, partial sums.
    """

    def __init__(self, contraction: GpuContraction, row: Launch | None = None, most: int = TILE_ROWS) -> None:
        super().__init__(contraction)
        problem = self.request.problem
        assert isinstance(problem, GemmProblem) and problem.blocks is not None
        self.row = row
        self.problem, self.form = problem, problem.blocks
        self.rows = rows_of(problem, most)
        self.tiles = range(-(-self.rows // TILE_ROWS))
        self.last_row = "(rows - 1)" if isinstance(problem.m, Dim) else str(self.rows - 1)
        self.inside, self.words = scales_of_chunk(self.form), chunk_words(self.form)
        self.halves = self.request.epilogue.sums
        tiles, chunks = -(-problem.n // self.halves // COLUMNS), problem.k // CHUNK
        self.blocks = min(tiles, multiprocessors())
        own = -(-tiles // self.blocks)
        self.ahead = AHEAD if own * self.halves * chunks >= 2 * AHEAD * WARPS else 1
        self.units = -(-chunks // self.ahead)
        self.tile_units = self.halves * self.units
        self.turns = AHEAD // self.ahead
        self.exact = chunks % self.ahead == 0
        self.width, self.part = self.rows + self.rows % 2, part_lanes(self.rows)
        results = THREADS // (COLUMNS * self.rows)
        self.together = max(1, min(own, PART_BYTES // (4 * self.tile_units * self.part), results))
        self.share = widest_share(results // self.together, self.units)
        parts = 4 * self.together * self.tile_units * self.part
        ring = self.turns * WARPS * self.ahead * self.words * 4
        self.row_lanes = problem.k + ROW_PADDING
        row_bytes = self.rows * self.row_lanes * ITEMSIZE[problem.types.a]
        self.kept_rows = ring + parts + row_bytes <= _most_shared()
        self.parts_at, self.rows_at = ring, ring + parts
        self.shared_bytes = ring + parts + self.kept_rows * row_bytes
        self.arguments.integers(
            tiles=tiles,
            stride=self.blocks,
            row_step=problem.a_strides[len(problem.batch)],
            exponents=EXPONENTS[problem.types.a],
        )
        self._own = len(self.arguments.values)
        for k, arg in enumerate(row.args if row is not None else ()):
            self.arguments.word(f"{ROW}{k}", _of_row(arg))

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer = CodeBuffer()
        block = self._begin_plane(buffer, self.blocks)
        buffer.line(
            "warp = warp_index()",
            "lane = thread - warp * 32",
            "group = idiv(lane, 4)",
            "quarter = lane - group * 4",
            f"first_tile = {block}",
            "own = idiv32(tiles - first_tile + stride - 1, stride)",
            f"units = own * {self.tile_units}",
            f"results = idiv32(columns, {self.halves})",
            "nothing = const_float32(0, 4)",
            "ring = dynamic_int32(0)",
            f"parts = dynamic_float32({self.parts_at})",
            f"own_ring = warp * {self.turns * self.ahead * self.words}",
            "unit = warp",
            "asked_unit = warp",
            "slot = 0",
        )
        for slot in range(self.turns):
            self._copy(buffer, str(slot))
        buffer.line("grid_wait()")
        if self.kept_rows:
            buffer.line(f"kept = dynamic_{self.problem.types.a}({self.rows_at})")
            if self.row is None:
                self._keep_rows(buffer)
            else:
                tree = _OfRow().visit(ast.parse(renamed_statements(self.row.kernel, ROW)))
                buffer.line(f"{ROW}args = offset(args, {self._own})", *ast.unparse(tree).splitlines())
            source, step = f"dynamic_{self.problem.types.a}({self.rows_at})", str(self.row_lanes)
        else:
            source, step = "r_x", "row_step"
        for tile in self.tiles:
            number = f"imin(group + {TILE_ROWS * tile}, {self.last_row})"
            buffer.line(f"row_x{tile} = offset({source}, {number} * {step} + quarter * 8)")
        buffer.line("barrier()", "begin = 0")
        with buffer.block("while begin < own:"):
            buffer.line(f"end = imin(begin + {self.together}, own)")
            result = self._results(buffer)
            with buffer.block(f"while unit < end * {self.tile_units}:"):
                self._take_turn(buffer)
            buffer.line("barrier()")
            self._join(buffer, *result)
            buffer.line("begin = end")
            with buffer.block("if begin < own:"):
                buffer.line("barrier()")
        buffer.line("copy_wait(0)")
        return buffer.lines

    def _keep_rows(self, buffer: CodeBuffer) -> None:
        """Emit the copy of the rows to shared memory."""
        stride = 8 * THREADS
        places = [(row, step) for step in range(0, self.problem.k, stride) for row in range(self.rows)]
        for first in range(0, len(places), MOST_KEPT):
            some = places[first : first + MOST_KEPT]
            for row, step in some:
                place = f"imin(thread * 8 + {step}, {self.problem.k - 8})"
                buffer.line(
                    f"row{row}_{step} = load_aligned(r_x, imin({row}, {self.last_row}) * row_step + {place}, 8)"
                )
            for row, step in some:
                with buffer.block(f"if thread * 8 + {step} < {self.problem.k}:"):
                    buffer.line(f"store_aligned(kept, {row * self.row_lanes} + thread * 8 + {step}, row{row}_{step})")

    def _copy(self, buffer: CodeBuffer, slot: str) -> None:
        """Emit the asynchronous copies of the warp's next unit, if there is one, to a free ring slot."""
        pieces, chunks = self.ahead * self.words // 4, self.problem.k // CHUNK
        buffer.line(
            "there = asked_unit < units",
            "wanted = imin(asked_unit, units - 1)",
            f"half = idiv32(wanted, {self.units})",
            f"here = (wanted - half * {self.units}) * {self.ahead}",
            f"tile = first_tile + {self._tile('half')}",
            f"asked = offset(p_w, (tile * {chunks} + here) * {self.words} + lane * 4)",
            f"to = own_ring + {slot} * {self.ahead * self.words} + lane * 4",
        )
        if not self.exact:
            buffer.line(f"behind = ({chunks} - here) * {self.words // 4} - lane")
        for piece in range(0, pieces, WARP):
            inside = "there" if self.exact else f"there & ({piece} < behind)"
            copied = f"copy_async(ring, to + {4 * piece}, asked, {4 * piece}, {inside})"
            if pieces - piece >= WARP:
                buffer.line(copied)
            else:
                with buffer.block(f"if lane < {pieces - piece}:"):
                    buffer.line(copied)
        buffer.line("copy_commit()", f"asked_unit = asked_unit + {WARPS}")

    def _tile(self, half: str) -> str:
        """Return the expression of a tile's distance from the block's first one; ``half`` numbers the block's tiles of
        weights, those of both halves of a result one after the other."""
        if self.halves == 1:
            return f"{half} * stride"
        return f"idiv32({half}, 2) * stride + imod({half}, 2) * tiles"

    def _take_turn(self, buffer: CodeBuffer) -> None:
        """Emit the work on one unit: load the chunks that have arrived, refill their ring slot, multiply, and store the
        partial sums."""
        buffer.line(f"copy_wait({self.turns - 1})", "warp_barrier()")
        for u in range(self.ahead):
            self._load(buffer, u)
        buffer.line("warp_barrier()")
        self._copy(buffer, "slot")
        buffer.line(*(f"total{tile} = nothing" for tile in self.tiles))
        buffer.line(f"here = (unit - idiv32(unit, {self.units}) * {self.units}) * {self.ahead}")
        for u in range(self.ahead):
            if self.exact or not u:
                self._add(buffer, u)
            else:
                with buffer.block(f"if here + {u} < {self.problem.k // CHUNK}:"):
                    self._add(buffer, u)
        buffer.line(f"to = (unit - begin * {self.tile_units}) * {self.part} + group * {self.width} + quarter * 2")
        for tile in self.tiles:
            first = TILE_ROWS * tile
            with buffer.block(f"if quarter < {(self.width - first) // 2}:"):
                buffer.line(f"store_aligned(parts, to + {first}, low2(total{tile}))")
                buffer.line(f"store_aligned(parts, to + {first + 8 * self.width}, high2(total{tile}))")
        buffer.line(f"unit = unit + {WARPS}")
        if self.turns > 1:
            buffer.line("slot = 1 - slot")

    def _load(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the shared-memory loads of the thread's codes, scales and zero points of chunk ``u`` of the step in
        ``slot``."""
        load = "load_aligned" if self.inside > 1 else "load"
        buffer.line(f"chunk = own_ring + (slot * {self.ahead} + {u}) * {self.words}")
        for side, more in (("low", 0), ("high", 8)):
            place = f"(group + {more}) * {self.inside}"
            buffer.line(f"codes_{side}{u} = load_aligned(ring, chunk + lane * 4 + {16 * more}, 4)")
            own = scale_type(self.form)
            first = f"(chunk + {CODE_WORDS}) * {4 // ITEMSIZE[own]} + {place}"
            buffer.line(f"scales_{side}{u} = cast_float32({load}(dynamic_{own}(0), {first}, {self.inside}))")
            if self.form.offsets:
                at = f"{first} + {COLUMNS * self.inside}"
                buffer.line(f"offsets_{side}{u} = cast_float32({load}(dynamic_{own}(0), {at}, {self.inside}))")
            if self.form.zero_points:
                at = f"(chunk + {CODE_WORDS}) * 4 + {COLUMNS * self.inside * ITEMSIZE[own]} + {place}"
                buffer.line(f"points_{side}{u} = cast_int32({load}(dynamic_uint8(0), {at}, {self.inside}))")

    def _add(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the products of the warp's chunk ``u`` with all rows."""
        types = self.problem.types.a
        together = PARTS // self.inside
        for p in range(PARTS):
            block = p // together
            if p % together == 0:
                both = [f"splat(extract(points_{side}{u}, {block}), 1)" for side in ("low", "high")]
                points = f"join2({', '.join(both)})" if self.form.zero_points else f"const_int32({self.form.middle}, 2)"
                buffer.line(f"points = {points}")
                for tile in self.tiles:
                    buffer.line(f"sums{tile} = nothing", *([f"rows{tile} = nothing"] if self.form.offsets else []))
            for tile in self.tiles:
                place = f"(here + {u}) * {CHUNK} + {32 * p}"
                buffer.line(f"x{tile} = pack_words(load_aligned(row_x{tile}, {place}, 8))")
            for pair, half in enumerate(("low2", "high2")):
                buffer.line(f"codes = codes_{types}(codes_low{u}, codes_high{u}, {p}, {pair}, points, exponents)")
                for tile in self.tiles:
                    buffer.line(f"sums{tile} = mma_{types}(sums{tile}, codes, {half}(x{tile}))")
                    if self.form.offsets:
                        ones = f"const_int32({ONES[types]}, 4)"
                        buffer.line(f"rows{tile} = mma_{types}(rows{tile}, {ones}, {half}(x{tile}))")
            if p % together == together - 1:
                for what, factor in (("sums", "scales"), ("rows", "offsets"))[: 1 + self.form.offsets]:
                    both = [f"splat(extract({factor}_{side}{u}, {block}), 2)" for side in ("low", "high")]
                    for tile in self.tiles:
                        own = f"total{tile}"
                        buffer.line(f"{own} = fma({what}{tile}, join2({', '.join(both)}), {own})")

    def _results(self, buffer: CodeBuffer) -> tuple[str, list[VectorValue]]:
        """Emit a thread's result among those of some tiles, and the loads of the epilogue, which else would wait after
        the sums. `share` lanes add up one result, each every so many units.

        Returns:
            the offset of the result in its plane, and the loaded values.
        """
        rows, share = self.rows, self.share
        buffer.line(
            f"item = idiv32(thread, {share})",
            f"tile = idiv32(item, {COLUMNS * rows})",
            f"row = idiv32(item - tile * {COLUMNS * rows}, {COLUMNS})",
            f"column = imod(item, {COLUMNS})",
            f"found = (imin(tile, {self.together - 1}) * {self.tile_units} + thread - item * {share}) * {self.part}",
            f"found = found + column * {self.width} + row",
            f"column = (first_tile + (begin + tile) * stride) * {COLUMNS} + column",
            f"is_stored = (thread == item * {share}) & (begin + tile < end) & (column < results) & (row < rows)",
            f"row = imin(row, {self.last_row})",
            "column = imin(column, results - 1)",
        )
        place, extras = self._extras(buffer, "row", "column", 1, False)
        return place, list(extras.values())

    def _join(self, buffer: CodeBuffer, place: str, extras: list[VectorValue]) -> None:
        """Emit the sums over the units of some tiles, in a fixed order, and the rest of the epilogue."""
        share = self.share
        sums = [f"sum{half}" for half in range(self.halves)]
        for half, own in enumerate(sums):
            buffer.line(f"{own} = const_float32(0, 1)")
            for unit in range(0, self.units, share):
                added = f"{own} = add({own}, load(parts, found + {(half * self.units + unit) * self.part}, 1))"
                if unit + share > self.units:
                    with buffer.block(f"if thread - item * {share} < {self.units - unit}:"):
                        buffer.line(added)
                else:
                    buffer.line(added)
            for bit in reversed(range(share.bit_length() - 1)):
                buffer.line(f"{own} = add({own}, shuffle_xor({own}, {1 << bit}))")
        with buffer.block("if is_stored:"):
            self._put(buffer, place, self._finished(buffer, sums, extras, 1), 1, False)


def _most_shared() -> int:
    """Return the most dynamic shared memory (bytes) of a block."""
    arch = known_architecture()
    return 0 if arch is None else arch.shared_bytes - RESERVED


def _of_row(arg: Value) -> Value:
    """Return an argument of the row's launch among those of the product's."""
    return Operand(ROW + arg.name, arg.offset) if isinstance(arg, Operand) else arg


def rows_of(problem: GemmProblem, most: int = TILE_ROWS) -> int:
    """Return the rows that the kernel computes, ``most`` of a symbolic number."""
    return most if isinstance(problem.m, Dim) else problem.m


def part_lanes(rows: int) -> int:
    """Return the float32 from one unit's partial sums to the next: so many that lanes read from different banks."""
    return COLUMNS * (rows + rows % 2) + 4


def widest_share(most: int, units: int) -> int:
    """Return the number of lanes, a power of two, that add up the units of one result."""
    share = 1
    while 2 * share <= min(most, units, MOST_SHARE):
        share *= 2
    return share
