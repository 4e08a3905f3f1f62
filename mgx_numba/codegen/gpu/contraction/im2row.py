"""Convolutions of images with few channels, rewritten as convolutions with aligned vectors of channels (im2row,
space-to-depth).

Pixels of an image row are contiguous, so the pixels under one filter row form one wide pixel of a convolution with a
filter one pixel wide; wide pixels of neighbouring positions overlap. The copied image has padding at the start of each
row, and zero channels where positions would not be aligned. With a stride, the pixels under a filter row are copied for
each position: TMA loads boxes that end with the tensor faster, and fewer products are computed. Pixels of several rows
can form one pixel, too, so that the filter has fewer rows (space-to-depth). Space-to-depth multiplies zeros: it is used
for integers, and for floats only with warpgroup MMA, which can skip leading K elements of a slice.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import prod

import numpy as np

from ....core.dim import maximum
from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import packed_strides
from .gpu_contraction import LINE_BYTES, VECTOR_BYTES, line_padded
from .wgmma_tiles import SLICE_BYTES, STEP_BYTES

MOST_FILLED, MOST_OTHERS = {1: 8, 2: 6}, 4
"""Most growth of the image by zeros and duplicates: for 1-byte and 2-byte elements, and for other sizes. Tensor cores
gain more than this factor over gathers of single elements. A 3-channel image grows by 4/3 or 8/3 (8 bits: up to 16/3;
ResNet-50's first convolution in 16 bits: 14/3). No figures kept of larger factors."""
MOST_LINES = 1.5
"""Most growth of an image whose pixels are whole vectors; the cost model decides within it."""
MOST_PIXEL = 32 << 10
"""Most bytes of a copied pixel, which a block holds in its 48 KiB of static shared memory."""
INTEGERS = ("int8", "uint8")


@dataclass(frozen=True)
class ChannelPadding:
    """A copy of the images from which a convolution reads aligned vectors.

    Attributes:
        problem: the convolution that reads the copy.
        lens: lengths of the copy: images, channels, spatial axes.
        channels: channels of one original pixel in a ``block``, including zero channels.
        before: zero pixels before the image along each spatial axis.
        step: original pixels between neighbouring pixels of the copy.
        block: original pixels, along each spatial axis, that form one pixel of the copy in row-major order.
        taken: pixels of a block row that hold data; zeros follow.
        folded: whether the pixels under a filter row form one pixel of ``problem``.
        first_channel: see `GpuContraction.first_channel`.
    """

    problem: ConvProblem
    lens: tuple[int, ...]
    channels: int
    before: tuple[int, ...]
    step: tuple[int, ...]
    block: tuple[int, ...]
    taken: int
    folded: bool = False
    first_channel: int = 0

    def weights(self, given: np.ndarray) -> np.ndarray:
        """Return the weights of ``problem`` for the original weights ``[outputs, channels, *kernel]``."""
        outputs, channels, *kernel = given.shape
        rank = len(kernel)
        taps = [-(-k // b) for k, b in zip(kernel, self.block)]
        more = [(0, t * b - k) for k, t, b in zip(kernel, taps, self.block)]
        if self.first_channel:  # rows that are missing are those behind the first tap's
            given = np.insert(given, [self.block[-2] - more[-2][1]] * more[-2][1], 0, 2 + rank - 2)
            more[-2] = 0, 0
        whole = np.pad(given, [(0, 0), (0, self.channels - channels), *more])
        if not self.folded:
            return whole
        split = whole.reshape(outputs, self.channels, *chain(*zip(taps, self.block)))
        blocks, others = [3 + 2 * d for d in range(rank)], [2 + 2 * d for d in range(rank - 1)]
        together = split.transpose(0, 2 * rank, *blocks, 1, *others)
        return np.ascontiguousarray(together).reshape(outputs, -1, *taps[:-1], 1)


def channel_padding(problem: ConvProblem) -> list[ChannelPadding]:
    """Return the candidate copies of a convolution's images, best first. The list is empty if pixels are whole lines
    already, if they have groups, or if the copy would exceed `MOST_FILLED`, or `MOST_LINES` of pixels of whole
    vectors."""
    size = ITEMSIZE[problem.types.a]
    lanes = VECTOR_BYTES // size
    if problem.transposed or problem.prologue is not None:
        return []
    if problem.groups > 1:
        return []
    if problem.in_channels % lanes == 0:
        return _in_lines(problem, size)
    pads = (*problem.pads_begin, *problem.pads_end)
    found = []
    if problem.types.a in INTEGERS and len(problem.kernel) == 2 and set(problem.dilation) == {1} and min(pads) >= 0:
        found = [_in_squares(problem, lanes, rows) for rows in range(problem.stride[0], 2 * problem.kernel[0])]
    if not any(found):
        straight = problem.dilation[-1] == 1 and min(pads[len(problem.kernel) - 1 :: len(problem.kernel)]) >= 0
        found = [_in_rows(problem, lanes) if straight else _with_zeros(problem, line_padded(problem.in_channels, size))]
        if straight and problem.stride[-1] > 1:
            found.append(_side_by_side(problem, lanes))
            if len(problem.kernel) > 1 and problem.dilation[-2] == 1 and min(pads) >= 0:
                rows = range(problem.stride[-2], problem.kernel[-2] + 1, problem.stride[-2])
                found += [_side_by_side(problem, lanes, n) for n in rows if n > 1]
    most = MOST_FILLED.get(size, MOST_OTHERS) * problem.in_channels
    fitting = (f for f in found if f is not None and f.channels * prod(f.block) <= most * prod(f.step))
    return sorted((f for f in fitting if f.channels * prod(f.block) * size <= MOST_PIXEL), key=_work)


def _work(filled: ChannelPadding) -> tuple[int, int, int]:
    """Return, per output position, the bytes of K loaded (whole slices) and multiplied (whole instructions), and the
    elements of the copy."""
    problem, taps = filled.problem, prod(filled.problem.kernel)
    own = problem.in_channels * ITEMSIZE[problem.types.a]
    slices, steps = -(-own // SLICE_BYTES), -(-own // STEP_BYTES)
    return taps * slices * SLICE_BYTES, taps * steps * STEP_BYTES, prod(filled.lens)


def _in_lines(problem: ConvProblem, size: int) -> list[ChannelPadding]:
    """Return the copy whose pixels, of several lines, are whole lines, if TMA reads the images' own ones slower: those
    of an odd number of vectors (`wgmma_tiles.PIXEL_RATES`)."""
    pixel = problem.in_channels * size
    lines = -(-pixel // LINE_BYTES) * LINE_BYTES
    worth = problem.taps > 1 and pixel % (2 * VECTOR_BYTES) and pixel > LINE_BYTES
    return [_with_zeros(problem, lines // size)] if worth and lines <= MOST_LINES * pixel else []


def _with_zeros(problem: ConvProblem, channels: int) -> ChannelPadding:
    """Return a copy whose pixels are padded with zeros to ``channels`` channels."""
    filled = replace(problem, in_channels=channels, x_strides=())
    rank = len(problem.kernel)
    lens = (problem.batch, channels, *problem.in_lens)
    return ChannelPadding(filled, lens, channels, (0,) * rank, (1,) * rank, (1,) * rank, 1)


def _side_by_side(problem: ConvProblem, lanes: int, rows: int = 1) -> ChannelPadding | None:
    """Return an im2row copy: for each output position the pixels under ``rows`` filter rows, zero-padded to whole
    instructions.

    If ``rows`` does not divide the filter's rows, the first tap covers fewer rows: the last ones of its pixel. The rest
    of that pixel belongs to other positions and may be infinite, so it is skipped. Return None if a tap would take
    several slices.
    """
    taps, step = problem.kernel[-1], problem.stride[-1]
    channels = 1 << (problem.in_channels - 1).bit_length()
    multiplied = lanes * STEP_BYTES // VECTOR_BYTES
    row = -(-channels * taps // multiplied) * multiplied
    inside, across = rows * row, problem.out_lens[-1]
    outer, kernel, ends = problem.in_lens[:-1], problem.kernel[:-1], problem.pads_end[:-1]
    stride, dilation, pads = problem.stride[:-1], problem.dilation[:-1], problem.pads_begin[:-1]
    ones, none = (1,) * len(outer), (0,) * len(outer)
    before, apart, block, missing = none, ones, ones, 0
    if rows > 1:
        down, many = problem.out_lens[-2], -(-kernel[-1] // rows)
        missing = many * rows - kernel[-1]
        if inside * ITEMSIZE[problem.types.a] > SLICE_BYTES:
            return None
        before, apart, block = (*none[1:], pads[-1] + missing), (*ones[1:], stride[-1]), (*ones[1:], rows)
        dilation = *dilation[:-1], rows // stride[-1]
        outer, kernel = (*outer[:-1], down + (many - 1) * dilation[-1]), (*kernel[:-1], many)
        stride, pads, ends = (*stride[:-1], 1), (*pads[:-1], 0), (*ends[:-1], 0)
    filled = replace(
        problem,
        in_channels=inside,
        in_lens=(*outer, across),
        kernel=(*kernel, 1),
        stride=(*stride, 1),
        dilation=(*dilation, 1),
        pads_begin=(*pads, 0),
        pads_end=(*ends, 0),
        x_strides=(),
    )
    lens, before = (problem.batch, inside, *outer, across), (*before, problem.pads_begin[-1])
    block = *block, row // channels
    return ChannelPadding(filled, lens, channels, before, (*apart, step), block, taps, True, missing * row)


def _in_rows(problem: ConvProblem, lanes: int) -> ChannelPadding:
    """Return a copy in which the pixels under a filter row form one pixel that contains no others, because 0 * inf is
    NaN."""
    taps, step, before = problem.kernel[-1], problem.stride[-1], problem.pads_begin[-1]
    channels = 1 << (problem.in_channels - 1).bit_length()
    while channels * step % lanes or channels * taps % lanes:
        channels *= 2
    together = max(1, lanes // channels)
    outer, across = problem.in_lens[:-1], problem.out_lens[-1]
    pixels = maximum(before + problem.in_lens[-1], (across - 1) * step + taps)
    pixels = -(-pixels // together) * together
    rows = packed_strides((*outer, pixels * channels))[:-1]
    filled = replace(
        problem,
        in_channels=taps * channels,
        in_lens=(*outer, across),
        kernel=(*problem.kernel[:-1], 1),
        stride=(*problem.stride[:-1], 1),
        pads_begin=(*problem.pads_begin[:-1], 0),
        pads_end=(*problem.pads_end[:-1], 0),
        x_strides=(prod(outer) * pixels * channels, *rows, step * channels),
    )
    ones = (1,) * len(problem.kernel)
    lens = (problem.batch, channels, *outer, pixels)
    return ChannelPadding(filled, lens, channels, (*(0 for _ in outer), before), ones, ones, 1, True)


def _in_squares(problem: ConvProblem, lanes: int, rows: int) -> ChannelPadding | None:
    """Return a space-to-depth copy with blocks of ``rows`` rows and as many columns as the stride, in which the blocks
    under a filter row form one pixel. Return None if positions would not be aligned."""
    channels = 1 << (problem.in_channels - 1).bit_length()
    block, step = (rows, problem.stride[1]), problem.stride
    inside = channels * prod(block)
    if rows % step[0] or inside % lanes:
        return None
    taps = [-(-k // b) for k, b in zip(problem.kernel, block)]
    apart, (down, across) = rows // step[0], problem.out_lens
    high, wide = down + (taps[0] - 1) * apart, across + taps[1] - 1
    filled = replace(
        problem,
        in_channels=taps[1] * inside,
        in_lens=(high, across),
        kernel=(taps[0], 1),
        stride=(1, 1),
        dilation=(apart, 1),
        pads_begin=(0, 0),
        pads_end=(0, 0),
        x_strides=(high * wide * inside, wide * inside, inside),
    )
    lens = (problem.batch, inside, high, wide)
    return ChannelPadding(filled, lens, channels, problem.pads_begin, step, block, block[1], True)
