"""Steps of recurrent layers: a launch for each step, or two, that multiplies and computes the cell.

A warp has one unit of a direction and some sequences: its lanes share the terms of the products of all gates, and one
lane for each sequence then computes the cell.
"""

from __future__ import annotations

from math import gcd

from ...core.types import from_numpy, numpy_dtype
from ..arguments import Arguments
from ..launch import Launch, Operand, Solution
from ..printer import CodeBuffer, VectorValue
from ..problems.recurrence import RecurrenceProblem
from ..recurrent_cell import RecurrentCell
from .architecture import WARP
from .kernel import gpu_grid, gpu_kernel
from .printer import ThreadPrinter, dtype_name, most_lanes

__all__ = ["recurrent_solution"]

WARPS = 8
"""Warps of a block. No figures kept."""
MOST_SUMS = 64
"""Sums that a thread holds in registers, beside as many operands: few enough for two blocks of a multiprocessor."""


def recurrent_solution(problem: RecurrenceProblem, origin: str = "") -> Solution:
    """The launches of all steps.

    Operands are ``x``, ``w`` (recurrent weights as the operator has them, row-major), ``y``, ``last``, for lstm
    ``last_cell``, ``first`` and for lstm ``first_cell`` (initial states [lanes, batch, hidden], row-major, in the type
    that is computed in), those of ``peephole``, ``inner_bias`` and ``lengths`` that the problem declares, and
    ``scratch``.
    """
    layout = _StateLayout(problem)
    launches = [
        _StepText(problem, layout, step, number).launch(origin)
        for step in range(problem.steps)
        for number in range(len(problem.phases))
    ]
    return Solution(tuple(launches), layout.bytes)


class _StateLayout:
    """Scratch memory: hidden states before and after a step, then cell states or what gru keeps.

    Attributes:
        states: the operand and its place that holds each state before a step.
        bytes: of all.
    """

    def __init__(self, problem: RecurrenceProblem) -> None:
        self.type = from_numpy(numpy_dtype(problem.dtype)).compute
        self._block = problem.lanes * problem.batch * problem.hidden * self.type.size
        self._block += -self._block % 64  # every state begins as scratch memory does
        self.bytes = {"rnn": 2, "gru": 4, "lstm": 3}[problem.cell] * self._block

    def hidden(self, step: int) -> Operand:
        """The hidden states before a step."""
        return Operand("scratch", step % 2 * self._block) if step else Operand("first")

    def cell(self, step: int) -> Operand:
        """The cell states before a step."""
        return self.kept(0) if step else Operand("first_cell")

    def kept(self, number: int) -> Operand:
        """What comes behind the hidden states."""
        return Operand("scratch", (2 + number) * self._block)


class _StepText(RecurrentCell):
    """The text and the arguments of one launch."""

    def __init__(self, problem: RecurrenceProblem, layout: _StateLayout, step: int, number: int) -> None:
        self.buffer, self.arguments = CodeBuffer(), Arguments()
        super().__init__(problem, ThreadPrinter(self.buffer, 0, problem.fast_math))
        self.number, self.gates = number, problem.phases[number]
        self.stored = from_numpy(numpy_dtype(problem.dtype))
        self.lanes = gcd(problem.hidden, most_lanes(self.stored.size))
        self.rows = max(1, min(problem.batch, MOST_SUMS // (len(self.gates) * self.lanes), WARP))
        self.tiles = -(-problem.batch // self.rows)
        self._declare(layout, step)

    def launch(self, origin: str) -> Launch:
        """The launch."""
        p, buffer = self.problem, self.buffer
        for line in self.arguments.bind():
            buffer.line(line)
        self._products()
        with buffer.block(f"if (row < batch) & (lane < {self.rows}) & (unit < hidden):"):
            self._places()
            self.print_phase(self.number)
        suffix = f"_{('gates', 'candidate')[self.number]}" if len(p.phases) > 1 else ""
        slots = len(self.arguments.values)
        kernel = gpu_kernel(f"{p.cell}{suffix}_step_kernel", buffer.lines, WARPS * WARP, slots, origin)
        grid = gpu_grid(-(-p.hidden // WARPS), WARPS * WARP, p.lanes * self.tiles)
        share = len(self.gates) * p.steps * p.gates
        return Launch(
            kernel, self.arguments.values, grid, p.flops * len(self.gates) // (p.steps * p.gates), p.bytes * share
            // (p.steps * p.gates) ** 2,
        )  # fmt: skip

    def _declare(self, layout: _StateLayout, step: int) -> None:
        p, arguments = self.problem, self.arguments
        wide = dtype_name(self.type)
        for name in ("x", "w", "y", "last", *(["last_cell"] if p.cell == "lstm" else [])):
            arguments.pointer(name, name, p.dtype)
        arguments.pointer("now", layout.hidden(step), wide)
        arguments.pointer("following", layout.hidden(step + 1), wide)
        if p.cell == "lstm":
            arguments.pointer("cell_at", layout.cell(step), wide)
            arguments.pointer("cell_after", layout.cell(step + 1), wide)
        if len(p.phases) > 1:
            arguments.pointer("update_at", layout.kept(0), wide)
            arguments.pointer("reset_at", layout.kept(1), wide)
        for name in ("peephole", "inner_bias"):
            if getattr(p, name):
                arguments.pointer(name, name, p.dtype)
        if p.lengths:
            arguments.pointer("lengths", "lengths", p.lengths)
        arguments.integers(
            step=step, last_step=p.steps - 1, batch=p.batch, hidden=p.hidden, tiles=self.tiles,
            backward=sum(1 << lane for lane, back in enumerate(p.backward) if back),
            x_step=p.x_strides[0], x_row=p.x_strides[1], x_lane=p.x_strides[2],
            y_step=p.y_strides[0], y_lane=p.y_strides[1], y_row=p.y_strides[2],
        )  # fmt: skip

    def _products(self) -> None:
        """Emit the products of this phase's gates, which all lanes of a warp then have."""
        p, buffer, lanes = self.problem, self.buffer, self.lanes
        wide = dtype_name(self.type)
        for line in (
            f"lane = imod(thread_index(0), {WARP})",
            f"unit = block_index(0) * {WARPS} + idiv(thread_index(0), {WARP})",
            "own = imin(unit, hidden - 1)",
            "direction = idiv(block_index(1), tiles)",
            f"begin = (block_index(1) - direction * tiles) * {self.rows}",
            f"matrix = direction * {p.gates} * hidden",
        ):
            buffer.line(line)
        source = "reset_at" if self.number else "now"
        for r in range(self.rows):
            buffer.line(f"a{r} = offset({source}, (direction * batch + imin(begin + {r}, batch - 1)) * hidden)")
        for gate in self.gates:
            buffer.line(f"w{gate} = offset(w, (matrix + {gate} * hidden + own) * hidden)")
        sums = {(g, r): f"s{g}_{r}" for g in self.gates for r in range(self.rows)}
        for name in sums.values():
            buffer.line(f"{name} = const_{wide}(0, {lanes})")
        load = "load_aligned" if lanes > 1 else "load"
        with buffer.block(f"for k in range(lane * {lanes}, hidden, {WARP * lanes}):"):
            for gate in self.gates:
                weights = f"{load}(w{gate}, k, {lanes})"
                buffer.line(f"b{gate} = {weights if self.stored is self.type else f'cast_{wide}({weights})'}")
            for r in range(self.rows):
                buffer.line(f"h{r} = {load}(a{r}, k, {lanes})")
                for gate in self.gates:
                    buffer.line(f"s{gate}_{r} = fma(h{r}, b{gate}, s{gate}_{r})")
        for gate, r in sums:
            buffer.line(f"t{gate}_{r} = reduce_add(s{gate}_{r})")
            distance = WARP
            while distance > 1:
                distance //= 2
                buffer.line(f"t{gate}_{r} = add(t{gate}_{r}, shuffle_xor(t{gate}_{r}, {distance}))")
        for gate in self.gates:
            buffer.line(f"sum{gate} = t{gate}_0")
            for r in range(1, self.rows):
                buffer.line(f"sum{gate} = where(eq(lane, {r}), t{gate}_{r}, sum{gate})")
        buffer.line("row = begin + lane")

    def _places(self) -> None:
        """Emit where the parts of the lane's unit are."""
        buffer = self.buffer
        buffer.line("position = step")
        with buffer.block("if (backward >> direction) & 1:"):
            buffer.line("position = last_step - step")
        buffer.line("here = (direction * batch + row) * hidden + unit")
        buffer.line("x_at = position * x_step + row * x_row + direction * x_lane + unit")
        buffer.line("y_at = position * y_step + direction * y_lane + row * y_row + unit")

    def product(self, gate: int) -> VectorValue:
        """See `RecurrentCell`."""
        return VectorValue(f"sum{gate}", self.type)

    def given(self, gate: int) -> VectorValue:
        """See `RecurrentCell`."""
        return self._wide(f"load_scalar(x, x_at + {gate} * hidden)")

    def side(self, name: str, gate: int) -> VectorValue:
        """See `RecurrentCell`."""
        count = 3 if name == "peephole" else 1
        return self._wide(f"load_scalar({name}, (direction * {count} + {gate}) * hidden + unit)")

    def state(self, place: str) -> VectorValue:
        """See `RecurrentCell`."""
        return self.printer.loaded(f"load_scalar({place}, here)", self.type)

    def keep(self, place: str, value: VectorValue) -> None:
        """See `RecurrentCell`."""
        self.buffer.line(f"store_scalar({place}, here, {self.printer.register(value)})")

    def finish(self, hidden: VectorValue, cell: VectorValue | None = None) -> None:
        """See `RecurrentCell`."""
        buffer = self.buffer
        buffer.line(f"hidden_now = {self.printer.register(hidden)}")
        buffer.line("shown = hidden_now")
        if cell is not None:
            buffer.line(f"cell_now = {self.printer.register(cell)}")
        if self.problem.lengths:
            with buffer.block("if position >= cast_int64(load_scalar(lengths, row)):"):
                buffer.line("hidden_now = load_scalar(now, here)")
                buffer.line(f"shown = const_{dtype_name(self.type)}(0, 0)")
                if cell is not None:
                    buffer.line("cell_now = load_scalar(cell_at, here)")
        buffer.line("store_scalar(following, here, hidden_now)")
        self._store("y", "y_at", "shown")
        if cell is not None:
            buffer.line("store_scalar(cell_after, here, cell_now)")
        with buffer.block("if step == last_step:"):
            self._store("last", "here", "hidden_now")
            if cell is not None:
                self._store("last_cell", "here", "cell_now")

    def _store(self, name: str, place: str, value: str) -> None:
        text = self.printer.stored(VectorValue(value, self.type), self.stored)
        self.buffer.line(f"store_scalar({name}, {place}, {text})")

    def _wide(self, text: str) -> VectorValue:
        """What is stored, as it is computed with."""
        loaded = self.printer.loaded(text, self.stored)
        return VectorValue(self.printer.register(loaded), self.type)
