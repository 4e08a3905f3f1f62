"""Weights of products in 16 bits whose rounding leaves the sums over all that a result adds up.

What a product takes has a mean, after ReLU a large one, which rounding to the nearest multiplies by the sum of all
errors of a column or filter. So of the weights that lie nearest half way between two numbers as many are rounded to the
other one as make that sum vanish (Guo et al., "SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian
Approximation", 2022). That takes no data; root mean squares of the errors themselves grow by 4% in filters of 9 normal
weights, by 0.1% in those of 576.
"""

from __future__ import annotations

import numpy as np

from ...core.types import Type
from ...parallel import in_parts
from ..constants import CONSTANT_VIEWS, compact, constant_array
from ..instruction import Instruction
from .quantization_plan import CONTRACTIONS

__all__ = ["narrow_weights", "round_keeping_sums"]

AT_ONCE = 1 << 16
"""Weights of which everything is in memory at once: 256 KiB of float32, so that arrays stay in the caches."""
REACHES = (2.0, 16.0, float("inf"))
"""How far to look for weights to round to the other side, of the cost up to which as many as are needed would lie if
all had the same gap: in normal weights the first is enough for most rows."""


def narrow_weights(ins: Instruction, type: Type) -> np.ndarray | None:
    """The constant weights of a product in ``type``, with lengths of 1 where they repeat; None if it has none of
    float32, or others than products read them, which would need a second copy."""
    if ins.name not in CONTRACTIONS:
        return None
    weights = ins.inputs[1]
    array = None if weights.shape.is_dynamic or weights.shape.type is not Type.float_type else constant_array(weights)
    if array is None or not _only_weights(weights):
        return None
    small, axes = compact(array), array.ndim if ins.name == "convolution" else 2
    if small.shape[-axes:] != array.shape[-axes:] or not small.size:
        return None
    rows = small if ins.name == "convolution" else small.swapaxes(-1, -2)
    lens = rows.shape
    matrix = rows.reshape(lens[0], -1) if ins.name == "convolution" else rows.reshape(-1, lens[-1])
    rounded = round_keeping_sums(matrix, type).reshape(lens)
    return rounded if ins.name == "convolution" else rounded.swapaxes(-1, -2)


def round_keeping_sums(weights: np.ndarray, type: Type) -> np.ndarray:
    """Numbers of ``type`` next to those of a float32 matrix, on either side, such that rows have nearly the same sums.

    Rows with a value that the type cannot hold are rounded to the nearest.
    """
    found = np.empty(weights.shape, type.numpy)
    few = max(1, AT_ONCE // max(1, weights.shape[1]))

    def work(part: slice) -> None:
        for begin in range(part.start, part.stop, few):
            rows = slice(begin, min(begin + few, part.stop))
            found[rows] = _rounded(weights[rows], type)

    in_parts(work, len(weights), weights.nbytes)
    return found


def _rounded(weights: np.ndarray, type: Type) -> np.ndarray:
    with np.errstate(all="ignore"):
        nearest = weights.astype(type.numpy, order="C")
        wide = nearest.astype(np.float32)
        apart = wide - weights
        total = apart.sum(1, dtype=np.float64)
        total[~np.isfinite(total)] = 0
        beyond = (np.abs(wide) > np.abs(weights)).view(np.uint8)
        # the number on the other side of the weight: its bits are one less or one more
        other = (nearest.view(np.uint16) + np.uint16(1) - np.uint16(2) * beyond).view(type.numpy)
        gap = np.abs(other.astype(np.float32) - wide)
        apart *= np.sign(total).astype(np.float32)[:, None]
        cost = gap - 2 * apart  # by how much squares of errors grow, for each unit that the sum changes
        helps = (apart > 0) & np.isfinite(gap)
    total = np.abs(total)
    rows = np.flatnonzero(total)
    for reach in REACHES:
        if not len(rows):
            break
        # costs are spread evenly from 0 to the gap, and half of a row's weights may be rounded to the other side
        limits = (reach * total[rows] / (weights.shape[1] / 2)).astype(np.float32)
        every = slice(None) if len(rows) == len(cost) else rows
        near = (cost[every] < limits[:, None]) & helps[every]
        place, column = np.divmod(np.flatnonzero(near), weights.shape[1])
        order = np.lexsort((cost[rows[place], column], place))
        place, column = place[order], column[order]
        steps = gap[rows[place], column].astype(np.float64)
        begins = np.searchsorted(place, np.arange(len(rows) + 1))
        sums = np.concatenate([[0.0], np.cumsum(steps)])
        settled = (sums[begins[1:]] - sums[begins[:-1]] >= total[rows]) | (reach == REACHES[-1])
        sums = sums[1:] - sums[begins[place]]
        turned = settled[place] & (sums - steps / 2 <= total[rows[place]])
        turned_row, turned_column = rows[place[turned]], column[turned]
        nearest[turned_row, turned_column] = other[turned_row, turned_column]
        rows = rows[~settled]
    return nearest


def _only_weights(weights: Instruction) -> bool:
    """Whether products alone read a constant, as their weights, and nothing else a view of it."""
    if any(user.name not in CONTRACTIONS or user.inputs[0] is weights for user in weights.users):
        return False
    while weights.literal is None and weights.name in CONSTANT_VIEWS:
        weights = weights.inputs[0]
        if len(weights.users) != 1:
            return False
    return True
