"""Grouped convolutions of few channels a group as ones of fewer, larger groups, whose weights are 0 between groups.

Tiles multiply words of several channels, and the channels of a group must be whole words.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...problems.convolution import ConvProblem
from ..microkernels.register_tile import RegisterTile

__all__ = ["join_groups", "joined_group_weights"]


def join_groups(problem: ConvProblem, tile: RegisterTile) -> ConvProblem:
    """Return the convolution with the most groups whose channels are whole words; with one group there is no such
    limit."""
    words = tile.packing.k_interleave
    for together in range(1, problem.groups):
        if problem.groups % together == 0 and together * problem.group_in % words == 0:
            return replace(problem, groups=problem.groups // together)
    return replace(problem, groups=1)


def joined_group_weights(weights: np.ndarray, groups: int, joined: int) -> np.ndarray:
    """Return the weights ``[out_channels, in_channels / joined, *kernel]`` of ``joined`` groups that do what ``groups``
    do by ``weights``."""
    if groups == joined:
        return weights
    outputs, inputs, *kernel = weights.shape
    together = groups // joined
    result = np.zeros((joined, together, outputs // groups, together, inputs, *kernel), weights.dtype)
    given = weights.reshape(joined, together, outputs // groups, inputs, *kernel)
    for k in range(together):
        result[:, k, :, k] = given[:, k]
    return result.reshape(outputs, together * inputs, *kernel)
