"""The products that one step of each recurrent cell makes, and how they are cut for the register tile."""

from __future__ import annotations

from ....dataclass import dataclass
from ...problems.recurrence import RecurrenceProblem
from ..machine import machine
from ..microkernels.register_tile import RegisterTile

__all__ = ["Phase", "phases", "waits_for_weights"]

VECTORS = 4
"""Accumulators of one row: enough multiply-adds a broadcast to keep up with weights that come from the L2 cache."""

_FEW_ROWS = 3
"""Sequences up to which a step waits for its weights, so that 16-bit ones pay for being unpacked: as in
`gemv_int16`."""
_CACHED_THIRDS = 2
"""Of the L1 cache: weights of so many stay there from step to step."""


@dataclass(frozen=True)
class Phase:
    """One product of a step: which gates (rows of the recurrent weights) of how many neighbouring vectors of units."""

    gates: tuple[int, ...]
    groups: int

    @property
    def vectors(self) -> int:
        """Vectors of sums that a panel gives for one row: gate by gate, the groups of each."""
        return len(self.gates) * self.groups

    @property
    def words(self) -> int:
        """Vectors of words of a row of 16-bit weights."""
        return -(-self.vectors // 2)

    def panels(self, tile: RegisterTile, hidden: int) -> int:
        """Panels of ``groups`` vectors of units each."""
        return -(-hidden // (self.groups * tile.lanes))


def waits_for_weights(problem: RecurrenceProblem) -> bool:
    """Whether a step takes longer to read its float32 weights than to multiply with them."""
    few = problem.dtype == "float32" and problem.batch <= _FEW_ROWS
    return few and 4 * problem.weights >= _CACHED_THIRDS * machine().l1_bytes // 3


def phases(problem: RecurrenceProblem) -> tuple[Phase, ...]:
    """The products of a step, in order; each needs all results of the one before."""
    return tuple(Phase(gates, max(1, VECTORS // len(gates))) for gates in problem.phases)
