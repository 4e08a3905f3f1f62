"""The text of one vector of units of a cell: from the sums of its gates to the next states."""

from __future__ import annotations

from typing import Any

from ....core.types import from_numpy
from ....ops.base import make_op
from ...printer import CodeBuffer, VectorPrinter, VectorValue, numpy_dtype
from ...problems.recurrence import RecurrenceProblem
from .phases import Phase

__all__ = ["CellWriter"]


class CellWriter:
    """Prints the statements for the units ``unit`` to ``unit + lanes`` of row ``row`` at one step.

    The kernel around it provides the offsets ``sums_at`` (the panel's sums for this row and group, gates ``step``
    apart), ``x_at``, ``here`` (of these units in the states), ``y_at``, ``last_at``, ``side`` (of the lane's units in
    ``inner_bias``) and ``peep`` (in ``peephole``), ``left`` units to go, ``on`` whether the step is within the
    sequence, and ``final`` at the last step.
    """

    def __init__(self, problem: RecurrenceProblem, lanes: int) -> None:
        self.problem, self.lanes = problem, lanes
        self.whole = problem.hidden % lanes == 0
        self.type = from_numpy(numpy_dtype(problem.dtype))
        self.buffer = CodeBuffer()
        self.printer: Any = VectorPrinter(self.buffer, lanes, problem.fast_math)

    def lines(self, phase: Phase, number: int) -> list[str]:
        """Statements of phase ``number`` of the cell."""
        self.phase = phase
        cell = self.problem.cell
        if cell == "gru" and not self.problem.linear_before_reset:
            (self._gru_gates, self._gru_candidate)[number]()
        else:
            getattr(self, f"_{cell}")()
        return self.buffer.drain()

    def _rnn(self) -> None:
        self._finish(self._apply(0, self._gate(0)))

    def _gru(self) -> None:
        update, reset = self._apply(0, self._gate(0)), self._apply(0, self._gate(1))
        product = self._sum(2)
        if self.problem.inner_bias:
            product = self.printer.add(product, self._side("inner_bias", "side"))
        self._gru_mix(update, self.printer.add(self._x(2), self.printer.mul(reset, product)))

    def _gru_gates(self) -> None:
        update, reset = self._apply(0, self._gate(0)), self._apply(0, self._gate(1))
        self._keep("update_at", update)
        self._keep("reset_at", self.printer.mul(reset, self._state("now")))

    def _gru_candidate(self) -> None:
        self._gru_mix(self._state("update_at"), self._gate(2))

    def _gru_mix(self, update: VectorValue, candidate: VectorValue) -> None:
        s = self.printer
        fresh = s.mul(s.sub(s.const(1.0, self.type), update), self._apply(1, candidate))
        self._finish(s.add(fresh, s.mul(update, self._state("now"))))

    def _lstm(self) -> None:
        s, state = self.printer, self._state("cell_at")
        enter = self._apply(0, self._peep(self._gate(0), 0, state))
        if self.problem.input_forget:
            forget = s.sub(s.const(1.0, self.type), enter)
        else:
            forget = self._apply(0, self._peep(self._gate(2), 2, state))
        fresh = s.mul(enter, self._apply(1, self._gate(3)))
        following = s.add(s.mul(forget, state), fresh)
        leave = self._apply(0, self._peep(self._gate(1), 1, following))
        self._finish(s.mul(leave, self._call(2, following)), following)

    def _finish(self, hidden: VectorValue, cell: VectorValue | None = None) -> None:
        """Store the new states; past a sequence's end the old ones stay, and the result is zero."""
        b, lanes = self.buffer, self.lanes
        b.assign("hidden_now", self.printer.register(hidden))
        b.assign("shown", "hidden_now")
        if cell is not None:
            b.assign("cell_now", self.printer.register(cell))
        if self.problem.lengths:
            with b.block("if not on:"):
                b.line(f"hidden_now = load(states, now + here, {lanes})")
                b.line(f"shown = const_{self.problem.dtype}(0, {lanes})")
                if cell is not None:
                    b.line(f"cell_now = load(states, cell_at + here, {lanes})")
        b.line("store(states, following + here, hidden_now)")
        self._store("y", "y_at", "shown")
        if cell is not None:
            b.line("store(states, cell_at + here, cell_now)")
        with b.block("if final:"):
            self._store("last", "last_at", "hidden_now")
            if cell is not None:
                self._store("last_cell", "last_at", "cell_now")

    def _store(self, name: str, at: str, value: str) -> None:
        tail = f"store_tail({name}, {at}, {value}, left)"
        self.buffer.line(f"store({name}, {at}, {value})" if self.whole else tail)

    def _keep(self, place: str, value: VectorValue) -> None:
        self.buffer.line(f"store(states, {place} + here, {self.printer.register(value)})")

    def _state(self, place: str) -> VectorValue:
        return self._loaded(f"load(states, {place} + here, {self.lanes})")

    def _gate(self, gate: int) -> VectorValue:
        return self.printer.add(self._sum(gate), self._x(gate))

    def _sum(self, gate: int) -> VectorValue:
        position = self.phase.gates.index(gate)
        return self._loaded(f"load(sums, sums_at + {position * self.phase.groups * self.lanes}, {self.lanes})")

    def _x(self, gate: int) -> VectorValue:
        return self._side("x", f"x_at + {gate} * hidden")

    def _side(self, name: str, at: str) -> VectorValue:
        tail = f"load_tail({name}, {at}, left, 0, {self.lanes})"
        return self._loaded(f"load({name}, {at}, {self.lanes})" if self.whole else tail)

    def _peep(self, value: VectorValue, gate: int, state: VectorValue) -> VectorValue:
        if not self.problem.peephole:
            return value
        weights = self._side("peephole", f"peep + {gate} * hidden")
        return self.printer.add(value, self.printer.mul(weights, state))

    def _apply(self, position: int, x: VectorValue) -> VectorValue:
        """Function of a gate on clipped input."""
        clip = self.problem.clip
        if clip > 0:
            s: Any = self.printer
            x = make_op("clip").scalar(s, x, s.const(-clip, self.type), s.const(clip, self.type))  # type: ignore[attr-defined]
        return self._call(position, x)

    def _call(self, position: int, x: VectorValue) -> VectorValue:
        value: VectorValue = self.problem.functions[position].scalar(self.printer, x)  # type: ignore[attr-defined]
        return value

    def _loaded(self, text: str) -> VectorValue:
        return self.printer.loaded(text, self.type)
