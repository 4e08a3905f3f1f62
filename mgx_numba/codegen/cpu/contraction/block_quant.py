"""The memory format of block-quantised weights, and how kernels unpack them.

A panel is a vector of columns. It starts with a vector of float32 powers of two, the factors of float16 scales, if
scales are float16. Vectors of words of zero points follow, if there are any; successive blocks have successive bits.

Each block then has a vector of scales, a vector of offsets if there are any, and its codes. With float16 scales, these
vectors of words hold the numbers of two blocks, and the codes of both follow. A 32-bit word of a column holds
successive k as bytes. Codes of 4 bits fill the low halves of the bytes first, then the high halves. Codes of 5 or 6
bits come in units: a word of high bits, then words of low halves. Bits ``e * g`` to ``e * (g + 1) - 1`` of byte j of
the high bits belong to byte j of group g of four codes, with e = 1 or 2 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....parallel import allowed_cpus, on_threads
from ...nibbles import alternated
from ...problems.gemm import CHUNK_CODES, BlockFormat, BlockWeights, Columns, GemmProblem, StoredBlocks
from .. import host
from ..microkernels.tile_table import tile_for
from .panels import SHARED_BYTES, aligned_zeros, panel_count
from .solver import Solver

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

    def pack_blocks(self, problem: GemmProblem, weights: BlockWeights | StoredBlocks) -> np.ndarray:
        """Return packed weights, int32 of `packed_lens`. Columns that the weights lack are zero."""
        return _pack_blocks(problem, weights)


def halves_are_read() -> bool:
    """Return whether the CPU has an instruction that converts float16 to float32."""
    return any(map(host.has, ("f16c", "avx512f", "neon")))


def block_words(form: BlockFormat) -> int:
    """Return the words of one column in a block, without its scale."""
    return form.size * form.bits // 32


class Unit(NamedTuple):
    """The least number of words that hold whole groups of four codes: ``words``, and the ``groups`` in them."""

    words: int
    groups: int


def unit_of(form: BlockFormat) -> Unit:
    """Return the unit of a format."""
    return {8: Unit(1, 1), 4: Unit(1, 2), 6: Unit(3, 4), 5: Unit(5, 8)}[form.bits]


def _scale_lines(form: BlockFormat) -> int:
    """Return the vectors of scales and offsets before the codes."""
    return 1 + form.offsets


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
    scales = (-(-blocks // 2) if form.half_scales else blocks) * _scale_lines(form)
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


def _pack_blocks(problem: GemmProblem, weights: BlockWeights | StoredBlocks) -> np.ndarray:
    form, lanes = problem.blocks, tile_for(problem.types).lanes
    assert form is not None
    out = aligned_zeros(packed_lens(problem), "int32")
    panels, some = -(-problem.n // lanes), max(CHUNK_CODES // (problem.k * lanes), 1)

    def pack(start: int) -> None:
        columns = weights.columns(form, start * lanes, (start + some) * lanes)
        _fill(form, problem.k, columns, out[start : min(start + some, panels)], lanes)

    on_threads(pack, range(0, panels, some), allowed_cpus() if out.nbytes >= SHARED_BYTES else 1)
    return out


def _fill(form: BlockFormat, k: int, columns: Columns, out: np.ndarray, lanes: int) -> None:
    """Store columns in panels of zeros, int32 [panels, words]."""
    head, blocks, depth = head_words(form, k, lanes), form.blocks(k), block_words(form)

    def by_panel(values: np.ndarray) -> np.ndarray:
        """Return values [n, ...] as [panels, ..., lanes], with zeros for columns that are lacking."""
        lacking = len(out) * lanes - len(values)
        whole = np.concatenate([values, np.zeros((lacking, *values.shape[1:]), values.dtype)]) if lacking else values
        return np.moveaxis(whole.reshape(len(out), lanes, *values.shape[1:]), 1, -1)

    together = 2 if form.half_scales else 1  # blocks that share a vector of scales
    factors = [np.asarray(each, np.float32) for each in (columns.scales, columns.offsets) if each is not None]
    if form.half_scales:
        halves, powers = scales_in_halves(np.concatenate(factors, 1))
        out[:, :lanes] = by_panel(powers.view(np.int32))
        pairs = [np.pad(each, ((0, 0), (0, blocks % 2))) for each in np.split(halves, len(factors), 1)]
        factors = [by_panel(each.reshape(len(each), -1, 2)).reshape(len(out), -1, 2 * lanes) for each in pairs]
    else:
        factors = [by_panel(each) for each in factors]
    if columns.zero_points is not None:
        per_word = 32 // form.bits
        points = np.pad(columns.zero_points, ((0, 0), (0, -blocks % per_word)))
        points = points.reshape(len(columns.codes), -1, per_word)
        shifted = points.astype(np.uint32) << np.arange(0, 32, form.bits, dtype=np.uint32)
        place = out[:, _factor_words(form, lanes) : head].reshape(len(out), -1, lanes)
        place[:] = by_panel(np.bitwise_or.reduce(shifted, 2).view(np.int32))
    words, above, whole = by_panel(_packed_codes(form, columns)), len(factors), blocks // together
    period = above + together * depth
    body = out[:, head : head + whole * period * lanes].reshape(len(out), whole, period, lanes)
    last = out[:, head + whole * period * lanes :].reshape(len(out), -1, lanes)  # of a block without a second one
    for line, values in enumerate(np.ascontiguousarray(each).view(np.int32) for each in factors):
        body[:, :, line] = values[:, :whole]
        last[:, line : line + 1] = values[:, whole:]
    for first in range(together):
        place = body[:, :, above + first * depth : above + (first + 1) * depth]
        place[:] = words[:, first : whole * together : together]
    last[:, above:] = words[:, whole * together :].reshape(len(out), -1, lanes)


def _packed_codes(form: BlockFormat, columns: Columns) -> np.ndarray:
    """Return the words [n, blocks, words of a block], int32, of columns' codes."""
    codes = np.ascontiguousarray(columns.codes)
    words: np.ndarray = codes.reshape(*codes.shape[:2], -1).view(np.uint32)
    if columns.paired:
        words = alternated(words)
    elif form.bits < 8:  # bytes of two adjacent words become their low and high halves
        low = words & 0x0F0F0F0F
        packed = low[..., ::2] | low[..., 1::2] << 4
        per_unit, groups = unit_of(form)
        if per_unit > 1:
            high = (words >> 4 & 0x0F0F0F0F).reshape(*words.shape[:2], -1, groups)
            shifts = np.arange(groups, dtype=np.uint32) * np.uint32(form.bits - 4)
            plane = np.bitwise_or.reduce(high << shifts, -1, keepdims=True)
            packed = np.concatenate([plane, packed.reshape(*words.shape[:2], -1, per_unit - 1)], -1)
        words = packed.reshape(*words.shape[:2], -1)
    return words.view(np.int32)


def codes_place(form: BlockFormat, number: str, lanes: int) -> str:
    """Return the expression of the words from the first block of a panel to the codes of block ``number``."""
    between, above = f"({number} >> 1)" if form.half_scales else number, _scale_lines(form)
    if above > 1:
        between = f"{between} * {above}"
    return f"({number} * {block_words(form)} + {between} + {above}) * {lanes}"


def scale_of(form: BlockFormat, words: str, halves: str, number: str, lanes: int) -> str:
    """Return the expression of a block's column scales. Scales in float16 are not yet multiplied by their columns'
    factors.

    Args:
        words: pointer to the first block of the panel.
        halves: the same pointer, to float16.
    """
    return _number_of(form, words, halves, number, lanes, 0)


def offset_of(form: BlockFormat, words: str, halves: str, number: str, lanes: int) -> str:
    """Return the expression of a block's column offsets, as `scale_of` does of scales."""
    return _number_of(form, words, halves, number, lanes, 1)


def _number_of(form: BlockFormat, words: str, halves: str, number: str, lanes: int, line: int) -> str:
    """Return the expression of the vector in a line of those before a block's codes."""
    depth, above = block_words(form), _scale_lines(form)
    if not form.half_scales:
        after = f" + {line * lanes}" if line else ""
        return f"bits_float32(load({words}, {number} * {(depth + above) * lanes}{after}, {lanes}))"
    pair, after = 2 * (2 * depth + above) * lanes, f" + {2 * line * lanes}" if line else ""
    return f"cast_float32(load({halves}, ({number} >> 1) * {pair} + ({number} & 1) * {lanes}{after}, {lanes}))"


def unpacked_bytes(form: BlockFormat, unit: Sequence[str], lanes: int, raised: bool) -> list[str]:
    """Return expressions of the codes in a unit's words as vectors of words of four codes, in order.

    Args:
        raised: upper halves of bytes may stay in place: 16 times their codes.
    """
    if form.bits == 8:
        return [unit[0]]
    if form.bits > 4:
        whole = BlockFormat(4, form.size, False)
        low = [part for word in unit[1:] for part in unpacked_bytes(whole, [word], lanes, False)]
        return [f"bitwise_or({part}, {_high_part(form, unit[0], group, lanes)})" for group, part in enumerate(low)]
    (words,) = unit
    mask = f"const_int32({0x0F0F0F0F}, {lanes})"
    upper = f"bitwise_and(shift_right({words}, const_int32(4, {lanes})), {mask})"
    if raised:
        upper = f"bitwise_and({words}, const_int32({~0x0F0F0F0F}, {lanes}))"
    return [f"bitwise_and({words}, {mask})", upper]


def _high_part(form: BlockFormat, plane: str, group: int, lanes: int) -> str:
    """Return the expression of the high bits of a group's codes, in their places in bytes."""
    each = form.bits - 4
    by = 4 - each * group
    moved = plane if by == 0 else f"shift_{'left' if by > 0 else 'right'}({plane}, const_int32({abs(by)}, {lanes}))"
    return f"bitwise_and({moved}, const_int32({0x01010101 * ((1 << each) - 1) << 4}, {lanes}))"


def weight_of(form: BlockFormat, unit: Sequence[str], k: int, point: str, scale: str, offset: str = "") -> str:
    """Return the expression of weight number ``k`` of a unit's vectors of words, dequantised to float32."""
    group, byte = divmod(k, LANES_TOGETHER)
    if form.bits in (4, 8):
        code = f"bitwise_and(shift_right({unit[0]}, {8 * byte + group * form.bits}), {(1 << form.bits) - 1})"
    else:
        each = form.bits - 4
        low = f"bitwise_and(shift_right({unit[1 + group // 2]}, {8 * byte + group % 2 * 4}), 15)"
        high = f"bitwise_and(shift_right({unit[0]}, {8 * byte + each * group}), {(1 << each) - 1})"
        code = f"bitwise_or({low}, shift_left({high}, 4))"
    if form.offsets:
        return f"fma(cast_float32({code}), {scale}, {offset})"
    return f"mul(cast_float32(sub({code}, {point})), {scale})"


def points_of(form: BlockFormat, panel: str, number: str, dtype: str, lanes: int) -> str:
    """Return the expression of the columns' zero points for block ``number`` of a ``panel`` of words."""
    if not form.zero_points:
        return f"const_{dtype}({form.middle}, {lanes})"
    each = 32 // form.bits
    words = f"load({panel}, {_factor_words(form, lanes)} + ({number} >> {each.bit_length() - 1}) * {lanes}, {lanes})"
    shift = f"splat(cast_int32(({number} & {each - 1}) * {form.bits}), {lanes})"
    return f"cast_{dtype}(bitwise_and(shift_right({words}, {shift}), {(1 << form.bits) - 1}))"
