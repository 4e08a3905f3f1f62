"""Row values of a reduction cluster: values computed once per row, or once per vector of columns, outside the loops."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import CompileError
from ....graph.instruction import Instruction
from ....ops.base import Pointwise
from ....ops.reduce_parts import HeadMean
from ...printer import CodeBuffer, VectorPrinter, VectorValue
from ...reductions import REDUCTIONS
from ...statements import load_text, store_text
from .accumulators import across_lanes, finished
from .element import lines_of_head
from .means import mean_lines, mean_name
from .reduction_layout import Names, ReduceLayout


class RowValues:
    """Prints row values, each where it is first needed.

    Args:
        prefix: prefix of the names of values.
        accumulated: returns the expression of a reduction's result, reduced across lanes in row mode; for a mean whose
            sum can overflow, the expression of the mean.
        age: in a pipeline of rows, the number of steps since the mean of the row's head was finished, which is the
            suffix of the mean's variable; 1 without a pipeline.
        at: prefix of the pointers to the operands' rows, such as ``r`` of ``r_x0``.
        left: number of columns of a partial vector; empty for a whole vector.
    """

    def __init__(
        self,
        layout: ReduceLayout,
        names: Names,
        prefix: str,
        accumulated: Callable[[Instruction], str],
        age: int = 1,
        at: str = "r",
        left: str = "",
    ) -> None:
        self._layout, self._names, self._accumulated = layout, names, accumulated
        self.at = at
        self._age, self._left = age, left
        self._buffer = CodeBuffer(prefix)
        lanes = 0 if layout.walk.row_mode else layout.lanes
        self._printer = VectorPrinter(self._buffer, lanes, fast_math=layout.fast_math)
        self._known: dict[Instruction, VectorValue] = {}

    def drain(self) -> list[str]:
        """Return the lines printed so far and clear the buffer; values that the lines compute are not printed again."""
        return self._buffer.drain()

    def value(self, ins: Instruction) -> VectorValue:
        """Return the variable with a row value, and print its computation at the first call."""
        if ins not in self._known:
            self._known[ins] = self._print(ins)
        return self._known[ins]

    def store_results(self) -> None:
        """Print the stores of all results that are row values."""
        layout = self._layout
        for k, (result, is_full) in enumerate(zip(layout.stages.results, layout.stages.full_results)):
            if is_full:
                continue
            pointer, value = f"{self.at}_out{k}", self._printer.stored(self.value(result))
            if layout.walk.row_mode:
                self._buffer.line(f"store_scalar({pointer}, 0, {value})")
            else:
                position = len(layout.walk.inputs) + k
                inner, step = layout.inner[position], self._names.steps[position]
                self._buffer.line(store_text(pointer, "c", inner, step, value, self._left))

    def _print(self, ins: Instruction) -> VectorValue:
        layout, printer = self._layout, self._printer
        if ins.literal is not None:
            return printer.const(ins.literal.numpy().reshape(-1)[0].item(), ins.shape.type)
        if ins.is_param:
            k = layout.stages.parameters.index(ins)
            pointer = f"{self.at}_x{k}"
            if layout.walk.row_mode:
                return printer.loaded(f"load_scalar({pointer}, 0)", ins.shape.type)
            inner, step = layout.inner[k], self._names.steps[k]
            return printer.loaded(load_text(pointer, "c", inner, step, layout.lanes, self._left), ins.shape.type)
        if ins.name == "multibroadcast":
            return self.value(ins.inputs[0])
        if isinstance(ins.op, HeadMean):
            return VectorValue(f"{self._names.heads[ins]}_{self._age}", ins.shape.type)
        if ins.name in REDUCTIONS:
            reduction = layout.stages.reduction(ins)
            return finished(reduction, printer, self._accumulated(ins), ins.inputs[0].shape.type)
        if isinstance(ins.op, Pointwise):
            return ins.op.scalar(printer, *(self.value(i) for i in ins.inputs))  # type: ignore[no-any-return]
        raise CompileError(f"{ins.op} is not known as a row value here")


def rows_at(layout: ReduceLayout, names: Names, left: str = "", prefix: str = "") -> RowValues:
    """Return a printer of the row values at ``r``: of a row, or in column mode of a vector of columns, whose first
    ``left`` columns exist, if given.

    A reduction's result may be requested once its accumulator is complete, and a mean after `mean_lines`. Names begin
    with ``prefix``, by default ``s`` for whole vectors and ``u`` for partial vectors.
    """

    def accumulated(ins: Instruction) -> str:
        text = names.accumulators[ins]
        if layout.stages.sum_can_overflow(ins):
            return mean_name(names, ins)
        return f"{across_lanes(layout.stages.reduction(ins))}({text})" if layout.walk.row_mode else text

    return RowValues(layout, names, prefix or ("u" if left else "s"), accumulated, left=left)


def all_stages(
    layout: ReduceLayout, names: Names, stage_lines: Callable[[int, RowValues], list[str]], left: str = ""
) -> list[str]:
    """Return the lines of all stages for one row (row mode) or one vector of columns (column mode), and the stores of
    the results that are row values.

    ``stage_lines`` prints a stage's code for all elements.
    """
    stages, rows = layout.stages, rows_at(layout, names, left)
    lines: list[str] = []
    for ins in stages.heads:
        head = lines_of_head(layout, names, rows.value, "r", ins)
        lines += [*rows.drain(), *head]
    for stage in range(stages.count):
        printed = stage_lines(stage, rows)
        checked = mean_lines(layout, names, stage, rows_at(layout, names, left, "o"), left)
        lines += [*rows.drain(), *printed, *checked]
        for ins in stages.reduced_in(stage):
            rows.value(ins)
        lines += rows.drain()
    rows.store_results()
    return [*lines, *rows.drain()]
