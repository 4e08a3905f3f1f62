"""Weights in 16 bits, for products that wait for their weights: block floating point, and how kernels read it.

Weights are the integers -32767 to 32767 with one float32 scale for each column of `BLOCK` rows, so an error is at most
half a step of the largest weight of its block, 2**-16 of it, and a whole one where it would become zero. Columns in
which that is much, because few weights are far larger than the others, are refused. A 32-bit word holds a column of an
even vector of a panel in its low half and one of the next vector in its high half; both become floats, 2**16 times too
large, by one shift or mask and one conversion. The left-hand side is multiplied by `DOWN` and the scales are that much
larger, so that sums of a block stay below the largest factor on the left: they overflow only where those of floats do.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from .pack import SHARED_BYTES
from .solver import UnsuitedWeights

__all__ = [
    "BLOCK", "DOWN", "FEW", "LARGEST", "LEAST_MEAN", "SMALLEST_STEP", "block_count", "pack_words", "refuse_unsuited",
    "unpack", "words_lens",
]  # fmt: skip

BLOCK = 256
"""Rows that share a scale."""
DOWN = 2.0**-39
"""Two to the power of minus the bits of a word less its sign, and of the rows of a block."""
LARGEST = 32767  # of an int16 with a sign, by definition
SMALLEST_STEP = np.float32(2.0**-126)
LEAST_MEAN = 256
"""Steps that the weights of a column must have in the mean, but for zeros and the largest of each block. Normal ones
have some thousands; those beside one that is more than 128 times their mean have fewer."""
FEW = 16
"""So many weights of a block may be smaller: together they are not far off."""
_COLUMNS_AT_ONCE = 512
"""Columns that are packed together: a block of them fits L2."""


def block_count(depth: int) -> int:
    """Blocks of ``depth`` rows."""
    return -(-depth // BLOCK)


def words_lens(panels: int, depth: int, columns: int) -> tuple[int, int, int]:
    """Lens of packed words: in each panel of ``columns`` (pairs of vectors) the scales of all blocks, then all rows."""
    return (panels, 2 * block_count(depth) + depth, columns // 2)


def unpack(pointer: str, place: str, lanes: int) -> list[str]:
    """Statements: ``b0`` and ``b1``, two vectors of columns, times 2**16 over their scales."""
    return [
        f"words = load({pointer}, {place}, {lanes})",
        f"b0 = cast_float32(shift_left(words, const_int32(16, {lanes})))",
        f"b1 = cast_float32(bitwise_and(words, const_int32({-1 << 16}, {lanes})))",
    ]


def pack_words(weights: np.ndarray, out: np.ndarray, lanes: int) -> None:
    """Pack float32 ``weights[k, n]`` into int32 ``out`` of `words_lens`; columns that ``weights`` lacks become zero.

    Raises:
        UnsuitedWeights: a weight is infinite or NaN, or too large for a scale or beside others of its column.
    """
    width = 2 * out.shape[2]
    together = max(1, _COLUMNS_AT_ONCE // width)

    def pack(first: int) -> None:
        panels = out[first : first + together]
        columns = weights[:, first * width : (first + len(panels)) * width]
        blocks = _Blocks(columns, panels, lanes)
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
    """Packs blocks of float32 ``weights[k, n]`` into ``out[panels, 2 * blocks + k, width / 2]``.

    All work is along contiguous weights, be they rows or columns, in memory that is used again for each block: new
    memory would take longer than the work.
    """

    def __init__(self, weights: np.ndarray, out: np.ndarray, lanes: int) -> None:
        self._weights, self._out, self._lanes = weights, out, lanes
        self._by_columns = abs(weights.strides[0]) < abs(weights.strides[1])
        self._take_memory(min(len(weights), BLOCK))

    def _take_memory(self, depth: int) -> None:
        panels, _, pairs = self._out.shape
        lens = (panels * 2 * pairs, depth) if self._by_columns else (depth, panels * 2 * pairs)
        self._memory = [np.zeros(lens, dtype) for dtype in (np.float32, np.float32, np.int16)]

    @np.errstate(all="ignore")
    def pack(self, block: int) -> np.ndarray:
        """Scales and words of a block. A weight that is not zero stays so: its product with infinity is infinite.

        Returns:
            For each column by how much the sum of its weights, but for the largest, exceeds what `LEAST_MEAN` asks for;
            NaN if one of them is infinite or NaN, or too large for a scale.
        """
        out, lanes = self._out, self._lanes
        panels, _, pairs = out.shape
        depth, columns = self._weights.shape
        first = block * BLOCK
        depth = min(depth - first, BLOCK)
        if depth < BLOCK:
            self._take_memory(depth)
        part, steps, integers = (m.T if self._by_columns else m for m in self._memory)
        part[:, :columns] = self._weights[first : first + depth]
        largest = np.abs(part, out=steps).max(0)
        step = np.maximum(largest / LARGEST, SMALLEST_STEP)
        scales = step * np.float32(2.0**-16 / DOWN)
        total = steps.sum(0)  # as scales are finite, 256 times the largest weight is
        out[:, 2 * block : 2 * block + 2] = scales.reshape(panels, 2, pairs).view(np.int32)
        np.rint(np.divide(part, step, out=steps), out=steps)
        zeros = np.flatnonzero(self._memory[1] == 0)
        small = self._memory[0].reshape(-1)[zeros]
        self._memory[1].reshape(-1)[zeros] = np.sign(small)
        places = zeros[small == 0]
        places = places // depth if self._by_columns else places % len(largest)
        some = depth - np.bincount(places, minlength=len(largest))
        np.copyto(integers, steps, casting="unsafe")
        start = 2 * block_count(len(self._weights)) + first
        halves = out[:, start : start + depth].view(np.int16).reshape(panels, depth, pairs // lanes, lanes, 2)
        split = integers.reshape(depth, panels, pairs // lanes, 2, lanes)
        for half in range(2):
            halves.swapaxes(0, 1)[..., half] = split[:, :, :, half]
        others = np.maximum(some - FEW, 0)
        exceeds = total.astype(np.float64) - largest - others * (LEAST_MEAN * step.astype(np.float64))
        return np.where(np.isfinite(scales), np.where(step > SMALLEST_STEP, exceeds, 0), np.nan)
