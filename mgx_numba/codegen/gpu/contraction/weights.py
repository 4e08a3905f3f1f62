"""Layouts of convolution weights: permutations of (group, tap, input channel, output channel)."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ....core.strided import Strided
from ...problems.convolution import ConvProblem

Weights = TypeVar("Weights", np.ndarray, Strided)
"""The weights, or a description of their memory."""
WeightOrder = tuple[int, int, int, int]
"""Permutation of the axes (groups, taps, input channels per group, output channels per group), outermost first."""

ROWS: WeightOrder = (0, 1, 2, 3)
"""Per group a row-major ``[k, outputs]`` matrix, k over taps and input channels."""
COLUMNS: WeightOrder = (0, 3, 1, 2)
"""Per group a column-major matrix: k is contiguous."""
CHANNELS: WeightOrder = (1, 0, 2, 3)
"""Depthwise: per tap all channels, contiguous."""


def packed_lens(problem: ConvProblem, order: WeightOrder) -> tuple[int, int, int, int]:
    """Return the lengths of the weights in an order."""
    lens = (problem.groups, problem.taps, problem.group_in, problem.group_out)
    first, second, third, fourth = order
    return lens[first], lens[second], lens[third], lens[fourth]


def pack_weights(problem: ConvProblem, order: WeightOrder, weights: Weights) -> Weights:
    """Return weights of shape `ConvProblem.weight_lens` permuted to an order; a view where strides allow.

    Raises:
        ValueError: ``weights`` is a memory description and the permutation needs a copy.
    """
    groups, taps, inputs, outputs = packed_lens(problem, ROWS)
    if problem.transposed:
        rows = weights.reshape(groups, inputs, outputs, taps).transpose(0, 3, 1, 2)
    else:
        rows = weights.reshape(groups, outputs, inputs, taps).transpose(0, 3, 2, 1)
    return rows.transpose(*order)
