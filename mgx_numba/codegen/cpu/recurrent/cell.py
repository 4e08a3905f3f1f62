"""Text of a recurrent cell for one vector of units: from the gates' pre-activations to the next states."""

from __future__ import annotations

from ...printer import CodeBuffer, VectorPrinter, VectorValue
from ...problems.recurrence import RecurrenceProblem
from ...recurrent_cell import RecurrentCell
from .weights import Phase


class CellWriter(RecurrentCell):
    """Prints the statements for units ``unit`` to ``unit + lanes`` of row ``row`` at one step.

    The kernel around it provides these names:

    - ``sums_at``: offset of the panel's accumulators for this row and group, with gates ``step`` apart
    - ``x_at``, ``y_at``, ``last_at``: offsets in these operands
    - ``here``: offset of these units in the states
    - ``side``, ``peep``: offsets of the lane's units in ``inner_bias`` and in ``peephole``
    - ``left``: remaining units
    - ``on``: whether the step is within the sequence
    - ``final``: whether it is the last step
    """

    def __init__(self, problem: RecurrenceProblem, lanes: int) -> None:
        self.buffer = CodeBuffer()
        super().__init__(problem, VectorPrinter(self.buffer, lanes, problem.fast_math))
        self.lanes = lanes
        self.whole = problem.hidden % lanes == 0

    def lines(self, phase: Phase, number: int) -> list[str]:
        """Return the statements of phase ``number`` of the cell."""
        self.phase = phase
        self.print_phase(number)
        return self.buffer.drain()

    def finish(self, hidden: VectorValue, cell: VectorValue | None = None) -> None:
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

    def keep(self, place: str, value: VectorValue) -> None:
        self.buffer.line(f"store(states, {place} + here, {self.printer.register(value)})")

    def state(self, place: str) -> VectorValue:
        return self._loaded(f"load(states, {place} + here, {self.lanes})")

    def product(self, gate: int) -> VectorValue:
        position = self.phase.gates.index(gate)
        return self._loaded(f"load(sums, sums_at + {position * self.phase.groups * self.lanes}, {self.lanes})")

    def given(self, gate: int) -> VectorValue:
        return self._part("x", f"x_at + {gate} * hidden")

    def side(self, name: str, gate: int) -> VectorValue:
        return self._part(name, f"peep + {gate} * hidden" if name == "peephole" else "side")

    def _part(self, name: str, at: str) -> VectorValue:
        tail = f"load_tail({name}, {at}, left, 0, {self.lanes})"
        return self._loaded(f"load({name}, {at}, {self.lanes})" if self.whole else tail)

    def _loaded(self, text: str) -> VectorValue:
        return self.printer.loaded(text, self.type)
