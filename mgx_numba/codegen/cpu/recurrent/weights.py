"""Pack recurrent weights in the order in which the kernel reads them."""

from __future__ import annotations

import math

import numpy as np

from ...problems.element_types import element_types
from ...problems.recurrence import RecurrenceProblem
from ..contraction.int16_weights import pack_words, words_lens
from ..contraction.panels import aligned_zeros, words_of
from ..microkernels.tile_table import tile_for
from .phases import Phase, phases

TOGETHER = 4
"""8-bit weights in a word: adjacent along k."""
SHIFT = 128
"""Offset that makes each int8 an unsigned byte."""


def int8_rows(problem: RecurrenceProblem) -> int:
    """Return the number of rows before the words of a panel of 8-bit weights.

    The first rows are the columns' scales, and the correction for states that have `SHIFT` added (`SHIFT` times the
    columns' sums). Where states have a `dynamic` zero point, the second row is the factor of that zero point, and the
    third is the columns' negated zero points.
    """
    return 3 if problem.dynamic else 2


def phase_size(problem: RecurrenceProblem, phase: Phase) -> int:
    """Return the elements of one lane's weights for one phase; words for weights of 16 or 8 bits."""
    tile, hidden = tile_for(element_types(problem.dtype)), problem.hidden
    panels = phase.panels(tile, hidden)
    if problem.int16:
        return math.prod(words_lens(panels, hidden, phase.vectors * tile.lanes))
    if problem.int8:
        return panels * (int8_rows(problem) - hidden // -TOGETHER) * phase.vectors * tile.lanes
    return panels * hidden * phase.vectors * tile.lanes


def packed_lens(problem: RecurrenceProblem) -> tuple[int]:
    """Return the length of the packed weights."""
    return (problem.lanes * sum(phase_size(problem, phase) for phase in phases(problem)),)


def pack_weights(
    problem: RecurrenceProblem, weights: np.ndarray, scales: np.ndarray | None = None, points: np.ndarray | None = None
) -> np.ndarray:
    """Pack ``weights`` [lanes, gates * hidden, hidden] as [phase][lane, panel, k, gate, group, unit], zero past the
    last unit.

    A panel of 16-bit weights has the format of `words_lens`. A panel of 8-bit weights has `int8_rows` rows, then words.

    Args:
        scales: scales [lanes, gates * hidden] of the rows of 8-bit weights.
        points: zero points of the same rows, if they have any.

    Raises:
        UnsuitedWeights: 16 bits cannot represent the weights.
    """
    tile = tile_for(element_types(problem.dtype))
    out = aligned_zeros(packed_lens(problem), "int32" if problem.packs_words else problem.dtype)
    gates = weights.reshape(problem.lanes, problem.gates, problem.hidden, problem.hidden)
    start = 0
    for phase in phases(problem):
        size = phase_size(problem, phase)
        for lane in range(problem.lanes):
            target = out[start : start + size]
            if problem.int8:
                assert scales is not None
                own = scales[lane].reshape(problem.gates, problem.hidden, 1)
                zero = (points[lane] if points is not None else np.zeros_like(own, np.int32)).reshape(own.shape)
                _pack_int8(problem, phase, gates[lane], own, zero, target)
            elif problem.int16:
                columns = _columns(problem, phase, gates[lane])
                lens = words_lens(phase.panels(tile, problem.hidden), problem.hidden, columns.shape[-1])
                pack_words(columns.swapaxes(0, 1).reshape(problem.hidden, -1), target.reshape(lens), tile.lanes)
            else:
                target[:] = _columns(problem, phase, gates[lane]).reshape(-1)
            start += size
    return out


def _columns(problem: RecurrenceProblem, phase: Phase, gates: np.ndarray) -> np.ndarray:
    """Return ``gates[gate, unit, k]`` as [panel, k, column]."""
    tile = tile_for(element_types(problem.dtype))
    panels, width = phase.panels(tile, problem.hidden), phase.groups * tile.lanes
    out = np.zeros((panels, gates.shape[2], phase.vectors * tile.lanes), gates.dtype)
    for position, gate in enumerate(phase.gates):
        for panel in range(panels):
            units = gates[gate, panel * width : (panel + 1) * width].T
            first = position * width
            out[panel, :, first : first + units.shape[1]] = units
    return out


def _pack_int8(
    problem: RecurrenceProblem,
    phase: Phase,
    gates: np.ndarray,
    scales: np.ndarray,
    points: np.ndarray,
    target: np.ndarray,
) -> None:
    """Pack the panels of one lane: the rows of `int8_rows`, then words of `TOGETHER` weights."""
    missing = -problem.hidden % TOGETHER
    columns = _columns(problem, phase, np.pad(gates, ((0, 0), (0, 0), (0, missing))) if missing else gates)
    panels, _, width = columns.shape
    out = target.reshape(panels, -1, width)
    out[:, 0] = _columns(problem, phase, scales.astype(np.float32))[:, 0].view(np.int32)
    out[:, 1] = (-1 if problem.dynamic else -SHIFT) * columns.sum(1, dtype=np.int32)
    if problem.dynamic:
        out[:, 2] = -_columns(problem, phase, points)[:, 0]
    out[:, int8_rows(problem) :] = words_of(columns, TOGETHER, "int32")
