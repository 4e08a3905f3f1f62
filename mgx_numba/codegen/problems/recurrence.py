"""What a recurrent kernel is asked to compute, and the products that one step of each cell makes."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ShapeError
from ...ops.base import Operator, Pointwise
from ...ops.recurrence import CELLS
from ..cpu.microkernels.tile_table import RegisterTile
from .contraction import ITEMSIZE

__all__ = ["Phase", "RecurrenceProblem", "phases"]

VECTORS = 4
"""Accumulators of one row: enough multiply-adds a broadcast to keep up with weights that come from the L2 cache."""

_FEW_ROWS = 3
_CACHED_BYTES = 1 << 15
"""Weights that stay in the L1 cache."""


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


@dataclass(frozen=True)
class RecurrenceProblem:
    """All steps of the directions (lanes) of a recurrent layer; gates as in ONNX (gru: z r h, lstm: i o f c).

    ``x`` holds the input products with all biases that may be added to them, as [steps, batch, lanes, gates * hidden];
    ``y`` the hidden states [steps, lanes, batch, hidden], ``last`` and ``last_cell`` [lanes, batch, hidden] without
    gaps. Strides are in elements for all but the innermost axis, which is contiguous. A lane that is ``backward`` reads
    and writes the steps from the last to the first. ``lengths`` is the integer dtype of the steps of each sequence
    [batch], or "" if all are whole. The optional operands are ``first`` and ``first_cell`` (initial states [lanes,
    batch, hidden], strides given), ``peephole`` [lanes, 3 * hidden] and, for gru that resets after the product,
    ``inner_bias`` [lanes, hidden]. ``int16`` weights have 16 bits (:mod:`..contraction.int16_weights`).
    """

    cell: str
    steps: int
    batch: int
    hidden: int
    backward: tuple[bool, ...]
    functions: tuple[Operator, ...]
    x_strides: tuple[int, int, int]
    y_strides: tuple[int, int, int]
    first_strides: tuple[int, int] | None = None
    first_cell_strides: tuple[int, int] | None = None
    dtype: str = "float32"
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    peephole: bool = False
    inner_bias: bool = False
    lengths: str = ""
    fast_math: bool = False
    int16: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise ShapeError(f"recurrent layer of dtype {self.dtype}; expected float32 or float64")
        if min(self.steps, self.batch, self.hidden, self.lanes) < 1:
            raise ShapeError("recurrent layer over an empty tensor; expected at least 1 in each dimension")
        if not all(isinstance(function, Pointwise) for function in self.functions):
            raise ShapeError("activation functions of a recurrent layer must be pointwise")

    @property
    def waits_for_weights(self) -> bool:
        """Whether a step takes longer to read its float32 weights than to multiply with them."""
        return self.dtype == "float32" and self.batch <= _FEW_ROWS and 4 * self.weights >= _CACHED_BYTES

    @property
    def lanes(self) -> int:
        """Directions computed together."""
        return len(self.backward)

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return CELLS[self.cell].gates

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def weights(self) -> int:
        """Recurrent weights of one lane."""
        return self.gates * self.hidden * self.hidden

    @property
    def flops(self) -> int:
        rows = self.steps * self.batch * self.lanes
        return rows * (2 * self.weights + 8 * self.gates * self.hidden)

    @property
    def bytes(self) -> int:
        """What has to be moved at least, each operand once."""
        rows = self.steps * self.batch * self.lanes
        return self.itemsize * (self.lanes * self.weights + rows * (self.gates + 1) * self.hidden)


def phases(problem: RecurrenceProblem) -> tuple[Phase, ...]:
    """The products of a step, in order; each needs all results of the one before."""
    if problem.cell == "gru" and not problem.linear_before_reset:
        return (Phase((0, 1), VECTORS // 2), Phase((2,), VECTORS))
    return (Phase(tuple(range(problem.gates)), max(1, VECTORS // problem.gates)),)
