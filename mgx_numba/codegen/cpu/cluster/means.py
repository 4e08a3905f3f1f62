"""Means whose sum overflows its accumulator although the mean itself is representable.

The kernel tests each complete sum. If it is infinite or NaN, a branch sums the row, or the vector of columns, once more
with every element multiplied by `DOWN`, and divides that sum by ``count * DOWN``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....graph.instruction import Instruction
from ....ops.reduce import DOWN
from ...statements import indent
from .accumulators import across_lanes, initial_text
from .element import Element
from .reduction_layout import Names, ReduceLayout
from .vectors import Strategy

if TYPE_CHECKING:
    from .row_values import RowValues


def mean_name(names: Names, ins: Instruction) -> str:
    """Return the variable for a mean whose sum may overflow."""
    return f"{names.accumulators[ins]}_mean"


def mean_lines(layout: ReduceLayout, names: Names, stage: int, rows: RowValues, left: str = "") -> list[str]:
    """Return lines that compute the means of one stage from their sums, and repeat sums that overflowed.

    Args:
        rows: printer of the row values that the repeated sums read; nothing else may use it.
        left: number of columns of a partial vector; empty for a whole vector.
    """
    stages, row_mode = layout.stages, layout.walk.row_mode
    found = [i for i in stages.reduced_in(stage) if stages.sum_can_overflow(i)]
    lines = []
    for ins in found:
        total = _total(layout, ins, names.accumulators[ins])
        lines.append(f"{mean_name(names, ins)} = div({total}, cast_{_dtype(layout, ins)}(count))")
    if not found:
        return lines
    in_range = [f"lt(abs({mean_name(names, ins)}), INF)" for ins in found]
    beyond = [f"not {x}" if row_mode else f"reduce_or(logical_not({x}))" for x in in_range]
    again = _of_registers(layout, names, found) if _in_registers(layout) else _sums(layout, names, found, rows, left)
    for ins, known in zip(found, in_range):
        dtype, mean = _dtype(layout, ins), mean_name(names, ins)
        total = _total(layout, ins, f"{names.accumulators[ins]}_again")
        count = f"mul(cast_{dtype}(count), const_{dtype}({DOWN!r}, 0))"
        again.append(f"{mean} = where({known}, {mean}, div({total}, {count}))")
    return [*lines, f"if {' or '.join(beyond)}:", *indent(again)]


def _dtype(layout: ReduceLayout, ins: Instruction) -> str:
    return str(layout.stages.reduction(ins).accumulator(ins.inputs[0].shape.type).dtype_name)


def _total(layout: ReduceLayout, ins: Instruction, accumulator: str) -> str:
    return f"{across_lanes(layout.stages.reduction(ins))}({accumulator})" if layout.walk.row_mode else accumulator


def _in_registers(layout: ReduceLayout) -> bool:
    return layout.strategy is Strategy.WHOLE_ROWS


def _scaled(layout: ReduceLayout, ins: Instruction, name: str) -> str:
    return f"mul({name}, const_{_dtype(layout, ins)}({DOWN!r}, {layout.lanes}))"


def _of_registers(layout: ReduceLayout, names: Names, means: Sequence[Instruction]) -> list[str]:
    """Return lines that repeat sums in scaled form, from accumulators whose lanes hold all elements of a row."""
    return [f"{name}_again = {_scaled(layout, ins, name)}" for ins in means for name in [names.accumulators[ins]]]


def _sums(layout: ReduceLayout, names: Names, means: Sequence[Instruction], rows: RowValues, left: str) -> list[str]:
    """Return lines that sum the scaled elements of the row at ``rows.at``, or of the columns at ``c``."""
    walk, stages, lanes = layout.walk, layout.stages, layout.lanes
    element = Element(
        layout, names, rows.value, stages.stage[means[0].inputs[0]], "left" if walk.row_mode else left, keeps=False
    )
    for ins in means:
        name = f"{names.accumulators[ins]}_again"
        element.buffer.line(f"{name} = add({name}, {_scaled(layout, ins, element.joined(ins))})")
    inner = element.buffer.drain()
    if walk.row_mode:
        low, high = names.parts.bounds[-1]
        loop = [f"left = imin({high} - c, {lanes})", *inner, f"c += {lanes}"]
        inner = [f"c = {low}", f"while c < {high}:", *indent(loop)]
    places = [(name, names.loop_offset(k)) for k, name in enumerate(names.operands) if walk.is_full[k]]
    inner = [*(f"q_{name} = offset({rows.at}_{name}, {place or '0'})" for name, place in places), *inner]
    for d in range(len(layout.loops) - 1, -1, -1):
        inner = [f"for j{d} in range({', '.join(names.parts.bounds[d])}):", *indent(inner)]
    start = [
        f"{names.accumulators[i]}_again = {initial_text(stages.reduction(i), i.inputs[0].shape.type, lanes)}"
        for i in means
    ]
    return [*rows.drain(), *start, *inner]
