"""Columns with accumulators in memory: operands larger than the caches are read row by row, in long runs.

With accumulators in registers, a task would read a short run of each row: another page of memory each time, of which
the hardware fetches more than is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import known_in
from ...statements import for_tasks, indent, vector_loop
from .accumulators import initial_text
from .element import Element
from .means import mean_lines
from .names import Names
from .prefetch import prefetches
from .reduction_layout import ReduceLayout
from .row_values import rows_at


def each_row(layout: ReduceLayout, names: Names, row: Sequence[str]) -> list[str]:
    """Return lines that run ``row`` for the rows of each task, with pointers ``r_<operand>`` to them.

    In column mode its columns are ``first`` to ``last``.
    """
    places = [names.odometer.offset(k) + names.parts.offsets[k] for k in range(len(names.operands))]
    pointers = [f"r_{name} = offset(p_{name}, {place})" for name, place in zip(names.operands, places)]
    return for_tasks(names.odometer.each_row([*pointers, *row], chunk=names.parts.lines))


ROWS = 4
"""Rows of which each element is read before the accumulators are updated, so that accumulators are loaded less
often."""
AHEAD = 1 << 10
"""Prefetch distance (bytes): memory further ahead is too often on another page."""


def column_lines(layout: ReduceLayout, names: Names) -> list[str]:
    """Return the body of a kernel of strategy ``COLUMNS``."""
    stages, lanes = layout.stages, layout.lanes
    reserved = [
        f"kept{k} = local_{stages.reduction(i).accumulator(i.inputs[0].shape.type).dtype_name}"
        f"({layout.longest_chunk + lanes})"
        for k, i in enumerate(stages.reductions)
    ]

    def clear(left: str) -> list[str]:
        neutral = [initial_text(stages.reduction(i), i.inputs[0].shape.type, lanes) for i in stages.reductions]
        return [f"store(kept{k}, c - first, {value})" for k, value in enumerate(neutral)]

    def results(left: str) -> list[str]:
        rows = rows_at(layout, names, left)
        checked = mean_lines(layout, names, 0, rows_at(layout, names, left, "o"), left)
        for ins in stages.reductions:
            rows.value(ins)
        rows.store_results()
        return [*_load(layout, names), *checked, *rows.drain()]

    chunk = [*vector_loop(lanes, clear), *_walk(layout, names), *vector_loop(lanes, results)]
    return [*reserved, *each_row(layout, names, chunk)]


def _load(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that load the accumulators of a vector of columns."""
    accumulators = enumerate(names.accumulators.values())
    return [f"{name} = load(kept{k}, c - first, {layout.lanes})" for k, name in accumulators]


def _walk(layout: ReduceLayout, names: Names) -> list[str]:
    """Return lines that add all rows of the columns ``first`` to ``last`` to their accumulators, several rows at a
    time."""
    bounds = names.parts.bounds
    last = len(bounds) - 1
    low, high = bounds[last]

    def pass_over(count: int) -> list[str]:
        pointers = [
            f"q{row or ''}_{name} = offset(r_{name}, {names.loop_offset(k, {last: f'(j{last} + {row})'}) or '0'})"
            for row in range(count)
            for k, name in enumerate(names.operands)
            if layout.walk.is_full[k]
        ]
        loop = vector_loop(layout.lanes, lambda left: _add_rows(layout, names, count, left))
        return [*pointers, *loop, f"j{last} += {count}"]

    walk = [
        f"j{last} = {low}",
        f"while j{last} + {ROWS} <= {high}:",
        *indent(pass_over(ROWS)),
        f"while j{last} < {high}:",
        *indent(pass_over(1)),
    ]
    for d in range(last - 1, -1, -1):
        walk = [f"for j{d} in range({', '.join(bounds[d])}):", *indent(walk)]
    return walk


def _add_rows(layout: ReduceLayout, names: Names, count: int, left: str) -> list[str]:
    """Return lines that add one vector of ``count`` rows, at pointers ``q``, ``q1``, ..., to the accumulators."""
    reductions = layout.stages.reductions
    combine = [layout.stages.reduction(ins).combine for ins in reductions]
    at = [f"q{row or ''}" for row in range(count)]
    values = rows_at(layout, names, left)
    element = Element(layout, names, values.value, 0, left)
    contributions = [element.contributions(reductions, pointers) for pointers in at]
    while len(contributions) > 1:
        half = len(contributions) // 2
        for k in range(len(reductions)):
            for row in range(half):
                pair = contributions[row][k], contributions[row + half][k]
                contributions[row][k] = element.buffer.emit(f"{combine[k]}({pair[0]}, {pair[1]})")
        contributions = contributions[:half]
    accumulators = list(names.accumulators.values())
    return [
        *values.drain(),
        *([] if left else _fetch(layout, at)),
        *_load(layout, names),
        *element.buffer.drain(),
        *(f"{name} = {combine[k]}({name}, {contributions[0][k]})" for k, name in enumerate(accumulators)),
        *(f"store(kept{k}, c - first, {name})" for k, name in enumerate(accumulators)),
    ]


def _fetch(layout: ReduceLayout, at: list[str]) -> list[str]:
    """Return lines that prefetch the data of rows a little past these pointers."""
    walk = layout.walk
    known = [k for k in range(len(walk.inputs)) if walk.is_full[k] and known_in(layout.inner[k], 1)]
    return [
        line
        for pointers in at
        for k in known
        for line in prefetches(layout, k, f"c + {AHEAD // walk.inputs[k].type.size}", pointers)
    ]
