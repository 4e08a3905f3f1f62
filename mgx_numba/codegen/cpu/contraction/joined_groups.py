"""Join the groups of a convolution that has few channels per group; weights between the joined groups are 0.

A tile multiplies words that hold several channels, so the channels of a group must fill whole words.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...problems.convolution import ConvProblem
from ..microkernels.register_tile import RegisterTile


def join_groups(problem: ConvProblem, tile: RegisterTile) -> ConvProblem:
    """Return ``problem`` with the largest number of groups whose channels fill whole words.

    A convolution of one group may have any number of channels.
    """
    words = tile.packing.k_interleave
    for together in range(1, problem.groups):
        if problem.groups % together == 0 and together * problem.group_in % words == 0:
            return replace(problem, groups=problem.groups // together)
    return replace(problem, groups=1)


def joined_group_weights(weights: np.ndarray, groups: int, joined: int) -> np.ndarray:
    """Return the weights of ``joined`` groups that compute the same convolution as ``weights`` of ``groups`` groups.

    The result has the shape ``[out_channels, in_channels / joined, *kernel]``.
    """
    if groups == joined:
        return weights
    outputs, inputs, *kernel = weights.shape
    together = groups // joined
    result = np.zeros((joined, together, outputs // groups, together, inputs, *kernel), weights.dtype)
    given = weights.reshape(joined, together, outputs // groups, inputs, *kernel)
    for k in range(together):
        result[:, k, :, k] = given[:, k]
    return result.reshape(outputs, together * inputs, *kernel)
