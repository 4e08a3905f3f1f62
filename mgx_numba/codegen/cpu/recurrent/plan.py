"""The launches of a recurrent layer: one that initialises the states, and one kernel for all steps.

Each direction is independent. Several threads share its units if the weights are large enough. A thread keeps its own
part of the weights in its caches over all steps, and threads exchange only the hidden state. After each product all
threads wait until every part is done.

A part has a ticket in shared memory: free, taken or done at a given phase. If a part's own thread is late, or was never
started, a waiting thread takes the part. So no thread waits for a thread that has not taken anything.
"""

from __future__ import annotations

from ....core.dim import equal, known_equal, maximum, minimum, preferred
from ...arguments import Arguments
from ...launch import Launch, Operand, Solution, TaskRange
from ...printer import CodeBuffer, VectorPrinter, VectorValue
from ...problems.element_types import element_types
from ...problems.recurrence import RecurrenceProblem
from ...recurrent_cell import RecurrentCell, declare_given
from ...statements import for_tasks, indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .products import product, rows_together, together
from .states import DynamicStates, QuantizedStates, SplitStates
from .weights import Phase, phase_size, phases


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


PART_WORK = 24_000
"""Fewest multiply-adds of one step for which a further thread pays."""
TICKET_WORDS = 16
"""Words from one ticket to the next: two cache lines, as adjacent lines are fetched together."""
PATIENCE = 400
"""Pauses before a waiting thread takes another thread's part."""
PAUSES = 4000
"""Pauses before a thread that waits for a part in work yields its core."""


def plan(problem: RecurrenceProblem, threads: int = 1, origin: str = "") -> Solution:
    """Return the launches for ``threads`` threads, and the bytes of the operand ``scratch``.

    Operands are ``x``, ``w`` (packed weights), ``y``, ``last``, for lstm ``last_cell``, ``scratch``, and the operands
    that the problem declares of ``first``, ``first_cell``, ``peephole``, ``inner_bias`` and ``lengths``.
    """
    tile = tile_for(element_types(problem.dtype))
    work = problem.weights * problem.batch
    panels = min(phase.panels(tile, problem.hidden) for phase in phases(problem))
    parts = maximum(1, minimum(threads // problem.lanes, work // PART_WORK, panels))
    if preferred(equal(parts, 1)):
        parts = 1
    layout = _Layout(problem, tile, parts)
    return Solution((_begin(problem, layout, origin), _steps(problem, layout, origin)), layout.bytes)


class _Layout:
    """The layout of scratch memory.

    Tickets come first. Each lane then has two hidden states, one or two cell states (or gru's saved values), and the
    accumulators of one product. With 8- or 16-bit weights each part has its own integer states.
    """

    def __init__(self, problem: RecurrenceProblem, tile: RegisterTile, parts: int) -> None:
        self.tile, self.parts = tile, parts
        self.shared = not known_equal(parts, 1)
        self.row = -(-problem.hidden // tile.lanes) * tile.lanes
        self.block = problem.batch * self.row
        self.blocks = {"rnn": 2, "gru": 4, "lstm": 3}[problem.cell]
        self.tickets = problem.lanes * parts * TICKET_WORDS
        panels = max(phase.panels(tile, problem.hidden) * phase.vectors for phase in phases(problem))
        self.lane = self.blocks * self.block + problem.batch * panels * tile.lanes
        end = 8 * self.tickets + problem.itemsize * problem.lanes * self.lane
        self.codes_at = -(-end // host.CACHE_LINE) * host.CACHE_LINE
        self.codes: QuantizedStates | SplitStates | None = None
        if problem.packs_words:
            kind = DynamicStates if problem.dynamic else QuantizedStates if problem.int8 else SplitStates
            self.codes = kind(problem, self.row)
        self.bytes = self.codes_at + (self.codes.bytes * problem.lanes * parts if self.codes else 0)


def _begin(problem: RecurrenceProblem, layout: _Layout, origin: str) -> Launch:
    """Return the launch that frees the tickets and sets the initial states."""
    p, lanes = problem, layout.tile.lanes
    arguments = Arguments()
    arguments.pointer("tickets", "scratch", "int64")
    arguments.pointer("states", Operand("scratch", 8 * layout.tickets), p.dtype)
    arguments.integers(ticket_words=layout.tickets, hidden=p.hidden, batch=p.batch, row_size=layout.row)
    arguments.integers(lane_size=layout.lane)
    lines = ["for i in range(ticket_words):", "    tickets[i] = 0"]
    states = [("first", 0, p.first_strides)]
    if p.cell == "lstm":
        states.append(("first_cell", 2 * layout.block, p.first_cell_strides))
    for name, start, strides in states:
        arguments.integers(**{f"{name}_start": start})
        value = f"const_{p.dtype}(0, {lanes})"
        if strides is not None:
            arguments.pointer(name, name, p.dtype)
            arguments.integers(**{f"{name}_lane": strides[0], f"{name}_row": strides[1]})
            value = (
                f"load_tail({name}, lane * {name}_lane + row * {name}_row + u, imin(hidden - u, {lanes}), 0, {lanes})"
            )
        lines += [
            f"for lane in range({p.lanes}):",
            "    for row in range(batch):",
            f"        for u in range(0, hidden, {lanes}):",
            f"            store(states, lane * lane_size + {name}_start + row * row_size + u, {value})",
        ]
    kernel = cpu_kernel(f"{p.cell}_begin_kernel", kernel_text([*arguments.bind(), *lines]), origin)
    return Launch(kernel, arguments.values, geometry=TaskRange(1), bytes=2 * problem.itemsize * layout.block)


def _steps(problem: RecurrenceProblem, layout: _Layout, origin: str) -> Launch:
    p, lanes = problem, layout.tile.lanes
    arguments = Arguments()
    _declare(p, layout, arguments)
    rows = rows_together(p, layout.tile)
    step = [
        "position = last_step - t if back else t",
        "final = t == last_step",
        "now = base + (t & 1) * block_size",
        "following = base + block_size - (t & 1) * block_size",
        *(line for number in range(len(phases(p))) for line in _phase(p, layout, rows, number)),
    ]
    task = [
        "lane = idiv(task, parts)",
        "own = task - lane * parts",
        "back = (backward >> lane) & 1",
        "base = lane * lane_size",
        "sums = offset(states, base + sums_start)",
        "cell_at = base + 2 * block_size",
        "update_at = cell_at",
        "reset_at = cell_at + block_size",
        *(["calm = end - begin == 1", f"patience = {PATIENCE} if calm else 0"] if layout.shared else []),
        *(_zeros_past_all_sequences(p, lanes) if p.lengths else ["last_step = steps - 1"]),
        "for t in range(last_step + 1):",
        *indent(step),
    ]
    form = "_uint8" if p.dynamic else "_int8" if p.int8 else "_int16" if p.int16 else ""
    text = kernel_text([*arguments.bind(), *for_tasks(task)])
    kernel = cpu_kernel(f"{p.cell}{form}_kernel", text, origin)
    return Launch(kernel, arguments.values, geometry=TaskRange(p.lanes * layout.parts), flops=p.flops, bytes=p.bytes)


def _zeros_past_all_sequences(problem: RecurrenceProblem, lanes: int) -> list[str]:
    """Return statements that set ``last_step``, the last step of the longest sequence (at least the first of all
    steps), and clear ``y`` at later steps."""
    return [
        "longest = 1",
        "for row in range(batch):",
        "    longest = imax(longest, cast_int64(load_scalar(lengths, row)))",
        "last_step = imin(longest, steps) - 1",
        "for t in range(last_step + 1, steps if own == 0 else 0):",
        "    for row in range(batch):",
        "        y_at = t * y_step + lane * y_lane + row * y_row",
        f"        for u in range(0, hidden, {lanes}):",
        f"            store_tail(y, y_at + u, const_{problem.dtype}(0, {lanes}), imin(hidden - u, {lanes}))",
    ]


def _declare(problem: RecurrenceProblem, layout: _Layout, arguments: Arguments) -> None:
    p = problem
    arguments.pointer("tickets", "scratch", "int64")
    arguments.pointer("states", Operand("scratch", 8 * layout.tickets), p.dtype)
    declare_given(p, arguments)
    start = 0
    for number, phase in enumerate(phases(p)):
        arguments.pointer(f"w{number}", Operand("w", start * p.itemsize), "int32" if p.packs_words else p.dtype)
        arguments.integers(**{f"panels{number}": phase.panels(layout.tile, p.hidden)})
        start += p.lanes * phase_size(p, phase)
    if layout.codes is not None:
        layout.codes.declare(arguments, layout.codes_at)
    arguments.integers(
        steps=p.steps, parts=layout.parts, row_size=layout.row, block_size=layout.block, lane_size=layout.lane,
        sums_start=layout.blocks * layout.block, started=p.first_strides is not None,
    )  # fmt: skip


def _phase(problem: RecurrenceProblem, layout: _Layout, rows: int, number: int) -> list[str]:
    """Return statements for a product of a step: compute this thread's parts, then wait for all threads."""
    part = _part(problem, layout, rows, number)
    states = layout.codes.lines(_source(number), layout.tile.lanes) if layout.codes is not None else []
    if not layout.shared:
        return [*states, "first_panel = 0", f"panel_count = panels{number}", *part]
    return [
        *states,
        "for turn in range(parts):",
        "    part = imod(own + turn, parts)",
        f"    flag = (task - own + part) * {TICKET_WORDS}",
        f"    ticket = 2 * (t * {len(phases(problem))} + {number})",
        "    mine = False",
        "    waited = 0",
        "    while not mine and atomic_load(tickets, flag) < ticket + 2:",
        "        if (turn == 0 or waited >= patience) and atomic_load(tickets, flag) == ticket:",
        "            mine = compare_exchange(tickets, flag, ticket, ticket + 1) == ticket",
        "        elif waited < " + str(PAUSES) + ":",
        "            waited += 1",
        "            pause()",
        "        else:",
        "            yield_thread()",
        "    if mine:",
        f"        first_panel = idiv(part * panels{number}, parts)",
        f"        panel_count = idiv((part + 1) * panels{number}, parts) - first_panel",
        *indent(part, 2),
        "        atomic_store(tickets, flag, ticket + 2)",
        "    if turn > 0 and calm:",
        f"        patience = 0 if mine else {PATIENCE}",
    ]


def _source(number: int) -> str:
    """Return the states that phase ``number`` multiplies."""
    return "reset_at" if number else "now"


def _part(problem: RecurrenceProblem, layout: _Layout, rows: int, number: int) -> list[str]:
    """Return statements for ``panel_count`` panels; every other step walks them in reverse, so that cached panels come
    first."""
    p, phase, lanes = problem, phases(problem)[number], layout.tile.lanes
    panel = phase.vectors * lanes
    cell = [
        "unit = (panel * {groups} + g) * {lanes}",
        "if unit >= hidden:",
        "    continue",
        "here = row * row_size + unit",
        "sums_at = (panel * batch + row) * {panel} + g * {lanes}",
        "x_at = position * x_step + row * x_row + lane * x_lane + unit",
        "y_at = position * y_step + lane * y_lane + row * y_row + unit",
        "last_at = (lane * batch + row) * hidden + unit",
        "left = imin(hidden - unit, {lanes})",
        *(["side = lane * hidden + unit"] if p.inner_bias else []),
        *(["peep = lane * 3 * hidden + unit"] if p.peephole else []),
        *(["on = position < load_scalar(lengths, row)"] if p.lengths else []),
    ]
    cell = [line.format(groups=phase.groups, lanes=lanes, panel=panel) for line in cell]
    streams = together(p, layout.tile, phase, rows)
    return [
        "last_panel = first_panel + panel_count - 1",
        "depth = hidden if t > 0 or started else 0",
        f"for step in range(0, panel_count, {streams}):",
        f"    panel = first_panel + (imax(panel_count - {streams} - step, 0) if t & 1 else step)",
        f"    for m0 in range(0, batch, {rows}):",
        *indent(product(p, layout.tile, phase, rows, _source(number), number), 2),
        "for row in range(batch):",
        "    for panel in range(first_panel, first_panel + panel_count):",
        f"        for g in range({phase.groups}):",
        *indent([*cell, *CellWriter(p, lanes).lines(phase, number)], 3),
    ]
