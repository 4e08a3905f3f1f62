"""NumPy evaluation of recurrent cells, with the semantics of ONNX RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..core.types import from_numpy
from ..dataclass import dataclass

Activation = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Cell:
    """A kind of cell: gates stacked in its weights, and activation functions a direction."""

    gates: int
    activations: int


CELLS = {"rnn": Cell(1, 1), "gru": Cell(3, 2), "lstm": Cell(4, 3)}


def reverse_sequences(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return ``x`` [s, b, ...] with the first ``lengths[b]`` steps of each sequence reversed."""
    step = np.arange(x.shape[0])[:, None]
    index = np.where(step < lengths, lengths - 1 - step, step)
    return x[index, np.arange(x.shape[1])]


LARGEST = 127  # of a symmetric int8, by definition
SMALLEST_STATE = 2.0**-100
"""Least magnitude of a row's scale, so that the scale is a normal number."""


def quantized_product(hidden: np.ndarray, r: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return ``hidden`` [b, h], each row quantised to int8 by its largest magnitude, times int8 ``r`` [rows, h] with a
    scale per row.

    Sums are exact. Rows of ``hidden`` with an infinity or NaN give NaN.
    """
    wide = from_numpy(hidden.dtype).compute.numpy
    states = hidden.astype(wide, copy=False)
    top = np.maximum(np.abs(states).max(1, keepdims=True), wide.type(SMALLEST_STATE))
    codes = np.rint(states * (wide.type(LARGEST) / top))
    sums = codes.astype(np.float64) @ r.T.astype(np.float64)
    step = np.where(np.isfinite(top), top, np.nan).astype(wide) / wide.type(LARGEST)
    return ((sums.astype(wide) * scales.astype(wide)) * step).astype(hidden.dtype)


def dynamic_product(
    hidden: np.ndarray, r: np.ndarray, scales: np.ndarray, points: np.ndarray | None = None
) -> np.ndarray:
    """Return ``hidden`` [b, h], quantised to uint8 as by DynamicQuantizeLinear, times int8 ``r`` [rows, h].

    The rows of ``r`` have ``scales`` and maybe zero points ``points`` [rows]. Sums are exact.
    """
    wide = hidden.dtype.type
    low, high = min(hidden.min(initial=0), wide(0)), max(hidden.max(initial=0), wide(0))
    step = (high - low) / wide(255) if high != low else wide(1)
    zero = np.rint(np.clip(-low / step, 0, 255))
    codes = np.clip(np.rint(hidden / step) + zero, 0, 255).astype(np.float64) - zero
    weights = r.astype(np.float64) - (0 if points is None else points[:, None])
    return ((codes @ weights.T).astype(wide) * (step * scales.astype(wide))).astype(hidden.dtype)


@dataclass
class Recurrence:
    """One direction of a recurrent layer.

    Attributes:
        cell: ``rnn``, ``gru`` or ``lstm``.
        w: input weights [gates * h, i]; gates in ONNX's order (gru: z r h, lstm: i o f c).
        r: recurrent weights [gates * h, h]; int8 if there are ``scales``.
        bias: input and recurrent biases [2, gates * h].
        peephole: lstm's weights from the cell state to the gates i, o, f [3, h].
        activations: functions f, g, h of the cell.
        clip: the gates' activations take inputs bounded to [-clip, clip], if positive. The cell state is not
            bounded (the specification leaves it open; ONNX Runtime does not either).
        linear_before_reset: gru applies the reset gate after the recurrent product.
        input_forget: lstm's forget gate is 1 - input gate.
        scales: of rows of int8 weights [gates * h], or None. Such weights multiply int8, too, as
            `quantized_product` says, or uint8, as `dynamic_product` does.
        dynamic: whether it is `dynamic_product`.
        points: zero points of rows of int8 weights [gates * h], or None.
    """

    cell: str
    w: np.ndarray
    r: np.ndarray
    bias: np.ndarray
    peephole: np.ndarray
    activations: Sequence[Activation]
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    scales: np.ndarray | None = None
    dynamic: bool = False
    points: np.ndarray | None = None

    def run(
        self, x: np.ndarray, lengths: np.ndarray, hidden: np.ndarray, state: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all hidden states [s, b, h] (0 after a sequence's end), and the last hidden and cell states [b, h].

        Args:
            x: inputs [s, b, i].
            lengths: steps of each sequence [b].
            hidden: initial hidden state [b, h].
            state: initial cell state [b, h] (lstm).
        """
        return self.advance(np.matmul(x, self.w.T) + self.bias[0], lengths, hidden, state)

    def advance(
        self, projected: np.ndarray, lengths: np.ndarray, hidden: np.ndarray, state: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the results of `run` from the inputs' products with their weights, including biases, [s, b, gates *
        h]."""
        step = {"rnn": self._rnn, "gru": self._gru, "lstm": self._lstm}[self.cell]
        outputs = np.zeros((projected.shape[0], *hidden.shape), hidden.dtype)
        with np.errstate(all="ignore"):
            for t in range(projected.shape[0]):
                running = (t < lengths)[:, None]
                next_hidden, next_state = step(projected[t], hidden, state)
                outputs[t] = np.where(running, next_hidden, 0)
                hidden = np.where(running, next_hidden, hidden)
                state = np.where(running, next_state, state)
        return outputs, hidden, state

    def _apply(self, position: int, x: np.ndarray) -> np.ndarray:
        if self.clip > 0:
            x = np.clip(x, -self.clip, self.clip)
        return self.activations[position](x).astype(x.dtype, copy=False)

    def _product(self, hidden: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Return ``hidden`` [b, h] times some rows of the recurrent weights, [b, rows]."""
        if self.scales is None:
            return hidden @ self.r[rows].T
        if self.dynamic:
            return dynamic_product(
                hidden, self.r[rows], self.scales[rows], None if self.points is None else self.points[rows]
            )
        return quantized_product(hidden, self.r[rows], self.scales[rows])

    def _rnn(self, x: np.ndarray, hidden: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._apply(0, x + self._product(hidden) + self.bias[1]), state

    def _gru(self, x: np.ndarray, hidden: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = hidden.shape[1]
        gates = x[:, : 2 * n] + self._product(hidden, slice(2 * n)) + self.bias[1, : 2 * n]
        update, reset = self._apply(0, gates[:, :n]), self._apply(0, gates[:, n:])
        last, bias = slice(2 * n, None), self.bias[1, 2 * n :]
        if self.linear_before_reset:
            candidate = x[:, 2 * n :] + reset * (self._product(hidden, last) + bias)
        else:
            candidate = x[:, 2 * n :] + self._product(reset * hidden, last) + bias
        return (1 - update) * self._apply(1, candidate) + update * hidden, state

    def _lstm(self, x: np.ndarray, hidden: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = hidden.shape[1]
        gates = x + self._product(hidden) + self.bias[1]
        i, o, f, c = (gates[:, k * n : (k + 1) * n] for k in range(4))
        enter = self._apply(0, i + self.peephole[0] * state)
        forget = 1 - enter if self.input_forget else self._apply(0, f + self.peephole[2] * state)
        state = forget * state + enter * self._apply(1, c)
        leave = self._apply(0, o + self.peephole[1] * state)
        return leave * self.activations[2](state).astype(state.dtype, copy=False), state
