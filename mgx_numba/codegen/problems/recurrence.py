"""Recurrent layer problems."""

from __future__ import annotations

from ...core.dim import known_less
from ...dataclass import dataclass
from ...errors import ShapeError
from ...ops.base import Operator, Pointwise
from ...ops.recurrence import CELLS
from .element_types import ITEMSIZE

FLOATS = ("float32", "float64", "float16", "bfloat16")
"""Element types of a problem; a back end supports some of them."""


@dataclass(frozen=True)
class RecurrenceProblem:
    """All steps of the directions (lanes) of a recurrent layer; gates as in ONNX (gru: z r h, lstm: i o f c).

    ``x`` holds the input products with all biases that may be added to them, as [steps, batch, lanes, gates * hidden];
    ``y`` the hidden states [steps, lanes, batch, hidden], ``last`` and ``last_cell`` [lanes, batch, hidden] without
    gaps. Strides are in elements for all but the innermost axis, which is contiguous. A lane that is ``backward`` reads
    and writes the steps from the last to the first. ``lengths`` is the integer dtype of the steps of each sequence
    [batch], or "" if all are whole. The optional operands are ``first`` and ``first_cell`` (initial states [lanes,
    batch, hidden], strides given), ``peephole`` [lanes, 3 * hidden] and, for gru that resets after the product,
    ``inner_bias`` [lanes, hidden]. States of narrow floats are kept in float32. ``int16``
    weights have 16 bits (`contraction.int16_weights` of the CPU), ``int8`` ones 8, with a scale for each row; then the
    states are brought to 21 or 8 bits for their products (`ops.recurrence.quantized_product` for those of 8). With
    ``dynamic`` those of 8 bits are brought to uint8 by their range (`ops.recurrence.dynamic_product`), and the weights
    have a zero point for each row.
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
    int8: bool = False
    dynamic: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in FLOATS:
            raise ShapeError(f"recurrent layer of dtype {self.dtype}; expected one of {', '.join(FLOATS)}")
        if any(known_less(n, 1) for n in (self.steps, self.batch, self.hidden, self.lanes)):
            raise ShapeError("recurrent layer over an empty tensor; expected at least 1 in each dimension")
        if not all(isinstance(function, Pointwise) for function in self.functions):
            raise ShapeError("activation functions of a recurrent layer must be pointwise")

    @property
    def lanes(self) -> int:
        """Return the directions computed together."""
        return len(self.backward)

    @property
    def backward_lanes(self) -> int:
        """Return the mask of backward lanes."""
        return sum(1 << lane for lane, back in enumerate(self.backward) if back)

    @property
    def gates(self) -> int:
        """Return the gates of the cell."""
        return CELLS[self.cell].gates

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Return the gates of each product of a step; a product needs all results of the previous one."""
        if self.cell == "gru" and not self.linear_before_reset:
            return (0, 1), (2,)
        return (tuple(range(self.gates)),)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def packs_words(self) -> bool:
        """Return whether weights are packed in words of fewer bits."""
        return self.int16 or self.int8

    @property
    def weights(self) -> int:
        """Return the recurrent weights per lane."""
        return self.gates * self.hidden * self.hidden

    @property
    def flops(self) -> int:
        rows = self.steps * self.batch * self.lanes
        return rows * (2 * self.weights + 8 * self.gates * self.hidden)

    @property
    def bytes(self) -> int:
        """Return the least memory traffic (bytes): each operand once."""
        rows = self.steps * self.batch * self.lanes
        each = 1 if self.int8 else 2 if self.int16 else self.itemsize
        return each * self.lanes * self.weights + self.itemsize * rows * (self.gates + 1) * self.hidden
