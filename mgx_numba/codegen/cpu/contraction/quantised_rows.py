"""The left-hand rows of a product with block-quantised weights: converted to float32 and, in blocks, to integers."""

from __future__ import annotations

import math

import numpy as np

from ....core.dim import SharedLength, ceil_div, known_equal, maximum, minimum
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.gemm import BlockFormat, GemmProblem
from ...statements import indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..microkernels.int8_table import has_dot4
from .block_quant import LANES_TOGETHER
from .pack_kernel import row_start

SHARE = 1024
"""Least elements of a row that are worth a thread to quantise: they take about as long as synchronising two threads
(Zen 5, 0.5 us)."""
ROUND = 1.5 * 2.0**23
"""Added to a float32 below 2**22 in magnitude, leaves the nearest integer in the low bits of the sum."""
LARGEST = {1: 127, 2: 127 * 256 + 127}
"""Largest integer by its number of bytes: one signed byte, or two signed bytes, of which the high byte is rounded."""
SMALLEST_NUMBER, LARGEST_NUMBER = 2.0**-80, 2.0**80
"""Bounds of the largest nonzero element of a block within which row scales, and their products with float16 column
scales and byte sums, are normal numbers."""


def multiplies_integers(problem: GemmProblem) -> bool:
    """Return whether rows are quantised to integers: 8-bit codes are too large for `dot2`, and accumulators must fit 32
    bits."""
    form = problem.blocks
    assert form is not None
    if form.size * ((1 << form.bits) - 1) * LARGEST[bytes_each(problem)] >= 1 << 31:
        return False
    return problem.fast_math and (multiplies_quads() or (form.bits == 4 and host.has("avx2")))


def bytes_each(problem: GemmProblem) -> int:
    """Return the bytes of an integer of a row: 1 where that is allowed, else 2.

    Zen 5, blocks of 32 and 128, one and two threads: one byte takes 0.63 to 0.87 of the time with 256-bit VNNI or none,
    0.80 to 0.90 with AVX-512 without VNNI, and 0.90 to 0.95 with 512-bit VNNI for weights in the last-level cache.
    """
    form = problem.blocks
    assert form is not None
    return 1 if form.int8_rows else 2


def needs_sums(form: BlockFormat) -> bool:
    """Return whether a block's sum of row elements has a factor that differs from column to column."""
    return form.zero_points or form.offsets


def multiplies_quads() -> bool:
    """Return whether the CPU multiplies four unsigned bytes by signed bytes at once, and adds the products."""
    cpu = host.host()
    return has_dot4(cpu, cpu.vector_bits)


class QuantisedRows:
    """The left-hand rows of a product in scratch memory, in the format that its kernel reads."""

    def __init__(self, problem: GemmProblem, threads: int) -> None:
        form = problem.blocks
        assert form is not None
        self.problem, self.form, self.integers = problem, form, multiplies_integers(problem)
        self.each = bytes_each(problem)
        self.lens = (*problem.batch, problem.m)
        self.rows: SharedLength = math.prod(self.lens)
        self.blocks = form.blocks(problem.k)
        self.padded = self.blocks * form.size
        shares = maximum(1, minimum(ceil_div(threads, self.rows), self.padded // SHARE))
        self.share_blocks = ceil_div(self.blocks, shares)
        self.shares = ceil_div(self.blocks, self.share_blocks)
        self.pitch = self.padded + host.CACHE_LINE // 4  # so that rows fall into different cache sets
        self._at: dict[str, SharedLength] = {}
        self.bytes: SharedLength = 0
        parts = {"floats": 4 * self.pitch}
        if self.integers:
            parts |= {"parts": 4 * self._parts_pitch, "flags": 4 * self.shares}
            parts |= dict.fromkeys(("steps", "totals"), 4 * self.blocks)
        for name, size in parts.items():
            self._at[name] = self.bytes
            self.bytes += -(-self.rows * size // host.CACHE_LINE) * host.CACHE_LINE

    @property
    def _parts_pitch(self) -> int:
        """Return the words from one row of bytes to the next; in each block the high bytes, if there are any, precede
        the low bytes."""
        return self.each * self.padded // LANES_TOGETHER + host.CACHE_LINE // 4

    def packed(self) -> GemmProblem:
        """Return the problem with the strides of the rows in scratch, in rows."""
        strides = [math.prod(self.lens[d + 1 :]) for d in range(len(self.lens))]
        p = self.problem
        return GemmProblem(p.m, p.n, p.k, p.batch, (*strides, 1), p.b_strides, p.out_strides, p.types)

    def pointers(self, arguments: Arguments, row: int = 0) -> None:
        """Declare the arrays that hold the rows, starting at row ``row``."""
        sizes = {"floats": (self.pitch, "float32"), "parts": (self._parts_pitch, "int32")}
        sizes |= {"flags": (self.shares, "int32"), "steps": (self.blocks, "float32")}
        sizes["totals"] = self.blocks, "float32" if needs_sums(self.form) else "int32"
        for name, at in self._at.items():
            count, dtype = sizes[name]
            arguments.pointer(name, Operand("scratch", at + 4 * row * count), dtype)
        arguments.integers(blocks=self.blocks, pitch=self.pitch)
        if self.integers:
            arguments.integers(parts_pitch=self._parts_pitch)

    def launch(self) -> Launch:
        """Return the launch that converts the rows; a task is a share of a row's blocks."""
        problem, form, lanes = self.problem, self.form, host.lanes()
        arguments = Arguments()
        arguments.pointer("x", "x", problem.dtype)
        self.pointers(arguments)
        if self.integers:
            arguments.pointer("octets", Operand("scratch", self._at["parts"]), "int8")
        arguments.integers(depth=problem.k, k_stride=problem.a_strides[-1], shares=self.shares)
        arguments.integers(share_blocks=self.share_blocks)
        contiguous = known_equal(problem.a_strides[-1], 1) or problem.k == 1
        strided = "" if contiguous else "_strided"
        place = "start + at + i" if contiguous else "start + (at + i) * k_stride, k_stride"
        block = [
            f"at = block * {form.size}",
            f"largest = const_int32(0, {lanes})",
            f"for i in range(0, {form.size}, {lanes}):",
            f"    count = imax(imin(depth - at - i, {lanes}), 0)",
            f"    value = load{strided}_tail(x, {place}, count, 0, {lanes})",
            "    store(floats, row + at + i, value)",
            "    largest = max(largest, bits_int32(abs(value)))",
            *(self._integer_block(lanes) if self.integers else ()),
        ]
        task = [
            "task = idiv(share, shares)",
            "first = imod(share, shares) * share_blocks",
            *row_start(arguments, self.lens, problem.a_strides),
            "row = task * pitch",
            *(["flag = 0"] if self.integers else ()),
            "for block in range(first, imin(first + share_blocks, blocks)):",
            *indent(block),
            *(["store_scalar(flags, share, cast_int32(flag))"] if self.integers else ()),
        ]
        name = f"nbits_rows{f'_{8 * self.each}bits' if self.integers else ''}{strided}_kernel"
        source = cpu_kernel(name, kernel_text([*arguments.bind(), "for share in range(begin, end):", *indent(task)]))
        tasks = TaskRange(self.rows * self.shares)
        return Launch(source, arguments.values, tasks, 0, 4 * self.rows * problem.k + self.bytes)

    def _integer_block(self, lanes: int) -> list[str]:
        largest = float(LARGEST[self.each])
        total = "cast_float32(reduce_add(total))"
        if not needs_sums(self.form):  # corrects sums of codes, which are too large by the middle code
            total = f"cast_int32(mul(reduce_add(total), {-self.form.middle}))"
        parts = [
            "    high = shift_right(add(number, 128), 8)",
            "    low = sub(number, shift_left(high, 8))",
            "    store(octets, place, cast_int8(high))",
            f"    store(octets, place + {self.form.size}, cast_int8(low))",
        ]
        return [
            "top = bits_float32(reduce_max(largest))",  # compared as bits: NaN is above all numbers
            f"if not lt(top, {LARGEST_NUMBER!r}):",
            "    flag = 1",
            f"if gt(top, 0.0) and lt(top, {SMALLEST_NUMBER!r}):",
            "    flag = 1",
            f"top = max(top, {SMALLEST_NUMBER!r})",
            f"up = div({largest!r}, top)",
            f"total = const_int32(0, {lanes})",
            f"for i in range(0, {self.form.size}, {lanes}):",
            f"    sum = add(mul(load(floats, row + at + i, {lanes}), up), {ROUND!r})",
            f"    number = sub(bits_int32(sum), {int(np.float32(ROUND).view(np.int32))})",
            f"    place = {LANES_TOGETHER} * task * parts_pitch + {self.each} * at + i",
            *(parts if self.each == 2 else ["    store(octets, place, cast_int8(number))"]),
            "    total = add(total, number)",
            f"store_scalar(steps, task * blocks + block, div(top, {largest!r}))",
            f"store_scalar(totals, task * blocks + block, {total})",
        ]
