"""Rows one after the other, or columns vector by vector, each through all stages before the next, all in registers."""

from __future__ import annotations

from ...statements import indent, vector_loop
from .accumulators import initial_lines
from .element import Element, cache_memory
from .names import Names
from .prefetch import soon_read, streamed_result
from .reduction_layout import ReduceLayout
from .row_values import RowValues, all_stages
from .tasks import each_row


def row_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``ROWS``."""
    row = _stages(layout, names, "") if layout.walk.row_mode else _vectors_of_columns(layout, names)
    return [*cache_memory(layout, names), *each_row(layout, names, row)]


def _vectors_of_columns(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that take the columns ``first`` to ``last`` through all stages, a vector at a time."""
    return [
        "c = first",
        f"while c + {layout.lanes} <= last:",
        *indent([*_stages(layout, names, ""), f"c += {layout.lanes}"]),
        "if c < last:",
        *indent(["left = last - c", *_stages(layout, names, "left")]),
    ]


def _stages(layout: ReduceLayout, names: Names, left: str) -> list[str]:
    """Return lines of all stages for one row, or for one vector of columns (its first ``left`` columns, if given)."""
    return all_stages(layout, names, lambda stage, rows: _stage(layout, names, stage, left, rows), left)


def _stage(layout: ReduceLayout, names: Names, stage: int, left: str, rows: RowValues) -> list[str]:
    """Return lines of the loops over the reduced axes in which one stage reduces and stores."""
    reductions, stores = layout.stages.reduced_in(stage), layout.stages.stored_in(stage)
    if not reductions and not stores:
        return []

    def element(left: str) -> list[str]:
        ahead = [] if left else soon_read(layout, names, stage)
        return [*ahead, *Element(layout, names, rows.value, stage, left).lines(reductions, stores)]

    start = initial_lines(names.accumulators, reductions, layout.lanes)
    if layout.walk.row_mode:
        streamed = streamed_result(layout, stage)
        inner = vector_loop(layout.lanes, element, *names.parts.bounds[-1], aligned=streamed and f"q_{streamed}")
    else:
        inner = [*element(left), f"place += {layout.lanes}"]
        start.append("place = 0")
    offsets = [(name, names.loop_offset(k)) for k, name in enumerate(names.operands) if layout.walk.is_full[k]]
    inner = [*(f"q_{name} = offset(r_{name}, {at})" if at else f"q_{name} = r_{name}" for name, at in offsets), *inner]
    for d in range(len(layout.loops) - 1, -1, -1):
        inner = [f"for j{d} in range({', '.join(names.parts.bounds[d])}):", *indent(inner)]
    return [*start, *inner]
