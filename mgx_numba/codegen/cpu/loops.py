"""Building blocks of cluster kernels: task sizes, and indices of the outer dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dim import Length, any_of, equal, is_symbolic, known_in, known_less, less, maximum, minimum, select
from ..arguments import Arguments
from ..problems.cluster import Tensor
from ..statements import INDENT, indent
from . import host
from .machine import machine

TASK_ELEMENTS = 16384
"""Elements of a task where there are enough: some microseconds of work, against tens of nanoseconds for a claim."""
LEAST_ELEMENTS = 4096
"""Least elements for which claiming a task pays, however few tasks there are: at least some hundred nanoseconds of
work."""
CLAIM_CACHES = 2
"""L2 caches that the memory of one claim would fill: longer runs of addresses end less evenly."""
AHEAD_BYTES = 4 << 10
"""Prefetch distance (bytes): a page, about the bytes a core reads in the time of one memory access."""
FEWEST_CLAIMS = 32
"""Least claims of a launch with enough elements: 4 for each of 8 threads. Fewer claims end unevenly."""
MOST_TASKS = 1 << 30
"""Most tasks: half the range of the claim counter; the rest is for claims past the last task."""
LIGHT_NODES = 24
"""Most instructions of a body whose values fit the registers for two vectors at a time. No figures kept."""


def lanes_for(nodes: int) -> int:
    """Return the lanes of a cluster kernel: two float32 registers for light bodies, one for heavy bodies."""
    return host.lanes("float32") * (2 if nodes <= LIGHT_NODES else 1)


class Odometer:
    """Indices of the outer dimensions, advanced row by row, and the operand offsets computed from them."""

    def __init__(
        self, arguments: Arguments, lens: Sequence[Length], strides: Sequence[Sequence[Length]], prefix: str = ""
    ) -> None:
        self.rank = len(lens)
        self.prefix = prefix
        self.lens = [arguments.integer(f"{prefix}n{d}", n) for d, n in enumerate(lens)]
        self.strides = [
            ["" if known_in(s, 0) else arguments.integer(f"{prefix}s{k}_{d}", s) for d, s in enumerate(operand)]
            for k, operand in enumerate(strides)
        ]

    def start(self, row: str) -> list[str]:
        """Return lines that set the indices for a flat row number."""
        if not self.rank:
            return []
        lines = [f"{self.prefix}rest = {row}"]
        for d in range(self.rank - 1, 0, -1):
            lines += [
                f"{self.prefix}i{d} = imod({self.prefix}rest, {self.lens[d]})",
                f"{self.prefix}rest = idiv({self.prefix}rest, {self.lens[d]})",
            ]
        return [*lines, f"{self.prefix}i0 = {self.prefix}rest"]

    def step(self) -> list[str]:
        """Return lines that advance to the next row."""
        lines: list[str] = []
        pad = ""
        for d in range(self.rank - 1, -1, -1):
            lines.append(f"{pad}{self.prefix}i{d} += 1")
            if d:
                lines.append(f"{pad}if {self.prefix}i{d} == {self.lens[d]}:")
                pad += INDENT
                lines.append(f"{pad}{self.prefix}i{d} = 0")
        return lines

    def each_row(
        self, inside: Sequence[str], chunk: Sequence[str] = (), before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines of a task that run ``inside`` for each of its rows.

        A task has ``batch`` rows of ``rows``, and one of ``chunks`` chunks of their ``cols`` columns, from ``first`` to
        ``last``.

        Args:
            chunk: lines that run once the bounds are known.
            before: lines before the loop.
            after: lines after the loop.
        """
        return [
            "block = idiv(task, chunks)",
            "first = (task - block * chunks) * chunk",
            "last = imin(cols, first + chunk)",
            *chunk,
            "row = block * batch",
            "stop = imin(rows, row + batch)",
            *self.start("row"),
            *before,
            "while row < stop:",
            *indent([*inside, "row += 1", *self.step()]),
            *after,
        ]

    def offset(self, operand: int) -> str:
        """Return the expression of an operand's element offset at the current indices."""
        terms = [f"{self.prefix}i{d} * {s}" for d, s in enumerate(self.strides[operand]) if s]
        return " + ".join(terms) or "0"


def task_elements(total: Length) -> Length:
    """Return the elements of one task of a launch over ``total``: enough to pay for claiming it, and few enough to
    share."""
    shared = maximum(LEAST_ELEMENTS, minimum(TASK_ELEMENTS, total // FEWEST_CLAIMS))
    return shared if is_symbolic(total) else max(shared, total // MOST_TASKS)  # symbolic lengths fit memory


def rows_of_task(rows: Length, chunks: Length, cols: Length, work: Length) -> Length:
    """Return the rows of a task of ``work`` elements: as many rows of ``cols`` as fit, unless rows are cut into
    ``chunks``."""
    return select(less(1, chunks), 1, maximum(1, minimum(rows, work // maximum(cols, 1))))


def tasks_unless_empty(tasks: Length, lens: Sequence[Length]) -> Length:
    """Return ``tasks``, or 0 if one of the lengths is 0."""
    return select(any_of(*(equal(n, 0) for n in lens)), 0, tasks)


def is_streamed(outputs: Sequence[Tensor]) -> bool:
    """Return whether the written data exceeds the caches, so that it will have left them before it is read again.

    False for unknown lengths: a second text of each kernel would cost more time than it saves.
    """
    return known_less(machine().last_cache_bytes, sum(t.footprint for t in outputs))


def streamable(tensor: Tensor, lanes: int) -> bool:
    """Return whether vectors of ``lanes`` contiguous elements are whole cache lines."""
    return lanes * tensor.type.size % host.CACHE_LINE == 0


def claim(tasks: Length, traffic: Length) -> Length:
    """Return the tasks to claim at a time, for a launch that moves ``traffic`` bytes of memory.

    Hardware prefetchers and memory serve long runs of addresses by one thread better than short interleaved runs.
    """
    whole = CLAIM_CACHES * machine().l2_bytes * tasks // maximum(traffic, 1)
    return maximum(1, minimum(whole, tasks // FEWEST_CLAIMS))
