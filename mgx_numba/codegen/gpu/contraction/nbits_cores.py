"""A few rows times weights of 4 bits in blocks, by tensor cores of warps (sm_80 and above).

A warp multiplies 16 columns, of whose codes it makes words of 16-bit floats, by up to eight rows: sums in float32 are
multiplied by the scale of each block. The warps of a block take turns along the sum, and add what they have in its
memory, always in one order. Blocks stay and take tile after tile, so that codes of the next one are on their way while
they do: each warp copies its own ones of some turns ahead to the block's memory, with their scales, since all that it
waits for has to be asked for as early: what is asked for later comes after all that other warps have asked for.
"""

from __future__ import annotations

import numpy as np

from ...launch import Solution
from ...printer import CodeBuffer
from ...problems.gemm import BlockFormat, GemmProblem
from ..architecture import WARP
from ..driver.device import known_architecture
from ..products import product_of
from .nbits import blocks_solution
from .placed import PlacedRequest
from .text import ContractionText
from .wgmma_tiles import multiprocessors

__all__ = [
    "CHUNK", "CODE_WORDS", "COLUMNS", "EXPONENTS", "chunk_words", "chunked", "cores_refusal", "cores_solution",
    "pack_chunks", "scales_of_chunk",
]  # fmt: skip

COLUMNS, MOST_ROWS = 16, 8
"""Those of one product of a warp: PTX ISA, "mma.m16n8k16"."""
EXPONENTS = {"float16": 0x64006400, "bfloat16": 0x43004300}
"""Words of two exponents of which the lowest bits are a code (`lang.codes`). Kernels get them as an argument: an
instruction takes one constant, so that a mask and this one would be two."""
CHUNK = 128
"""Codes of a column that four threads load at once, 16 bytes each."""
PARTS = 4
"""Words of a thread's vector, of which each is of other 32 codes: blocks are not smaller."""
WARPS, BLOCKS = 8, 2
"""Warps of a block, and blocks of a multiprocessor, which has room for no more of them: of a launch that begins before
the last one is done a multiprocessor that is done early would get three blocks and another one, which made an H200 a
quarter slower. 4 warps in each of four blocks read many matrices as fast and single ones up to two fifths slower, 16
warps in one block many up to a fifth slower."""
AHEAD = 2
"""Chunks of a warp's turn, whose products do not wait for one another. With one an H200 read blocks of 128 at 84 to 92%
of a copy's rate, with two at 93 to 102%, with four at 89 to 99%."""
TURNS = 2
"""Turns whose chunks are on their way: of 16 warps 68 to 80 KiB of a multiprocessor, some times its share of the
bandwidth times the latency of memory. On an H200 three and four were as fast for many matrices, and up to 8 and 20%
slower for single ones."""
CODE_WORDS = COLUMNS * CHUNK * 4 // 32
"""Words of int32 of a chunk's codes."""


def chunked(problem: GemmProblem) -> bool:
    """Whether codes of a product's weights lie as `pack_chunks` puts them, for tensor cores of the device."""
    form, product = problem.blocks, product_of(problem.types)
    if form is None or product is None or product.size != 2 or form.bits != 4 or form.size < CHUNK // PARTS:
        return False
    arch = known_architecture()
    if arch is None or not arch.copies or arch.capability < product.capability:
        return False
    return problem.k % max(CHUNK, form.size) == 0


def scales_of_chunk(form: BlockFormat) -> int:
    """Scales of a column's codes in a chunk: those of its blocks, or of the one that it is a part of."""
    return max(1, CHUNK // form.size)


def chunk_words(form: BlockFormat) -> int:
    """Words of int32 that `pack_chunks` makes of a chunk."""
    return CODE_WORDS + COLUMNS * scales_of_chunk(form) * (5 if form.zero_points else 4) // 4


def pack_chunks(form: BlockFormat, codes: np.ndarray, scales: np.ndarray, points: np.ndarray | None) -> np.ndarray:
    """Codes of 4 bits as `BlockWeights` has them, float32 scales and uint8 zero points ``[n, blocks]`` as int32
    ``[tiles of 16 columns, chunks of 128, words]``: all that a warp needs of a chunk lies together, and a tile's chunks
    one after the other. Columns that are missing in the last tile are 0.

    Of a chunk's words the first are codes, 16 of a column; then come the bits of the scales of its blocks, column by
    column, or of the one block that it is a part of; then its zero points, if there are any, four of them a word. Of
    the 128 codes thread q of four has a vector, whose word p has those from ``32 p + 8 q`` on: the even ones in its
    lower half, the odd ones in its upper half.
    """
    flat = codes.reshape(len(codes), -1)
    every = np.stack([flat & 15, flat >> 4], -1).astype(np.uint32)
    split = every.reshape(len(codes), -1, PARTS, 4, 4, 2)  # chunk, part, thread, pair, of a pair
    places = np.arange(4, dtype=np.uint32)[:, None] * 4 + np.arange(2, dtype=np.uint32) * 16
    words = np.bitwise_or.reduce(split << places, (4, 5)).swapaxes(2, 3)
    count = words.shape[1]
    parts = [words.reshape(len(codes), count, -1)]
    for values in (scales, points):
        if values is not None:
            each = np.repeat(values, max(1, form.size // CHUNK), 1)
            parts.append(each.reshape(len(codes), count, -1))
    tiles = -(-len(codes) // COLUMNS)
    packed = []
    for part in parts:
        whole = np.pad(part, ((0, tiles * COLUMNS - len(codes)), (0, 0), (0, 0)))
        together = whole.reshape(tiles, COLUMNS, count, -1).swapaxes(1, 2).reshape(tiles, count, -1)
        packed.append(np.ascontiguousarray(together).view(np.int32))
    return np.concatenate(packed, 2)


def cores_refusal(placed: PlacedRequest) -> str:
    """Why the kernel does not compute a product whose weights are `chunked`; empty if it does."""
    problem = placed.request.problem
    assert isinstance(problem, GemmProblem)
    if problem.m > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    if problem.a_strides[-1] != 1 or any(s % 8 for s in problem.a_strides[:-1]):
        return "the left operand's rows are no whole vectors"
    return ""


def cores_solution(placed: PlacedRequest) -> Solution:
    """The launch of a product that is not refused: ``w`` is as `pack_chunks` makes it.

    Raises:
        UnsupportedError: an operation after the product has no kernel.
    """
    text = _ChunksText(placed)
    return blocks_solution(text, "_cores", text.lines(), text.blocks, WARPS, BLOCKS, text.shared_bytes)


class _ChunksText(ContractionText):
    """The text of one product.

    Attributes:
        inside: scales of a column's codes in a chunk.
        words: of a chunk.
        ahead: chunks of a warp's turn.
        exact: all turns of all warps are whole.
        width: sums of a column that a block's memory has for each warp.
        blocks: of a plane.
        shared_bytes: of a block's memory besides what the text declares.
    """

    def __init__(self, placed: PlacedRequest) -> None:
        super().__init__(placed)
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
        """All statements of the kernel."""
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
        """Emit the copies of a turn's chunks, as far as there are any, to a slot that nobody reads any more; and the
        step to the next turn, of this tile or the one that follows it."""
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
        """Emit the loads of the chunks that came, the copies of those that take their place, and the products."""
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
        """Emit the loads of the thread's codes, scales and zero points of chunk ``u`` of the turn in ``slot``."""
        load = "load_aligned" if self.inside > 1 else "load"
        buffer.line(f"chunk = own_ring + (slot * {self.ahead} + {u}) * {self.words}")
        for side, more in (("low", 0), ("high", 8)):
            place = f"(group + {more}) * {self.inside}"
            buffer.line(f"codes_{side}{u} = load_aligned(ring, chunk + lane * 4 + {16 * more}, 4)")
            buffer.line(f"scales_{side}{u} = {load}(floats_of(ring), chunk + {CODE_WORDS} + {place}, {self.inside})")
            if self.form.zero_points:
                at = f"(chunk + {CODE_WORDS + COLUMNS * self.inside}) * 4 + {place}"
                buffer.line(f"points_{side}{u} = cast_int32({load}(dynamic_uint8(0), {at}, {self.inside}))")

    def _add(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the products of the warp's chunk ``u`` with all rows."""
        types = self.problem.types.a
        together = PARTS // self.inside
        for p in range(PARTS):
            block = p // together
            if p % together == 0:
                buffer.line("sums = nothing")
                both = [f"splat(extract(points_{side}{u}, {block}), 1)" for side in ("low", "high")]
                points = f"join2({', '.join(both)})" if self.form.zero_points else f"const_int32({self.form.middle}, 2)"
                buffer.line(f"points = {points}")
            buffer.line(f"x = pack_words(load_aligned(row_x, (here + {u}) * {CHUNK} + {32 * p}, 8))")
            for pair, half in enumerate(("low2", "high2")):
                codes = f"codes_{types}(codes_low{u}, codes_high{u}, {p}, {pair}, points, exponents)"
                buffer.line(f"sums = mma_{types}(sums, {codes}, {half}(x))")
            if p % together == together - 1:
                scales = [f"splat(extract(scales_{side}{u}, {block}), 2)" for side in ("low", "high")]
                buffer.line(f"total = fma(sums, join2({', '.join(scales)}), total)")

    def _join(self, buffer: CodeBuffer, rows: int) -> None:
        """Emit the sums of what the warps have of a tile, which another warp finishes each time; sums of the next tile
        go to other memory, so that no thread waits twice."""
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
    """Memory of a block of which `BLOCKS` share a multiprocessor, but not one more."""
    arch = known_architecture()
    return 0 if arch is None else arch.shared_bytes // (BLOCKS + 1)
