"""The orders in which weights of convolutions lie for kernels: permutations of four axes."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ....core.strided import Strided
from ...problems.convolution import ConvProblem

__all__ = ["CHANNELS", "COLUMNS", "ROWS", "WeightOrder", "pack_weights", "packed_lens"]

Weights = TypeVar("Weights", np.ndarray, Strided)
"""The weights, or where they lie."""
WeightOrder = tuple[int, int, int, int]
"""Of the axes groups, taps, input channels of a group, output channels of a group: which comes first, and so on."""

ROWS: WeightOrder = (0, 1, 2, 3)
"""Of each group a matrix with a row for each position of the sum."""
COLUMNS: WeightOrder = (0, 3, 1, 2)
"""Of each group a matrix whose columns are contiguous."""
CHANNELS: WeightOrder = (1, 0, 2, 3)
"""For each tap all channels side by side, where each is a group."""


def packed_lens(problem: ConvProblem, order: WeightOrder) -> tuple[int, int, int, int]:
    """Lengths of the weights in an order."""
    lens = (problem.groups, problem.taps, problem.group_in, problem.group_out)
    first, second, third, fourth = order
    return lens[first], lens[second], lens[third], lens[fourth]


def pack_weights(problem: ConvProblem, order: WeightOrder, weights: Weights) -> Weights:
    """Weights of `ConvProblem.weight_lens` in an order; a view of them where their memory allows it.

    Raises:
        ValueError: of places alone: the view takes a copy.
    """
    groups, taps, inputs, outputs = packed_lens(problem, ROWS)
    if problem.transposed:
        rows = weights.reshape(groups, inputs, outputs, taps).transpose(0, 3, 1, 2)
    else:
        rows = weights.reshape(groups, outputs, inputs, taps).transpose(0, 3, 2, 1)
    return rows.transpose(*order)
