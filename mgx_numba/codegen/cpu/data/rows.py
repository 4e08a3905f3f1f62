"""What data kernels share: tasks over rows, vector loops along a row, dtypes for moving and computing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.types import Type
from ...arguments import Arguments
from ...kernel import KernelSource
from ...statements import for_tasks, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..loops import AHEAD_BYTES, FEWEST_CLAIMS, Odometer, task_elements
from ..machine import machine

__all__ = [
    "KEPT_COLUMNS", "RowLoop", "kept_columns", "mover", "mover_lanes", "row_share",
    "rows_ahead",
]  # fmt: skip

KEPT_COLUMNS = 1024
"""Values that are kept for columns: 4 KiB of float32, so that two arrays of them leave room in the first-level
cache."""
FEWEST_CHUNKS = 8
"""Chunks that columns are cut into at least: tasks for several threads against longer runs of memory."""
ROWS_TOGETHER = 64
"""Rows that share what is found out once a task (positions of columns): little is left of that cost."""
FEWEST_ROWS = 4
"""Rows from which they are tasks enough by themselves."""
MOST_PARTS = 32
"""Parts of all rows together: enough for 16 threads to end about together, and few results to combine. No figures
kept."""
_MOVERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def mover(type: Type) -> str:
    """Dtype in which elements are moved without being looked at: types of one width share their kernels."""
    return _MOVERS[type.size]


def mover_lanes(type: Type, cols: int) -> int:
    """Lanes for moving rows of ``cols`` elements: two registers, or one where that is all a row fills."""
    one = host.lanes(mover(type))
    return 2 * one if cols >= 2 * one else one


def kept_columns(outer: Sequence[int], cols: int, lanes: int) -> int:
    """Fewest columns of a task that walks along another axis and keeps a value for each column in memory.

    What it reads at each step should be a long run of memory, and there should be tasks for several threads.
    """
    share = prod(outer) * cols // (FEWEST_CHUNKS * lanes) * lanes
    return max(lanes, min(KEPT_COLUMNS, share))


def row_share(rows: int, length: int, lanes: int, times: int = 1) -> int:
    """Elements of a row, a multiple of ``lanes``, that one task takes where few rows are so long that tasks share them.

    The length if they do not. A task needs so many elements, ``times`` as many where it also makes work for another.
    This depends on lengths only, so that results do not depend on the number of threads.
    """
    parts = (
        min(MOST_PARTS // max(rows, 1), length // (times * machine().row_part_elements)) if rows < FEWEST_ROWS else 1
    )
    return -(-length // (parts * lanes)) * lanes if parts > 1 else length


def rows_ahead(run: int) -> int:
    """Steps along the other axis after which to ask for memory, of which each step takes ``run`` bytes."""
    return max(1, AHEAD_BYTES // max(run, 1))


class RowLoop:
    """Tasks over the points of outer dimensions ("rows"), each with ``cols`` elements along the lanes.

    Rows longer than a task are cut into chunks; of shorter ones a task takes several. The lines inside see
    the outer indices ``i0``, ``i1``, ... and the columns ``first`` to ``last``.

    Args:
        arguments: those of the kernel; sizes and strides are added.
        outer: lengths of the outer dimensions.
        strides: element strides of each operand along them.
        cols: length of the rows.
        lanes: chunks are multiples of it.
        weight: cost of one element, in elements of a copy.
        longest: most columns that the lines inside can take at a time.
        least: fewest columns that a chunk has, if the row has as many.
        whole: rows are not cut.
        together: a task takes several rows also where they are cut.
    """

    def __init__(
        self,
        arguments: Arguments,
        outer: Sequence[int],
        strides: Sequence[Sequence[int]],
        cols: int,
        lanes: int,
        weight: int = 1,
        longest: int = 1 << 62,
        least: int = 0,
        whole: bool = False,
        together: bool = False,
    ) -> None:
        self.arguments = arguments
        self.rows = prod(outer)
        work = max(task_elements(self.rows * cols * weight) // max(weight, 1), lanes, least)
        self.chunk = max(1, cols if whole else min(cols, work // lanes * lanes, longest))
        self.chunks = -(-cols // self.chunk)
        self.batch = 1 if self.chunks > 1 else max(1, min(self.rows, work // max(cols, 1)))
        if together:
            self.batch = max(self.batch, min(ROWS_TOGETHER, self.rows * self.chunks // FEWEST_CLAIMS))
        for name, value in (
            ("cols", cols),
            ("chunk", self.chunk),
            ("chunks", self.chunks),
            ("rows", self.rows),
            ("batch", self.batch),
        ):
            arguments.integer(name, value)
        self.odometer = Odometer(arguments, outer, strides)

    @property
    def tasks(self) -> int:
        """Number of tasks; 0 if there are no elements."""
        return -(-self.rows // self.batch) * self.chunks if self.rows else 0

    def offset(self, operand: int) -> str:
        """Expression of an operand's element offset at the current row."""
        return self.odometer.offset(operand)

    def kernel(
        self,
        name: str,
        inside: Sequence[str],
        origin: str = "",
        prologue: Sequence[str] = (),
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        streamed: bool = False,
        epilogue: Sequence[str] = (),
    ) -> KernelSource:
        """The kernel that does ``inside`` for each row (or chunk of one).

        ``prologue`` and ``epilogue`` are done once a call, ``before`` and ``after`` once a task. ``streamed``: some
        stores are.
        """
        task = self.odometer.each_row(inside, before=before, after=after)
        fence = ["stream_fence()"] if streamed else []
        body = [*self.arguments.bind(), *prologue, *for_tasks(task), *epilogue, *fence]
        return cpu_kernel(name, kernel_text(body), origin)
