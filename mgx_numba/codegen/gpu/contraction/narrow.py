"""Convolutions of images with few channels, as convolutions whose operands come in whole vectors.

Pixels of a row follow one another, so those under a row of the filter are one pixel of many channels to a convolution
whose filter is one pixel wide; pixels of neighbouring positions overlap. Each row of such images begins with its
padding, and pixels have channels of zeros where positions would not be whole vectors apart. Where positions are apart,
what lies under a row is copied for each: the copy engine brings rows that end with the tensor's quicker than others,
and less is multiplied. Pixels of several rows make one, too, so that the filter has fewer rows ("space to depth"): of
integers, whose products with zeros are zeros, and of others where warpgroups multiply, which can leave the first ones
out of a slice.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import prod

import numpy as np

from ....dataclass import dataclass
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import packed_strides
from .placed import VECTOR_BYTES
from .wgmma_tiles import SLICE_BYTES, STEP_BYTES

__all__ = ["FilledImages", "filled_images"]

MOST_FILLED, MOST_OTHERS = {1: 8, 2: 6}, 4
"""How often as many elements there may be with those of zeros and those that are there again, by bytes of an element,
and of elements of other sizes: tensor cores are as much faster than what gathers single elements, and more. For images
of 3 channels it is 4/3 or 8/3, of 8 bits up to 16/3, of 16 bits those of ResNet-50's first convolution 14/3. No figures
kept of more."""
MOST_PIXEL = 32 << 10
"""Bytes of a pixel of the copies, which a block has in its memory: of the 48 KiB that it has unasked."""
INTEGERS = ("int8", "uint8")


@dataclass(frozen=True)
class FilledImages:
    """Images that are copied so that a convolution reads whole vectors of them.

    Attributes:
        problem: the convolution that reads the copies.
        lens: lengths of the copies: images, channels, spatial dimensions.
        channels: of one of a pixel's ``block``, with those that are zeros.
        before: pixels of zeros before the image's first one, along each spatial dimension.
        step: pixels of the image between neighbours of the copies.
        block: pixels of the image that each of the copies has side by side, row by row.
        taken: those of a row of the block that are there; zeros follow.
        folded: whether pixels of a row under the filter are one of ``problem``.
        first_channel: see `PlacedRequest.first_channel`.
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
        """The weights of ``problem`` from those of the convolution, ``[outputs, channels, *kernel]``."""
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


def filled_images(problem: ConvProblem) -> list[FilledImages]:
    """The images that a convolution may be computed from, the best ones first; none if its channels are whole vectors,
    or would have to be more than `MOST_FILLED` times as many."""
    size = ITEMSIZE[problem.types.a]
    lanes = VECTOR_BYTES // size
    if problem.in_channels % lanes == 0 or problem.groups > 1 or problem.transposed or problem.prologue is not None:
        return []
    pads = (*problem.pads_begin, *problem.pads_end)
    found = []
    if problem.types.a in INTEGERS and len(problem.kernel) == 2 and set(problem.dilation) == {1} and min(pads) >= 0:
        found = [_in_squares(problem, lanes, rows) for rows in range(problem.stride[0], 2 * problem.kernel[0])]
    if not any(found):
        straight = problem.dilation[-1] == 1 and min(pads[len(problem.kernel) - 1 :: len(problem.kernel)]) >= 0
        found = [_in_rows(problem, lanes) if straight else _with_zeros(problem, lanes)]
        if straight and problem.stride[-1] > 1:
            found.append(_side_by_side(problem, lanes))
            if len(problem.kernel) > 1 and problem.dilation[-2] == 1 and min(pads) >= 0:
                rows = range(problem.stride[-2], problem.kernel[-2] + 1, problem.stride[-2])
                found += [_side_by_side(problem, lanes, n) for n in rows if n > 1]
    most = MOST_FILLED.get(size, MOST_OTHERS) * problem.in_channels
    fitting = (f for f in found if f is not None and f.channels * prod(f.block) <= most * prod(f.step))
    return sorted((f for f in fitting if f.channels * prod(f.block) * size <= MOST_PIXEL), key=_work)


def _work(filled: FilledImages) -> tuple[int, int, int]:
    """Bytes of the sum that come for each position, in whole slices, those that are multiplied, in whole instructions,
    and elements that are copied."""
    problem, taps = filled.problem, prod(filled.problem.kernel)
    own = problem.in_channels * ITEMSIZE[problem.types.a]
    slices, steps = -(-own // SLICE_BYTES), -(-own // STEP_BYTES)
    return taps * slices * SLICE_BYTES, taps * steps * STEP_BYTES, prod(filled.lens)


def _with_zeros(problem: ConvProblem, lanes: int) -> FilledImages:
    """Channels filled up to whole vectors."""
    channels = -(-problem.in_channels // lanes) * lanes
    filled = replace(problem, in_channels=channels, x_strides=())
    rank = len(problem.kernel)
    lens = (problem.batch, channels, *problem.in_lens)
    return FilledImages(filled, lens, channels, (0,) * rank, (1,) * rank, (1,) * rank, 1)


def _side_by_side(problem: ConvProblem, lanes: int, rows: int = 1) -> FilledImages | None:
    """For each position the pixels under some rows of the filter, each with zeros up to what an instruction multiplies.

    Where the filter has no multiple of ``rows``, the first tap has fewer, the last ones of a pixel of the copies: what
    else lies there belongs to other positions, and may be infinite. None if a tap were several slices.
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
    return FilledImages(filled, lens, channels, before, (*apart, step), block, taps, True, missing * row)


def _in_rows(problem: ConvProblem, lanes: int) -> FilledImages:
    """Pixels under a row of the filter as one, without others: zero times an infinite one is no zero."""
    taps, step, before = problem.kernel[-1], problem.stride[-1], problem.pads_begin[-1]
    channels = 1 << (problem.in_channels - 1).bit_length()
    while channels * step % lanes or channels * taps % lanes:
        channels *= 2
    together = max(1, lanes // channels)
    outer, across = problem.in_lens[:-1], problem.out_lens[-1]
    pixels = max(before + problem.in_lens[-1], (across - 1) * step + taps)
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
    return FilledImages(filled, lens, channels, (*(0 for _ in outer), before), ones, ones, 1, True)


def _in_squares(problem: ConvProblem, lanes: int, rows: int) -> FilledImages | None:
    """Pixels of ``rows`` rows, and of as many columns as positions are apart, as one, and those under a row of the
    filter, too; None if positions would not be whole vectors apart."""
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
    return FilledImages(filled, lens, channels, problem.pads_begin, step, block, block[1], True)
