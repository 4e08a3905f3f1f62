"""A few rows times weights of 4 bits in blocks, by tensor cores of warps (sm_80 and above).

A warp multiplies 16 columns, of whose codes it makes words of 16-bit floats, by up to eight rows: sums in float32 are
multiplied by the scale of each block. The warps of a block take turns along the sum, and add what they have in its
memory, always in one order. Blocks stay and take tile after tile, so that codes of the next one are on their way while
they do: each thread copies its own codes of many turns ahead to the block's memory, more than registers could hold.
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

__all__ = ["CHUNK", "COLUMNS", "EXPONENTS", "chunked", "cores_refusal", "cores_solution", "pack_chunks"]

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
"""Warps of a block, and blocks that share a multiprocessor, whose threads have 128 registers then. No figures kept."""
PARTS_OF_TILE = WARPS * COLUMNS * MOST_ROWS
"""Sums that the warps of a block have of a tile."""
AHEAD = 2
"""Chunks of a warp's turn, whose scales are asked for a turn before."""
TURNS = 4
"""Turns whose codes are on their way: of 16 warps up to 128 KiB of a multiprocessor, some times its share of the
bandwidth times the latency of memory. On an H200 weights of 11008 by 4096 in blocks of 32 and 128 came at 95 and 85%
of a copy's rate, and 92 and 84 with one turn in registers; with copies behind the last tile, which are none any more,
those of 4096 by 4096 at 84 and 76, and 86 and 76."""
CHUNK_WORDS = COLUMNS * CHUNK * 4 // 32
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


def pack_chunks(form: BlockFormat, codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits as `BlockWeights` has them as int32 ``[tiles of 16 columns, chunks of 128, 16, words]``, so that
    what a warp loads at once lies together; columns that are missing in the last tile are 0.

    Of the 128 codes thread q of four has a vector, whose word p has those from ``32 p + 8 q`` on: the even ones in its
    lower half, the odd ones in its upper half.
    """
    flat = codes.reshape(len(codes), -1)
    every = np.stack([flat & 15, flat >> 4], -1).astype(np.uint32)
    split = every.reshape(len(codes), -1, PARTS, 4, 4, 2)  # chunk, part, thread, pair, of a pair
    places = np.arange(4, dtype=np.uint32)[:, None] * 4 + np.arange(2, dtype=np.uint32) * 16
    words = np.bitwise_or.reduce(split << places, (4, 5))
    missing = -len(codes) % COLUMNS
    tiles = np.pad(words.swapaxes(2, 3), ((0, missing), *[(0, 0)] * 3)).reshape(-1, COLUMNS, words.shape[1], 16)
    return np.ascontiguousarray(tiles.swapaxes(1, 2)).view(np.int32)


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
    """The launch of a product that is not refused: ``w`` is as `pack_chunks` makes it, ``scales`` float32 and
    ``points`` uint8, ``[n, blocks]``.

    Raises:
        UnsupportedError: an operation after the product has no kernel.
    """
    text = _ChunksText(placed)
    return blocks_solution(text, "_cores", text.lines(), text.blocks, WARPS, BLOCKS, text.ring_bytes)


class _ChunksText(ContractionText):
    """The text of one product.

    Attributes:
        inside: blocks of a chunk, 0 if a block is larger.
        blocks: of the launch.
        ring_bytes: of a block's memory for codes.
    """

    def __init__(self, placed: PlacedRequest) -> None:
        super().__init__(placed)
        problem = self.request.problem
        assert isinstance(problem, GemmProblem) and problem.blocks is not None
        self.problem, self.form = problem, problem.blocks
        self.inside = CHUNK // self.form.size
        chunks = problem.k // CHUNK
        self.ahead = min(AHEAD, -(-chunks // WARPS))
        self.exact = chunks % (WARPS * self.ahead) == 0
        self.ring_bytes = TURNS * self.ahead * WARPS * CHUNK_WORDS * 4
        self.arguments.pointer("p_scales", "scales", "float32")
        if self.form.zero_points:
            self.arguments.pointer("p_points", "points", "uint8")
        tiles = -(-problem.n // COLUMNS)
        self.blocks = min(tiles, multiprocessors() * BLOCKS)
        self.arguments.integers(
            tiles=tiles,
            stride=self.blocks,
            chunks=chunks,
            blocks=self.form.blocks(problem.k),
            row_step=problem.a_strides[len(problem.batch)],
            exponents=EXPONENTS[problem.types.a],
        )
        if not self.inside:
            self.arguments.integer("chunks_of_block", self.form.size // CHUNK)

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, rows = CodeBuffer(), self.problem.m
        self._begin_plane(buffer)
        for line in (
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            "group = idiv(lane, 4)",
            "quarter = lane - group * 4",
            "tile = block_index(0)",
            "count = 0",
            f"row_x = offset(r_x, imin(group, {rows - 1}) * row_step + quarter * 8)",
            "nothing = const_float32(0, 4)",
            f"parts = shared_float32({2 * PARTS_OF_TILE})",
            "ring = dynamic_int32(0)",
            f"own_ring = warp * {CHUNK_WORDS} + lane * 4",
            "ask_tile = tile",
            "ask_turn = warp",
            "slot = 0",
            "next_tile = tile",
            "next_turn = warp",
        ):
            buffer.line(line)
        for _ in range(TURNS):
            self._copy(buffer)
        for u in range(self.ahead):
            self._ask(buffer, u)
        buffer.line("grid_wait()")
        with buffer.block("while tile < tiles:"):
            buffer.line("total = nothing")
            buffer.line("turn = warp")
            with buffer.block("while turn < chunks:"):
                self._take_turn(buffer)
            self._join(buffer, rows)
            buffer.line("count = count + 1")
            buffer.line("tile = tile + stride")
        buffer.line("copy_wait(0)")
        return buffer.lines

    def _take_turn(self, buffer: CodeBuffer) -> None:
        """Emit the products of the chunks that came, after each the loads of one that is multiplied after all others:
        of this tile, or of the one that follows it."""
        buffer.line("here = turn")
        buffer.line(f"turn = turn + {WARPS * self.ahead}")
        buffer.line("next_turn = turn")
        with buffer.block("if turn >= chunks:"):
            buffer.line("next_turn = warp")
            buffer.line("next_tile = imin(tile + stride, tiles - 1)")
        buffer.line(f"copy_wait({TURNS - 1})")
        for u in range(self.ahead):
            if self.exact:
                self._add(buffer, u)
            else:
                with buffer.block(f"if here + {WARPS * u} < chunks:"):
                    self._add(buffer, u)
            self._ask(buffer, u)
        self._copy(buffer)

    def _copy(self, buffer: CodeBuffer) -> None:
        """Emit the copies of the codes of a turn, as far as there are any, to the place of those that were multiplied
        last; and the step to the next turn, of this tile or the one that follows it."""
        buffer.line("there = ask_tile < tiles")
        buffer.line(f"codes = offset(p_w, (imin(ask_tile, tiles - 1) * chunks + ask_turn) * {CHUNK_WORDS} + lane * 4)")
        for u in range(self.ahead):
            inside = "there" if self.exact else f"there & (ask_turn + {WARPS * u} < chunks)"
            for side in (0, 1):
                at = u * WARPS * CHUNK_WORDS + side * CHUNK_WORDS // 2
                buffer.line(f"copy_async(ring, {self._place(u, side)}, codes, {at}, {inside})")
        for line in ("copy_commit()", f"ask_turn = ask_turn + {WARPS * self.ahead}", "slot = slot + 1"):
            buffer.line(line)
        with buffer.block("if ask_turn >= chunks:"):
            buffer.line("ask_turn = warp")
            buffer.line("ask_tile = ask_tile + stride")
        with buffer.block(f"if slot == {TURNS}:"):
            buffer.line("slot = 0")

    def _place(self, u: int, side: int) -> str:
        """Where the thread's codes of a half of the columns of chunk ``u`` of the turn in ``slot`` are."""
        return f"own_ring + (slot * {self.ahead} + {u}) * {WARPS * CHUNK_WORDS} + {side * CHUNK_WORDS // 2}"

    def _join(self, buffer: CodeBuffer, rows: int) -> None:
        """Emit the sums of what the warps have of a tile, which another warp finishes each time; sums of the next tile
        go to other memory, so that no thread waits twice."""
        for line in (
            f"side = imod(count, 2) * {PARTS_OF_TILE}",
            f"own = side + warp * {COLUMNS * MOST_ROWS} + group * {MOST_ROWS} + quarter * 2",
            "store_aligned(parts, own, low2(total))",
            f"store_aligned(parts, own + {8 * MOST_ROWS}, high2(total))",
            "barrier()",
            f"place = imod(thread + count * 32, {WARP * WARPS})",
            f"row = idiv(place, {COLUMNS})",
            f"column = place - row * {COLUMNS}",
            f"to = tile * {COLUMNS} + column",
        ):
            buffer.line(line)
        with buffer.block(f"if (row < {rows}) & (to < columns):"):
            buffer.line("sums = const_float32(0, 1)")
            for w in range(WARPS):
                found = f"side + {w * COLUMNS * MOST_ROWS} + column * {MOST_ROWS} + row"
                buffer.line(f"sums = add(sums, load(parts, {found}, 1))")
            self._store(buffer, ["sums"], "row", "to", 1)

    def _ask(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the loads of scales and zero points of the warp's next chunk ``u``, or of the last one."""
        buffer.line(f"at = imin(next_turn + {WARPS * u}, chunks - 1)")
        block = f"at * {self.inside}" if self.inside else "idiv(at, chunks_of_block)"
        count = max(1, self.inside)
        load = "load_aligned" if count > 1 else "load"  # a chunk's blocks are a part of a column's that divides them
        for side, more in (("low", 0), ("high", 8)):
            place = f"imin(next_tile * {COLUMNS} + group + {more}, columns - 1) * blocks + {block}"
            buffer.line(f"scales_{side}{u} = {load}(p_scales, {place}, {count})")
            if self.form.zero_points:
                buffer.line(f"points_{side}{u} = cast_int32({load}(p_points, {place}, {count}))")

    def _add(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the products of the warp's chunk ``u`` with all rows."""
        types = self.problem.types.a
        together = PARTS // max(1, self.inside)
        for number, side in enumerate(("low", "high")):
            buffer.line(f"codes_{side} = load_aligned(ring, {self._place(u, number)}, 4)")
        for p in range(PARTS):
            block = p // together
            if p % together == 0:
                buffer.line("sums = nothing")
                both = [f"splat(extract(points_{side}{u}, {block}), 1)" for side in ("low", "high")]
                points = f"join2({', '.join(both)})" if self.form.zero_points else f"const_int32({self.form.middle}, 2)"
                buffer.line(f"points = {points}")
            buffer.line(f"x = pack_words(load_aligned(row_x, (here + {WARPS * u}) * {CHUNK} + {32 * p}, 8))")
            for pair, half in enumerate(("low2", "high2")):
                codes = f"codes_{types}(codes_low, codes_high, {p}, {pair}, points, exponents)"
                buffer.line(f"sums = mma_{types}(sums, {codes}, {half}(x))")
            if p % together == together - 1:
                scales = [f"splat(extract(scales_{side}{u}, {block}), 2)" for side in ("low", "high")]
                buffer.line(f"total = fma(sums, join2({', '.join(scales)}), total)")
