"""Reduction clusters: softmax, normalisations and plain reductions as one kernel over rows.

A cluster's values are *full* (one an element) or *row* values (one for each combination of kept indices). Stage 0
walks the row once and finishes the reductions that need no other; what depends on their results belongs to the
next stage, and so on; a variance of long rows past the caches needs no mean first (`variance.py`). Lanes run along
the reduced axis when it is the contiguous one (row mode), else along the contiguous kept axis (column mode), so no
tensor is transposed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....errors import CompileError
from ....graph.instruction import Instruction
from ....graph.module import Module
from ....ops.base import Pointwise
from ...body import scalar_flops
from ...launch import Launch, TaskRange
from ...problems.cluster import Tensor
from ...reductions import REDUCTIONS
from .. import host
from ..kernel import cpu_kernel
from ..loops import (
    AHEAD_BYTES,
    Odometer,
    Slots,
    claim,
    dtype_name,
    footprint,
    indent,
    load_text,
    store_text,
    streamable,
    task_elements,
    vector_loop,
)
from ..printer import CodeBuffer, VectorPrinter, VectorValue
from .accumulators import across_lanes, finished, initial_text
from .columns import column_lines, kept_memory
from .element import Element
from .row_pipeline import PipelineStage, pipeline_lines
from .stages import CHEAP, SHORTEST_PIPELINE, ReduceStages, cache_elements
from .variance import HeadMean, head_lines, head_vectors

__all__ = ["reduce_launch"]

ROWS_AHEAD = 16
LONGEST_AHEAD = 256 << 10
PIPELINE_BYTES = 512 << 10
PIPELINE_AHEAD = 8 << 10
TURN_BYTES = 512


def reduce_launch(
    module: Module,
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    fast_math: bool = False,
    origin: str = "",
    parts: int = 1,
    fold: int = 1,
) -> Launch:
    """One launch that evaluates a ``fused_reduce`` module.

    Args:
        module: parameters, pointwise operations, reductions over ``axes`` and ``multibroadcast`` of row values.
        axes: the reduced axes.
        inputs: tensors for the parameters; row parameters have length 1 on the reduced axes.
        outputs: tensors for the results.
        parts: rows are reduced in so many parts, each with results of its own, which follow one another in memory;
            only for modules whose results are reductions of what depends on none.
        fold: so many steps at a time count as columns of their own, see `split.Division`.

    Operands are named ``x0``, ``x1``, ... and ``out0``, ``out1``, ....
    """
    return ReduceKernel(module, tuple(axes), inputs, outputs, fast_math, origin, fold, parts).launch(parts, fold)


class ReduceKernel(ReduceStages):
    """Prints the kernel of a reduction cluster."""

    row_known: dict[Instruction, VectorValue]

    def launch(self, parts: int, fold: int) -> Launch:
        reduce_lens = self.reduce_space.lens or (1,)
        keep_lens = self.keep_space.lens
        slots = Slots()
        self.slots = slots
        for name, tensor in zip(self.names, self.tensors):
            slots.pointer(f"p_{name}", name, dtype_name(tensor.type))
        keep_strides = [s or () for s in self.keep_space.strides]
        if self.row_mode:
            outer, cols = keep_lens, reduce_lens[-1]
            chunk, chunks = cols, 1
            loops = reduce_lens[:-1]
        else:
            outer, cols = keep_lens[:-1], keep_lens[-1]
            chunk = min(cols, self.longest_chunk)
            chunks = -(-cols // chunk)
            loops = reduce_lens
        rows = prod(outer)
        work = prod(reduce_lens) * (1 if self.row_mode else chunk)
        batch = 1 if chunks * parts > 1 else max(1, min(rows, task_elements(prod(self.full)) // max(work, 1)))
        for name, value in (
            ("cols", cols), ("chunk", chunk), ("chunks", chunks), ("rows", rows), ("batch", batch),
            ("count", prod(reduce_lens)),
        ):  # fmt: skip
            slots.integer(name, value)
        if self.heads:
            slots.integer("heads", head_vectors(self.lanes, cols, prod(reduce_lens)))
        self.loops = [slots.integer(f"m{d}", n) for d, n in enumerate(loops)]
        self._divide(parts, fold, reduce_lens)
        odometer = Odometer(slots, outer, [s[: len(outer)] for s in keep_strides])
        self._inner_steps(keep_strides)
        self.next_row = [row[-1] if row else "" for row in odometer.strides]
        self.same_for_rows = [self.row_mode and rows > 1 and not any(s) for s in keep_strides]
        self.row_stride = [s[len(outer) - 1] if outer else 0 for s in keep_strides]
        self.cols = cols
        self.cached = self._cached_values(cols)
        self.pipelined = self._is_pipelined()
        body = self._pipeline(odometer) if self.pipelined else self._tasks(odometer)
        lines = ["def kernel(args, begin, end):", *indent(slots.lines, 1)]
        lines += [
            f"    cache{k} = local_{dtype_name(ins.shape.type.compute)}({cache_elements(ins) + 2 * self.lanes})"
            for k, ins in enumerate(self.cached)
        ]
        lines += indent(kept_memory(self) if self.keeps_columns else [], 1)
        lines += indent(body, 1)
        lines += ["    stream_fence()"] if self.streamed else []
        elements = prod(self.full)
        tasks = -(-rows // batch) * chunks * parts if elements else 0
        traffic = sum(footprint(t) for t in self.tensors)
        return Launch(
            kernel=cpu_kernel(name=self.name, text="\n".join(lines) + "\n", origin=self.origin),
            args=tuple(slots.values),
            geometry=TaskRange(tasks, claim(tasks, traffic)),
            flops=scalar_flops(self.module) * elements,
            bytes=traffic,
        )

    def _divide(self, parts: int, fold: int, reduce_lens: Sequence[int]) -> None:
        """Bounds of the loops along the reduced axes, one of which is divided if there are ``parts`` of it."""
        self.bounds = [("0", m) for m in self.loops] + [("0", "cols")] * self.row_mode
        self.part: list[str] = []
        self.part_offset = [""] * len(self.names)
        if parts == 1:
            return
        many = [d for d, n in enumerate(reduce_lens) if n >= parts]
        d = many[0] if many else reduce_lens.index(max(reduce_lens))
        unit = self.lanes if d == len(self.loops) else 1
        self.slots.integer("share", -(-reduce_lens[d] // (parts * unit)) * unit)
        self.slots.integer("parts", parts)
        self.part = [
            "part = imod(block, parts)",
            "block = idiv(block, parts)",
            "low = part * share",
            f"high = imin({self.bounds[d][1]}, low + share)",
        ]
        self.bounds[d] = ("low", "high")
        for k in range(len(self.inputs), len(self.names)):
            self.part_offset[k] = f" + part * {self.slots.integer(f'b{k}', fold * prod(self.tensors[k].lens))}"

    def _tasks(self, odometer: Odometer) -> list[str]:
        """All stages for one row after the other."""
        row = self._row_lines()
        places = [odometer.offset(k) + self.part_offset[k] for k in range(len(self.names))]
        pointers = [f"r_{name} = offset(p_{name}, {places[k]})" for k, name in enumerate(self.names)]
        return [
            "for task in range(begin, end):",
            *indent(
                [
                    "block = idiv(task, chunks)",
                    "first = (task - block * chunks) * chunk",
                    "last = imin(cols, first + chunk)",
                    *self.part,
                    "row = block * batch",
                    "stop = imin(rows, row + batch)",
                    *odometer.start("row"),
                    "while row < stop:",
                    *indent([*pointers, *row, "row += 1", *odometer.step()], 1),
                ],
                1,
            ),
        ]

    def _is_pipelined(self) -> bool:
        """Whether rows come from memory, take long to compute with, and are such that several fit the caches.

        What is kept of a row must be written one stage before it is read, results in the last stage.
        """
        last = self.stages - 1
        row_bytes = sum(self.cols * t.type.size for t, stride in zip(self.tensors, self.inner) if stride)
        return (
            self.row_mode
            and self.past_caches
            and last > 0
            and not self.loops
            and self.cols >= SHORTEST_PIPELINE * self.lanes
            and row_bytes * self.stages <= PIPELINE_BYTES
            and any(self._cost(i.inputs[0]) > CHEAP for i in self.module if i.name in REDUCTIONS)
            and all(stage == last - 1 for stage in self.cached.values())
            and all(self._store_stage(r) == last for r in self.results if r.shape.lens == self.full)
        )

    def _pipeline(self, odometer: Odometer) -> list[str]:
        """All stages at a time, each for another row."""
        last = self.stages - 1
        self.left, self.row_lanes = "", 0
        setup, finish, aged = [], [], []
        for ins in self.heads:
            for age in range(self.stages, 0, -1):
                setup.append(f"{self.head_name(ins)}_{age} = const_{dtype_name(ins.shape.type)}(0, 0)")
                aged += [f"{self.head_name(ins)}_{age} = {self.head_name(ins)}_{age - 1}"] if age > 1 else []
        for ins in (i for i in self.module if i.name in REDUCTIONS):
            reduction, name = self.reduction(ins), self.accumulator(ins)
            finish.append(f"{name}_0 = {across_lanes(reduction)}({name})")
            for age in range(last - self.stage[ins] + 1, 0, -1):
                setup.append(f"{name}_{age} = {initial_text(reduction, ins.inputs[0].shape.type, 0)}")
                aged.append(f"{name}_{age} = {name}_{age - 1}")
        size = max(t.type.size for t, stride in zip(self.tensors, self.inner) if stride)
        turn = max(1, TURN_BYTES // size // self.lanes) * self.lanes
        known: set[int] = set()
        stages = [self._pipeline_stage(stage, turn, known) for stage in range(self.stages)]
        buffer = self._begin_row(last, finished=True)
        for k, (result, tensor) in enumerate(zip(self.results, self.outputs)):
            if tensor.lens != self.full:
                value = self.row_printer.stored(self.row(result))
                buffer.line(f"store_scalar({self.row_at}_out{k}, 0, {value})")
        if buffer.lines:
            finish += [f"if live{last} > 0:", *indent(buffer.drain(), 1)]
        aligned = self._aligned(self._stage_work(last)[1]).replace("q_", f"r{last}_")
        lines = pipeline_lines(stages, self.names, odometer, setup, [*finish, *aged], self.lanes, turn, aligned)
        return ["row = begin * batch", "stop = imin(rows, end * batch)", *lines]

    def _begin_row(self, stage: int, finished: bool = False) -> CodeBuffer:
        """Where row values of a stage of the pipeline are printed, before its loop or after it.

        Reductions that finished some steps of the pipeline ago are held by variables with that age in their name.
        """
        buffer = CodeBuffer(prefix=f"{'g' if finished else 'h'}{stage}_")
        self.row_printer = VectorPrinter(buffer, 0, fast_math=self.fast_math)
        self.row_known = {}
        self.row_at = f"r{stage}"
        self.row_age = stage + 1
        return buffer

    def _pipeline_stage(self, stage: int, turn: int, known: set[int]) -> PipelineStage:
        """One stage, which reads the inputs ``known`` from the caches; adds those that it is the first to read."""
        buffer = self._begin_row(stage)
        reductions, stores = self._stage_work(stage)
        element = Element(self, stage, "", "")
        whole = element.lines(reductions, stores)
        partial = Element(self, stage, "left", "").lines(reductions, stores)
        ahead = []
        for k in sorted(k for k in element.read if self.inner[k] == 1 and not self.same_for_rows[k]):
            place = f"c + {turn}"
            if k not in known and self.next_row[k]:
                distance = PIPELINE_AHEAD // self.inputs[k].type.size
                place = f"c + ahead{k}"
                ahead.append(f"ahead{k} = {distance}")
                if self.row_stride[k] != self.cols:  # rows do not follow one another
                    ahead[-1] += f" + ({self.next_row[k]} - cols) * idiv(turn + {distance}, cols)"
            whole += self.prefetches(k, place)
        known |= element.read
        head = [line for ins in self.heads * (stage == 0) for line in self._head_lines(ins)]
        row = [*buffer.drain(), *(["if live0 > 0:", *indent(head, 1)] if head else []), *self.initial(reductions)]
        return PipelineStage(row, ahead, whole, partial)

    def _inner_steps(self, keep_strides: Sequence[Sequence[int]]) -> None:
        """Per operand: stride along the lanes, its slot, and the slots of the strides of the reduction loops."""
        self.inner: list[int] = []
        self.step: list[str] = []
        self.loop_offset: list[str] = []
        full_seen = 0
        for k, is_full in enumerate(self.is_full):
            reduce_strides: tuple[int, ...] = ()
            if is_full:
                reduce_strides = self.reduce_space.strides[full_seen] or (1,)
                full_seen += 1
            if self.row_mode:
                stride = reduce_strides[-1] if is_full else 0
                reduce_strides = reduce_strides[:-1]
            else:
                stride = keep_strides[k][-1]
            self.inner.append(stride)
            self.step.append(self.slots.integer(f"t{k}", stride) if stride not in (0, 1) else "")
            terms = [
                f"j{d} * {self.slots.integer(f'a{k}_{d}', s)}" for d, s in enumerate(reduce_strides) if s and is_full
            ]
            self.loop_offset.append(" + ".join(terms))

    def _row_lines(self) -> list[str]:
        if self.row_mode:
            self.row_lanes = 0
            return self._stages_lines("")
        self.row_lanes = self.lanes
        if self.keeps_columns:
            return column_lines(self)
        return [
            "c = first",
            f"while c + {self.lanes} <= last:",
            *indent([*self._stages_lines(""), f"c += {self.lanes}"], 1),
            "if c < last:",
            *indent(["left = last - c", *self._stages_lines("left")], 1),
        ]

    def _stages_lines(self, left: str) -> list[str]:
        """All stages for one row (row mode) or for one vector of columns (column mode)."""
        row_buffer = self.begin_rows(left)
        lines: list[str] = []
        known: dict[Instruction, VectorValue] = {}
        for stage in range(self.stages):
            loop = self._stage_loop(stage, left, known)
            lines += row_buffer.drain()
            lines += loop
            for ins in self.module:
                if ins.name in REDUCTIONS and self.stage[ins] == stage + 1:
                    self._finish(ins)
            lines += row_buffer.drain()
        self._store_rows(left)
        return [*lines, *row_buffer.drain()]

    def row_results(self, left: str) -> list[str]:
        """Lines that store the results of one vector of columns, from accumulators that are in registers."""
        self.begin_rows(left)
        for ins in self.reductions:
            self._finish(ins)
        self._store_rows(left)
        return self.row_printer.buffer.drain()

    def begin_rows(self, left: str) -> CodeBuffer:
        """Where row values are printed, from the first stage to the results."""
        buffer = CodeBuffer(prefix=f"{'u' if left else 's'}")
        self.row_printer = VectorPrinter(buffer, self.row_lanes, fast_math=self.fast_math)
        self.row_known = {}
        self.row_at = "r"
        self.left = left
        return buffer

    def _store_rows(self, left: str) -> None:
        """Print the stores of all results that are row values."""
        for k, (result, tensor) in enumerate(zip(self.results, self.outputs)):
            if tensor.lens != self.full:
                value = self.row_printer.stored(self.row(result))
                if self.row_mode:
                    self.row_printer.buffer.line(f"store_scalar(r_out{k}, 0, {value})")
                else:
                    position = len(self.inputs) + k
                    self.row_printer.buffer.line(
                        store_text(f"r_out{k}", "c", self.inner[position], self.step[position], value, left)
                    )

    def row(self, ins: Instruction) -> VectorValue:
        """Handler value of a row value, printed outside of the loops."""
        if ins not in self.row_known:
            printer = self.row_printer
            if ins.literal is not None:
                value = printer.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
            elif ins.is_param:
                k = self.parameters.index(ins)
                text = (
                    f"load_scalar({self.row_at}_x{k}, 0)"
                    if self.row_mode
                    else load_text(f"r_x{k}", "c", self.inner[k], self.step[k], self.lanes, self.left)
                )
                value = printer.loaded(text, ins.shape.type)
            elif ins.name == "multibroadcast":
                value = self.row(ins.inputs[0])
            elif isinstance(ins.op, HeadMean):
                if not self.pipelined:
                    printer.buffer.lines += self._head_lines(ins)
                value = VectorValue(f"{self.head_name(ins)}_{self.row_age if self.pipelined else 1}", ins.shape.type)
            elif ins.name in REDUCTIONS and self.pipelined:
                text = f"{self.accumulator(ins)}_{self.row_age - self.stage[ins]}"
                value = finished(REDUCTIONS[ins.name], printer, text, ins.inputs[0].shape.type)
            elif isinstance(ins.op, Pointwise):
                value = ins.op.scalar(printer, *(self.row(i) for i in ins.inputs))
            else:
                raise CompileError(f"{ins.op} is not known as a row value here")
            self.row_known[ins] = value
        return self.row_known[ins]

    def head_name(self, ins: Instruction) -> str:
        return f"head{self.heads.index(ins)}"

    def accumulator(self, ins: Instruction) -> str:
        return f"acc{self.reductions.index(ins)}"

    def loop_offset_at(self, k: int, innermost: str) -> str:
        """Offset of a full operand from its row, with another expression for the index of the innermost loop."""
        return self.loop_offset[k].replace(f"j{len(self.loops) - 1} ", f"{innermost} ") or "0"

    def _head_lines(self, ins: Instruction) -> list[str]:
        """Lines that compute what variances of a row are taken about, before its first pass."""
        element = Element(self, 0, "", "", keeps=False)
        value = element.printer.register(element.value(ins.inputs[0]))
        lines = head_lines(self.head_name(ins), dtype_name(ins.shape.type), self.lanes, element.buffer.drain(), value)
        return [*(f"q_{name} = {self.row_at}_{name}" for name in self.names), *lines]

    def _finish(self, ins: Instruction) -> None:
        """Turn an accumulator into the reduction's row value."""
        reduction = self.reduction(ins)
        text = self.accumulator(ins)
        if self.row_mode:
            text = f"{across_lanes(reduction)}({text})"
        self.row_known[ins] = finished(reduction, self.row_printer, text, ins.inputs[0].shape.type)

    def _stage_work(self, stage: int) -> tuple[list[Instruction], list[tuple[int, Instruction]]]:
        """The reductions of one stage, and the full results that it stores, with their numbers."""
        reductions = [i for i in self.module if i.name in REDUCTIONS and self.stage[i] == stage + 1]
        stores = [
            (k, r)
            for k, (r, t) in enumerate(zip(self.results, self.outputs))
            if t.lens == self.full and self._store_stage(r) == stage
        ]
        return reductions, stores

    def initial(self, reductions: Sequence[Instruction]) -> list[str]:
        return [
            f"{self.accumulator(r)} = {initial_text(REDUCTIONS[r.name], r.inputs[0].shape.type, self.lanes)}"
            for r in reductions
        ]

    def _stage_loop(self, stage: int, left: str, known: dict[Instruction, VectorValue]) -> list[str]:
        reductions, stores = self._stage_work(stage)
        if not reductions and not stores:
            return []
        if self.whole_row:
            tail = "cols" if self.cols < self.lanes else ""
            printed = Element(self, stage, tail, "", known=known).lines(reductions, stores)
            ahead = self._ahead(0) if stage == 0 else []
            moved = [f"q_{name} = r_{name}" for k, name in enumerate(self.names) if self.is_full[k] and stage == 0]
            return [*moved, "c = 0", *ahead, *printed]
        lines = self.initial(reductions)

        def element(tail: str) -> list[str]:
            ahead = [] if tail or left else self._ahead(stage)
            return [*ahead, *Element(self, stage, tail, left).lines(reductions, stores)]

        if self.row_mode:
            inner = vector_loop(self.lanes, element, *self.bounds[-1], aligned=self._aligned(stores))
        else:
            inner = [*element(left), f"place += {self.lanes}"]
            lines.append("place = 0")
        moved = [
            f"q_{name} = offset(r_{name}, {self.loop_offset[k]})" if self.loop_offset[k] else f"q_{name} = r_{name}"
            for k, name in enumerate(self.names)
            if self.is_full[k]
        ]
        inner = [*moved, *inner]
        for d in range(len(self.loops) - 1, -1, -1):
            inner = [f"for j{d} in range({', '.join(self.bounds[d])}):", *indent(inner, 1)]
        return [*lines, *inner]

    def _aligned(self, stores: Sequence[tuple[int, Instruction]]) -> str:
        """Pointer to the result whose addresses the loop that stores it lines up with, if any is streamed."""
        for k, _ in stores:
            if self.streamed and self.inner[len(self.inputs) + k] == 1 and streamable(self.outputs[k], self.lanes):
                return f"q_out{k}"
        return ""

    def _ahead(self, stage: int) -> list[str]:
        """Lines that ask for what is read soon, of operands that come from memory.

        The first stage asks for what it will read itself; the others, whose row is in the caches by then, for what the
        first will read next: the next row, or in column mode the next columns.
        """
        found = []
        for k, tensor in enumerate(self.inputs if self.past_caches else ()):
            size, row, next_row = tensor.type.size, self.loop_offset[k], self.next_row[k]
            if not self.is_full[k] or self.inner[k] != 1 or self.same_for_rows[k]:
                continue
            if not self.row_mode:
                rows = ROWS_AHEAD if self.stages == 1 else max(1, AHEAD_BYTES // (self.lanes * size))
                ahead = f"c + {self.lanes}" if stage or not row else f"c + {rows} * ({row.split(' * ')[-1]})"
            elif stage == 0:
                ahead = f"c + {AHEAD_BYTES // size}"
            elif next_row and not self.loops and self.cols * size <= LONGEST_AHEAD:
                ahead = f"c + {next_row}"
            else:
                continue
            found += self.prefetches(k, ahead)
        return found

    def prefetches(self, k: int, place: str, at: str = "q") -> list[str]:
        """Lines that ask for as much of an input as one step of a loop reads."""
        step = host.CACHE_LINE // self.inputs[k].type.size
        return [f"prefetch({at}_x{k}, {place} + {i})" for i in range(0, self.lanes, step)]
