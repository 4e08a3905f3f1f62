"""The products that one step of each recurrent cell makes, and how they are cut for the register tile."""

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

__all__ = ["VECTORS", "Phase", "multiplies_int16", "phases", "waits_for_weights"]

VECTORS = 4
"""Accumulators of one row: enough multiply-adds a broadcast to keep up with weights that come from the L2 cache."""

_FEW_ROWS = 2
"""Sequences up to which a step waits for weights that come from the L2 cache, with VNNI over 512 bits: those in 16 bits
are multiplied twice."""
_ROWS_BESIDE = 3
"""The same of weights that L2 does not hold. Float32's time over that of 16 bits on Zen 5, lstm and gru of 128, 256 and
512 units: one sequence 1.7, 2.2, 1.9 and 1.5, 1.7, 2.0; two 1.25, 1.45, 1.6 and 1.35, 1.3, 1.9; three 1.0, 1.15, 1.25
and 0.8, 0.95, 1.4; four 0.9, 1.0, 1.0 and 0.8, 0.9, 1.0. Without VNNI two of 128 and 256 units 1.1, 1.35 and 1.0, 1.0.
With AVX2 alone, lstm of 64, 128, 256 and 512 units: one 0.9, 1.2, 1.35, 1.45, two at most 0.95."""
_CACHED_THIRDS = 2
"""Of the L1 cache: weights of so many stay there from step to step."""
_CACHED_BESIDE = 9
"""The same thirds for vectors of 256 bits, by the figures above of 64 and 128 units: 64 and 256 KiB."""
_BOUNDED = frozenset({"tanh", "sigmoid", "hard_sigmoid", "softsign"})
"""Functions whose results are at most 1 in size."""


@dataclass(frozen=True)
class Phase:
    """One product of a step: which gates (rows of the recurrent weights) of how many neighbouring vectors of units."""

    gates: tuple[int, ...]
    groups: int

    @property
    def vectors(self) -> int:
        """Vectors of sums that a panel gives for one row: gate by gate, the groups of each."""
        return len(self.gates) * self.groups

    def panels(self, tile: RegisterTile, hidden: int) -> int:
        """Panels of ``groups`` vectors of units each."""
        return -(-hidden // (self.groups * tile.lanes))


def waits_for_weights(problem: RecurrenceProblem) -> Length:
    """Return the condition that a step takes longer to read its float32 weights than to multiply with them in 16
    bits."""
    bytes_, own = 4 * problem.weights, machine()
    thirds = _CACHED_THIRDS if host.vector_bits() == 512 else _CACHED_BESIDE
    rows = (_ROWS_BESIDE if bytes_ >= own.l2_bytes else _FEW_ROWS) if has_dot4(host.host(), 512) else 1
    return less_equal(problem.batch, rows) if bytes_ >= thirds * own.l1_bytes // 3 else 0


def multiplies_int16(problem: RecurrenceProblem) -> bool:
    """Whether weights in 16 bits may be multiplied by states as integers: these must not differ much in size, which
    they do not where functions have bounds, and the CPU must have the instruction."""
    tile = tile_for(element_types(problem.dtype))
    bounded = {problem.functions[0].name, problem.functions[-1].name} <= _BOUNDED
    return problem.dtype == "float32" and bounded and multiplies_pairs(host.host(), tile.bits)


def phases(problem: RecurrenceProblem) -> tuple[Phase, ...]:
    """The products of a step, in order; each needs all results of the one before."""
    return tuple(Phase(gates, max(1, VECTORS // len(gates))) for gates in problem.phases)
