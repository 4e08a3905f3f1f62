"""Products of up to 8 rows with 4-bit block-quantised weights on tensor cores (mma.sync, sm_80 and above).

A warp multiplies 16 columns, whose codes it expands to 16-bit floats in registers, by up to eight rows. The float32
accumulators of a block are multiplied by the block's scale. The warps of a thread block split K, and add their partial
sums in shared memory in a fixed order. Thread blocks are persistent: the codes of the next tile are in flight during
the current one. Each warp copies its own codes and scales to shared memory several steps ahead (cp.async). Loads issued
later complete after the loads of all other warps, so all operands are requested equally early.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...launch import Solution
from ...nibbles import even_before_odd
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import CHUNK_CODES, BlockFormat, BlockWeights, GemmProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import multiprocessors
from ..products import product_of
from .block_quant import blocks_solution
from .contraction_text import ContractionText
from .gpu_contraction import GpuContraction

COLUMNS, MOST_ROWS = 16, 8
"""Columns and rows of one MMA of a warp: PTX ISA, "mma.m16n8k16"."""
EXPONENTS = {"float16": 0x64006400, "bfloat16": 0x43004300}
"""Words of two exponents, to which a code is added as low mantissa bits (`lang.codes`). Passed as a kernel argument: an
instruction takes one immediate, and the mask is another."""
ONES = {"float16": 0x3C003C00, "bfloat16": 0x3F803F80}
"""Words of two ones, by IEEE 754 and its first half: a product with them adds up a row."""
CHUNK = 128
"""Codes of a column that four threads load at once, 16 bytes each."""
PARTS = 4
"""Words of a thread's vector; each holds codes of another 32 positions, so blocks have at least 32 codes."""
WARPS, BLOCKS = 8, 2
"""Warps per block, and resident blocks per multiprocessor, limited by shared memory to exactly 2. Without the limit, a
multiprocessor that finished the previous launch early would get three blocks and another one fewer, which cost a
quarter on an H200. Four blocks of 4 warps were as fast for many matrices, and up to two fifths slower for one; one
block of 16 warps was up to a fifth slower for many."""
AHEAD = 2
"""Independent chunks per step of a warp. On an H200, blocks of 128 are read at 84 to 92% of a copy's rate with 1, 93 to
102% with 2, 89 to 99% with 4."""
TURNS = 2
"""Steps in flight: for 16 warps 68 to 80 KiB per multiprocessor, a multiple of its share of bandwidth times latency. On
an H200, 3 and 4 were as fast for many matrices, and up to 8 and 20% slower for one."""
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

    def pack(tile: int) -> None:
        into, rows = out[tile : tile + some], slice(tile * COLUMNS, (tile + some) * COLUMNS)
        words = even_before_odd(np.ascontiguousarray(codes[rows]).reshape(-1, PARTS, 4, 4).view(np.uint32)[..., 0])
        parts = [words.swapaxes(1, 2)]
        for values in (scales, points, offsets):
            if values is not None:
                stored = values[rows] if values is points else values[rows].astype(scale_type(form))
                parts.append(np.repeat(stored, repeated, 1))
        end = 0
        for part in parts:
            columns = part.reshape(len(codes[rows]), count, -1)
            whole = np.pad(columns, ((0, len(into) * COLUMNS - len(columns)), (0, 0), (0, 0)))
            together = whole.reshape(len(into), COLUMNS, count, -1).swapaxes(1, 2).reshape(len(into), count, -1)
            bits = np.ascontiguousarray(together).view(np.int32)
            start, end = end, end + bits.shape[2]
            into[..., start:end] = bits

    on_threads(pack, range(0, tiles, some), allowed_cpus())
    return out


def block_quant_mma_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the kernel does not apply to a product whose weights are `chunked`; "" if it applies."""
    problem = contraction.request.problem
    assert isinstance(problem, GemmProblem)
    if problem.m > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    if problem.a_strides[-1] != 1 or any(s % 8 for s in problem.a_strides[:-1]):
        return "the left operand's rows are no whole vectors"
    return ""


def block_quant_mma_solution(contraction: GpuContraction) -> Solution:
    """Return the launch of an applicable product; ``w`` has the layout of `pack_chunks`.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = _ChunksText(contraction)
    return blocks_solution(text, "_cores", text.lines(), text.blocks, WARPS, BLOCKS, text.shared_bytes)


class _ChunksText(ContractionText):
    """Kernel text of one product.

    Attributes:
        inside: scales per column and chunk.
        words: words per chunk.
        ahead: chunks per step of a warp.
        exact: whether every step of every warp has all its chunks.
        width: partial sums per column and warp in shared memory.
        blocks: thread blocks per plane.
        shared_bytes: dynamic shared memory per block.
    """

    def __init__(self, contraction: GpuContraction) -> None:
        super().__init__(contraction)
        problem = self.request.problem
        assert isinstance(problem, GemmProblem) and problem.blocks is not None
        self.problem, self.form = problem, problem.blocks
        self.inside, self.words = scales_of_chunk(self.form), chunk_words(self.form)
        chunks = problem.k // CHUNK
        self.ahead = min(AHEAD, -(-chunks // WARPS))
        self.exact = chunks % (WARPS * self.ahead) == 0
        self.width = problem.m + problem.m % 2
        self.parts = WARPS * COLUMNS * self.width
        self.shared_bytes = max(TURNS * WARPS * self.ahead * self.words * 4, _held_bytes() - 2 * self.parts * 4)
        tiles = -(-problem.n // COLUMNS)
        self.blocks = min(tiles, multiprocessors() * BLOCKS)
        self.arguments.integers(
            tiles=tiles,
            stride=self.blocks,
            chunks=chunks,
            row_step=problem.a_strides[len(problem.batch)],
            exponents=EXPONENTS[problem.types.a],
        )

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, rows = CodeBuffer(), self.problem.m
        block = self._begin_plane(buffer, self.blocks)
        buffer.line(
            "warp = warp_index()",
            "lane = thread - warp * 32",
            "group = idiv(lane, 4)",
            "quarter = lane - group * 4",
            f"tile = {block}",
            "count = 0",
            f"row_x = offset(r_x, imin(group, {rows - 1}) * row_step + quarter * 8)",
            "nothing = const_float32(0, 4)",
            f"parts = shared_float32({2 * self.parts})",
            "ring = dynamic_int32(0)",
            f"own_ring = warp * {TURNS * self.ahead * self.words}",
            f"first = warp * {self.ahead}",
            "slot = 0",
            "ask_tile = tile",
            "ask_here = first",
        )
        with buffer.block("if first >= chunks:"):
            buffer.line("ask_tile = tiles")
        for slot in range(TURNS):
            self._copy(buffer, str(slot))
        buffer.line("grid_wait()")
        with buffer.block("while tile < tiles:"):
            buffer.line("total = nothing")
            buffer.line("here = first")
            with buffer.block("while here < chunks:"):
                self._take_turn(buffer)
            self._join(buffer, rows)
            buffer.line("count = count + 1")
            buffer.line("tile = tile + stride")
        buffer.line("copy_wait(0)")
        return buffer.lines

    def _copy(self, buffer: CodeBuffer, slot: str) -> None:
        """Emit the asynchronous copies of one step's chunks to a free ring slot, and advance to the next step of this
        tile or of the next tile."""
        pieces = self.ahead * self.words // 4
        buffer.line(
            "there = ask_tile < tiles",
            f"asked = offset(p_w, (imin(ask_tile, tiles - 1) * chunks + ask_here) * {self.words} + lane * 4)",
            f"to = own_ring + {slot} * {self.ahead * self.words} + lane * 4",
        )
        if not self.exact:
            buffer.line(f"behind = (chunks - ask_here) * {self.words // 4} - lane")
        for piece in range(0, pieces, WARP):
            inside = "there" if self.exact else f"there & ({piece} < behind)"
            copied = f"copy_async(ring, to + {4 * piece}, asked, {4 * piece}, {inside})"
            if pieces - piece >= WARP:
                buffer.line(copied)
            else:
                with buffer.block(f"if lane < {pieces - piece}:"):
                    buffer.line(copied)
        buffer.line("copy_commit()")
        buffer.line(f"ask_here = ask_here + {WARPS * self.ahead}")
        with buffer.block("if ask_here >= chunks:"):
            buffer.line("ask_here = first")
            buffer.line("ask_tile = ask_tile + stride")

    def _take_turn(self, buffer: CodeBuffer) -> None:
        """Emit one step: load the chunks that have arrived, refill their ring slot, and multiply."""
        buffer.line(f"copy_wait({TURNS - 1})")
        buffer.line("warp_barrier()")
        for u in range(self.ahead):
            self._load(buffer, u)
        buffer.line("warp_barrier()")
        self._copy(buffer, "slot")
        for u in range(self.ahead):
            if self.exact or not u:
                self._add(buffer, u)
            else:
                with buffer.block(f"if here + {u} < chunks:"):
                    self._add(buffer, u)
        buffer.line("slot = slot + 1")
        with buffer.block(f"if slot == {TURNS}:"):
            buffer.line("slot = 0")
        buffer.line(f"here = here + {WARPS * self.ahead}")

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
                buffer.line("sums = nothing", *(["rows = nothing"] if self.form.offsets else []))
                both = [f"splat(extract(points_{side}{u}, {block}), 1)" for side in ("low", "high")]
                points = f"join2({', '.join(both)})" if self.form.zero_points else f"const_int32({self.form.middle}, 2)"
                buffer.line(f"points = {points}")
            buffer.line(f"x = pack_words(load_aligned(row_x, (here + {u}) * {CHUNK} + {32 * p}, 8))")
            for pair, half in enumerate(("low2", "high2")):
                codes = f"codes_{types}(codes_low{u}, codes_high{u}, {p}, {pair}, points, exponents)"
                buffer.line(f"sums = mma_{types}(sums, {codes}, {half}(x))")
                if self.form.offsets:
                    buffer.line(f"rows = mma_{types}(rows, const_int32({ONES[types]}, 4), {half}(x))")
            if p % together == together - 1:
                for what, factor in (("sums", "scales"), ("rows", "offsets"))[: 1 + self.form.offsets]:
                    both = [f"splat(extract({factor}_{side}{u}, {block}), 2)" for side in ("low", "high")]
                    buffer.line(f"total = fma({what}, join2({', '.join(both)}), total)")

    def _join(self, buffer: CodeBuffer, rows: int) -> None:
        """Emit the reduction of the warps' partial sums of a tile, and its epilogue, by a different warp each time.
        Successive tiles use alternate shared memory, so that one barrier per tile is enough."""
        buffer.line(f"side = imod(count, 2) * {self.parts}")
        buffer.line(f"own = side + (warp * {COLUMNS} + group) * {self.width} + quarter * 2")
        with buffer.block(f"if quarter < {self.width // 2}:"):
            buffer.line("store_aligned(parts, own, low2(total))")
            buffer.line(f"store_aligned(parts, own + {8 * self.width}, high2(total))")
        buffer.line(
            "barrier()",
            f"place = imod(thread + count * 32, {WARP * WARPS})",
            f"row = idiv(place, {COLUMNS})",
            f"column = place - row * {COLUMNS}",
            f"to = tile * {COLUMNS} + column",
        )
        with buffer.block(f"if (row < {rows}) & (to < columns):"):
            buffer.line("sums = const_float32(0, 1)")
            for w in range(WARPS):
                found = f"side + ({w * COLUMNS} + column) * {self.width} + row"
                buffer.line(f"sums = add(sums, load(parts, {found}, 1))")
            self._store(buffer, ["sums"], "row", "to", 1)


def _held_bytes() -> int:
    """Return the least shared memory per block (bytes) with which no more than `BLOCKS` are resident."""
    arch = known_architecture()
    return 0 if arch is None else arch.shared_bytes // (BLOCKS + 1)
