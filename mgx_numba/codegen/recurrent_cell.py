"""Steps of recurrent cells, printed from the gate sums to the next states."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..core.types import from_numpy, numpy_dtype
from ..ops.base import make_op
from .arguments import Arguments
from .printer import VectorPrinter, VectorValue
from .problems.recurrence import RecurrenceProblem


def declare_given(problem: RecurrenceProblem, arguments: Arguments) -> None:
    """Declare the arguments of a cell kernel: all operands of the problem except weights and initial states, and
    integers.

    The integers are ``batch``, ``hidden``, ``backward`` (`RecurrenceProblem.backward_lanes`), and strides of ``x`` and
    ``y`` by axis, such as ``x_step``.
    """
    p = problem
    for name in ("x", "y", "last", *(["last_cell"] if p.cell == "lstm" else [])):
        arguments.pointer(name, name, p.dtype)
    for name in ("peephole", "inner_bias"):
        if getattr(p, name):
            arguments.pointer(name, name, p.dtype)
    if p.lengths:
        arguments.pointer("lengths", "lengths", p.lengths)
    arguments.integers(
        batch=p.batch, hidden=p.hidden, backward=p.backward_lanes,
        x_step=p.x_strides[0], x_row=p.x_strides[1], x_lane=p.x_strides[2],
        y_step=p.y_strides[0], y_lane=p.y_strides[1], y_row=p.y_strides[2],
    )  # fmt: skip


class RecurrentCell(ABC):
    """The computation of some units of a row at one step; a back end provides access to operands and states.

    States are called ``now`` (hidden, before the step) and ``cell_at``. ``update_at`` and ``reset_at`` carry values
    from the first phase of gru to the second.
    """

    def __init__(self, problem: RecurrenceProblem, printer: VectorPrinter) -> None:
        self.problem, self.printer = problem, printer
        self.type = from_numpy(numpy_dtype(problem.dtype)).compute

    def print_phase(self, number: int) -> None:
        """Print phase ``number`` of the cell; only gru that resets before the product has two phases."""
        if len(self.problem.phases) > 1:
            (self._gru_gates, self._gru_candidate)[number]()
        else:
            getattr(self, f"_{self.problem.cell}")()

    @abstractmethod
    def product(self, gate: int) -> VectorValue:
        """Return the recurrent product of a gate of this phase."""

    @abstractmethod
    def given(self, gate: int) -> VectorValue:
        """Return the gate's part of ``x``."""

    @abstractmethod
    def side(self, name: str, gate: int) -> VectorValue:
        """Return the gate's part of ``peephole`` or ``inner_bias``."""

    @abstractmethod
    def state(self, place: str) -> VectorValue:
        """Return a state."""

    @abstractmethod
    def keep(self, place: str, value: VectorValue) -> None:
        """Print a store of a value for the next phase."""

    @abstractmethod
    def finish(self, hidden: VectorValue, cell: VectorValue | None = None) -> None:
        """Print stores of the new states; past a sequence's end the old states stay, and the result is zero."""

    def _rnn(self) -> None:
        self.finish(self._apply(0, self._gate(0)))

    def _gru(self) -> None:
        s = self.printer
        update, reset = self._apply(0, self._gate(0)), self._apply(0, self._gate(1))
        product = self.product(2)
        if self.problem.inner_bias:
            product = s.add(product, self.side("inner_bias", 0))
        self._gru_mix(update, s.add(self.given(2), s.mul(reset, product)))

    def _gru_gates(self) -> None:
        s = self.printer
        update, reset = self._apply(0, self._gate(0)), self._apply(0, self._gate(1))
        self.keep("update_at", update)
        self.keep("reset_at", s.mul(reset, self.state("now")))

    def _gru_candidate(self) -> None:
        self._gru_mix(self.state("update_at"), self._gate(2))

    def _gru_mix(self, update: VectorValue, candidate: VectorValue) -> None:
        s = self.printer
        fresh = s.mul(s.sub(s.const(1.0, self.type), update), self._apply(1, candidate))
        self.finish(s.add(fresh, s.mul(update, self.state("now"))))

    def _lstm(self) -> None:
        s = self.printer
        state = self.state("cell_at")
        enter = self._apply(0, self._peep(self._gate(0), 0, state))
        if self.problem.input_forget:
            forget = s.sub(s.const(1.0, self.type), enter)
        else:
            forget = self._apply(0, self._peep(self._gate(2), 2, state))
        fresh = s.mul(enter, self._apply(1, self._gate(3)))
        following = s.add(s.mul(forget, state), fresh)
        leave = self._apply(0, self._peep(self._gate(1), 1, following))
        self.finish(s.mul(leave, self._call(2, following)), following)

    def _gate(self, gate: int) -> VectorValue:
        s = self.printer
        total: VectorValue = s.add(self.product(gate), self.given(gate))
        return total

    def _peep(self, value: VectorValue, gate: int, state: VectorValue) -> VectorValue:
        if not self.problem.peephole:
            return value
        s = self.printer
        total: VectorValue = s.add(value, s.mul(self.side("peephole", gate), state))
        return total

    def _apply(self, position: int, x: VectorValue) -> VectorValue:
        """Apply a gate's function to its clipped input."""
        clip = self.problem.clip
        if clip > 0:
            s = self.printer
            x = make_op("clip").scalar(s, x, s.const(-clip, self.type), s.const(clip, self.type))  # type: ignore[attr-defined]
        return self._call(position, x)

    def _call(self, position: int, x: VectorValue) -> VectorValue:
        value: VectorValue = self.problem.functions[position].scalar(self.printer, x)  # type: ignore[attr-defined]
        return value
