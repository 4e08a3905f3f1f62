"""Convolutions whose taps along a row are one: pixels of few channels side by side are as many channels of one tap.

A kernel of 7 by 7 over three bytes a pixel, say, has 7 taps of 21 channels, in 6 words of four instead of 7. The pixels
of the new convolution, one for each output, overlap.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....core.dim import known_equal
from ...problems.convolution import ConvProblem
from ..microkernels.register_tile import RegisterTile

__all__ = ["join_taps", "joined_weights"]


def join_taps(problem: ConvProblem, tile: RegisterTile) -> ConvProblem | None:
    """The convolution over joined taps, whose pixels lie as those given, its strides in elements; None if it would not
    take fewer words, its pixels would not begin with words, or its rows are padded."""
    channels, taps, step = problem.in_channels, problem.kernel[-1], problem.stride[-1]
    if (
        problem.groups > 1
        or problem.transposed
        or problem.dilation[-1] > 1
        or not known_equal(problem.x_strides[-1], channels)
    ):
        return None
    if problem.pads_begin[-1] or problem.pads_end[-1] or step * channels % tile.packing.k_interleave:
        return None
    if tile.depth(taps * channels) >= taps * tile.depth(channels):
        return None
    return replace(
        problem,
        in_channels=taps * channels,
        in_lens=(*problem.in_lens[:-1], problem.out_lens[-1]),
        kernel=(*problem.kernel[:-1], 1),
        stride=(*problem.stride[:-1], 1),
        x_strides=(*problem.x_strides[:-1], step * channels),
    )


def joined_weights(weights: np.ndarray) -> np.ndarray:
    """Weights ``[out_channels, in_channels, *kernel]`` as those of the convolution over joined taps."""
    outer, channels, *kernel = weights.shape
    return np.moveaxis(weights, -1, 1).reshape(outer, kernel[-1] * channels, *kernel[:-1], 1)
