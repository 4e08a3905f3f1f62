"""What one stage of a reduction cluster does for one vector of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....graph.instruction import Instruction
from ...reductions import REDUCTIONS
from ..loops import load_text, store_text
from ..printer import CodeBuffer, VectorPrinter, VectorValue
from .accumulators import initial_text

if TYPE_CHECKING:
    from .reduce import ReduceKernel

__all__ = ["Element"]


class Element:
    """Prints what one stage does for one vector of elements, of which ``known`` values are in registers already."""

    def __init__(
        self,
        kernel: ReduceKernel,
        stage: int,
        tail: str,
        column_left: str,
        keeps: bool = True,
        known: dict[Instruction, VectorValue] | None = None,
    ) -> None:
        self.kernel, self.stage, self.keeps = kernel, stage, keeps
        self.left = tail or column_left
        self.mask_tail = bool(tail) and kernel.row_mode
        self.buffer = CodeBuffer(prefix=f"{'w' if self.left else 'v'}{stage}_")
        self.printer = VectorPrinter(self.buffer, kernel.lanes, fast_math=kernel.fast_math)
        self.known: dict[Instruction, VectorValue] = {} if known is None else known
        self.read: set[int] = set()
        self.at = "q"

    def value(self, ins: Instruction) -> VectorValue:
        kernel = self.kernel
        if kernel.row_value[ins]:
            return kernel.row(ins)
        if ins in self.known:
            return self.known[ins]
        slot = list(kernel.cached).index(ins) if ins in kernel.cached else -1
        if slot >= 0 and kernel.cached[ins] < self.stage:
            text = self.buffer.emit(f"load(cache{slot}, {kernel.place}, {kernel.lanes})")
            value = VectorValue(text, ins.shape.type)
        elif ins.is_param:
            k = kernel.parameters.index(ins)
            text = load_text(f"{self.at}_x{k}", "c", kernel.inner[k], kernel.step[k], kernel.lanes, self.left)
            self.read.add(k)
            value = self.printer.loaded(text, ins.shape.type)
        elif ins.name == "multibroadcast":
            value = self.value(ins.inputs[0])
        else:
            value = ins.op.scalar(self.printer, *(self.value(i) for i in ins.inputs))  # type: ignore[attr-defined]
        self.known[ins] = value
        if self.keeps and slot >= 0 and kernel.cached[ins] == self.stage:
            stored = self.printer.register(value)
            part = f", {self.left})" if kernel.pipelined and self.left else ")"
            self.buffer.line(f"store{'_tail' * (part != ')')}(cache{slot}, {kernel.place}, {stored}{part}")
        return value

    def contributions(self, reductions: Sequence[Instruction], at: str) -> list[str]:
        """Names of what the elements at pointers that are named ``at`` contribute to each reduction."""
        self.at, self.known = at, {}
        names = []
        for ins in reductions:
            value = REDUCTIONS[ins.name].contribution(self.printer, self.value(ins.inputs[0]), ins.inputs[0].shape.type)
            names.append(self.printer.register(value))
        return names

    def lines(self, reductions: Sequence[Instruction], stores: Sequence[tuple[int, Instruction]]) -> list[str]:
        kernel = self.kernel
        for ins in reductions:
            reduction = kernel.reduction(ins)
            type = ins.inputs[0].shape.type
            value = reduction.contribution(self.printer, self.value(ins.inputs[0]), type)
            if kernel.whole_row and kernel.row_value[ins.inputs[0]]:
                value = self.printer.splat(value)
            name = self.printer.register(value)
            if self.mask_tail:
                mask = self.buffer.emit(f"lane_mask({self.left}, {kernel.lanes})")
                name = self.buffer.emit(f"where({mask}, {name}, {initial_text(reduction, type, kernel.lanes)})")
            accumulator = kernel.accumulator(ins)
            joined = name if kernel.whole_row else f"{reduction.combine}({accumulator}, {name})"
            self.buffer.line(f"{accumulator} = {joined}")
        for k, result in stores:
            position = len(kernel.inputs) + k
            value = self.value(result)
            if kernel.row_value[result]:
                value = self.printer.splat(value)
            stored = self.printer.stored(value)
            inner, step = kernel.inner[position], kernel.step[position]
            self.buffer.line(store_text(f"q_out{k}", "c", inner, step, stored, self.left, kernel.streamed))
        return self.buffer.drain()
