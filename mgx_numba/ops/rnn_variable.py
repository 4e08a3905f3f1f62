"""Steps around recurrent layers whose sequences have different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register
from .dims import meet_dim
from .rnn import RnnDirection


def _check_lengths(op: Operator, inputs: Sequence[Shape], batch_axis: int, rank: int) -> None:
    x, lengths = op.expect_inputs(inputs, 2)
    if x.ndim != rank or lengths.ndim != 1 or not lengths.type.is_integral:
        raise op.fail(f"expected {rank} axes and a vector of integer lengths, got {x} and {lengths}")
    meet_dim(op, "batch and number of lengths", x.dims[batch_axis], lengths.dims[0])


def _shift(x: np.ndarray, lengths: np.ndarray, batch_axis: int, forward: bool) -> np.ndarray:
    """Return each sequence moved to the end of the steps (or back to the start), zeros elsewhere."""
    steps = x.shape[0]
    moved = np.moveaxis(x, batch_axis, 1)
    t, lengths = np.arange(steps)[:, None], lengths.astype(np.int64)
    source = t - (steps - lengths) if forward else t + (steps - lengths)
    inside = (t >= steps - lengths) if forward else (t < lengths)
    result = moved[np.clip(source, 0, max(steps - 1, 0)), np.arange(moved.shape[1])]
    mask = inside.reshape(inside.shape + (1,) * (moved.ndim - 2))
    return np.moveaxis(np.where(mask, result, result.dtype.type(0)), 1, batch_axis)


@register
@dataclass(frozen=True)
class RnnVarSlShiftSequence(Operator):
    """Sequences [s, b, i] of lengths [b] (second input) moved to the end of the steps, zeros before."""

    name: ClassVar[str] = "rnn_var_sl_shift_sequence"

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        _check_lengths(self, inputs, 1, 3)
        return inputs[0].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        return _shift(args[0], args[1], 1, True)


@register
@dataclass(frozen=True)
class RnnVarSlShiftOutput(Operator):
    """Hidden states [s, d, b, h] with zeros after each sequence's end.

    Those of a reverse direction are first moved to the start.
    """

    name: ClassVar[str] = "rnn_var_sl_shift_output"
    output_name: str = "hidden_states"
    direction: RnnDirection = RnnDirection.forward

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        _check_lengths(self, inputs, 2, 4)
        return inputs[0].to_standard()

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, lengths = args
        running = np.arange(x.shape[0])[:, None] < lengths
        kept = np.where(running[:, None, :, None], x, x.dtype.type(0))
        first = 0 if self.direction is RnnDirection.reverse else 1
        return np.concatenate([kept[:, :first], _shift(x[:, first:], lengths, 2, False)], 1)


@register
@dataclass(frozen=True)
class RnnVarSlLastOutput(Operator):
    """The last hidden states [d, b, h] of [s, d, b, h]: at each sequence's end, reverse ones at the start."""

    name: ClassVar[str] = "rnn_var_sl_last_output"
    direction: RnnDirection = RnnDirection.forward

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        _check_lengths(self, inputs, 2, 4)
        return Shape.dynamic(inputs[0].type, inputs[0].dims[1:])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        x, lengths = args
        end = np.moveaxis(x, 2, 1)[lengths.astype(np.int64) - 1, np.arange(x.shape[2])]
        first = 0 if self.direction is RnnDirection.reverse else 1
        return np.concatenate([np.moveaxis(end, 1, 0)[:first], x[0, first:]], 0)
