"""The products that one step of each recurrent cell computes, and how they map to the register tile."""

from __future__ import annotations

from ....core.dim import Length, less_equal
from ....dataclass import dataclass
from ...problems.element_types import element_types
from ...problems.recurrence import RecurrenceProblem
from .. import host
from ..machine import machine
from ..microkernels.int8_table import has_dot4, multiplies_pairs
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for

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
