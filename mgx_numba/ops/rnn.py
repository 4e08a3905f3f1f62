"""Recurrent layers: sequences [s, b, i] to hidden states [s, directions, b, h]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import ClassVar

import numpy as np

from ..core.shape import DynamicDimension, Shape
from ..core.types import from_numpy
from ..dataclass import dataclass
from ..errors import UnsupportedError
from .base import Operator, make_op, register, register_enum
from .dims import meet_dim
from .recurrence import CELLS, Recurrence, reverse_sequences


@register_enum
class RnnDirection(Enum):
    """Direction in which a layer reads its sequences; ``bidirectional`` has two sets of weights, forward first."""

    forward = 0
    reverse = 1
    bidirectional = 2


def _functions(*names: str) -> tuple[Operator, ...]:
    from . import unary  # noqa: F401  (registers the operators)

    return tuple(make_op(n) for n in names)


@dataclass(frozen=True)
class RecurrentBase(Operator):
    """Attributes and checks that recurrent layers share.

    Inputs are x [s, b, i], w [d, gates * h, i], r [d, gates * h, h], then, each perhaps missing (left out at
    the end, or ``undefined``): bias [d, 2 * gates * h], lengths [b] (integers), initial hidden state [d, b,
    h], and for lstm initial cell state [d, b, h] and peephole weights [d, 3 * h]. ``actv_func`` lists the
    functions f, g, h of each direction in turn; one direction's serve both if there are no more. ``clip``
    bounds their inputs, 0 does not.
    """

    hidden_size: int = 1

    @property
    def cell_name(self) -> str:
        """Return the kind of cell: ``rnn``, ``gru`` or ``lstm``."""
        return self.name

    @property
    def directions(self) -> int:
        """Return the number of directions."""
        return 2 if self.direction is RnnDirection.bidirectional else 1  # type: ignore[attr-defined]

    def states_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the shape of the hidden states; checks the inputs."""
        cell = CELLS[self.cell_name]
        x = self.expect_inputs(inputs, *range(3, 9 if self.cell_name == "lstm" else 7))[0]
        if x.ndim != 3:
            raise self.fail(f"the sequence must be [steps, batch, features], got {x}")
        d, h, rows = self.directions, self.hidden_size, cell.gates * self.hidden_size
        batch = x.dims[1]
        expected: list[tuple[str, list[DynamicDimension | int]]] = [
            ("w", [d, rows, x.dims[2]]),
            ("r", [d, rows, h]),
            ("bias", [d, 2 * rows]),
            ("lengths", [batch]),
            ("initial hidden state", [d, batch, h]),
            ("initial cell state", [d, batch, h]),
            ("peephole weights", [d, 3 * h]),
        ]
        for (what, lens), given in zip(expected, inputs[1:]):
            if given.ndim == 0:
                continue
            if given.ndim != len(lens):
                raise self.fail(f"{what} needs {len(lens)} axes, got {given}")
            for axis, (n, own) in enumerate(zip(lens, given.dims)):
                wanted = n if isinstance(n, DynamicDimension) else DynamicDimension(n, n)
                meet_dim(self, f"expected and given lengths of axis {axis} of {what}", wanted, own)
            if what != "lengths" and given.type is not x.type:
                raise self.fail(f"{what} is {given.type.name}, the sequence {x.type.name}")
        functions = len(self.actv_func)  # type: ignore[attr-defined]
        if functions < cell.activations or (d == 2 and cell.activations < functions < 2 * cell.activations):
            raise self.fail(f"{functions} activation functions, expected {cell.activations} for each direction")
        return Shape.dynamic(x.type, [x.dims[0], d, batch, h])

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        return self.states_shape(inputs)

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        return self.evaluate(args)[0]

    def evaluate(self, args: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hidden states [s, d, b, h], last hidden states [d, b, h] and last cell states [d, b, h]."""
        dtype = args[0].dtype
        wide = from_numpy(dtype).compute.numpy
        cell, d, h = CELLS[self.cell_name], self.directions, self.hidden_size
        x, w, r = (a.astype(wide, copy=False) for a in args[:3])
        steps, batch = x.shape[:2]

        def optional(position: int, *lens: int) -> np.ndarray:
            given = len(args) > position and args[position].ndim == len(lens)
            return args[position].astype(wide, copy=False) if given else np.zeros(lens, wide)

        bias = optional(3, d, 2 * cell.gates * h).reshape(d, 2, cell.gates * h)
        has_lengths = len(args) > 4 and args[4].ndim == 1 and args[4].dtype.kind in "iu"
        lengths = args[4].astype(np.int64) if has_lengths else np.full(batch, steps)
        hidden, state, peephole = optional(5, d, batch, h), optional(6, d, batch, h), optional(7, d, 3 * h)

        columns = []
        for k in range(d):
            layer = Recurrence(
                cell=self.cell_name,
                w=w[k],
                r=r[k],
                bias=bias[k],
                peephole=peephole[k].reshape(3, h),
                activations=self._activations(k),
                clip=self.clip,  # type: ignore[attr-defined]
                linear_before_reset=bool(getattr(self, "linear_before_reset", 0)),
                input_forget=bool(getattr(self, "input_forget", 0)),
            )
            backward = k == 1 or self.direction is RnnDirection.reverse  # type: ignore[attr-defined]
            source = reverse_sequences(x, lengths) if backward else x
            y, last_hidden, last_state = layer.run(source, lengths, hidden[k], state[k])
            columns.append((reverse_sequences(y, lengths) if backward else y, last_hidden, last_state))
        y, last_hidden, last_state = (np.stack(parts, axis) for parts, axis in zip(zip(*columns), (1, 0, 0)))
        return y.astype(dtype), last_hidden.astype(dtype), last_state.astype(dtype)

    def _activations(self, direction: int) -> list[Callable[[np.ndarray], np.ndarray]]:
        count = CELLS[self.cell_name].activations
        functions = self.actv_func  # type: ignore[attr-defined]
        start = direction * count if len(functions) >= (direction + 1) * count else 0
        return [partial(apply_function, f) for f in functions[start : start + count]]

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        steps, batch, features = inputs[0].max_lens
        rows = CELLS[self.cell_name].gates * self.hidden_size
        return 2 * steps * batch * self.directions * rows * (features + self.hidden_size)


def apply_function(function: Operator, x: np.ndarray) -> np.ndarray:
    """Return an activation of ``x``."""
    return function.compute(Shape(from_numpy(x.dtype), x.shape), [x])


@register
@dataclass(frozen=True)
class Rnn(RecurrentBase):
    """ONNX RNN: ``h = f(x @ w^T + h @ r^T + biases)``; the result is all hidden states [s, d, b, h]."""

    name: ClassVar[str] = "rnn"
    actv_func: tuple[Operator, ...] = _functions("tanh", "tanh")
    direction: RnnDirection = RnnDirection.forward
    clip: float = 0.0


@register
@dataclass(frozen=True)
class Gru(RecurrentBase):
    """ONNX GRU (gates z, r, h); the result is all hidden states [s, d, b, h]."""

    name: ClassVar[str] = "gru"
    actv_func: tuple[Operator, ...] = _functions("sigmoid", "tanh")
    direction: RnnDirection = RnnDirection.forward
    clip: float = 0.0
    linear_before_reset: int = 0


@register
@dataclass(frozen=True)
class Lstm(RecurrentBase):
    """ONNX LSTM (gates i, o, f, c); the result is all hidden states [s, d, b, h]."""

    name: ClassVar[str] = "lstm"
    actv_func: tuple[Operator, ...] = _functions("sigmoid", "tanh", "tanh")
    direction: RnnDirection = RnnDirection.forward
    clip: float = 0.0
    input_forget: int = 0


@register
@dataclass(frozen=True)
class Recurrent(RecurrentBase):
    """The layer ``cell`` (rnn, gru, lstm) with all its results: hidden states, last hidden, last cell states.

    The last cell states are there for lstm only. Attributes that the cell does not have are ignored.
    """

    name: ClassVar[str] = "recurrent"
    actv_func: tuple[Operator, ...] = _functions("sigmoid", "tanh", "tanh")
    direction: RnnDirection = RnnDirection.forward
    clip: float = 0.0
    cell: str = "lstm"
    linear_before_reset: int = 0
    input_forget: int = 0

    @classmethod
    def of(cls, op: RecurrentBase) -> Recurrent:
        """Return the same layer with all its results."""
        return cls(cell=op.name, **op.attributes())

    @property
    def cell_name(self) -> str:
        """Return the kind of cell."""
        if self.cell not in CELLS:
            raise self.fail(f"cell is {self.cell!r}, expected one of {', '.join(CELLS)}")
        return self.cell

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        states = self.states_shape(inputs)
        last = Shape.dynamic(states.type, states.dims[1:])
        return Shape.tuple([states, last, last] if self.cell == "lstm" else [states, last])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        return self.evaluate(args)[: len(output.sub_shapes)]


@dataclass(frozen=True)
class _LastState(Operator):
    """Part of a recurrent layer's result that its hidden states [s, d, b, h] do not hold, as [d, b, h].

    It stands for a second result of the instruction that is its input; ``rewrite_rnn`` replaces both by
    ``recurrent``.
    """

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 1)
        if inputs[0].ndim != 4:
            raise self.fail(f"input must be hidden states [steps, directions, batch, h], got {inputs[0]}")
        return Shape.dynamic(inputs[0].type, inputs[0].dims[1:])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> np.ndarray:
        raise UnsupportedError(f"{self.name} has a value only after the rewrite_rnn pass")


@register
@dataclass(frozen=True)
class RnnLastHsOutput(_LastState):
    """The hidden state after each sequence's last step."""

    name: ClassVar[str] = "rnn_last_hs_output"


@register
@dataclass(frozen=True)
class RnnLastCellOutput(_LastState):
    """The cell state after each sequence's last step (lstm)."""

    name: ClassVar[str] = "rnn_last_cell_output"
