"""How a reduction cluster is spread over threads: along rows or across them, and how much each thread holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dim import (
    Dim,
    Length,
    ceil_div,
    known_equal,
    known_in,
    known_same,
    less_equal,
    maximum,
    permitted,
    typical,
)
from ....dataclass import dataclass
from ....errors import UnsupportedError
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..driver.device import known_architecture
from ..printer import most_lanes
from .indexing import contiguous_lanes
from .teams import WARP, ColumnTeam, RowTeam, Team

__all__ = ["RowLayout", "row_layout"]

FEWEST_THREADS = 128
"""Threads of a block at least: four warps, one for each scheduler of a multiprocessor."""
MOST_THREADS = 1024
"""Threads of a block at most, by all devices' limit."""
COLUMN_THREADS = 256
"""Threads of a block whose threads have columns of their own. No figures kept."""
COLUMN_TEAMS = ((128, 1, 32), (128, 4, 32), (256, 8, 32), (256, 8, 64), (512, 16, 64))
"""Threads of a block and of a team that holds columns in its registers, and elements of all operands that each thread
may hold; the first that suffices. Softmax over 128 channels on an H200: 16 vectors of four float32 in 256 threads 96%
of a copy, 8 in 512 threads 91%, 4 in 1024 threads 48%, read again from memory 69%; over 21, 128 threads 100%."""
MOST_HELD_OF_COLUMNS = 16
"""Vectors of a column that a thread can hold."""
MOST_COLUMN_LANES = 2048
"""Lanes of a block that holds columns, at most: two arrays of 8 bytes for each are in a block's memory
(`lang.blocks.MOST_SHARED`)."""
HELD = 4
"""Vectors of a row that a thread should hold: so many loads of each operand are in flight at once. Single elements are
less to have in flight: of these it holds as many as it can."""
LARGE_TEAM = 256
"""Threads of a row from which on one that holds more is faster than twice as many, which wait for each other."""
MOST_HELD = 8
"""Vectors of a row that a thread can hold in registers; longer rows are read again for each level."""
BLOCK_ELEMENTS = 1 << 14
"""Elements of all operands that a block should hold where several can share a row: 64 KiB of a multiprocessor's 256 KiB
of registers, so that others read while it waits. Softmax of rows of 20,000, 24,000 and 32,768 float32 on an H200: 85,
88 and 91% of a copy by one block, 93, 95 and 96% by two."""
CLUSTERS = ((256, 2), (256, 4), (256, 8), (512, 8), (1024, 8))
"""Threads of a block, and blocks, of clusters that share a row. Any device has clusters of eight, and few of more.
Softmax of rows of 65,536 float32 on an H200: eight blocks of 256 threads 97% of a copy, four of 512 95%, eight of 512
81%, four and eight of 1024 69 and 49%."""
THREAD_ELEMENTS = 32
"""Elements of all operands that a thread of a cluster should hold."""
OPEN_TEAMS = ((WARP, WARP), (256, 256))
"""Threads of a block and of a team that holds a row of an open length; longer rows are walked again and again by
`MOST_THREADS`. Each has a kernel of its own. No figures kept."""


@dataclass(frozen=True)
class RowLayout:
    """The dimensions of a cluster, and the threads that walk them.

    Attributes:
        full: lengths of the tensors that have an element for each of the cluster.
        keep, reduce: the kept and the reduced dimensions, merged, with all operands' strides.
        team: the threads of a row.
        lanes: of vectors, along the last reduced dimension, or (columns) along the last kept one.
        held: vectors of a row that a thread works on at once.
        looped: whether it does so again and again until the row ends.
        exact: whether the vectors fill the row.
        walked: the reduced axes longer than 1 and all axes, outermost first, as the cluster's memory lies.
        parts, share: parts that rows are reduced in, each by blocks of its own, and the vectors of one.
    """

    full: tuple[Length, ...]
    keep: Space
    reduce: Space
    team: Team
    lanes: int
    held: int
    looped: bool
    exact: bool
    walked: tuple[tuple[int, ...], tuple[int, ...]]
    parts: int = 1
    share: Length = 0

    @property
    def columns(self) -> bool:
        """Whether vectors lie across rows."""
        return self.team.row_lanes > 0

    @property
    def items(self) -> Length:
        """Vectors of a row."""
        return prod(self.reduce.lens) // (1 if self.columns else self.lanes)

    @property
    def rows(self) -> Length:
        """Rows, or vectors of them."""
        return prod(self.keep.lens) // (self.lanes if self.columns else 1)

    @property
    def blocks(self) -> Length:
        """Blocks of the launch, or of each part."""
        found: Length = ceil_div(self.rows, self.team.teams) * self.team.blocks
        return found


def row_layout(
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parts: int = 1,
    cut: tuple[int, ...] = (),
    share: Length = 0,
) -> RowLayout:
    """The layout for operands of these lengths and strides; row operands have length 1 on the axes.

    ``parts``, ``cut`` and ``share`` are those of `ReductionProblem`.

    Raises:
        UnsupportedError: parts are not cut as the rows lie.
    """
    tensors = [*inputs, *outputs]
    full = tuple(_full_length(lens) for lens in zip(*(t.lens for t in tensors)))
    reduced = {a % len(full) for a in axes}
    strides = [
        tuple(0 if known_equal(n, 1) else s for n, s in zip(t.lens, t.strides)) for t in tensors
    ]  # of a row operand 0 along the reduced axes
    whole = [k for k, t in enumerate(tensors) if known_same(t.lens, full)]
    lead = next((k for k in reversed(whole) if k >= len(inputs)), whole[0] if whole else 0)
    keep = _space(full, strides, lead, [a for a in range(len(full)) if a not in reduced])
    reduce = _space(full, strides, lead, sorted(reduced))
    walked = tuple(a for merged in reduce.axes for a in merged), _slowest_first(strides[lead])
    if parts > 1 and walked[0] != cut:
        raise UnsupportedError(f"parts are cut along axes {list(cut)}, and rows lie along {list(walked[0])}")
    along, across = reduce.strides[lead][-1], keep.strides[lead][-1]
    most = most_lanes(max((tensors[k].type.size for k in whole), default=4))
    moving = [k for k in whole if k < len(inputs) and _moves(keep, k) and _moves(reduce, k)]
    operands = max(1, len(moving))
    together = [(keep.strides[k] + reduce.strides[k], tensors[k].offset) for k in whole]
    if known_in(along, 1, -1) or not known_in(across, 1, -1) or known_equal(along, across):
        lanes = contiguous_lanes(most, reduce.lens[-1], together)
        items = prod(reduce.lens) // lanes
        if parts > 1:
            if not known_equal(share % lanes, 0):
                raise UnsupportedError(f"parts of {share} elements end within vectors of {lanes}")
            whole_parts, items = known_equal(items % (share // lanes), 0), share // lanes
        if isinstance(items, Dim):
            return _of_open_rows(full, keep, reduce, lanes, items, walked, parts, share)
        size = 1
        while size < MOST_THREADS and -(-items // size) > (HELD if lanes > 1 and size < LARGE_TEAM else MOST_HELD):
            size *= 2
        team: Team = RowTeam(max(size, FEWEST_THREADS), size)
        if parts == 1 and (-(-items // size) > MOST_HELD or items * lanes * operands > BLOCK_ELEMENTS):
            team = _of_blocks(items, lanes * operands) or team
            size = team.size
        held = -(-items // size)
        looped = held > MOST_HELD
        held = HELD if looped else held
        exact = not looped and items == held * size and (parts == 1 or whole_parts)
        return RowLayout(full, keep, reduce, team, lanes, held, looped, exact, walked, parts, share // lanes)
    across_first = [(reduce.strides[k] + keep.strides[k], tensors[k].offset) for k, t in enumerate(tensors)]
    lanes = contiguous_lanes(most, keep.lens[-1], across_first)
    items = prod(reduce.lens)
    holding = None if parts > 1 or isinstance(items, Dim) else _of_columns(items, lanes, operands)
    team = holding or ColumnTeam(COLUMN_THREADS, COLUMN_THREADS // WARP, lanes)
    held = ceil_div(items, team.size) if holding else HELD
    exact = holding is not None and items == held * team.size
    return RowLayout(full, keep, reduce, team, team.row_lanes, held, not holding, exact, walked, parts, share)


def _full_length(lens: Sequence[Length]) -> Length:
    """The length of an axis of which operands have all elements, or one. One that may be 0 is no maximum with 1."""
    open_ = next((n for n in lens if isinstance(n, Dim)), 1)
    found: Length = open_ if all(n is open_ or known_in(n, 1) for n in lens) else maximum(*lens)
    return found


def _moves(space: Space, operand: int) -> bool:
    """Whether an operand has several elements along dimensions."""
    return not all(known_in(s, 0) for s in space.strides[operand])


def _of_open_rows(
    full: tuple[Length, ...],
    keep: Space,
    reduce: Space,
    lanes: int,
    items: Dim,
    walked: tuple[tuple[int, ...], tuple[int, ...]],
    parts: int,
    share: Length,
) -> RowLayout:
    """The layout of rows of an open length, which a team holds if it can."""
    held = HELD if lanes > 1 else MOST_HELD
    for threads, size in OPEN_TEAMS:
        if permitted(less_equal(items, held * size)):
            team = RowTeam(max(threads, FEWEST_THREADS), size)
            return RowLayout(full, keep, reduce, team, lanes, held, False, False, walked, parts, share // lanes)
    team = RowTeam(MOST_THREADS, MOST_THREADS)
    return RowLayout(full, keep, reduce, team, lanes, HELD, True, False, walked, parts, share // lanes)


def _of_columns(items: int, lanes: int, operands: int) -> ColumnTeam | None:
    """Threads that hold columns of so many vectors, of as many lanes or fewer, in their registers; None if there are
    none."""
    while lanes:
        for threads, size, elements in COLUMN_TEAMS:
            held = min(MOST_HELD_OF_COLUMNS, elements // (lanes * operands))
            if items <= size * held and threads * lanes <= MOST_COLUMN_LANES:
                return ColumnTeam(threads, size, lanes)
        lanes //= 2
        if lanes * operands < HELD:  # too little to read at once
            return None
    return None


def _of_blocks(items: int, elements: int) -> RowTeam | None:
    """A cluster of blocks that holds a row of so many vectors, of ``elements`` each in all operands, in its registers;
    None if there is none."""
    arch = known_architecture()
    if arch is None or not arch.clusters:
        return None
    for held in (min(MOST_HELD, THREAD_ELEMENTS // elements), MOST_HELD):
        for threads, blocks in CLUSTERS:
            if blocks * threads * held >= items:
                return RowTeam(threads, blocks * threads)
    return None


def _slowest_first(strides: Sequence[Length]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda a: -abs(typical(strides[a]))))


def _space(full: Sequence[Length], strides: Sequence[Sequence[Length]], lead: int, axes: Sequence[int]) -> Space:
    """The merged dimensions of these axes, at least one."""
    found = collapse(full, strides, order_by=lead, axes=axes)
    return found if found.rank else Space((1,), tuple((0,) for _ in strides))
