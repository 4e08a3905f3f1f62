"""Weights in 16 or 17 bits, for products that wait for their weights: block floating point, and how kernels read it.

Weights are integers with one scale for each column of `BLOCK` rows, so an error is at most half a step of the largest
weight of its block, 2**-15.98 of it, or 2**-16.98 in 17 bits, and a whole one where it would become zero; no step is
below `SMALLEST_STEP`. Columns in which that is much, because few weights are far larger than the others, are refused.

Of 16 bits a 32-bit word holds two rows of a column, the first in its low half, as instructions want them that multiply
two integers each and add the products; scales, float32, lie before the rows of their block. They are `UP` larger, and
the steps of the left-hand side that much smaller, so that sums of a block overflow only where those of floats do.

Of 17 bits, which become floats before they are multiplied, a word holds a column of an even vector of a panel in 15 low
bits and all of one of the next vector; the lowest two bits of the former, of each of `GROUP` rows, are words before
these rows. Both become floats, 2**15 times too large, by a shift, two masks, an or and a conversion each. Scales are
bfloat16, rounded up, and lie in pairs, too. The left-hand side is multiplied by `DOWN` and the scales are that much
larger, so that sums of a block stay below the largest factor on the left: they overflow only where those of floats do.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from .pack import SHARED_BYTES
from .solver import UnsuitedWeights

__all__ = [
    "BLOCK", "BLOCK_WORDS", "DOWN", "FEW", "GROUP", "SHARING", "SMALLEST_STEP", "UP", "block_count", "largest_integer",
    "least_mean", "pack_words", "refuse_unsuited", "unpack", "unpacked_scale", "words_lens",
]  # fmt: skip

BLOCK = 64
"""Rows that share a scale: with fewer, scales take more than their accuracy is worth (normal weights: 64 rows 1.2 times
as accurate as 256, 32 rows 1.35 times)."""
GROUP = 16
"""Rows whose lowest bits share words, two bits of each."""
SHARING = GROUP // 2
"""Rows whose lowest bits share half a word, the first row's being the highest two."""
BLOCK_WORDS = 1 + BLOCK // GROUP + BLOCK
"""Rows of words of a block that has lowest bits: scales, those bits and weights."""
DOWN = 2.0**-37
"""Two to the power of minus the bits of a word less its sign, and of the rows of a block."""
UP = 2.0**22
"""By how much scales of 16 bits are larger: sums of products are below 2**41 steps of states (`recurrent/states.py`),
and of these the largest has 2**20, so that sums in steps over this are below it."""
SMALLEST_STEP = np.float32(2.0**-126)
LEAST_MEAN = 2.0**-7
"""What the weights of a column must have in the mean, of the largest of each block, but for that and zeros. Normal ones
have a third; those beside one that is more than 128 times their mean have less."""
FEW = 16
"""So many weights of a block may be smaller: together they are not far off."""
_MORE = 2.0**15
"""How much too large floats of 17 bits are when they are unpacked."""
_TURNS = np.array([2 * (SHARING - 1 - k % SHARING) + 2 * SHARING * (k // SHARING) for k in range(GROUP)], np.int32)
_TURNS = _TURNS.reshape(GROUP, 1, 1, 1)
"""Where the lowest bits of a group's rows lie in their words."""
_COLUMNS_AT_ONCE = 512
"""Columns that are packed together: a block of them fits L2."""


def block_count(depth: int) -> int:
    """Blocks of ``depth`` rows."""
    return -(-depth // BLOCK)


def largest_integer(lowest: bool) -> int:
    """The integer that the largest weight of a block becomes, of 16 bits or, with ``lowest`` bits, of 17."""
    return (1 << (16 if lowest else 15)) - 1


def least_mean(lowest: bool) -> float:
    """`LEAST_MEAN` in steps."""
    return LEAST_MEAN * (largest_integer(lowest) + 1)


def words_lens(panels: int, depth: int, columns: int, lowest: bool = False) -> tuple[int, int, int]:
    """Lens of packed words: in each panel of ``columns`` the blocks, each a row of scales and rows of words.

    With ``lowest`` bits a word is of two columns, of pairs of vectors, and a row of these bits lies before each `GROUP`
    of rows.
    """
    if lowest:
        return (panels, depth + block_count(depth) - depth // -GROUP, columns // 2)
    return (panels, block_count(depth) - depth // -2, columns)


def unpack(pointer: str, place: str, lanes: int, lowest: str) -> list[str]:
    """Statements: ``b0`` and ``b1``, two vectors of columns in 17 bits, times 2**15 over their scales.

    ``lowest`` names words whose bits 16 and 15 are the lowest of the first vector.
    """
    low = f"shift_left(words, const_int32(17, {lanes}))"
    low = f"bitwise_or({low}, bitwise_and({lowest}, const_int32({3 << 15}, {lanes})))"
    high = f"bitwise_and(words, const_int32({-1 << 15}, {lanes}))"
    return [f"words = load({pointer}, {place}, {lanes})", f"b0 = cast_float32({low})", f"b1 = cast_float32({high})"]


def unpacked_scale(scales: str, half: int, lanes: int) -> str:
    """Statement: ``scale``, of the columns in 17 bits whose scales are in that half of words."""
    if half == 0:
        return f"scale = bits_float32(shift_left({scales}, const_int32(16, {lanes})))"
    return f"scale = bits_float32(bitwise_and({scales}, const_int32({-1 << 16}, {lanes})))"


def pack_words(weights: np.ndarray, out: np.ndarray, lanes: int, lowest: bool = False) -> None:
    """Pack float32 ``weights[k, n]`` into int32 ``out`` of `words_lens`; columns that ``weights`` lacks become zero.

    With ``lowest`` weights have 17 bits, else 16.

    Raises:
        UnsuitedWeights: a weight is infinite or NaN, or too large for a scale or beside others of its column.
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
    """Look at what `_Blocks.pack` returns, summed up over the blocks.

    Raises:
        UnsuitedWeights: some number is negative or NaN.
    """
    if np.isnan(exceeds).any():
        raise UnsuitedWeights("a weight is infinite, not a number or too large for a scale")
    if exceeds.min(initial=0) < 0:
        raise UnsuitedWeights("most weights of a column are too small beside its largest")


class _Blocks:
    """Packs blocks of float32 ``weights[k, n]`` into ``out[panels, rows, width / 2]``.

    All work is along contiguous weights, be they rows or columns, in memory that is used again for each block: new
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
        """Scales and words of a block. A weight that is not zero stays so: its product with infinity is infinite.

        Returns:
            For each column by how much the sum of its weights, but for the largest, exceeds what `LEAST_MEAN` asks for;
            NaN if one of them is infinite or NaN, or too large for a scale or a sum.
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
        """Words of ``scales[columns]`` and ``integers[k, columns]``."""
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
    """The last dimension as vectors and lanes; a view."""
    return words.reshape(*words.shape[:-1], words.shape[-1] // lanes, lanes)


def _bfloat16_above(scales: np.ndarray) -> np.ndarray:
    """The least bfloat16 that are not below positive float32, as float32; NaN stays NaN."""
    above = (np.ascontiguousarray(scales).view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(scales), scales, above.view(np.float32))  # some NaN would become -0
