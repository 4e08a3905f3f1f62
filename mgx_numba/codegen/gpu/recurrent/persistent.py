"""Persistent recurrent kernels: one launch for all steps, recurrent weights in registers.

A warp owns some units of a direction. Its lanes share the dot products of all their gates, for several sequences in
turn; then each lane computes one cell. Blocks exchange hidden states between steps, see `exchange`. Weights of GRU's
second phase stay in registers beside those of the first.
"""

from __future__ import annotations

from ....core.dim import known_equal
from ...arguments import Arguments
from ...launch import Grid, Launch, Operand, Solution
from ...printer import VectorValue
from ...problems.recurrence import RecurrenceProblem
from ..architecture import WARP
from ..kernel import gpu_kernel, gpu_launch
from ..printer import dtype_name
from .cell import ThreadCell
from .exchange import EXCHANGES, Exchange
from .tiles import PersistentTile, ProductLanes, rows_of_turn

_FIRST_THREADS = 256
"""Threads per block of the launch that stores the initial states; any number works."""


def persistent_solution(problem: RecurrenceProblem, tile: PersistentTile, origin: str = "") -> Solution:
    """Return one launch for all steps, or one per direction; an exchange through device memory adds an initialising
    launch."""
    texts = [_PersistentText(problem, tile, first) for first in range(0, problem.lanes, tile.directions)]
    text = texts[0]
    initialised = not known_equal(text.exchange.elements, 0)
    before = (_prepared(text.exchange, problem, origin),) if initialised else ()
    return Solution((*before, *(own.launch(origin) for own in texts)), text.scratch)


def _prepared(exchange: Exchange, problem: RecurrenceProblem, origin: str) -> Launch:
    arguments = Arguments()
    exchange.declare(arguments)
    if "first" not in arguments.names:
        arguments.pointer("first", "first", dtype_name(exchange.wide))
    arguments.integers(elements=exchange.elements, hidden=problem.hidden, padded=ProductLanes.of(problem).padded)
    place = f"i = block_index(0) * {_FIRST_THREADS} + thread_index(0)"
    lines = [*arguments.bind(), place, *exchange.first_lines()]
    name, blocks = "recurrent_first_kernel", -(-exchange.elements // _FIRST_THREADS)
    moved = 2 * problem.lanes * problem.batch * problem.hidden * exchange.wide.size
    return gpu_launch(name, lines, arguments, blocks, _FIRST_THREADS, moved, origin=origin)


class _PersistentText(ThreadCell):
    """Text and arguments of the launch.

    Attributes:
        exchange: exchange of states between blocks.
        scratch: bytes of scratch memory.
    """

    def __init__(self, problem: RecurrenceProblem, tile: PersistentTile, first_direction: int) -> None:
        super().__init__(problem)
        self.tile, self.lanes = tile, ProductLanes.of(problem)
        self.exchange: Exchange = EXCHANGES[tile.kind](problem, tile, self.type)
        self.rows = rows_of_turn(problem, tile)
        self.pairs = self.rows * tile.units
        self.per_group = WARP // tile.units
        self.kept = {"lstm": "cell_at", "gru": "update_at" if len(problem.phases) > 1 else ""}.get(problem.cell, "")
        self.scratch = self.exchange.scratch
        self._declare(first_direction)

    def _declare(self, first_direction: int) -> None:
        p, tile, arguments = self.problem, self.tile, self.arguments
        self.declare_operands()
        self.exchange.declare(arguments)
        if self.kept:
            arguments.pointer(self.kept, Operand("scratch", self.scratch), self.wide)
            self.scratch += p.lanes * p.batch * p.hidden * self.type.size
        if p.cell == "lstm":
            arguments.pointer("first_cell", "first_cell", self.wide)
        slice_rows = tile.slice_rows(p.batch)
        arguments.integers(
            first_direction=first_direction,
            blocks=tile.blocks,
            slices=tile.used_slices(p.batch),
            slice_rows=slice_rows,
            groups=-(-slice_rows // self.per_group),
        )

    def launch(self, origin: str) -> Launch:
        """Return the launch."""
        p, tile, buffer = self.problem, self.tile, self.buffer
        buffer.line(*self.arguments.bind())
        self._print_share()
        self._print_weights()
        self.exchange.begin(buffer)
        with buffer.block("for step in range(rounds):"):
            self.print_position()
            self.exchange.begin_step(buffer)
            for number in range(len(p.phases)):
                with buffer.block("for group in range(groups):"):
                    self._print_group(number)
        self.exchange.end(buffer)
        cluster = tile.blocks if tile.cluster else 1
        slots = len(self.arguments.values)
        kernel = gpu_kernel(f"{p.cell}_{tile.kind}_kernel", buffer.lines, tile.threads, slots, origin, cluster=cluster)
        blocks = tile.directions * tile.used_slices(p.batch) * tile.blocks
        launches = p.lanes // tile.directions
        geometry = Grid((blocks, 1, 1), (tile.threads, 1, 1), self.exchange.shared, cooperative=not tile.cluster)
        return Launch(kernel, self.arguments.values, geometry, p.flops // launches, p.bytes // launches)

    def _print_share(self) -> None:
        """Emit the units and sequences of a thread."""
        units = self.tile.units
        self.buffer.line(
            f"lane = imod(thread_index(0), {WARP})",
            "team = idiv(block_index(0), blocks)",
            "begin = imod(team, slices) * slice_rows",
            "direction = first_direction + idiv(team, slices)",
            "count = imin(slice_rows, batch - begin)",
            f"begin_unit = ((block_index(0) - team * blocks) * {self.tile.warps} + warp_index()) * {units}",
            f"unit = begin_unit + imod(lane, {units})",
            f"lane_at = lane * {self.lanes.width}",
        )
        for bit in self._distances():
            self.buffer.line(f"bit{bit} = (lane & {bit}) > 0")

    def _distances(self) -> list[int]:
        """Return the lane distances of the shuffles that distribute sums, largest first."""
        return [1 << b for b in reversed(range(self.pairs.bit_length() - 1))]

    def _print_weights(self) -> None:
        """Emit the loads of the weights of the warp's units; zeros beyond the end of a row."""
        p, buffer, width = self.problem, self.buffer, self.lanes.width
        load = "load_aligned" if width > 1 else "load"
        buffer.line(f"nothing = const_{self.wide}(0, {width})")
        for u in range(self.tile.units):
            buffer.line(f"unit{u} = imin(begin_unit + {u}, hidden - 1)")
            for gate in range(p.gates):
                buffer.line(f"w{gate}_{u} = offset(w, ((direction * {p.gates} + {gate}) * hidden + unit{u}) * hidden)")
        for c in range(self.lanes.chunks):
            buffer.line(f"k{c} = lane_at + {c * WARP * width}")
            for u in range(self.tile.units):
                for gate in range(p.gates):
                    weights = f"{load}(w{gate}_{u}, imin(k{c}, hidden - {width}), {width})"
                    weights = weights if self.stored is self.type else f"cast_{self.wide}({weights})"
                    buffer.line(f"b{gate}_{u}_{c} = where(lt(k{c}, hidden), {weights}, nothing)")

    def _print_group(self, number: int) -> None:
        """Emit one phase of a step for as many sequences as the lanes hold cells of each unit."""
        buffer = self.buffer
        buffer.line(f"own_row = group * {self.per_group} + idiv(lane, {self.tile.units})")
        buffer.line("row = begin + own_row")
        buffer.line("used = (own_row < count) & (unit < hidden)")
        self._print_loads(number)
        with buffer.block("if group == 0:"):
            self.exchange.wait(buffer, number)
        self._print_products(number)
        with buffer.block("if used:"):
            self.print_phase(number)

    def _print_loads(self, number: int) -> None:
        """Emit the loads that do not depend on other blocks, before the wait for states."""
        p, buffer = self.problem, self.buffer
        gates, zero = p.phases[number], f"const_{p.dtype}(0, 0)"
        loads = {f"x{gate}": f"load_scalar(x, x_at + {gate} * hidden)" for gate in gates}
        if p.peephole:
            loads |= {f"peephole{gate}": self.side_text("peephole", gate) for gate in range(3)}
        if p.inner_bias:
            loads["inner_bias0"] = self.side_text("inner_bias", 0)
        for name in loads:
            buffer.line(f"{name} = {zero}")
        reads_kept = self.kept and (p.cell == "lstm" or number)
        if reads_kept:
            buffer.line(f"kept = const_{self.wide}(0, 0)")
        if p.lengths:
            buffer.line("length = 0")
        self.print_places()
        with buffer.block("if used:"):
            for name, text in loads.items():
                buffer.line(f"{name} = {text}")
            if p.lengths:
                buffer.line(f"length = {super().length}")
            if reads_kept:
                buffer.line(f"kept = load_scalar({self.kept}, here)")
            if p.cell == "lstm":
                with buffer.block("if step == 0:"):
                    buffer.line("kept = load_scalar(first_cell, here)")

    def _print_products(self, number: int) -> None:
        """Emit the dot products of a phase's gates; each lane receives the gates of its unit and sequence."""
        buffer, width, gates = self.buffer, self.lanes.width, self.problem.phases[number]
        source = "reset_at" if number else "now"
        load = "load_aligned" if width > 1 else "load"
        for gate in gates:
            buffer.line(f"sum{gate} = const_{self.wide}(0, 0)")
        turns = self.per_group // self.rows
        buffer.line(f"left = count - group * {self.per_group} + {self.rows - 1}")
        with buffer.block(f"for turn in range(imin({turns}, idiv(left, {self.rows}))):"):
            for r in range(self.rows):
                row = f"imin(group * {self.per_group} + turn * {self.rows} + {r}, count - 1)"
                buffer.line(f"a{r} = offset({source}, {row} * {self.lanes.padded} + lane_at)")
            sums = [(gate, u, r) for gate in gates for r in range(self.rows) for u in range(self.tile.units)]
            for gate, u, r in sums:
                buffer.line(f"s{gate}_{u}_{r} = const_{self.wide}(0, {width})")
            for c in range(self.lanes.chunks):
                for r in range(self.rows):
                    buffer.line(f"h{r} = {load}(a{r}, {c * WARP * width}, {width})")
                for gate, u, r in sums:
                    buffer.line(f"s{gate}_{u}_{r} = fma(h{r}, b{gate}_{u}_{c}, s{gate}_{u}_{r})")
            buffer.line(f"mine = eq(idiv(lane, {self.pairs}), turn)")
            for gate in gates:
                joined = self._joined([f"s{gate}_{u}_{r}" for r in range(self.rows) for u in range(self.tile.units)])
                buffer.line(f"sum{gate} = where(mine, {joined}, sum{gate})")

    def _joined(self, vectors: list[str]) -> str:
        """Emit the sums over all lanes of each vector; lane n gets the sum of vector ``n % len(vectors)``. At each
        shuffle a lane keeps half of its partial sums and sends the other half."""
        buffer = self.buffer
        values = [buffer.emit(f"reduce_add({vector})") for vector in vectors]
        for distance in self._distances():
            kept, given = [], []
            for low, high in zip(values[:distance], values[distance:]):
                kept.append(buffer.emit(f"where(bit{distance}, {high}, {low})"))
                given.append(buffer.emit(f"where(bit{distance}, {low}, {high})"))
            values = [buffer.emit(f"add({k}, shuffle_xor({g}, {distance}))") for k, g in zip(kept, given)]
        (value,) = values
        distance = WARP
        while distance > self.pairs:
            distance //= 2
            value = buffer.emit(f"add({value}, shuffle_xor({value}, {distance}))")
        return value

    @property
    def length(self) -> str:
        return "length"

    def given(self, gate: int) -> VectorValue:
        return self.widened(f"x{gate}")

    def side(self, name: str, gate: int) -> VectorValue:
        return self.widened(f"{name}{gate}")

    def state(self, place: str) -> VectorValue:
        if place == self.kept:
            return VectorValue("kept", self.type)
        return self.printer.loaded(f"load_scalar({place}, own_row * {self.lanes.padded} + unit)", self.type)

    def keep(self, place: str, value: VectorValue) -> None:
        name = self.printer.register(value)
        if place == self.kept:
            self.buffer.line(f"store_scalar({place}, here, {name})")
        else:
            self.exchange.give(self.buffer, place, name)

    def print_next(self, lstm: bool) -> None:
        self.exchange.give(self.buffer, "following", "hidden_now")
        if lstm:
            self.buffer.line("store_scalar(cell_at, here, cell_now)")
