"""Recurrent layers with one or two launches per step.

A warp owns one unit of a direction and some sequences. Its lanes share the dot products of all gates, then one lane per
sequence computes the cell.
"""

from __future__ import annotations

from math import gcd

from ....core.types import from_numpy, numpy_dtype
from ...launch import Launch, Operand, Solution
from ...printer import VectorValue
from ...problems.recurrence import RecurrenceProblem
from ..architecture import WARP
from ..kernel import gpu_launch
from ..printer import most_lanes
from .cell import ThreadCell

WARPS = 8
"""Warps per block. No figures kept."""
MOST_SUMS = 64
"""Most accumulators per thread; with as many operands, two blocks per multiprocessor remain resident."""


def steps_solution(problem: RecurrenceProblem, origin: str = "") -> Solution:
    """Return the launches of all steps."""
    layout = _StateLayout(problem)
    launches = [
        _StepText(problem, layout, step, number).launch(origin)
        for step in range(problem.steps)
        for number in range(len(problem.phases))
    ]
    return Solution(tuple(launches), layout.bytes)


def rows_of_steps(problem: RecurrenceProblem, gates: int) -> int:
    """Return the sequences per warp for ``gates`` gates."""
    lanes = gcd(problem.hidden, most_lanes(problem.itemsize))
    return max(1, min(problem.batch, MOST_SUMS // (gates * lanes), WARP))


class _StateLayout:
    """Layout of scratch memory: two buffers of hidden states, then cell states or the kept values of GRU.

    Attributes:
        states: operand and offset of each state before a step.
        bytes: total size.
    """

    def __init__(self, problem: RecurrenceProblem) -> None:
        self.type = from_numpy(numpy_dtype(problem.dtype)).compute
        self._block = problem.lanes * problem.batch * problem.hidden * self.type.size
        self._block += -self._block % 64  # every state begins as scratch memory does
        self.bytes = {"rnn": 2, "gru": 4, "lstm": 3}[problem.cell] * self._block

    def hidden(self, step: int) -> Operand:
        """Return the hidden states before a step."""
        return Operand("scratch", step % 2 * self._block) if step else Operand("first")

    def cell(self, step: int) -> Operand:
        """Return the cell states before a step."""
        return self.kept(0) if step else Operand("first_cell")

    def kept(self, number: int) -> Operand:
        """Return the buffer ``number`` after the hidden states."""
        return Operand("scratch", (2 + number) * self._block)


class _StepText(ThreadCell):
    """Text and arguments of one launch."""

    def __init__(self, problem: RecurrenceProblem, layout: _StateLayout, step: int, number: int) -> None:
        super().__init__(problem)
        self.number, self.gates = number, problem.phases[number]
        self.lanes = gcd(problem.hidden, most_lanes(self.stored.size))
        self.rows = rows_of_steps(problem, len(self.gates))
        self.tiles = -(-problem.batch // self.rows)
        self._declare(layout, step)

    def launch(self, origin: str) -> Launch:
        """Return the launch."""
        p, buffer = self.problem, self.buffer
        buffer.line(*self.arguments.bind())
        self._products()
        with buffer.block(f"if (row < batch) & (lane < {self.rows}) & (unit < hidden):"):
            self.print_position()
            self.print_places()
            self.print_phase(self.number)
        suffix = f"_{('gates', 'candidate')[self.number]}" if len(p.phases) > 1 else ""
        share = len(self.gates) * p.steps * p.gates
        moved = p.bytes * share // (p.steps * p.gates) ** 2
        flops = p.flops * len(self.gates) // (p.steps * p.gates)
        name, blocks, planes = f"{p.cell}{suffix}_step_kernel", -(-p.hidden // WARPS), p.lanes * self.tiles
        return gpu_launch(name, buffer.lines, self.arguments, blocks, WARPS * WARP, moved, flops, origin, planes)

    def _declare(self, layout: _StateLayout, step: int) -> None:
        p, arguments = self.problem, self.arguments
        self.declare_operands()
        arguments.pointer("now", layout.hidden(step), self.wide)
        arguments.pointer("following", layout.hidden(step + 1), self.wide)
        if p.cell == "lstm":
            arguments.pointer("cell_at", layout.cell(step), self.wide)
            arguments.pointer("cell_after", layout.cell(step + 1), self.wide)
        if len(p.phases) > 1:
            arguments.pointer("update_at", layout.kept(0), self.wide)
            arguments.pointer("reset_at", layout.kept(1), self.wide)
        arguments.integers(step=step, tiles=self.tiles)

    def _products(self) -> None:
        """Emit the dot products of this phase's gates; all lanes of a warp get the sums."""
        p, buffer, lanes, wide = self.problem, self.buffer, self.lanes, self.wide
        buffer.line(
            f"lane = imod(thread_index(0), {WARP})",
            f"unit = block_index(0) * {WARPS} + idiv(thread_index(0), {WARP})",
            "own = imin(unit, hidden - 1)",
            "direction = idiv(block_index(1), tiles)",
            f"begin = (block_index(1) - direction * tiles) * {self.rows}",
            f"matrix = direction * {p.gates} * hidden",
        )
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

    def state(self, place: str) -> VectorValue:
        return self.printer.loaded(f"load_scalar({place}, here)", self.type)

    def keep(self, place: str, value: VectorValue) -> None:
        self.buffer.line(f"store_scalar({place}, here, {self.printer.register(value)})")

    def print_next(self, lstm: bool) -> None:
        self.buffer.line("store_scalar(following, here, hidden_now)")
        if lstm:
            self.buffer.line("store_scalar(cell_after, here, cell_now)")
