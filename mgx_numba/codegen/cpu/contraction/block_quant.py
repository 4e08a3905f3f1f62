"""The memory format of block-quantised weights, and how kernels unpack them.

A panel is a vector of columns. It starts with a vector of float32 powers of two, the factors of float16 scales, if
scales are float16. Vectors of words of zero points follow, if there are any; successive blocks have successive bits.

Each block then has a vector of scales and its codes. With float16 scales, a vector of words holds the scales of two
blocks, and the codes of both follow. A 32-bit word of a column holds successive k as bytes. Codes of 4 bits fill the
low halves of the bytes first, then the high halves.
"""

from __future__ import annotations

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...problems.gemm import BlockFormat, BlockWeights, GemmProblem
from .. import host
from ..microkernels.tile_table import tile_for
from .panels import SHARED_BYTES, aligned_zeros, panel_count
from .solver import Solver

__all__ = [
    "LANES_TOGETHER", "BlockSolver", "block_words", "codes_place", "halves_are_read", "halves_hold", "head_words",
    "packed_lens", "points_of", "scale_of", "scales_in_halves", "unpacked_bytes", "weight_of",
]  # fmt: skip

LANES_TOGETHER = 4
"""Codes of a word that are multiplied at once: its bytes."""
HALF_EXPONENT = 15
"""Exponent of the power of two below which all float16 scales of a column are: the greatest at which no scale rounds to
infinity. Scales of 2**-28 times the largest keep all their bits."""


class BlockSolver(Solver[GemmProblem]):
    """Base of solvers for block-quantised weights; all use one packed format, so that weights are stored once."""

    reads_blocks = True
    packed_as = "blocks"
    open_lens = True

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        return packed_lens(problem)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        raise TypeError(f"{self.name} packs weights in blocks, not an array of {weights.dtype}")

    def pack_blocks(self, problem: GemmProblem, weights: BlockWeights) -> np.ndarray:
        """Return packed weights, int32 of `packed_lens`. Columns that the weights lack are zero."""
        return _pack_blocks(problem, weights)


def halves_are_read() -> bool:
    """Return whether the CPU has an instruction that converts float16 to float32."""
    return any(map(host.has, ("f16c", "avx512f", "neon")))


def block_words(form: BlockFormat) -> int:
    """Return the words of one column in a block, without its scale."""
    return form.size * form.bits // 32


def head_words(form: BlockFormat, k: int, lanes: int) -> int:
    """Return the words of a panel before its blocks."""
    return _factor_words(form, lanes) + (-(-form.blocks(k) * form.bits // 32) * lanes if form.zero_points else 0)


def _factor_words(form: BlockFormat, lanes: int) -> int:
    return lanes if form.half_scales else 0


def packed_lens(problem: GemmProblem) -> tuple[int, int]:
    """Return the number of panels, rounded up to panels of the register tile, and the int32 words of a panel."""
    form, tile = problem.blocks, tile_for(problem.types)
    assert form is not None
    blocks = form.blocks(problem.k)
    scales = -(-blocks // 2) if form.half_scales else blocks
    words = head_words(form, problem.k, tile.lanes) + (scales + blocks * block_words(form)) * tile.lanes
    return panel_count(tile, problem.n) * tile.vectors, words


def scales_in_halves(scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scales [n, blocks] as float16 of the same lengths, and a float32 power of two for each column as their
    factor.

    The largest finite scale becomes a number from 2**14 to 2**15, or less where the power would be subnormal. Errors
    are at most 2**-11 of that scale. Infinities and NaN are kept.
    """
    finite = np.where(np.isfinite(scales), np.abs(scales), 0)
    exponents = np.maximum(np.frexp(finite.max(axis=1, initial=0))[1] - HALF_EXPONENT, np.finfo(np.float32).minexp)
    with np.errstate(all="ignore"):
        halves = np.ldexp(scales.astype(np.float64), -exponents[:, None]).astype(np.float16)
    return halves, np.ldexp(np.float32(1), exponents)


def halves_hold(scales: np.ndarray) -> bool:
    """Return whether `scales_in_halves` is exact."""
    halves, factors = scales_in_halves(scales)
    with np.errstate(invalid="ignore"):
        return np.array_equal(halves.astype(np.float32) * factors[:, None], scales, equal_nan=True)


def _pack_blocks(problem: GemmProblem, weights: BlockWeights) -> np.ndarray:
    form, lanes = problem.blocks, tile_for(problem.types).lanes
    assert form is not None
    out = aligned_zeros(packed_lens(problem), "int32")
    head, blocks, depth = head_words(form, problem.k, lanes), form.blocks(problem.k), block_words(form)
    first = np.arange(blocks) * depth + (np.arange(blocks) // 2 if form.half_scales else np.arange(blocks))
    lines = out[:, head:].reshape(len(out), -1, lanes)

    def pack(panel: int) -> None:
        some = slice(panel * lanes, (panel + 1) * lanes)
        codes = weights.codes[some].reshape(-1, blocks, depth, 4)
        count = len(codes)
        if form.bits == 4:  # bytes of two adjacent codes become bytes of code k and code k + 4
            pairs = np.stack([codes & 15, codes >> 4], -1).reshape(count, blocks, depth, 2, 4)
            codes = pairs[..., 0, :] | pairs[..., 1, :] << 4
        words = np.ascontiguousarray(codes).view(np.int32)[..., 0]
        lines[panel, first[:, None] + 1 + np.arange(depth), :count] = words.transpose(1, 2, 0)
        _put_scales(form, weights.scales[some], out[panel], lines[panel], first)
        if weights.zero_points is not None:
            each = 32 // form.bits
            points = np.zeros((-(-blocks // each) * each, count), np.uint32)
            points[:blocks] = weights.zero_points[some].T
            shifted = points.reshape(-1, each, count) << np.arange(0, 32, form.bits, dtype=np.uint32)[:, None]
            target = out[panel, _factor_words(form, lanes) : head].reshape(-1, lanes)
            target[:, :count] = np.bitwise_or.reduce(shifted, 1).view(np.int32)

    on_threads(pack, range(-(-problem.n // lanes)), allowed_cpus() if out.nbytes >= SHARED_BYTES else 1)
    return out


def _put_scales(form: BlockFormat, scales: np.ndarray, panel: np.ndarray, lines: np.ndarray, first: np.ndarray) -> None:
    """Store the scales of a panel's columns in the lines of its blocks, and their factors."""
    count, lanes = len(scales), lines.shape[1]
    if not form.half_scales:
        lines[first, :count] = np.ascontiguousarray(scales.T, np.float32).view(np.int32)
        return
    halves, factors = scales_in_halves(scales)
    panel[:count] = factors.view(np.int32)
    pairs = np.zeros((-(-len(first) // 2) * 2, lanes), np.float16)
    pairs[: len(first), :count] = halves.T
    lines[first[::2]] = pairs.reshape(-1, 2 * lanes).view(np.int32)


def codes_place(form: BlockFormat, number: str, lanes: int) -> str:
    """Return the expression of the words from the first block of a panel to the codes of block ``number``."""
    between = f"({number} >> 1)" if form.half_scales else number
    return f"({number} * {block_words(form)} + {between} + 1) * {lanes}"


def scale_of(form: BlockFormat, words: str, halves: str, number: str, lanes: int) -> str:
    """Return the expression of a block's column scales. Scales in float16 are not yet multiplied by their columns'
    factors.

    Args:
        words: pointer to the first block of the panel.
        halves: the same pointer, to float16.
    """
    depth = block_words(form)
    if not form.half_scales:
        return f"bits_float32(load({words}, {number} * {(depth + 1) * lanes}, {lanes}))"
    pair = 2 * (2 * depth + 1) * lanes
    return f"cast_float32(load({halves}, ({number} >> 1) * {pair} + ({number} & 1) * {lanes}, {lanes}))"


def unpacked_bytes(form: BlockFormat, words: str, lanes: int, raised: bool) -> list[str]:
    """Return expressions of the codes in ``words`` as vectors of words of four codes, in order.

    Args:
        raised: upper halves of bytes may stay in place: 16 times their codes.
    """
    if form.bits == 8:
        return [words]
    mask = f"const_int32({0x0F0F0F0F}, {lanes})"
    upper = f"bitwise_and(shift_right({words}, const_int32(4, {lanes})), {mask})"
    if raised:
        upper = f"bitwise_and({words}, const_int32({~0x0F0F0F0F}, {lanes}))"
    return [f"bitwise_and({words}, {mask})", upper]


def weight_of(form: BlockFormat, word: str, k: int, point: str, scale: str) -> str:
    """Return the expression of weight number ``k`` of a vector of words, dequantised to float32."""
    shift = 8 * (k % LANES_TOGETHER) + k // LANES_TOGETHER * form.bits
    code = f"bitwise_and(shift_right({word}, {shift}), {(1 << form.bits) - 1})"
    return f"mul(cast_float32(sub({code}, {point})), {scale})"


def points_of(form: BlockFormat, panel: str, number: str, dtype: str, lanes: int) -> str:
    """Return the expression of the columns' zero points for block ``number`` of a ``panel`` of words."""
    if not form.zero_points:
        return f"const_{dtype}({form.middle}, {lanes})"
    each = 32 // form.bits
    words = f"load({panel}, {_factor_words(form, lanes)} + ({number} >> {each.bit_length() - 1}) * {lanes}, {lanes})"
    shift = f"splat(cast_int32(({number} & {each - 1}) * {form.bits}), {lanes})"
    return f"cast_{dtype}(bitwise_and(shift_right({words}, {shift}), {(1 << form.bits) - 1}))"
