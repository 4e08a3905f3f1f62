"""How weights of few bits in blocks lie in memory, and how kernels unpack them.

A panel is a vector of columns. It begins with the zero points of all blocks as bytes, if there are any; then each block
has a vector of scales and its codes: a 32-bit word of a column holds successive k as bytes, those of 4 bits in the low
halves of the bytes and then as many in the high halves.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...problems.gemm import BlockFormat, BlockWeights, GemmProblem
from .. import host
from ..microkernels.tile_table import tile_for
from .pack import SHARED_BYTES, aligned_zeros, panel_count
from .solver import Solver

__all__ = [
    "LANES_TOGETHER", "BlockSolver", "block_words", "packed_lens", "point_words", "points_of",
    "unpacked_bytes", "weight_of",
]  # fmt: skip

LANES_TOGETHER = 4
"""Codes of a word that are multiplied at once: its bytes."""


class BlockSolver(Solver[GemmProblem]):
    """A solver for weights in blocks: all have them packed in one way, so that they are held once."""

    reads_blocks = True

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        return packed_lens(problem)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        raise TypeError(f"{self.name} packs weights in blocks, not an array of {weights.dtype}")

    def pack_blocks(self, problem: GemmProblem, weights: BlockWeights) -> np.ndarray:
        """Packed weights, int32 of `packed_lens`. Columns that the weights lack are zero."""
        return _pack_blocks(problem, weights)


def block_words(form: BlockFormat) -> int:
    """Words of one column in a block, besides its scale."""
    return form.size * form.bits // 32


def point_words(form: BlockFormat, k: int, lanes: int) -> int:
    """Words before the blocks of a panel: whole cache lines of zero points."""
    bytes_ = form.blocks(k) * lanes if form.zero_points else 0
    return -(-bytes_ // host.CACHE_LINE) * host.CACHE_LINE // 4


def packed_lens(problem: GemmProblem) -> tuple[int, int]:
    """Panels, as many as fill those of the register tile, and int32 words of each."""
    form, tile = problem.blocks, tile_for(problem.types)
    assert form is not None
    words = point_words(form, problem.k, tile.lanes) + form.blocks(problem.k) * (1 + block_words(form)) * tile.lanes
    return panel_count(tile, problem.n) * tile.vectors, words


def _pack_blocks(problem: GemmProblem, weights: BlockWeights) -> np.ndarray:
    form, lanes = problem.blocks, tile_for(problem.types).lanes
    assert form is not None
    out = aligned_zeros(packed_lens(problem), "int32")
    first, blocks, depth = point_words(form, problem.k, lanes), form.blocks(problem.k), block_words(form)
    target = out[:, first:].reshape(len(out), blocks, 1 + depth, lanes)
    points = out[:, :first].view(np.uint8)[:, : blocks * lanes].reshape(len(out), -1, lanes)

    def pack(panel: int) -> None:
        some = slice(panel * lanes, (panel + 1) * lanes)
        codes = weights.codes[some].reshape(-1, blocks, depth, 4)
        count = len(codes)
        if form.bits == 4:  # bytes of two neighbours become bytes of a code and that four further on
            pairs = np.stack([codes & 15, codes >> 4], -1).reshape(count, blocks, depth, 2, 4)
            codes = pairs[..., 0, :] | pairs[..., 1, :] << 4
        words = np.ascontiguousarray(codes).view(np.int32)[..., 0]
        target[panel, :, 1:, :count] = words.transpose(1, 2, 0)
        target[panel, :, 0, :count] = np.ascontiguousarray(weights.scales[some].T, np.float32).view(np.int32)
        if weights.zero_points is not None:
            points[panel, :, :count] = weights.zero_points[some].T

    on_threads(pack, range(-(-problem.n // lanes)), allowed_cpus() if out.nbytes >= SHARED_BYTES else 1)
    return out


def unpacked_bytes(form: BlockFormat, words: str, lanes: int, raised: bool) -> list[str]:
    """Expressions: what ``words`` hold as vectors of words of four codes, in their order.

    Where upper halves of bytes may be ``raised`` they stay where they are: 16 times their codes.
    """
    if form.bits == 8:
        return [words]
    mask = f"const_int32({0x0F0F0F0F}, {lanes})"
    upper = f"bitwise_and(shift_right({words}, const_int32(4, {lanes})), {mask})"
    if raised:
        upper = f"bitwise_and({words}, const_int32({~0x0F0F0F0F}, {lanes}))"
    return [f"bitwise_and({words}, {mask})", upper]


def weight_of(form: BlockFormat, word: str, k: int, point: str, scale: str) -> str:
    """Expression: weight number ``k`` of a vector of words, in float32, as it is without blocks."""
    shift = 8 * (k % LANES_TOGETHER) + k // LANES_TOGETHER * form.bits
    code = f"bitwise_and(shift_right({word}, {shift}), {(1 << form.bits) - 1})"
    return f"mul(cast_float32(sub({code}, {point})), {scale})"


def points_of(form: BlockFormat, octets: str, number: str, dtype: str, lanes: int) -> str:
    """Expression: the zero points of the columns of the block of some number."""
    if not form.zero_points:
        return f"const_{dtype}({form.middle}, {lanes})"
    return f"cast_{dtype}(load({octets}, {number} * {lanes}, {lanes}))"
