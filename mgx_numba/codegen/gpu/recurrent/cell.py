"""Code generation for the recurrent cell of one unit and one sequence per thread, for any exchange of states."""

from __future__ import annotations

from abc import abstractmethod

from ....core.types import from_numpy, numpy_dtype
from ...arguments import Arguments
from ...printer import CodeBuffer, VectorValue
from ...problems.recurrence import RecurrenceProblem
from ...recurrent_cell import RecurrentCell, declare_given
from ..printer import ThreadPrinter, dtype_name


class ThreadCell(RecurrentCell):
    """Text and arguments of a launch whose threads compute cells.

    The text defines the thread's ``direction``, ``row``, ``unit``, ``step`` and ``position`` (in the sequence),
    ``here`` and ``y_at`` (offsets of the unit's results), and the gates' pre-activations ``sum0``, ``sum1``, ...

    Attributes:
        stored: type of operands and results.
        wide: kernel language name of the compute type.
    """

    def __init__(self, problem: RecurrenceProblem) -> None:
        self.buffer, self.arguments = CodeBuffer(), Arguments()
        super().__init__(problem, ThreadPrinter(self.buffer, 0, problem.fast_math))
        self.stored, self.wide = from_numpy(numpy_dtype(problem.dtype)), dtype_name(self.type)

    def declare_operands(self) -> None:
        """Declare all operands except states, and their strides."""
        p, arguments = self.problem, self.arguments
        declare_given(p, arguments)
        arguments.pointer("w", "w", p.dtype)
        arguments.integers(last_step=p.steps - 1)

    def print_position(self) -> None:
        """Emit the sequence position of the current step."""
        self.buffer.line("position = step")
        with self.buffer.block("if (backward >> direction) & 1:"):
            self.buffer.line("position = last_step - step")

    def print_places(self) -> None:
        """Emit the offsets of the thread's unit in the operands."""
        self.buffer.line(
            "here = (direction * batch + row) * hidden + unit",
            "x_at = position * x_step + row * x_row + direction * x_lane + unit",
            "y_at = position * y_step + direction * y_lane + row * y_row + unit",
        )

    @abstractmethod
    def print_next(self, lstm: bool) -> None:
        """Emit the stores of ``hidden_now``, and for ``lstm`` of ``cell_now``, for the next step."""

    @property
    def length(self) -> str:
        """Return the expression of the length of the thread's sequence."""
        return "cast_int64(load_scalar(lengths, row))"

    def product(self, gate: int) -> VectorValue:
        return VectorValue(f"sum{gate}", self.type)

    def given(self, gate: int) -> VectorValue:
        return self.widened(f"load_scalar(x, x_at + {gate} * hidden)")

    def side(self, name: str, gate: int) -> VectorValue:
        return self.widened(self.side_text(name, gate))

    @staticmethod
    def side_text(name: str, gate: int) -> str:
        """Return the expression of a gate's element of ``peephole`` or ``inner_bias`` in its stored type."""
        count = 3 if name == "peephole" else 1
        return f"load_scalar({name}, (direction * {count} + {gate}) * hidden + unit)"

    def finish(self, hidden: VectorValue, cell: VectorValue | None = None) -> None:
        buffer, register = self.buffer, self.printer.register
        buffer.line(f"hidden_now = {register(hidden)}")
        buffer.line("shown = hidden_now")
        if cell is not None:
            buffer.line(f"cell_now = {register(cell)}")
        if self.problem.lengths:
            with buffer.block(f"if position >= {self.length}:"):
                buffer.line(f"hidden_now = {register(self.state('now'))}")
                buffer.line(f"shown = const_{self.wide}(0, 0)")
                if cell is not None:
                    buffer.line(f"cell_now = {register(self.state('cell_at'))}")
        self.print_next(cell is not None)
        self._store("y", "y_at", "shown")
        with buffer.block("if step == last_step:"):
            self._store("last", "here", "hidden_now")
            if cell is not None:
                self._store("last_cell", "here", "cell_now")

    def _store(self, name: str, place: str, value: str) -> None:
        text = self.printer.stored(VectorValue(value, self.type), self.stored)
        self.buffer.line(f"store_scalar({name}, {place}, {text})")

    def widened(self, text: str) -> VectorValue:
        """Return a stored value converted to the compute type."""
        loaded = self.printer.loaded(text, self.stored)
        return VectorValue(self.printer.register(loaded), self.type)
