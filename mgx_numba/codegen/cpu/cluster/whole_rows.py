"""Rows that registers hold: no stage re-reads or recomputes values of an earlier stage."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ...printer import VectorValue
from .element import Element
from .names import Names
from .prefetch import soon_read
from .reduction_layout import ReduceLayout
from .row_values import RowValues, all_stages
from .tasks import each_row


def whole_row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``WHOLE_ROWS``."""
    known: dict[Instruction, VectorValue] = {}
    left = "cols" if layout.cols < layout.lanes else ""

    def stage_lines(stage: int, rows: RowValues) -> list[str]:
        reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
        if not reductions and not stores:
            return []
        element = Element(layout, names, rows.value, stage, left, known=known)
        printed = element.whole_row_lines(reductions, stores)
        start = [f"q_{name} = r_{name}" for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
        ahead = soon_read(layout, names, 0)
        return [*start, "c = 0", *ahead, *printed] if stage == 0 else ["c = 0", *printed]

    return each_row(layout, names, all_stages(layout, names, stage_lines))
