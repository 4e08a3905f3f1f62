"""Join the taps along a row into one tap: adjacent pixels of few channels are one pixel of more channels.

For example a 7x7 kernel over three bytes a pixel has 7 taps of 21 channels, in 6 words of four instead of 7. The pixels
of the new convolution, one for each output, overlap.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....core.dim import known_equal
from ...problems.convolution import ConvProblem
from ..microkernels.register_tile import RegisterTile


def join_taps(problem: ConvProblem, tile: RegisterTile) -> ConvProblem | None:
    """Return the convolution over joined taps of the same pixels, with strides in elements.

    Returns None if it would not take fewer words, if its pixels would not start at words, or if its rows are padded.
    """
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
    """Return weights ``[out_channels, in_channels, *kernel]`` for the convolution over joined taps."""
    outer, channels, *kernel = weights.shape
    return np.moveaxis(weights, -1, 1).reshape(outer, kernel[-1] * channels, *kernel[:-1], 1)
