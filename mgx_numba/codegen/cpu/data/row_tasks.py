"""The common parts of data kernels: tasks over rows, vector loops along a row, dtypes for moving and computing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import (
    Length,
    SharedLength,
    ceil_div,
    is_symbolic,
    known_less,
    known_less_equal,
    maximum,
    minimum,
    typical,
)
from ....core.types import Type
from ...arguments import Arguments
from ...kernel import KernelSource
from ...launch import Launch, TaskRange
from ...space import Space
from ...statements import for_tasks, kernel_text
from .. import host
from ..cluster.walk import FEWEST_TINY, TINY_ROW
from ..kernel import cpu_kernel
from ..loops import AHEAD_BYTES, FEWEST_CLAIMS, Odometer, claim, rows_of_task, task_elements, tasks_unless_empty
from ..machine import machine

KEPT_COLUMNS = 1024
"""Most values that are kept for columns: 4 KiB of float32, so that two arrays of them leave room in the L1 cache."""
FEWEST_CHUNKS = 8
"""Least chunks of the columns: tasks for several threads, traded against longer runs of memory."""
FEW_COLUMNS = 64
"""Columns from which lanes are columns. CPU time on Zen 3 of the positions of extremes in columns of 100 elements, with
lanes along a column and along the columns: 50 times 20 columns 62 and 181 us of float32, 78 and 180 us of int8; 64
columns of int8 302 and 193 us, of 40 elements in float32 12 and 26 us."""
ROWS_TOGETHER = 64
"""Rows that share values computed once a task (positions of columns), so that little of that cost is left."""
FEWEST_ROWS = 4
"""Rows from which rows alone are enough tasks."""
MOST_PARTS = 32
"""Most parts of all rows together: enough for 16 threads to end about together, and few results to combine. No figures
kept."""
_MOVERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def mover(type: Type) -> str:
    """Return the dtype in which elements are moved without being interpreted: types of one width share their
    kernels."""
    return _MOVERS[type.size]


def mover_lanes(type: Type, cols: Length) -> int:
    """Return the lanes for moving rows of ``cols`` elements: two registers, or one if a row fills no more."""
    one = host.lanes(mover(type))
    return one if known_less(cols, 2 * one) else 2 * one


def column_lanes(lanes: int, cols: Length) -> int:
    """Return the lanes of vectors over ``cols`` columns: two registers of ``lanes``, or as few as hold few columns."""
    return 2 * lanes if is_symbolic(cols) else min(2 * lanes, max(2, 1 << (cols - 1).bit_length()))


def kept_columns(outer: Sequence[Length], cols: Length, lanes: int) -> SharedLength:
    """Return the fewest columns of a task that walks along another axis and keeps a value for each column in memory.

    Each step should read a long run of memory, and there should be tasks for several threads.
    """
    share = prod(outer) * cols // (FEWEST_CHUNKS * lanes) * lanes
    return maximum(lanes, minimum(KEPT_COLUMNS, share))


def row_share(rows: Length, length: Length, lanes: int, times: int = 1) -> SharedLength:
    """Return the elements of a row, a multiple of ``lanes``, that one task takes where tasks share few long rows; else
    the length.

    The result depends on lengths only, so that results do not depend on the number of threads. Rows of unknown length
    are not shared.

    Args:
        times: multiple of the least elements of a task, for parts that cause work in another launch.
    """
    if is_symbolic(rows) or is_symbolic(length):
        return length
    parts = (
        min(MOST_PARTS // max(rows, 1), length // (times * machine().row_part_elements)) if rows < FEWEST_ROWS else 1
    )
    return -(-length // (parts * lanes)) * lanes if parts > 1 else length


def rows_ahead(run: Length) -> Length:
    """Return the prefetch distance, in steps along the other axis, where each step reads ``run`` bytes."""
    return maximum(1, AHEAD_BYTES // maximum(run, 1))


def lanes_across(space: Space, length: Length, step: Length, short: int = TINY_ROW, few: int = FEW_COLUMNS) -> bool:
    """Return whether a search along an axis has its vectors' lanes along the innermost dimension of the other axes.

    Args:
        space: the other axes; the first operand is the input.
        length: length of the axis.
        step: the input's stride along the axis.
        short: length up to which lanes are along the other axes if these have many elements.
        few: length of the innermost dimension below which lanes are along the axis.
    """
    if not space.rank:
        return False
    if known_less_equal(length, short) and typical(space.lens[-1]) >= FEWEST_TINY:
        return True
    return not known_less(space.lens[-1], few) and typical(step) > typical(space.strides[0][-1])


class RowLoop:
    """Tasks over the points of outer dimensions ("rows"), each with ``cols`` elements along the lanes.

    Rows longer than a task are cut into chunks; a task takes several shorter rows. The lines inside see the outer
    indices ``i0``, ``i1``, ... and the columns ``first`` to ``last``.

    Args:
        arguments: arguments of the kernel; sizes and strides are added.
        outer: lengths of the outer dimensions.
        strides: element strides of each operand along the outer dimensions.
        cols: length of the rows.
        lanes: chunks are multiples of it.
        weight: cost of one element, in elements of a copy.
        longest: most columns that the lines inside can take at a time.
        least: fewest columns of a chunk, if the row has as many.
        whole: rows are not cut.
        together: a task takes several rows also where they are cut.
    """

    def __init__(
        self,
        arguments: Arguments,
        outer: Sequence[Length],
        strides: Sequence[Sequence[Length]],
        cols: Length,
        lanes: int,
        weight: Length = 1,
        longest: Length = 1 << 62,
        least: Length = 0,
        whole: bool = False,
        together: bool = False,
    ) -> None:
        self.arguments = arguments
        self.rows = prod(outer)
        work = maximum(task_elements(self.rows * cols * weight) // maximum(weight, 1), lanes, least)
        self.chunk = maximum(1, cols if whole else minimum(cols, work // lanes * lanes, longest))
        self.chunks = ceil_div(cols, self.chunk)
        self.batch = rows_of_task(self.rows, self.chunks, cols, work)
        if together:
            self.batch = maximum(self.batch, minimum(ROWS_TOGETHER, self.rows * self.chunks // FEWEST_CLAIMS))
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
    def tasks(self) -> Length:
        """Return the number of tasks; 0 for an empty tensor."""
        return ceil_div(self.rows, self.batch) * self.chunks

    def offset(self, operand: int) -> str:
        """Return the expression of an operand's element offset at the current row."""
        return self.odometer.offset(operand)

    def launch(
        self,
        kernel: KernelSource,
        lens: Sequence[Length],
        bytes: Length = 0,
        flops: Length = 0,
        claims: bool = False,
        checks: tuple[str, ...] = (),
    ) -> Launch:
        """Return the launch of a kernel over the tasks.

        Args:
            lens: lengths; there is no task if one of them is 0.
            bytes: memory traffic.
            flops: total work.
            claims: a thread claims several neighbouring tasks at a time (`claim`).
            checks: as in `Launch`.
        """
        tasks = tasks_unless_empty(self.tasks, lens)
        geometry = TaskRange(tasks, claim(tasks, bytes)) if claims else TaskRange(tasks)
        return Launch(kernel, self.arguments.values, geometry, flops, bytes, checks=checks)

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
        """Return the kernel that runs ``inside`` for each row (or chunk of a row).

        Args:
            prologue: lines once at the start of a call.
            before: lines once at the start of a task.
            after: lines once at the end of a task.
            streamed: some stores are streaming stores.
            epilogue: lines once at the end of a call.
        """
        task = self.odometer.each_row(inside, before=before, after=after)
        fence = ["stream_fence()"] if streamed else []
        body = [*self.arguments.bind(), *prologue, *for_tasks(task), *epilogue, *fence]
        return cpu_kernel(name, kernel_text(body), origin)
