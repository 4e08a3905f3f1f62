"""Convolutions of images with few channels, as convolutions whose operands come in whole vectors.

Pixels of a row follow one another, so those under a row of the filter are one pixel of many channels to a convolution
whose filter is one pixel wide; pixels of neighbouring positions overlap. Each row of such images begins with its
padding, and pixels have channels of zeros where positions would not be whole vectors apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import packed_strides
from .placed import VECTOR_BYTES

__all__ = ["FilledImages", "filled_images"]

MOST_FILLED, MOST_OTHERS = {1: 8}, 4
"""How often as many channels there may be with those of zeros, by bytes of an element, and of elements of other sizes:
tensor cores are as much faster than what gathers single elements, and more. For images of 3 channels it is 4/3 or 8/3,
of 8 bits up to 16/3. No figures kept of more."""


@dataclass(frozen=True)
class FilledImages:
    """Images that are copied so that a convolution reads whole vectors of them.

    Attributes:
        problem: the convolution that reads the copies.
        channels: of a pixel of the copies, with those that are zeros.
        pixels: of a row, with those of zeros at both ends.
        before: of these, those before the image's first one.
        folded: whether pixels of a row under the filter are one of ``problem``.
    """

    problem: ConvProblem
    channels: int
    pixels: int
    before: int = 0
    folded: bool = False

    @property
    def lens(self) -> tuple[int, ...]:
        """Lengths of the copies: images, channels, spatial dimensions."""
        return (self.problem.batch, self.channels, *self.problem.in_lens[:-1], self.pixels)

    def weights(self, given: np.ndarray) -> np.ndarray:
        """The weights of ``problem`` from those of the convolution, ``[outputs, channels, *kernel]``."""
        outputs, channels, *kernel = given.shape
        whole = np.pad(given, [(0, 0), (0, self.channels - channels), *[(0, 0)] * len(kernel)])
        if not self.folded:
            return whole
        together = np.ascontiguousarray(np.moveaxis(whole, -1, 1))
        return together.reshape(outputs, kernel[-1] * self.channels, *kernel[:-1], 1)


def filled_images(problem: ConvProblem) -> FilledImages | None:
    """The images that a convolution should be computed from; None if its channels are whole vectors, or would have to
    be more than `MOST_FILLED` times as many."""
    size = ITEMSIZE[problem.types.a]
    lanes = VECTOR_BYTES // size
    if problem.in_channels % lanes == 0 or problem.groups > 1 or problem.transposed or problem.prologue is not None:
        return None
    pads = (problem.pads_begin[-1], problem.pads_end[-1])
    straight = problem.dilation[-1] == 1 and min(pads) >= 0
    found = _in_rows(problem, lanes) if straight else _with_zeros(problem, lanes)
    return found if found.channels <= MOST_FILLED.get(size, MOST_OTHERS) * problem.in_channels else None


def _with_zeros(problem: ConvProblem, lanes: int) -> FilledImages:
    """Channels filled up to whole vectors."""
    channels = -(-problem.in_channels // lanes) * lanes
    filled = replace(problem, in_channels=channels, x_strides=())
    return FilledImages(filled, channels, problem.in_lens[-1])


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
    return FilledImages(filled, channels, pixels, before, True)
