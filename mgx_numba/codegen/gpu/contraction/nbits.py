"""Products with weights of 4 or 8 bits in blocks: of a few rows as they are, of more after a launch that unpacks them.

What takes the time of a few rows is bringing the codes, once: a warp reads several columns for all rows, each lane 16
bytes of each with the scale of their block. A code becomes a float32 in place of the last bits of 2**23, from which one
multiply-add takes that and the zero point. Sums of a vector are multiplied by its scale, and the lanes' sums are joined
by shuffles, always in one order.
"""

from __future__ import annotations

import numpy as np

from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import BlockFormat, GemmProblem
from ..architecture import WARP
from ..kernel import gpu_kernel, plane_grid
from .placed import VECTOR_BYTES, PlacedRequest
from .text import ContractionText

__all__ = ["blocks_solution", "codes_of_vector", "nbits_refusal", "nbits_solution", "pack_codes"]

TYPES = ("float16", "bfloat16", "float32")
MOST_ROWS = 4
"""Rows up to which a code's multiply-adds take less time than bringing it: three and one more for each row."""
OWN = 2
"""Columns of a warp: what rows have at a position is converted once for all of them. With 4 a thread had 255 registers,
so that 8 warps shared a multiprocessor of an H200, and weights came at half of a copy's rate."""
BLOCKS, BLOCKS_OF_ROWS = 4, 2
"""Blocks that share a multiprocessor, with one row and with several: their threads then have 128 and 255 registers."""
WARPS = 4
"""Warps of a block: one for each scheduler of a multiprocessor."""
AHEAD = 2
"""Vectors of each column that a lane has on their way: with 2 columns and 16 warps 32 KiB of a multiprocessor, its
share of the bandwidth times the latency of memory."""
LANES = 4
"""Words of a vector, and sums of a lane side by side."""
MANTISSA = 23  # bits, by IEEE 754
_MAGIC = 0x4B000000
"""The bits of 2**23 in float32, whose last bit is 1. Kernels get it as an argument: an instruction takes one constant,
so that a mask and this one would be two."""


def codes_of_vector(form: BlockFormat) -> int:
    """Codes in 16 bytes, or in a block if it has fewer."""
    return min(8 * VECTOR_BYTES // form.bits, form.size)


def pack_codes(form: BlockFormat, codes: np.ndarray) -> np.ndarray:
    """Codes as `BlockWeights` has them as int32 ``[n, words]``: those of four successive positions are the lowest bits
    of four words, those of the next four what follows there, and so on for each vector."""
    flat = codes.reshape(len(codes), -1)
    if form.bits == 4:
        flat = np.stack([flat & 15, flat >> 4], -1).reshape(len(codes), -1)
    count = codes_of_vector(form)
    lanes = count * form.bits // 32
    steps = flat.reshape(len(codes), -1, count // lanes, lanes).astype(np.uint32)
    shifts = np.arange(steps.shape[2], dtype=np.uint32)[:, None] * np.uint32(form.bits)
    return np.bitwise_or.reduce(steps << shifts, 2).reshape(len(codes), -1).view(np.int32)


def nbits_refusal(placed: PlacedRequest) -> str:
    """Why the kernel of a few rows does not compute a product with weights in blocks; empty if it does."""
    problem = placed.request.problem
    assert isinstance(problem, GemmProblem) and problem.blocks is not None
    if problem.types.uniform not in TYPES:
        return f"no kernel of few rows is for {problem.types}"
    if problem.m > MOST_ROWS:
        return f"more than {MOST_ROWS} rows"
    count = codes_of_vector(problem.blocks)
    if count * problem.blocks.bits != 8 * VECTOR_BYTES or problem.k % count:
        return "columns of codes are no whole vectors"
    if problem.a_strides[-1] != 1 or any(s % LANES for s in problem.a_strides[:-1]):
        return "the left operand's rows are no whole vectors"
    return ""


def nbits_solution(placed: PlacedRequest) -> Solution:
    """The launch of a product that is not refused: ``w`` is as `pack_codes` makes it, ``scales`` float32 and ``points``
    uint8, ``[n, blocks]``.

    Raises:
        UnsupportedError: an operation after the product has no kernel.
    """
    text = _BlocksText(placed)
    together = BLOCKS if text.problem.m == 1 else BLOCKS_OF_ROWS
    return blocks_solution(text, "", text.lines(), text.blocks, WARPS, together)


def blocks_solution(
    text: ContractionText, how: str, lines: list[str], blocks: int, warps: int, together: int, shared_bytes: int = 0
) -> Solution:
    """The launch of a kernel in so many ``blocks`` of so many ``warps`` and so much memory, ``together`` of which share
    a multiprocessor; ``how`` is for readers."""
    problem, epilogue = text.request.problem, text.request.epilogue
    assert isinstance(problem, GemmProblem) and problem.blocks is not None
    form, values = problem.blocks, text.arguments.values
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}"
    name = f"gemm_{form.bits}bits{how}_{problem.types.out}{work}_kernel"
    kernel = gpu_kernel(name, lines, WARP * warps, len(values), blocks=together)
    grid = plane_grid(blocks, text.operands.planes, WARP * warps, shared_bytes=shared_bytes)
    block_bytes = form.size * form.bits // 8 + ITEMSIZE["float32"] + form.zero_points
    rows = problem.batch_count * problem.m * (problem.k + problem.n) * ITEMSIZE[problem.types.a]
    moved = problem.n * form.blocks(problem.k) * block_bytes + rows
    return Solution((Launch(kernel, values, grid, problem.flops, moved),))


class _BlocksText(ContractionText):
    """The text of one product.

    Attributes:
        own: columns of a warp.
        blocks: of a plane.
        count: codes of a vector.
    """

    def __init__(self, placed: PlacedRequest) -> None:
        super().__init__(placed)
        problem = self.request.problem
        assert isinstance(problem, GemmProblem) and problem.blocks is not None
        self.problem, self.form = problem, problem.blocks
        self.count = codes_of_vector(self.form)
        self.own = OWN
        self.blocks = -(-problem.n // (WARPS * self.own))
        turns = -(-problem.k // (WARP * self.count))
        self.ahead = min(AHEAD, turns)
        self.exact = problem.k % (WARP * self.count * self.ahead) == 0
        self.arguments.pointer("p_scales", "scales", "float32")
        if self.form.zero_points:
            self.arguments.pointer("p_points", "points", "uint8")
        blocks = self.form.blocks(problem.k)
        self.arguments.integers(
            vectors=problem.k // self.count, blocks=blocks, words=blocks * self.form.size * self.form.bits // 32,
            row_step=problem.a_strides[len(problem.batch)], magic_bits=_MAGIC,
        )  # fmt: skip

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, rows = CodeBuffer(), range(self.problem.m)
        block = self._begin_plane(buffer, self.blocks)
        buffer.line(
            "warp = idiv(thread, 32)",
            "lane = thread - warp * 32",
            f"first = ({block} * {WARPS} + warp) * {self.own}",
            "turn = lane",
            f"magic = splat(cast_int32(magic_bits), {LANES})",
        )
        for c in range(self.own):
            buffer.line(f"column{c} = imin(first + {c}, columns - 1)")
            buffer.line(f"codes{c} = offset(p_w, column{c} * words)")
            for i in rows:
                buffer.line(f"acc{i}_{c} = const_float32(0, {LANES})")
        for i in rows:
            buffer.line(f"row{i} = offset(r_x, {i} * row_step)")
        self._ask(buffer)
        buffer.line("grid_wait()")
        with buffer.block("while turn < vectors:"):
            for u in range(self.ahead):
                for c in range(self.own):
                    buffer.line(f"now{u}_{c} = next{u}_{c}")
                    buffer.line(f"now_scale{u}_{c} = next_scale{u}_{c}")
                    if self.form.zero_points:
                        buffer.line(f"now_point{u}_{c} = next_point{u}_{c}")
            buffer.line("here = turn")
            buffer.line(f"turn = turn + {WARP * self.ahead}")
            self._ask(buffer)
            for u in range(self.ahead):
                if self.exact:
                    self._add(buffer, u)
                else:
                    with buffer.block(f"if here + {WARP * u} < vectors:"):
                        self._add(buffer, u)
        for i in rows:
            for c in range(self.own):
                buffer.line(f"sum{i}_{c} = reduce_add(acc{i}_{c})")
                for mask in (16, 8, 4, 2, 1):
                    buffer.line(f"sum{i}_{c} = add(sum{i}_{c}, shuffle_xor(sum{i}_{c}, {mask}))")
        for i in rows:
            for c in range(self.own):
                with buffer.block(f"if (lane == {i * self.own + c}) & (first + {c} < columns):"):
                    self._store(buffer, [f"splat(sum{i}_{c}, 1)"], str(i), f"column{c}", 1)
        return buffer.lines

    def _ask(self, buffer: CodeBuffer) -> None:
        """Emit the loads of the lane's next vectors, of the last ones behind the end, with scales and zero points."""
        for u in range(self.ahead):
            buffer.line(f"at{u} = imin(turn + {WARP * u}, vectors - 1)")
            for c in range(self.own):
                place = f"column{c} * blocks + idiv(at{u}, {self.form.size // self.count})"
                buffer.line(f"next{u}_{c} = load_aligned(codes{c}, at{u} * {LANES}, {LANES})")
                buffer.line(f"next_scale{u}_{c} = load_splat(p_scales, {place}, {LANES})")
                if self.form.zero_points:
                    buffer.line(f"next_point{u}_{c} = cast_float32(load_splat(p_points, {place}, {LANES}))")

    def _add(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the products of the lane's vector ``u`` of each column with all rows."""
        bits, per, rows = self.form.bits, 32 // self.form.bits, range(self.problem.m)
        buffer.line(f"k = (here + {WARP * u}) * {self.count}")
        for i in rows:
            for step in range(per):
                loaded = f"load_aligned(row{i}, k + {step * LANES}, {LANES})"
                buffer.line(f"x{i}_{step} = cast_float32({loaded})")
        fit = MANTISSA // bits * bits
        for c in range(self.own):
            for i in rows:
                buffer.line(f"part{i} = const_float32(0, {LANES})")
            for step in range(per):
                turned, place = divmod(step * bits, fit)
                word = f"now{u}_{c}"
                if turned:
                    word = buffer.emit(f"shift_right(now{u}_{c}, const_int32({turned * fit}, {LANES}))")
                mask, unit = ((1 << bits) - 1) << place, 2.0**-place
                code = f"bitwise_or(bitwise_and({word}, const_int32({mask}, {LANES})), magic)"
                less = 2.0**MANTISSA * unit
                if self.form.zero_points:
                    offset = f"sub(const_float32({-less!r}, {LANES}), now_point{u}_{c})"
                else:
                    offset = f"const_float32({-(less + self.form.middle)!r}, {LANES})"
                buffer.line(f"code = fma(bits_float32({code}), const_float32({unit!r}, {LANES}), {offset})")
                for i in rows:
                    buffer.line(f"part{i} = fma(code, x{i}_{step}, part{i})")
            for i in rows:
                buffer.line(f"acc{i}_{c} = fma(part{i}, now_scale{u}_{c}, acc{i}_{c})")
