"""Columns whose accumulators are in memory: operands larger than the caches are read row by row, in long runs.

With accumulators in registers, a task would read a short run of each row: another page of memory each time, of which
the hardware fetches more than is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...reductions import REDUCTIONS
from ..loops import indent, vector_loop
from .element import Element

if TYPE_CHECKING:
    from .reduce import ReduceKernel

__all__ = ["column_lines", "kept_memory"]

ROWS = 4
AHEAD = 1 << 10
"""Bytes: memory that lies further ahead is another page's too often."""


def kept_memory(kernel: ReduceKernel) -> list[str]:
    """Lines that reserve memory for the accumulators of one task."""
    return [
        f"kept{k} = local_{r.accumulator(i.inputs[0].shape.type).numpy.name}({kernel.longest_chunk + kernel.lanes})"
        for k, (i, r) in enumerate((i, REDUCTIONS[i.name]) for i in kernel.reductions)
    ]


def column_lines(kernel: ReduceKernel) -> list[str]:
    """Lines that reduce the columns ``first`` to ``last``, several rows at a time."""
    lanes, names = kernel.lanes, [kernel.accumulator(i) for i in kernel.reductions]
    initial = [line.split(" = ", 1)[1] for line in kernel.initial(kernel.reductions)]
    load = [f"{name} = load(kept{k}, c - first, {lanes})" for k, name in enumerate(names)]
    keep = [f"store(kept{k}, c - first, {name})" for k, name in enumerate(names)]

    def clear(left: str) -> list[str]:
        return [f"store(kept{k}, c - first, {value})" for k, value in enumerate(initial)]

    def fetch(at: str) -> list[str]:
        known = [k for k in range(len(kernel.inputs)) if kernel.is_full[k] and kernel.inner[k] == 1]
        return [line for k in known for line in kernel.prefetches(k, f"c + {AHEAD // kernel.inputs[k].type.size}", at)]

    def rows(count: int, left: str) -> list[str]:
        values = kernel.begin_rows(left)
        element = Element(kernel, 0, "", left)
        contributions = [element.contributions(kernel.reductions, f"q{row}" if row else "q") for row in range(count)]
        lines = element.buffer.drain()
        while len(contributions) > 1:
            half = len(contributions) // 2
            for k, ins in enumerate(kernel.reductions):
                for row in range(half):
                    pair = contributions[row][k], contributions[row + half][k]
                    contributions[row][k] = element.buffer.emit(f"{REDUCTIONS[ins.name].combine}({pair[0]}, {pair[1]})")
            contributions = contributions[:half]
        lines += element.buffer.drain()
        for k, ins in enumerate(kernel.reductions):
            lines.append(f"{names[k]} = {REDUCTIONS[ins.name].combine}({names[k]}, {contributions[0][k]})")
        ahead = [line for row in range(0 if left else count) for line in fetch(f"q{row}" if row else "q")]
        return [*values.drain(), *ahead, *load, *lines, *keep]

    low, high = kernel.bounds[-1]
    last = len(kernel.bounds) - 1

    def pointers(count: int) -> list[str]:
        return [
            f"q{row or ''}_{name} = offset(r_{name}, {kernel.loop_offset_at(k, f'(j{last} + {row})')})"
            for row in range(count)
            for k, name in enumerate(kernel.names)
            if kernel.is_full[k]
        ]

    def pass_over(count: int) -> list[str]:
        return [*pointers(count), *vector_loop(lanes, lambda left: rows(count, left)), f"j{last} += {count}"]

    walk = [
        f"j{last} = {low}",
        f"while j{last} + {ROWS} <= {high}:",
        *indent(pass_over(ROWS), 1),
        f"while j{last} < {high}:",
        *indent(pass_over(1), 1),
    ]
    for d in range(last - 1, -1, -1):
        walk = [f"for j{d} in range({', '.join(kernel.bounds[d])}):", *indent(walk, 1)]
    results = vector_loop(lanes, lambda left: [*load, *kernel.row_results(left)])
    return [*vector_loop(lanes, clear), *walk, *results]
