"""Recurrent weights in the order in which the kernel reads them."""

from __future__ import annotations

import numpy as np

from ..contraction.pack import aligned_zeros
from ..cpu.tile_table import tile_for
from .problem import Phase, RecurrenceProblem, phases

__all__ = ["pack_weights", "packed_lens", "phase_size"]


def phase_size(problem: RecurrenceProblem, phase: Phase) -> int:
    """Elements of one lane's weights for one phase."""
    tile = tile_for(problem.dtype)
    return phase.panels(tile, problem.hidden) * problem.hidden * phase.vectors * tile.lanes


def packed_lens(problem: RecurrenceProblem) -> tuple[int]:
    """Length of the packed weights."""
    return (problem.lanes * sum(phase_size(problem, phase) for phase in phases(problem)),)


def pack_weights(problem: RecurrenceProblem, weights: np.ndarray) -> np.ndarray:
    """``weights`` [lanes, gates * hidden, hidden] as [phase][lane, panel, k, gate, group, unit], zero past the last."""
    tile = tile_for(problem.dtype)
    hidden = problem.hidden
    out = aligned_zeros(packed_lens(problem), problem.dtype)
    gates = weights.reshape(problem.lanes, problem.gates, hidden, hidden)
    start = 0
    for phase in phases(problem):
        panels, width = phase.panels(tile, hidden), phase.groups * tile.lanes
        size = problem.lanes * phase_size(problem, phase)
        shape = (problem.lanes, panels, hidden, len(phase.gates), width)
        target = out[start : start + size].reshape(shape)
        for position, gate in enumerate(phase.gates):
            columns = gates[:, gate].transpose(0, 2, 1)
            for panel in range(panels):
                units = columns[:, :, panel * width : (panel + 1) * width]
                target[:, panel, :, position, : units.shape[2]] = units
        start += size
    return out
