"""The products that one step of each recurrent cell computes, how they map to the register tile, and packed weights in
the order in which the kernel reads them."""

from __future__ import annotations

import math

import numpy as np

from ....core.dim import Length, less_equal
from ....dataclass import dataclass
from ...problems.element_types import element_types
from ...problems.recurrence import RecurrenceProblem
from .. import host
from ..contraction.int16_weights import pack_words, words_lens
from ..contraction.panels import aligned_zeros, words_of
from ..machine import machine
from ..microkernels.int8_table import has_dot4, multiplies_pairs
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for

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


VECTORS = 4
"""Accumulator vectors of one row: enough multiply-adds for each broadcast to keep up with weights from the L2 cache."""

_FEW_ROWS = 2
"""Most sequences for which float32 weights from the L2 cache bound a step, with 512-bit VNNI: 16-bit weights need two
multiplications."""
_ROWS_BESIDE = 3
"""Most sequences for which float32 weights bound a step, if L2 does not hold the weights.

Time with float32 weights over time with 16-bit weights on Zen 5, lstm and gru of 128, 256 and 512 units. One sequence:
1.7, 2.2, 1.9 and 1.5, 1.7, 2.0. Two: 1.25, 1.45, 1.6 and 1.35, 1.3, 1.9. Three: 1.0, 1.15, 1.25 and 0.8, 0.95, 1.4.
Four: 0.9, 1.0, 1.0 and 0.8, 0.9, 1.0. Without VNNI, two sequences of 128 and 256 units: 1.1, 1.35 and 1.0, 1.0. With
AVX2 alone, lstm of 64, 128, 256 and 512 units: one 0.9, 1.2, 1.35, 1.45, two at most 0.95.
"""
_CACHED_THIRDS = 2
"""Thirds of the L1 cache: smaller weights stay there from step to step."""
_CACHED_BESIDE = 9
"""The same limit for 256-bit vectors, from the figures above for 64 and 128 units: 64 and 256 KiB."""
_BOUNDED = frozenset({"tanh", "sigmoid", "hard_sigmoid", "softsign"})
"""Functions whose results have magnitudes of at most 1."""


@dataclass(frozen=True)
class Phase:
    """One product of a step: its gates (rows of the recurrent weights), and how many adjacent vectors of units a panel
    has."""

    gates: tuple[int, ...]
    groups: int

    @property
    def vectors(self) -> int:
        """Return the accumulator vectors of a panel for one row: gate by gate, the groups of each gate."""
        return len(self.gates) * self.groups

    def panels(self, tile: RegisterTile, hidden: int) -> int:
        """Return the number of panels, each of ``groups`` vectors of units."""
        return -(-hidden // (self.groups * tile.lanes))


def waits_for_weights(problem: RecurrenceProblem) -> Length:
    """Return the condition that a step takes longer to read float32 weights than to multiply with 16-bit weights."""
    bytes_, own = 4 * problem.weights, machine()
    thirds = _CACHED_THIRDS if host.vector_bits() == 512 else _CACHED_BESIDE
    rows = (_ROWS_BESIDE if bytes_ >= own.l2_bytes else _FEW_ROWS) if has_dot4(host.host(), 512) else 1
    return less_equal(problem.batch, rows) if bytes_ >= thirds * own.l1_bytes // 3 else 0


def multiplies_int16(problem: RecurrenceProblem) -> bool:
    """Return whether 16-bit weights may be multiplied by states as integers.

    States must not differ much in size, as bounded functions ensure, and the CPU must have the instruction.
    """
    tile = tile_for(element_types(problem.dtype))
    bounded = {problem.functions[0].name, problem.functions[-1].name} <= _BOUNDED
    return problem.dtype == "float32" and bounded and multiplies_pairs(host.host(), tile.bits)


def phases(problem: RecurrenceProblem) -> tuple[Phase, ...]:
    """Return the products of a step, in order; each needs all results of the product before."""
    return tuple(Phase(gates, max(1, VECTORS // len(gates))) for gates in problem.phases)
