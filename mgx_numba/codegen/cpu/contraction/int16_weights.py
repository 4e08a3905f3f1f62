"""Weights in 16 or 17 bits (block floating point) for memory-bound products: their format, packing and unpacking.

Weights are integers with one scale for each column of `BLOCK` rows. The error is at most half a step of the block's
largest weight: 2**-15.98 of it, or 2**-16.98 in 17 bits, and a whole step for weights that would become zero. No step
is below `SMALLEST_STEP`. Columns where that error matters, because a few weights are far larger than the others, are
refused.

16 bits: a 32-bit word holds two rows of a column, the first in its low half, for instructions that multiply pairs of
integers and add the products. The float32 scales precede the rows of their block. Scales are `UP` larger, and the steps
of the left-hand side that much smaller, so that sums of a block overflow only where float sums do.

17 bits: weights are converted to floats before they are multiplied. A word holds, in its low 15 bits, a column of an
even vector of a panel and, in its other bits, the column of the next vector. The lowest two bits of the former, for
each of `GROUP` rows, are words before these rows. Both become floats, 2**15 times too large, by a shift, two masks, an
or and a conversion each. Scales are bfloat16, rounded up, and stored in pairs, too. The left-hand side is multiplied by
`DOWN` and the scales divided by it, so that sums of a block stay below the largest left-hand factor: they overflow only
where float sums do.

A kernel packs weights into 17 bits, reading each weight from memory once. A task is a block of `BLOCK` rows of a stripe
of panels. Its weights are copied to scratch memory, panel by panel and row-major in any case, and stay in the core's
own cache. Each panel is then scanned for its largest weights, and once more to write the words.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...arguments import Arguments
from ...backend import LoadKernels
from ...kernel import KernelSource
from ...launch import Operand
from ...statements import indent, kernel_text
from ..kernel import cpu_kernel
from .panels import SHARED_BYTES
from .solver import UnsuitedWeights

BLOCK = 64
"""Rows that share a scale: with fewer rows, scales take more memory than their accuracy is worth (normal weights: 64
rows are 1.2 times as accurate as 256, 32 rows 1.35 times)."""
GROUP = 16
"""Rows whose lowest two bits share words."""
SHARING = GROUP // 2
"""Rows whose lowest bits share half a word; the first row has the highest two bits."""
BLOCK_WORDS = 1 + BLOCK // GROUP + BLOCK
"""Rows of words of a 17-bit block: scales, lowest bits and weights."""
DOWN = 2.0**-37
"""Two to the power of minus (bits of a word without its sign, plus log2 of the rows of a block)."""
UP = 2.0**22
"""Factor of 16-bit scales. Sums of products are below 2**41 steps of states (`recurrent/states.py`), the largest of
which is 2**20 steps. Divided by this factor, sums in steps stay below 2**20."""
SMALLEST_STEP = np.float32(2.0**-126)
LEAST_MEAN = 2.0**-7
"""Least mean magnitude of a column's weights, relative to each block's largest weight, without that weight and zeros.
Normal weights have a third; weights beside one that exceeds 128 times their mean have less."""
FEW = 16
"""Weights of a block that may be smaller: together their error is negligible."""
_MORE = 2.0**15
"""Factor by which 17-bit weights are too large after unpacking."""
_TURNS = np.array([2 * (SHARING - 1 - k % SHARING) + 2 * SHARING * (k // SHARING) for k in range(GROUP)], np.int32)
_TURNS = _TURNS.reshape(GROUP, 1, 1, 1)
"""Shifts of the lowest bits of a group's rows within their words."""
_COLUMNS_AT_ONCE = 512
"""Columns that are packed together: a block of them fits L2."""


def block_count(depth: int) -> int:
    """Return the number of blocks of ``depth`` rows."""
    return -(-depth // BLOCK)


def largest_integer(lowest: bool) -> int:
    """Return the integer that represents a block's largest weight, for 16 bits or, with ``lowest`` bits, 17."""
    return (1 << (16 if lowest else 15)) - 1


def least_mean(lowest: bool) -> float:
    """Return `LEAST_MEAN` in steps."""
    return LEAST_MEAN * (largest_integer(lowest) + 1)


def words_lens(panels: int, depth: int, columns: int, lowest: bool = False) -> tuple[int, int, int]:
    """Return the lengths of packed words: panels, rows of a panel (each block has a row of scales, then rows of words),
    columns.

    Args:
        lowest: 17 bits: a word holds two columns of a pair of vectors, and a row of lowest bits precedes each `GROUP`
            of rows.
    """
    if lowest:
        return (panels, depth + block_count(depth) - depth // -GROUP, columns // 2)
    return (panels, block_count(depth) - depth // -2, columns)


def unpack(pointer: str, place: str, lanes: int, lowest: str) -> list[str]:
    """Return statements that unpack ``b0`` and ``b1``, two vectors of 17-bit columns, times 2**15 over their scales.

    Args:
        lowest: name of the words whose bits 16 and 15 are the lowest bits of the first vector.
    """
    low = f"shift_left(words, const_int32(17, {lanes}))"
    low = f"bitwise_or({low}, bitwise_and({lowest}, const_int32({3 << 15}, {lanes})))"
    high = f"bitwise_and(words, const_int32({-1 << 15}, {lanes}))"
    return [f"words = load({pointer}, {place}, {lanes})", f"b0 = cast_float32({low})", f"b1 = cast_float32({high})"]


def unpacked_scale(scales: str, half: int, lanes: int) -> str:
    """Return the statement that unpacks ``scale`` of the 17-bit columns whose scales are in half ``half`` of the
    words."""
    if half == 0:
        return f"scale = bits_float32(shift_left({scales}, const_int32(16, {lanes})))"
    return f"scale = bits_float32(bitwise_and({scales}, const_int32({-1 << 16}, {lanes})))"


def pack_words(weights: np.ndarray, out: np.ndarray, lanes: int, lowest: bool = False) -> None:
    """Pack float32 ``weights[k, n]`` into int32 ``out`` of `words_lens`; columns that ``weights`` lacks become zero.

    Args:
        lowest: whether weights have 17 bits, not 16.

    Raises:
        UnsuitedWeights: a weight is infinite or NaN, too large for a scale, or too large beside others of its column.
    """
    width = out.shape[2] * (2 if lowest else 1)
    together = max(1, _COLUMNS_AT_ONCE // width)

    def pack(first: int) -> None:
        panels = out[first : first + together]
        columns = weights[:, first * width : (first + len(panels)) * width]
        blocks = _Blocks(columns, panels, lanes, lowest)
        surplus = np.zeros(len(panels) * width)
        for block in range(block_count(len(weights))):
            surplus += blocks.pack(block)
        refuse_unsuited(surplus)

    on_threads(pack, range(0, len(out), together), allowed_cpus() if out.nbytes >= SHARED_BYTES else 1)


def refuse_unsuited(exceeds: np.ndarray) -> None:
    """Check the result of `_Blocks.pack`, summed over the blocks.

    Raises:
        UnsuitedWeights: a number is negative or NaN.
    """
    if np.isnan(exceeds).any():
        raise UnsuitedWeights("a weight is infinite, not a number or too large for a scale")
    if exceeds.min(initial=0) < 0:
        raise UnsuitedWeights("most weights of a column are too small beside its largest")


class _Blocks:
    """Packs blocks of float32 ``weights[k, n]`` into ``out[panels, rows, width / 2]``.

    All loops run along contiguous weights, be they rows or columns. Buffers are reused for each block: allocating
    memory would take longer than the work.
    """

    def __init__(self, weights: np.ndarray, out: np.ndarray, lanes: int, lowest: bool) -> None:
        self._weights, self._out, self._lanes, self._lowest = weights, out, lanes, lowest
        self._by_columns = abs(weights.strides[0]) < abs(weights.strides[1])
        self._take_memory(min(len(weights), BLOCK))

    def _take_memory(self, depth: int) -> None:
        panels, _, words = self._out.shape
        columns = panels * words * (2 if self._lowest else 1)
        lens = (columns, depth) if self._by_columns else (depth, columns)
        self._memory = [np.zeros(lens, dtype) for dtype in (np.float32, np.float32, np.int32)]

    @np.errstate(all="ignore")
    def pack(self, block: int) -> np.ndarray:
        """Pack scales and words of one block. Nonzero weights stay nonzero, as their product with infinity is infinite.

        Returns:
            For each column by how much the sum of its weights, without the largest, exceeds the sum that `LEAST_MEAN`
            requires. NaN if a weight is infinite or NaN, or too large for a scale or a sum.
        """
        depth, columns = self._weights.shape
        first = block * BLOCK
        depth = min(depth - first, BLOCK)
        if depth < BLOCK:
            self._take_memory(depth)
        part, steps, integers = (m.T if self._by_columns else m for m in self._memory)
        part[:, :columns] = self._weights[first : first + depth]
        largest = np.abs(part, out=steps).max(0)
        step = np.maximum(largest / np.float32(largest_integer(self._lowest)), SMALLEST_STEP)
        if self._lowest:
            scales = _bfloat16_above(step * np.float32(1 / _MORE / DOWN))
            step = scales * np.float32(_MORE * DOWN)
        else:
            scales = step * np.float32(UP)
        total = steps.sum(0)
        np.rint(np.divide(part, step, out=steps), out=steps)
        zeros = np.flatnonzero(self._memory[1] == 0)
        small = self._memory[0].reshape(-1)[zeros]
        self._memory[1].reshape(-1)[zeros] = np.sign(small)
        places = zeros[small == 0]
        places = places // depth if self._by_columns else places % len(largest)
        some = depth - np.bincount(places, minlength=len(largest))
        np.copyto(integers, steps, casting="unsafe")
        self._store(block, scales, integers)
        others = np.maximum(some - FEW, 0)
        exceeds = total.astype(np.float64) - largest - others * (least_mean(self._lowest) * step.astype(np.float64))
        known = np.isfinite(scales) & np.isfinite(total)
        return np.where(known, np.where(step > SMALLEST_STEP, exceeds, 0), np.nan)

    def _store(self, block: int, scales: np.ndarray, integers: np.ndarray) -> None:
        """Store the words of ``scales[columns]`` and ``integers[k, columns]``."""
        out, lanes, depth = self._out, self._lanes, len(integers)
        panels, _, wide = out.shape
        if not self._lowest:
            start = block * (1 + BLOCK // 2)
            out[:, start] = scales.view(np.int32).reshape(panels, wide)
            pairs = out[:, start + 1 : start + 1 - depth // -2]
            by_panel = integers.reshape(depth, panels, wide).swapaxes(0, 1)
            np.bitwise_and(by_panel[:, ::2], 0xFFFF, out=pairs)
            pairs[:, : depth // 2] |= by_panel[:, 1::2] << 16
            return
        start = block * BLOCK_WORDS
        halves = scales.view(np.int32).reshape(panels, wide // lanes, 2, lanes)
        np.bitwise_or((halves[:, :, 0] >> 16) & 0xFFFF, halves[:, :, 1], out=_split(out[:, start], lanes))
        split = integers.reshape(depth, panels, wide // lanes, 2, lanes)
        low, high = split[:, :, :, 0], split[:, :, :, 1]
        for head in range(0, depth, GROUP):
            rows = slice(head, min(head + GROUP, depth))
            place = start + 1 + head // GROUP * (GROUP + 1)
            last = (low[rows] & 3) << _TURNS[: rows.stop - head]
            np.bitwise_or.reduce(last, 0, out=_split(out[:, place], lanes))
            words = _split(out[:, place + 1 : place + 1 + rows.stop - head], lanes)
            np.bitwise_or((low[rows] >> 2) & 0x7FFF, high[rows] << 15, out=words.swapaxes(0, 1))


def _split(words: np.ndarray, lanes: int) -> np.ndarray:
    """Return a view of ``words`` whose last dimension is split into vectors and lanes."""
    return words.reshape(*words.shape[:-1], words.shape[-1] // lanes, lanes)


def _bfloat16_above(scales: np.ndarray) -> np.ndarray:
    """Return positive float32 rounded up to bfloat16, as float32; NaN stays NaN."""
    above = (np.ascontiguousarray(scales).view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(scales), scales, above.view(np.float32))  # some NaN would become -0


STRIPE = 256
"""Columns of a stripe, of which a block takes a quarter of an L2 cache (measured: 64 to 512 differ by a tenth)."""
ROUNDING = 1.5 * 2.0**23
"""Added to a small number, leaves the nearest integer (ties to even) in the low bits of a float32."""
PART_BLOCKS = 32
"""Blocks of a stripe that one thread packs at a time, some 2 MiB of weights."""


def pack_by_kernel(weights: np.ndarray, out: np.ndarray, lanes: int, load: LoadKernels) -> None:
    """Pack weights with contiguous rows or columns as `int16_weights.pack_words` does with the lowest bits."""
    depth, columns = weights.shape
    panels, size, pairs = out.shape
    by_columns = _by_columns(weights)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        load([kernel_for(weights, out.shape, lanes)])[0]
    )
    blocks, together = block_count(depth), max(1, STRIPE // (2 * pairs))
    stride = weights.strides[by_columns] // weights.itemsize
    exceeds = np.zeros((blocks, panels * 2 * pairs), np.float32)

    def pack(part: tuple[int, int]) -> None:
        panel, block = part
        count = min(together, panels - panel)
        scratch = np.empty(count * BLOCK * 2 * pairs + lanes, np.float32)
        aligned = scratch.ctypes.data + -scratch.ctypes.data % (4 * lanes)
        places = {
            Operand("w"): weights.ctypes.data,
            Operand("out"): out.ctypes.data,
            Operand("scratch"): aligned,
            Operand("exceeds"): exceeds.ctypes.data,
        }
        words = _arguments(depth, columns, stride, panels, size, panel, count).values
        arguments = np.array([places[w] if isinstance(w, Operand) else w for w in words], np.int64)
        run(arguments.ctypes.data, block, min(block + PART_BLOCKS, blocks))

    parts = [(panel, block) for panel in range(0, panels, together) for block in range(0, blocks, PART_BLOCKS)]
    on_threads(pack, parts, allowed_cpus() if out.nbytes >= SHARED_BYTES else 1)
    refuse_unsuited(exceeds.sum(0, np.float64))


def _by_columns(weights: np.ndarray) -> bool:
    return weights.strides[1] != weights.itemsize


def kernel_for(weights: np.ndarray, lens: Sequence[int], lanes: int) -> KernelSource:
    """Return the kernel that packs ``weights[k, n]`` into words of the lengths ``lens``."""
    return packing_kernel(_by_columns(weights), 2 * lens[2] // lanes, lanes)


@functools.cache  # each weight of a network asks for it twice
def packing_kernel(by_columns: bool, vectors: int, lanes: int) -> KernelSource:
    """Return the packing kernel for panels of ``vectors`` vectors.

    Args:
        by_columns: the weights' columns are contiguous, not the rows.
    """
    wide = vectors * lanes
    task = [
        f"first = block * {BLOCK}",
        f"rows = imin(depth - first, {BLOCK})",
        "for p in range(count):",
        f"    column = (panel + p) * {wide}",
        f"    part = offset(scratch, p * {BLOCK * wide})",
        *indent(_loaded_columns(vectors, lanes) if by_columns else _loaded_rows(vectors, lanes)),
        "for p in range(count):",
        f"    column = (panel + p) * {wide}",
        f"    part = offset(scratch, p * {BLOCK * wide})",
        f"    place = ((panel + p) * size + block * {BLOCK_WORDS}) * {wide // 2}",
        *indent(_steps(vectors, lanes)),
        f"    place += {wide // 2}",
        f"    for head in range(0, rows, {GROUP}):",
        *indent(_words(vectors, lanes), 2),
        f"        place += {(GROUP + 1) * wide // 2}",
    ]
    lines = [*_arguments().bind(), "for block in range(begin, end):", *indent(task)]
    return cpu_kernel(f"int16_pack_{'columns' if by_columns else 'rows'}_kernel", kernel_text(lines))


def _arguments(
    depth: int = 0, columns: int = 0, stride: int = 0, panels: int = 0, size: int = 0, panel: int = 0, count: int = 0
) -> Arguments:
    """Return the kernel's argument block; each pointer is an operand of its name."""
    arguments = Arguments()
    for name, dtype in (("w", "float32"), ("out", "int32"), ("scratch", "float32"), ("exceeds", "float32")):
        arguments.pointer(name, name, dtype)
    arguments.integers(depth=depth, columns=columns, stride=stride, panels=panels, size=size, panel=panel, count=count)
    return arguments


def _loaded_rows(vectors: int, lanes: int) -> list[str]:
    wide = vectors * lanes
    tail = f"load_tail(w, source + v, imin(imax(columns - column - v, 0), {lanes}), 0, {lanes})"
    return [
        "for k in range(rows):",
        "    source = (first + k) * stride + column",
        f"    if column + {wide} <= columns:",
        *(f"        store(part, k * {wide} + {v}, load(w, source + {v}, {lanes}))" for v in range(0, wide, lanes)),
        "    else:",
        f"        for v in range(0, {wide}, {lanes}):",
        f"            store(part, k * {wide} + v, {tail})",
    ]


def _loaded_columns(vectors: int, lanes: int) -> list[str]:
    wide = vectors * lanes
    return [
        f"here = imin(columns - column, {wide})",
        f"whole = rows - imod(rows, {lanes}) if here > 0 else 0",
        f"for v in range(0, {wide}, {lanes}):",
        "    if v < here:",
        f"        for k in range(0, whole, {lanes}):",
        "            source = offset(w, (column + v) * stride + first + k)",
        f"            transpose_block(source, stride, here - v, offset(part, k * {wide} + v), {wide}, {lanes})",
        "        for k in range(whole, rows):",
        f"            for c in range(v, imin(here, v + {lanes})):",
        f"                store_scalar(part, k * {wide} + c, load_scalar(w, (column + c) * stride + first + k))",
        f"    if here < v + {lanes}:",
        f"        shown = lane_mask(imax(here - v, 0), {lanes})",
        "        for k in range(rows):",
        f"            known = load(part, k * {wide} + v, {lanes})",
        f"            store(part, k * {wide} + v, where(shown, known, const_float32(0, {lanes})))",
    ]


def _steps(vectors: int, lanes: int) -> list[str]:
    """Return statements that compute each column's step and scale, and by how much the sums exceed the least mean."""
    zero = f"const_float32(0, {lanes})"
    each = range(vectors)
    return [
        *(f"{name}{v} = {zero}" for v in each for name in ("largest", "total", "some")),
        "for k in range(rows):",
        *(
            f"    {line}"
            for v in each
            for line in (
                f"x = abs(load(part, k * {vectors * lanes} + {v * lanes}, {lanes}))",
                f"largest{v} = first_greater(x, largest{v})",
                f"total{v} = add(total{v}, x)",
                f"some{v} = add(some{v}, where(ne(x, 0), const_float32(1, {lanes}), {zero}))",
            )
        ),
        *(
            line
            for v in each
            for line in (
                f"step{v} = max(div(largest{v}, {largest_integer(True)}), {float(SMALLEST_STEP)!r})",
                f"bits = add(bits_int32(mul(step{v}, {2.0**-15 / DOWN!r})), {0xFFFF})",
                f"bits{v} = bitwise_and(bits, const_int32({-1 << 16}, {lanes}))",
                f"step{v} = mul(bits_float32(bits{v}), {DOWN / 2.0**-15!r})",
                f"needed = mul(max(sub(some{v}, {FEW}), 0), mul(step{v}, {least_mean(True)!r}))",
                f"more = sub(sub(total{v}, largest{v}), needed)",
                f"more = where(logical_or(gt(step{v}, {float(SMALLEST_STEP)!r}), isnan(total{v})), more, {zero})",
                f"more = where(lt(bits_float32(bits{v}), INF), more, NAN)",
                f"store(exceeds, block * panels * {vectors * lanes} + column + {v * lanes}, more)",
            )
        ),
        *(
            line
            for v in range(0, vectors, 2)
            for line in (
                f"low = bitwise_and(shift_right(bits{v}, const_int32(16, {lanes})), const_int32(65535, {lanes}))",
                f"store(out, place + {v // 2 * lanes}, bitwise_or(low, bits{v + 1}))",
            )
        ),
    ]


def _words(vectors: int, lanes: int) -> list[str]:
    """Return statements that write the words of a panel's rows from ``head``, after the words of their lowest bits at
    ``place``.

    Nonzero weights stay nonzero.
    """
    wide = vectors * lanes
    each = range(vectors)
    lines = []
    for v in each:
        lines += [
            f"x{v} = load(part, (head + k) * {wide} + {v * lanes}, {lanes})",
            f"q{v} = add(div(x{v}, step{v}), {ROUNDING!r})",
        ]
    lines += [
        f"zero = eq(q0, {ROUNDING!r})",
        *(f"zero = logical_or(zero, eq(q{v}, {ROUNDING!r}))" for v in each[1:]),
        "if reduce_or(zero):",
        *(f"    q{v} = where(eq(q{v}, {ROUNDING!r}), add(sign(x{v}), {ROUNDING!r}), q{v})" for v in each),
        f"up = splat(cast_int32(2 * ({SHARING - 1} - imod(k, {SHARING}) + {SHARING} * idiv(k, {SHARING}))), {lanes})",
    ]
    for v in range(0, vectors, 2):
        lines += [
            f"low = bits_int32(q{v})",
            f"last{v} = bitwise_or(last{v}, shift_left(bitwise_and(low, const_int32(3, {lanes})), up))",
            f"low = bitwise_and(shift_right(low, const_int32(2, {lanes})), const_int32({0x7FFF}, {lanes}))",
            f"high = shift_left(bits_int32(q{v + 1}), const_int32(15, {lanes}))",
            f"store(out, place + (k + 1) * {wide // 2} + {v // 2 * lanes}, bitwise_or(low, high))",
        ]
    pairs = range(0, vectors, 2)
    return [
        *(f"last{v} = const_int32(0, {lanes})" for v in pairs),
        f"for k in range(imin(rows - head, {GROUP})):",
        *indent(lines),
        *(f"store(out, place + {v // 2 * lanes}, last{v})" for v in pairs),
    ]
