"""Reduction cluster kernels: softmax, normalisations and plain reductions, along rows or columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....core.dim import Dim, Length, SharedLength, known_in, known_same, less_equal, select
from ....core.types import Type
from ....dataclass import dataclass
from ....errors import UnsupportedError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....ops.base import Pointwise
from ....ops.reduce import DOWN
from ...arguments import Arguments
from ...body import cluster_name, scalar_flops
from ...launch import Launch
from ...printer import CodeBuffer, VectorValue
from ...problems.cluster import ReductionProblem, Tensor, own_lens
from ...reductions import REDUCTIONS
from ..kernel import gpu_grid, gpu_kernel
from ..printer import ThreadPrinter, dtype_name
from .flat_index import Axes
from .pointwise import blocks_unless_empty, operand_names
from .thread_layout import RowLayout, row_layout


def reduction_launch(problem: ReductionProblem, fewest: int = 1) -> Launch:
    """Return the launch of a reduction cluster; ``fewest``: see `row_layout`.

    Raises:
        UnsupportedError: the kernel language lacks an operation, parts do not follow the memory order of rows, or rows
            have no elements.
    """
    if problem.fold > 1:
        raise UnsupportedError("GPU kernels fold no columns")
    if any(tensor.lens[axis] == 0 for tensor in problem.inputs for axis in problem.axes):
        raise UnsupportedError("GPU kernels read elements of each row")
    layout = row_layout(
        problem.axes, problem.inputs, problem.outputs, problem.parts, problem.cut, problem.share, fewest
    )
    printer = _RowsText(problem, layout)
    lines, arguments = printer.lines(), printer.arguments.values
    team = layout.team
    name = cluster_name(problem.module, "reduce")
    kernel = gpu_kernel(name, lines, team.threads, len(arguments), problem.origin, printer.resident(), team.blocks)
    return Launch(
        kernel=kernel,
        args=arguments,
        geometry=gpu_grid(blocks_unless_empty(layout.blocks, problem.outputs), team.threads, layout.parts),
        flops=scalar_flops(problem.module) * prod(layout.full),
        bytes=sum(t.footprint for t in (*problem.inputs, *problem.outputs)),
    )


REGISTERS = 65536
"""Registers per multiprocessor: CUDA C++ programming guide, "Technical specifications per compute capability"."""
KEPT = {32: 64, 64: 128}
"""Register limit of a thread by words kept between reductions; the limit raises occupancy. Bias, GELU, sum and layer
norm of rows of 4096 on an H200 (16 words) reach 102% of a copy with 64 registers, 98% with the 71 that ptxas chooses,
101% with 48; softmax of rows of 65,536 (32 words) 95% with 64, 73% with 79."""


def _power_of_two(count: Length) -> Length:
    """Return a power of two not less than a length: the least, or one of `OPEN_POWERS` for a symbolic length."""
    if not isinstance(count, Dim):
        return 1 << max(count - 1, 0).bit_length()
    found: Length = 1 << OPEN_POWERS[-1]
    for power in OPEN_POWERS[-2::-1]:
        found = select(less_equal(count, 1 << power), 1 << power, found)
    return found


OPEN_POWERS = (8, 16, 24, 32, 62)
"""Exponents of the powers of two for symbolic lengths."""


class _RowsText:
    """Kernel text of one cluster.

    A thread processes ``held`` vectors of its row at once. Full values are cached by instruction and vector number; in
    a looped layout only within one iteration.
    """

    def __init__(self, problem: ReductionProblem, layout: RowLayout) -> None:
        self.module: Module = problem.module
        self.layout = layout
        self.levels = levels_of(problem.module, problem.inputs, layout.full)
        self.tensors = (*problem.inputs, *problem.outputs)
        self.inputs = len(problem.inputs)
        self.names = operand_names(self.inputs, len(problem.outputs))
        self.arguments = Arguments()
        for name, tensor in zip(self.names, self.tensors):
            self.arguments.pointer(f"p_{name}", name, dtype_name(tensor.type))
        self.arguments.integer("rows", layout.rows)
        self.arguments.integer("items", layout.items)
        count = prod(layout.reduce.lens)
        self.arguments.integer("count", count)
        if any(self._can_overflow(r) for r in self.levels.reductions):
            self.arguments.integer("whole", _power_of_two(count))
        across, along = (layout.lanes, 1) if layout.columns else (1, layout.lanes)
        lens = layout.keep.lens, layout.reduce.lens
        self.keep = Axes(self.arguments, "k", (*lens[0][:-1], lens[0][-1] // across), layout.keep.strides, across)
        self.walk = Axes(self.arguments, "r", (*lens[1][:-1], lens[1][-1] // along), layout.reduce.strides, along)
        self.begin, self.end = ("begin", "end") if layout.parts > 1 else ("", "items")
        if layout.parts > 1:
            self.arguments.integer("share", layout.share)
            for k in range(self.inputs, len(self.tensors)):
                self.arguments.integer(f"pitch{k}", prod(self.tensors[k].lens))
        self.buffer = CodeBuffer()
        self.full = ThreadPrinter(self.buffer, layout.lanes, problem.fast_math)
        self.row = ThreadPrinter(self.buffer, layout.team.row_lanes, problem.fast_math)
        self._row_values: dict[Instruction, VectorValue] = {}
        self._full_values: dict[tuple[Instruction, int], VectorValue] = {}
        self._places: list[list[str]] = []
        self._walks = 0
        self._met = False

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, team = self.buffer, self.layout.team
        buffer.line(*self.arguments.bind())
        in_turn = sorted(self.levels.reductions, key=self.levels.level.__getitem__)
        team.begin(buffer, {self._sum_name(r): self._accumulator(r) for r in in_turn})
        buffer.line(f"member = {team.member}")
        buffer.line(f"row = {team.row}")
        buffer.line("valid = row < rows")
        buffer.line("inside = imin(row, rows - 1)")
        indices = self.keep.split(buffer, "inside")
        for k, name in enumerate(self.names):
            place = self.keep.offset(k, indices)
            if self.layout.parts > 1 and k >= self.inputs:
                place += f" + block_index(1) * pitch{k}"
            buffer.line(f"r_{name} = offset(p_{name}, {place})")
        if self.layout.parts > 1:
            buffer.line("begin = block_index(1) * share + member")
            buffer.line("end = imin(items, (block_index(1) + 1) * share)")
        for level in range(self.levels.count):
            self._level(level)
        self._store_row_results()
        return buffer.lines

    def resident(self) -> int:
        """Return the resident blocks per multiprocessor to aim at."""
        layout = self.layout
        if layout.looped:
            return 1
        kept = [0] * self.levels.count
        for ins, row_value in self.levels.row_value.items():
            used = [] if row_value else [self._used_in(ins, user) for user in ins.users]
            for level in range(min(used, default=0), max(used, default=0)):
                kept[level] += max(1, ins.shape.type.compute.size // 4)
        words = max(kept) * layout.held * layout.lanes
        registers = next((n for most, n in KEPT.items() if words <= most), REGISTERS)
        return max(1, REGISTERS // (layout.team.threads * registers))

    def _used_in(self, ins: Instruction, user: Instruction) -> int:
        """Return the level in which ``user`` reads an instruction's value."""
        level = self.levels.level.get(user, self.levels.level[ins])
        return level - (user.name in REDUCTIONS)

    def _sum_name(self, r: Instruction) -> str:
        return f"s{self.levels.reductions.index(r)}"

    @staticmethod
    def _accumulator(r: Instruction) -> Type:
        return REDUCTIONS[r.name].accumulator(r.inputs[0].shape.type)

    def _level(self, level: int) -> None:
        """Emit the reductions and stores of a level."""
        levels, layout = self.levels, self.layout
        reductions, stored = levels.reduced_in(level), levels.stored_in(level)
        if not reductions and not stored:
            return
        for ins, row_value in levels.row_value.items():  # before loops, whose names end with them
            if row_value and not ins.is_literal and levels.level[ins] <= level:
                self._row_value(ins)
        walked = [r for r in reductions if not levels.row_value[r.inputs[0]]]
        own: dict[Instruction, VectorValue] = {}
        if layout.looped:
            own = self._walk(walked, stored)
        else:
            if not self._places:
                self._find_places(self.begin or "member")
            for r in walked:
                own[r] = self._combined(r, None)
            self._store(stored)
        for r in walked:
            if self._can_overflow(r):
                own[r] = self._scaled(r, own[r])
        if walked and layout.team.blocks > 1 and not self._met:
            self._met = True
            self.buffer.line("cluster_wait()")
        for r in walked:
            reduction = REDUCTIONS[r.name]
            self._row_values[r] = self._finished(r, layout.team.joined(self.row, reduction, own[r], self._sum_name(r)))
        if len(walked) != len(reductions):
            kinds = ", ".join(r.inputs[0].shape.type.name for r in reductions if r not in walked)
            raise UnsupportedError(f"GPU kernels have no reductions of what is one value a row ({kinds})")

    def _walk(
        self, reductions: Sequence[Instruction], stored: Sequence[int] = (), down: bool = False
    ) -> dict[Instruction, VectorValue]:
        """Emit a thread's pass over its row: its partial reductions, and the stores of full results.

        Every second pass runs backwards, because L2 still holds the elements that were read last. With ``down`` the
        pass covers the elements of the previous one.
        """
        buffer, own = self.buffer, {}
        for r in reductions:
            value = self._neutral(r)
            own[r] = VectorValue(f"{'again' if down else 'acc'}{self.levels.reductions.index(r)}", value.dtype)
            buffer.line(f"{own[r].name} = {value.name}")
        buffer.line(f"item = {self.begin or 'member'}")
        with buffer.block(f"while item < {self.end}:"):
            self._full_values.clear()
            self._find_places("item", (self._walks - down) % 2 == 1 and self.layout.parts == 1)
            for r in reductions:
                buffer.assign(own[r].name, self._combined(r, own[r], down).name)
            self._store(stored)
            buffer.assign("item", f"item + {self.layout.team.size * self.layout.held}")
        self._full_values.clear()
        self._walks += not down
        return own

    @staticmethod
    def _can_overflow(r: Instruction) -> bool:
        return REDUCTIONS[r.name].sum_can_overflow(r.inputs[0].shape.type)

    def _scaled(self, r: Instruction, own: VectorValue) -> VectorValue:
        """Emit a thread's partial sum of a mean, divided by ``whole``, a power of two not less than the row's elements.

        The joined sum then does not exceed the largest element. If a partial sum is infinite or NaN, this thread sums
        again with elements scaled by `DOWN`; the branch is otherwise not taken.
        """
        buffer, dtype, name = self.buffer, dtype_name(own.dtype), f"part{self.levels.reductions.index(r)}"
        lanes = self.layout.lanes
        up = buffer.emit(f"splat(div(const_{dtype}(1, 0), cast_{dtype}(whole)), {lanes})")
        finite = buffer.emit(f"lt(abs({own.name}), INF)")
        buffer.line(f"{name} = mul({own.name}, {up})")
        with buffer.block(f"if reduce_or(logical_not({finite})):"):
            known = dict(self._full_values), self._places
            again = self._walk([r], down=True)[r] if self.layout.looped else self._combined(r, None, down=True)
            factor = f"splat(div(const_{dtype}({1 / DOWN!r}, 0), cast_{dtype}(whole)), {lanes})"
            buffer.line(f"{name} = where({finite}, {name}, mul({again.name}, {factor}))")
            self._full_values, self._places = known
        return VectorValue(name, own.dtype)

    def _neutral(self, r: Instruction) -> VectorValue:
        """Return the neutral element of a reduction in every lane."""
        reduction, type = REDUCTIONS[r.name], r.inputs[0].shape.type
        return self.full.const(reduction.neutral(type), reduction.accumulator(type))

    def _combined(self, r: Instruction, before: VectorValue | None, down: bool = False) -> VectorValue:
        """Emit the contribution of this thread's vectors to a reduction, combined with ``before``. ``down``: with
        elements scaled by `DOWN`."""
        reduction, type = REDUCTIONS[r.name], r.inputs[0].shape.type
        accumulator = reduction.accumulator(type)
        for j in range(self.layout.held):
            value = self._value(r.inputs[0], j)
            own = reduction.contribution(self.full, value, type)
            own = VectorValue(self.full.stored(own, accumulator), accumulator)
            if down:
                own = self.full.mul(own, self.full.const(DOWN, accumulator))
            if not self.layout.exact:
                neutral = self._neutral(r)
                own = VectorValue(
                    self.buffer.emit(f"where({self._active(j)}, {own.name}, {neutral.name})"), accumulator
                )
            before = own if before is None else getattr(self.full, reduction.combine)(before, own)
        assert before is not None
        return before

    def _finished(self, r: Instruction, value: VectorValue) -> VectorValue:
        """Emit a reduction's result from its joined accumulator."""
        reduction, type = REDUCTIONS[r.name], r.inputs[0].shape.type
        accumulator = value.dtype
        if reduction.name == "reduce_mean":
            dtype = dtype_name(accumulator)
            count = f"cast_{dtype}(count)"
            count = self.buffer.emit(f"div({count}, cast_{dtype}(whole))" if self._can_overflow(r) else count)
            if self.layout.columns:
                count = self.buffer.emit(f"splat({count}, {self.layout.lanes})")
            value = self.row.div(value, VectorValue(count, accumulator))
        if accumulator is type or accumulator is type.compute:
            return VectorValue(value.name, type)
        return self.row.cast_loosely(value, type)

    def _find_places(self, first: str, backwards: bool = False) -> None:
        """Emit the offsets of this thread's vectors in each operand's row, counted from ``first``, or ``backwards``
        from the last vector."""
        buffer, layout = self.buffer, self.layout
        self._places = []
        self._first = first
        for j in range(layout.held):
            number = buffer.emit(f"{first} + {j * layout.team.size}") if j else first
            if not layout.exact:
                number = buffer.emit(f"imin({number}, items - 1)")
            if backwards:
                number = buffer.emit(f"items - 1 - {number}")
            indices = self.walk.split(buffer, number)
            self._places.append([self.walk.offset(k, indices) for k in range(len(self.names))])

    def _active(self, j: int) -> str:
        """Return the condition that vector ``j`` is inside the row."""
        step = j * self.layout.team.size
        return self.buffer.emit(f"{self._first} + {step} < {self.end}" if step else f"{self._first} < {self.end}")

    def _value(self, ins: Instruction, j: int) -> VectorValue:
        """Return a full value at this thread's vector ``j``, emitted once."""
        if ins.is_literal:
            assert ins.literal is not None
            return self.full.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        known = self._full_values.get((ins, j))
        if known is not None:
            return known
        if ins.is_param and not self.levels.row_value[ins]:
            value = self._loaded(self.levels.parameters.index(ins), j)
        elif self.levels.row_value[ins]:
            value = self._row_value(ins)
            value = value if self.layout.columns else self.full.splat(value)
        elif ins.name == "multibroadcast":
            value = self._value(ins.inputs[0], j)
        else:
            value = ins.operator(Pointwise).scalar(self.full, *(self._value(i, j) for i in ins.inputs))
        self._full_values[ins, j] = value
        return value

    def _loaded(self, k: int, j: int) -> VectorValue:
        name, lanes = self.names[k], self.layout.lanes
        space = self.layout.keep if self.layout.columns else self.layout.reduce
        if known_in(space.strides[k][-1], 0):
            text = f"load_splat(r_{name}, {self._places[j][k]}, {lanes})"
        else:
            text = f"{'load_aligned' if lanes > 1 else 'load'}(r_{name}, {self._places[j][k]}, {lanes})"
        return self.full.loaded(text, self.tensors[k].type)

    def _row_value(self, ins: Instruction) -> VectorValue:
        """Return a per-row value, emitted once."""
        if ins.is_literal:
            assert ins.literal is not None
            return self.row.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        if ins not in self._row_values:
            if ins.is_param:
                value = self._loaded_row(self.levels.parameters.index(ins))
            elif ins.name == "multibroadcast":
                value = self._row_value(ins.inputs[0])
            else:
                value = ins.operator(Pointwise).scalar(self.row, *(self._row_value(i) for i in ins.inputs))
            self._row_values[ins] = value
        return self._row_values[ins]

    def _loaded_row(self, k: int) -> VectorValue:
        name, lanes = self.names[k], self.layout.lanes
        if not self.layout.columns:
            text = f"load_scalar(r_{name}, 0)"
        elif known_in(self.layout.keep.strides[k][-1], 0):
            text = f"load_splat(r_{name}, 0, {lanes})"
        else:
            text = f"{'load_aligned' if lanes > 1 else 'load'}(r_{name}, 0, {lanes})"
        return self.row.loaded(text, self.tensors[k].type)

    def _store(self, results: Sequence[int]) -> None:
        """Emit the stores of full results at this thread's vectors."""
        buffer, layout = self.buffer, self.layout
        store = "store_aligned" if layout.lanes > 1 else "store"
        for j in range(layout.held if results else 0):
            lines = []
            for k in results:
                value = self.full.stored(self._value(self.levels.results[k], j))
                at = self.inputs + k
                lines.append(f"{store}(r_{self.names[at]}, {self._places[j][at]}, {value})")
            condition = "valid" if layout.exact else f"valid & ({self._active(j)})"
            with buffer.block(f"if {condition}:"):
                buffer.line(*lines)

    def _store_row_results(self) -> None:
        """Emit the stores of per-row results, by one thread."""
        buffer, layout = self.buffer, self.layout
        results = [k for k, r in enumerate(self.levels.results) if self.levels.row_value[r]]
        lines = []
        for k in results:
            value = self.row.stored(self._row_value(self.levels.results[k]))
            name = self.names[self.inputs + k]
            store = "store_aligned" if layout.lanes > 1 else "store"
            lines.append(f"{store if layout.columns else 'store_scalar'}(r_{name}, 0, {value})")
        if lines:
            with buffer.block("if valid & (member == 0):"):
                buffer.line(*lines)


@dataclass(frozen=True)
class Levels:
    """Evaluation order of a cluster.

    Attributes:
        parameters, results: of the module, one per input and output.
        level: of each instruction, the most reductions on a path to it.
        row_value: of each instruction, whether it is one value per row.
        count: levels that read full operands: the most passes over a row.
    """

    parameters: tuple[Instruction, ...]
    results: tuple[Instruction, ...]
    reductions: tuple[Instruction, ...]
    level: Mapping[Instruction, int]
    row_value: Mapping[Instruction, bool]
    count: int

    def reduced_in(self, level: int) -> list[Instruction]:
        """Return the reductions of full values of a level."""
        return [r for r in self.reductions if self.level[r] == level + 1]

    def stored_in(self, level: int) -> list[int]:
        """Return the indices of the full results of a level."""
        return [k for k, r in enumerate(self.results) if not self.row_value[r] and self.level[r] == level]


def levels_of(module: Module, inputs: Sequence[Tensor], full: tuple[SharedLength, ...]) -> Levels:
    """Return the levels of a cluster; ``full`` are the lengths of full operands."""
    parameters, results = tuple(module.parameters()), tuple(module.results())
    tensors, own = dict(zip(parameters, inputs)), own_lens(module)
    level: dict[Instruction, int] = {}
    row_value: dict[Instruction, bool] = {}
    for ins in module:
        if ins.name == "@return":
            break
        level[ins] = max((level[i] for i in ins.inputs), default=0) + (ins.name in REDUCTIONS)
        if ins.is_param:
            row_value[ins] = not known_same(tensors[ins].lens, full)
        elif ins.name in REDUCTIONS or ins.is_literal:
            row_value[ins] = True
        elif ins.name == "multibroadcast":
            row_value[ins] = not known_same(ins.shape.lens, own) and row_value[ins.inputs[0]]
        else:
            row_value[ins] = all(row_value[i] for i in ins.inputs)
    reductions = tuple(i for i in module if i.name in REDUCTIONS)
    walked = [level[r] - 1 for r in reductions] + [level[r] for r in results if not row_value[r]]
    return Levels(parameters, results, reductions, level, row_value, 1 + max(walked, default=0))
