"""Products with 4-bit or 8-bit block-quantised weights: a fused GEMV kernel for few rows; for more rows a launch
dequantises them first.

The GEMV kernel is bound by reading the codes once. A warp computes several columns for all rows; each lane loads 16
bytes of codes per column and their block's scale. A code replaces the low mantissa bits of the float32 2**23; one FMA
then subtracts 2**23 and the zero point. Partial sums of a vector are multiplied by its scale. Shuffles add the lanes'
sums in a fixed order.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...launch import Launch, Solution
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import CHUNK_CODES, BlockFormat, GemmProblem
from ..architecture import WARP
from ..kernel import gpu_kernel, plane_grid
from .contraction_text import ContractionText
from .gpu_contraction import VECTOR_BYTES, GpuContraction

TYPES = ("float16", "bfloat16", "float32")
MOST_ROWS = 4
"""Most rows of the GEMV kernel. Decoding takes three FMAs per code and one more per row; up to 4 rows this takes less
time than loading the code."""
OWN = 2
"""Columns per warp; the rows' elements are converted once for all of them. With 4 columns a thread took 255 registers,
so that only 8 warps were resident, and weights arrived at half of a copy's rate on an H200."""
BLOCKS, BLOCKS_OF_ROWS = 4, 2
"""Resident blocks per multiprocessor for one row, and for several: 128 and 255 registers per thread."""
WARPS = 4
"""Warps per block: one for each scheduler of a multiprocessor."""
AHEAD = 2
"""Vectors of each column in flight per lane. With 2 columns and 16 warps: 32 KiB per multiprocessor, its share of
bandwidth times latency."""
LANES = 4
"""Words per vector, and independent accumulators of a lane."""
MANTISSA = 23  # bits, by IEEE 754
_MAGIC = 0x4B000000
"""Bits of the float32 2**23, whose unit in the last place is 1. Passed as a kernel argument: an instruction takes one
immediate, and the mask is another."""


def codes_of_vector(form: BlockFormat) -> int:
    """Return the number of codes per load: 16 bytes of codes, or a whole block if it is smaller."""
    return min(8 * VECTOR_BYTES // form.bits, form.size)


def pack_codes(form: BlockFormat, codes: np.ndarray) -> np.ndarray:
    """Return the codes of `BlockWeights` as int32 ``[n, words]``, interleaved for the kernel.

    In each vector, four successive codes are the lowest bits of four words, the next four codes are the next bits of
    these words, and so on.
    """
    count = codes_of_vector(form)
    lanes = count * form.bits // 32
    out = np.empty((len(codes), codes[0].size // 4 if len(codes) else 0), np.int32)
    some = max(1, CHUNK_CODES // max(out.shape[1] * 32 // form.bits, 1))

    def pack(start: int) -> None:
        flat = codes[start : start + some].reshape(len(out[start : start + some]), -1)
        if form.bits == 4:
            flat = np.stack([flat & 15, flat >> 4], -1)
        steps = flat.reshape(len(flat), -1, count // lanes, lanes).astype(np.uint32)
        words = steps[:, :, 0]
        for step in range(1, steps.shape[2]):
            words = words | steps[:, :, step] << np.uint32(step * form.bits)
        out[start : start + some] = words.reshape(len(flat), -1).view(np.int32)

    on_threads(pack, range(0, len(codes), some), allowed_cpus())
    return out


def block_quant_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the GEMV kernel does not apply to a product with block-quantised weights; "" if it
    applies."""
    problem = contraction.request.problem
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
    return "its epilogue takes two sums" if contraction.request.epilogue.gated else ""


def block_quant_solution(contraction: GpuContraction) -> Solution:
    """Return the launch of an applicable product.

    Operands: ``w`` from `pack_codes`, ``scales`` float32, and ``points`` uint8 or ``offsets`` float32, all
    ``[n, blocks]``.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    text = _BlocksText(contraction)
    together = BLOCKS if text.problem.m == 1 else BLOCKS_OF_ROWS
    return blocks_solution(text, "", text.lines(), text.blocks, WARPS, together)


def blocks_solution(
    text: ContractionText, how: str, lines: list[str], blocks: int, warps: int, together: int, shared_bytes: int = 0
) -> Solution:
    """Return the launch of a kernel for block-quantised weights.

    Args:
        how: suffix of the kernel's display name.
        blocks, warps: thread blocks of the grid, and warps per block.
        together: resident blocks per multiprocessor.
        shared_bytes: dynamic shared memory per block.
    """
    problem, epilogue = text.request.problem, text.request.epilogue
    assert isinstance(problem, GemmProblem) and problem.blocks is not None
    form, values = problem.blocks, text.arguments.values
    work = f"{'_' * bool(epilogue.name)}{epilogue.name}"
    name = f"gemm_{form.bits}bits{how}_{problem.types.out}{work}_kernel"
    kernel = gpu_kernel(name, lines, WARP * warps, len(values), blocks=together)
    grid = plane_grid(blocks, text.operands.planes, WARP * warps, shared_bytes=shared_bytes)
    block_bytes = form.size * form.bits // 8 + (2 if form.half_scales else 4) * (1 + form.offsets) + form.zero_points
    rows = problem.batch_count * problem.m * (problem.k + problem.n) * ITEMSIZE[problem.types.a]
    moved = problem.n * form.blocks(problem.k) * block_bytes + rows
    return Solution((Launch(kernel, values, grid, problem.flops, moved),))


class _BlocksText(ContractionText):
    """Kernel text of one product.

    Attributes:
        own: columns per warp.
        blocks: thread blocks per plane.
        count: codes per vector.
    """

    def __init__(self, contraction: GpuContraction) -> None:
        super().__init__(contraction)
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
        if self.form.offsets:
            self.arguments.pointer("p_offsets", "offsets", "float32")
        blocks = self.form.blocks(problem.k)
        self.arguments.integers(
            vectors=problem.k // self.count, blocks=blocks, words=blocks * self.form.size * self.form.bits // 32,
            row_step=problem.a_strides[len(problem.batch)], magic_bits=_MAGIC,
        )  # fmt: skip

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
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
        self._load_next(buffer)
        buffer.line("grid_wait()")
        with buffer.block("while turn < vectors:"):
            for u in range(self.ahead):
                for c in range(self.own):
                    buffer.line(f"now{u}_{c} = next{u}_{c}")
                    buffer.line(f"now_scale{u}_{c} = next_scale{u}_{c}")
                    if self.form.zero_points:
                        buffer.line(f"now_point{u}_{c} = next_point{u}_{c}")
                    if self.form.offsets:
                        buffer.line(f"now_offset{u}_{c} = next_offset{u}_{c}")
            buffer.line("here = turn")
            buffer.line(f"turn = turn + {WARP * self.ahead}")
            self._load_next(buffer)
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

    def _load_next(self, buffer: CodeBuffer) -> None:
        """Emit the loads of the lane's next vectors, with scales and zero points or offsets; beyond the end the last
        vectors are loaded again."""
        for u in range(self.ahead):
            buffer.line(f"at{u} = imin(turn + {WARP * u}, vectors - 1)")
            for c in range(self.own):
                place = f"column{c} * blocks + idiv(at{u}, {self.form.size // self.count})"
                buffer.line(f"next{u}_{c} = load_aligned(codes{c}, at{u} * {LANES}, {LANES})")
                buffer.line(f"next_scale{u}_{c} = load_splat(p_scales, {place}, {LANES})")
                if self.form.zero_points:
                    buffer.line(f"next_point{u}_{c} = cast_float32(load_splat(p_points, {place}, {LANES}))")
                if self.form.offsets:
                    buffer.line(f"next_offset{u}_{c} = load_splat(p_offsets, {place}, {LANES})")

    def _add(self, buffer: CodeBuffer, u: int) -> None:
        """Emit the multiply-adds of vector ``u`` of each column with all rows."""
        bits, per, rows = self.form.bits, 32 // self.form.bits, range(self.problem.m)
        buffer.line(f"k = (here + {WARP * u}) * {self.count}")
        for i in rows:
            for step in range(per):
                loaded = f"load_aligned(row{i}, k + {step * LANES}, {LANES})"
                buffer.line(f"x{i}_{step} = cast_float32({loaded})")
            if self.form.offsets:
                buffer.line(f"whole{i} = x{i}_0", *(f"whole{i} = add(whole{i}, x{i}_{step})" for step in range(1, per)))
        fit = MANTISSA // bits * bits
        for c in range(self.own):
            for i in rows:
                buffer.line(f"part{i} = const_float32(0, {LANES})")
            for step in range(per):
                transposed, place = divmod(step * bits, fit)
                word = f"now{u}_{c}"
                if transposed:
                    word = buffer.emit(f"shift_right(now{u}_{c}, const_int32({transposed * fit}, {LANES}))")
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
                if self.form.offsets:
                    buffer.line(f"acc{i}_{c} = fma(whole{i}, now_offset{u}_{c}, acc{i}_{c})")
