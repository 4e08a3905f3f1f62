"""Thread layout of a reduction cluster: teams of threads along rows or across them, how they join their partial
reductions, and elements per thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Protocol

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
from ....core.types import Type, numpy_dtype
from ....dataclass import dataclass
from ....errors import UnsupportedError
from ...printer import CodeBuffer, VectorValue
from ...problems.cluster import Tensor
from ...reductions import Reduction
from ...space import Space, collapse
from ..architecture import WARP
from ..driver.device import known_architecture
from ..machine import multiprocessors
from ..printer import ThreadPrinter, dtype_name, most_lanes
from .flat_index import contiguous_lanes

FEWEST_THREADS = 128
"""Least threads per block: four warps, one for each scheduler of a multiprocessor."""
MOST_THREADS = 1024
"""Most threads per block on any device."""
COLUMN_THREADS = 256
"""Threads per block that reduce columns independently. No figures kept."""
COLUMN_TEAMS = ((128, 1, 32), (128, 4, 32), (256, 8, 32), (256, 8, 64), (512, 16, 64))
"""(threads per block, threads per team, elements of all operands per thread) of teams that hold columns in registers;
the first sufficient one is used. Softmax over 128 channels on an H200: 16 vectors of four float32 with 256 threads
reach 96% of a copy, 8 with 512 threads 91%, 4 with 1024 threads 48%, two passes over memory 69%; over 21 channels, 128
threads 100%."""
MOST_HELD_OF_COLUMNS = 16
"""Most vectors of a column per thread."""
MOST_COLUMN_LANES = 2048
"""Most lanes of a block that holds columns: shared memory has two arrays of 8 bytes each per lane
(`lang.blocks.MOST_SHARED`)."""
FEW_COLUMN_TEAMS = ((256, 64), (512, 64), (1024, 16))
"""(threads per block, most elements of all operands per thread) of teams that hold few columns in registers; the first
sufficient one is used. 1024 threads have 64 registers each. No figures kept."""
SECTOR_BYTES = 32
"""Bytes of memory that are loaded together: CUDA C++ best practices guide, "Coalesced access to global memory"."""
HELD = 4
"""Vectors of a row per thread to aim at: as many loads of each operand are in flight. Of single elements a thread holds
as many as it can."""
LARGE_TEAM = 256
"""Threads per row from which more elements per thread are faster than twice the threads, which cost synchronisation."""
MOST_HELD = 8
"""Most vectors of a row per thread in registers; longer rows are read again for each level."""
BLOCK_ELEMENTS = 1 << 14
"""Most elements of all operands per block where a cluster could share a row: 64 KiB of a multiprocessor's 256 KiB of
registers, so that other blocks load meanwhile. Softmax of rows of 20,000, 24,000 and 32,768 float32 on an H200 reaches
85, 88 and 91% of a copy with one block, 93, 95 and 96% with two."""
CLUSTERS = ((256, 2), (256, 4), (256, 8), (512, 8), (1024, 8))
"""(threads per block, blocks) of clusters that share a row. Every device with clusters supports eight blocks, few
support more. Softmax of rows of 65,536 float32 on an H200: eight blocks of 256 threads reach 97% of a copy, four of 512
95%, eight of 512 81%, four and eight of 1024 69 and 49%."""
THREAD_ELEMENTS = 32
"""Elements of all operands per thread of a cluster to aim at."""
OPEN_TEAMS = ((WARP, WARP), (256, 256))
"""(threads per block, threads per team) for rows of symbolic length, one kernel each; longer rows are looped over by
`MOST_THREADS`. No figures kept."""


@dataclass(frozen=True)
class RowLayout:
    """The iteration space of a reduction cluster and its threads.

    Attributes:
        full: lengths of full operands (one element per element of the cluster).
        keep, reduce: merged kept and reduced axes with all operands' strides.
        team: threads per row.
        lanes: elements per vector: along the last reduced axis, or for columns along the last kept axis.
        held: vectors of a row that a thread processes at once.
        looped: whether a thread loops over its row.
        exact: whether the vectors fill the row exactly.
        walked: reduced axes longer than 1, and all axes, outermost first in memory order.
        parts, share: parts of rows that separate blocks reduce, and the vectors per part.
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
        """Return whether vectors lie across rows."""
        return self.team.row_lanes > 0

    @property
    def items(self) -> Length:
        """Return the vectors per row."""
        return prod(self.reduce.lens) // (1 if self.columns else self.lanes)

    @property
    def rows(self) -> Length:
        """Return the number of rows, or of vectors of rows."""
        return prod(self.keep.lens) // (self.lanes if self.columns else 1)

    @property
    def blocks(self) -> Length:
        """Return the blocks of the launch, or of each part."""
        found: Length = ceil_div(self.rows, self.team.teams) * self.team.blocks
        return found


def row_layout(
    axes: Sequence[int],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parts: int = 1,
    cut: tuple[int, ...] = (),
    share: Length = 0,
    fewest: int = 1,
) -> RowLayout:
    """Return the layout for operands with these lengths and strides; per-row operands have length 1 along the axes.

    ``parts``, ``cut`` and ``share`` are those of `ReductionProblem`; a row that follows memory has at least ``fewest``
    threads, a power of two.

    Raises:
        UnsupportedError: parts do not follow the memory order of rows.
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
            own = share // lanes
            whole_parts, items = known_equal(items, parts * own), own  # the last parts may be empty
        if isinstance(items, Dim):
            return _of_open_rows(full, keep, reduce, lanes, items, walked, parts, share)
        size = fewest
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
    if parts == 1 and not isinstance(items, Dim):
        width = min((tensors[k].type.size for k in whole), default=4)
        few = _of_few_columns(items, prod(keep.lens), team, lanes, operands, width)
        team, holding = few or team, few or holding
    held = ceil_div(items, team.size) if holding else HELD
    exact = holding is not None and items == held * team.size
    return RowLayout(full, keep, reduce, team, team.row_lanes, held, not holding, exact, walked, parts, share)


def _full_length(lens: Sequence[Length]) -> Length:
    """Return the full length of an axis along which operands have this length or 1. A symbolic length may be 0, so it
    is not a maximum with 1."""
    open_ = next((n for n in lens if isinstance(n, Dim)), 1)
    found: Length = open_ if all(n is open_ or known_in(n, 1) for n in lens) else maximum(*lens)
    return found


def _moves(space: Space, operand: int) -> bool:
    """Return whether an operand has several elements along the axes."""
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
    """Return the layout of rows of symbolic length: held by a team if they fit."""
    held = HELD if lanes > 1 else MOST_HELD
    for threads, size in OPEN_TEAMS:
        if permitted(less_equal(items, held * size)):
            team = RowTeam(max(threads, FEWEST_THREADS), size)
            return RowLayout(full, keep, reduce, team, lanes, held, False, False, walked, parts, share // lanes)
    team = RowTeam(MOST_THREADS, MOST_THREADS)
    return RowLayout(full, keep, reduce, team, lanes, HELD, True, False, walked, parts, share // lanes)


def _of_columns(items: int, lanes: int, operands: int) -> ColumnTeam | None:
    """Return a team that holds columns of ``items`` vectors in registers, with ``lanes`` or fewer elements per vector;
    None if none fits."""
    while lanes:
        for threads, size, elements in COLUMN_TEAMS:
            held = min(MOST_HELD_OF_COLUMNS, elements // (lanes * operands))
            if items <= size * held and threads * lanes <= MOST_COLUMN_LANES:
                return ColumnTeam(threads, size, lanes)
        lanes //= 2
        if lanes * operands < HELD:  # too little to read at once
            return None
    return None


def _of_few_columns(
    items: int, columns: Length, team: ColumnTeam, lanes: int, operands: int, width: int
) -> ColumnTeam | None:
    """Return a team of more threads, with fewer columns per block than lanes of a warp, where ``team`` would leave half
    of the multiprocessors without a block; None if it does not, or no such team holds the columns in registers.

    Args:
        items: elements per column.
        columns: number of columns.
        team: the team for many columns.
        lanes: columns per vector.
        operands: operands that are read.
        width: bytes of the smallest element.
    """
    if isinstance(columns, Dim) or 2 * ceil_div(columns, team.row_lanes * team.teams) > multiprocessors():
        return None
    teams, threads = WARP, FEW_COLUMN_TEAMS[0][0]
    while teams * lanes * width > SECTOR_BYTES and columns < multiprocessors() * teams * lanes:
        if threads // teams > items:  # some threads have no element
            break
        teams //= 2
    if teams == WARP:
        return None
    for threads, elements in FEW_COLUMN_TEAMS:
        held = min(MOST_HELD_OF_COLUMNS, elements // (lanes * operands))
        if items <= threads // teams * held:
            return ColumnTeam(threads, threads // teams, lanes)
    return None


def _of_blocks(items: int, elements: int) -> RowTeam | None:
    """Return a cluster of blocks that holds a row of ``items`` vectors in registers, ``elements`` elements of all
    operands per vector; None if none fits."""
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
    """Return the merged axes, at least one."""
    found = collapse(full, strides, order_by=lead, axes=axes)
    return found if found.rank else Space((1,), tuple((0,) for _ in strides))


_ACROSS_LANES = {"add": "reduce_add", "mul": "reduce_mul", "max": "reduce_max", "min": "reduce_min",
                 "logical_or": "reduce_or", "logical_and": "reduce_and"}  # fmt: skip
_LEAST_SENT = 4
"""Least bytes of a store to another block of a cluster: PTX ISA, "st.async"."""


class Team(Protocol):
    """Threads that reduce one row, or one vector of columns, together."""

    @property
    def threads(self) -> int:
        """Return the threads per block."""

    @property
    def size(self) -> int:
        """Return the threads per team."""

    @property
    def teams(self) -> int:
        """Return the teams per block."""

    @property
    def member(self) -> str:
        """Return the expression of a thread's index in its team."""

    @property
    def row(self) -> str:
        """Return the expression of the team's row."""

    @property
    def row_lanes(self) -> int:
        """Return the lanes of a per-row value; 0 for scalars."""

    @property
    def blocks(self) -> int:
        """Return the blocks per cluster that share a row."""

    def begin(self, buffer: CodeBuffer, sums: Mapping[str, Type]) -> None:
        """Emit, before all else, the shared memory in which accumulators ``sums`` are joined, in this order."""

    def joined(self, printer: ThreadPrinter, reduction: Reduction, own: VectorValue, name: str) -> VectorValue:
        """Emit the reduction of all members' vectors ``own``; every thread of the block takes part and gets the result.
        ``name`` identifies shared memory that nothing else uses."""


@dataclass(frozen=True)
class RowTeam:
    """Consecutive threads whose vectors lie along the row: a power of two, within one block or over several whole
    blocks."""

    threads: int
    size: int
    row_lanes: int = 0

    @property
    def blocks(self) -> int:
        return max(1, self.size // self.threads)

    @property
    def teams(self) -> int:
        """See `Team`; 1 if a team spans several blocks."""
        return max(1, self.threads // self.size)

    @property
    def member(self) -> str:
        if self.blocks > 1:
            return f"cluster_rank() * {self.threads} + thread_index(0)"
        return f"imod(thread_index(0), {self.size})"

    @property
    def row(self) -> str:
        if self.blocks > 1:
            return f"idiv(block_index(0), {self.blocks})"
        return f"block_index(0) * {self.teams} + idiv(thread_index(0), {self.size})"

    def begin(self, buffer: CodeBuffer, sums: Mapping[str, Type]) -> None:
        """See `Team`. For several blocks: the receive buffers and mbarriers; ``cluster_wait()`` precedes the first
        join."""
        if self.blocks > 1:
            for name, dtype in sums.items():
                buffer.line(f"{name}_all = shared_{_wire(dtype)}({self.blocks})")
                buffer.line(f"{name}_met = shared_int64(1)")
            with buffer.block("if thread_index(0) == 0:"):
                for name, dtype in sums.items():
                    buffer.line(f"mbarrier_init({name}_met, 1)")
                    buffer.line(f"mbarrier_expect({name}_met, {self.blocks * numpy_dtype(_wire(dtype)).itemsize})")
                buffer.line("mbarrier_fence()")
            buffer.line("cluster_arrive()")

    def joined(self, printer: ThreadPrinter, reduction: Reduction, own: VectorValue, name: str) -> VectorValue:
        """See `Team`. Join lanes, then threads of a warp by shuffles, then warps through shared memory, then blocks of
        the cluster."""
        buffer = printer.buffer
        value = VectorValue(buffer.emit(f"{_ACROSS_LANES[reduction.combine]}({own.name})"), own.dtype)
        value = _shuffled(printer, reduction, value, min(self.size, WARP))
        warps = min(self.size, self.threads) // WARP
        if warps > 1:
            buffer.line(f"{name} = shared_{dtype_name(own.dtype)}({self.threads // WARP})")
            with buffer.block(f"if imod(thread_index(0), {WARP}) == 0:"):
                buffer.line(f"store_scalar({name}, idiv(thread_index(0), {WARP}), {value.name})")
            buffer.line("barrier()")
            place = f"idiv(thread_index(0), {self.size}) * {warps} + imod(thread_index(0), {warps})"
            value = VectorValue(buffer.emit(f"load_scalar({name}, {place})"), own.dtype)
            value = _shuffled(printer, reduction, value, warps)
        if self.blocks > 1:
            wire, kind = _wire(own.dtype), dtype_name(own.dtype)
            sent = value.name if wire == kind else buffer.emit(f"cast_{wire}({value.name})")
            with buffer.block(f"if thread_index(0) < {self.blocks}:"):
                operands = f"{name}_all, cluster_rank(), {sent}, thread_index(0), {name}_met"
                buffer.line(f"cluster_send({operands})")
            buffer.line(f"mbarrier_wait({name}_met, 0)")
            for rank in range(self.blocks):
                there = buffer.emit(f"load_scalar({name}_all, {rank})")
                there = there if wire == kind else buffer.emit(f"cast_{kind}({there})")
                found = VectorValue(there, own.dtype)
                value = getattr(printer, reduction.combine)(value, found) if rank else found
        return value


@dataclass(frozen=True)
class ColumnTeam:
    """Threads that are ``teams`` apart, whose vectors lie across rows: each lane of a vector is another row."""

    threads: int
    size: int
    row_lanes: int
    blocks: int = 1

    @property
    def teams(self) -> int:
        return self.threads // self.size

    @property
    def member(self) -> str:
        return f"idiv(thread_index(0), {self.teams})"

    @property
    def row(self) -> str:
        return f"block_index(0) * {self.teams} + imod(thread_index(0), {self.teams})"

    @property
    def shared_vectors(self) -> int:
        """Return the vectors that are joined through shared memory: one of each thread, or of each warp and team."""
        return self.threads // max(1, WARP // self.teams)

    def begin(self, buffer: CodeBuffer, sums: Mapping[str, Type]) -> None:
        """See `Team`. Two arrays per type alternate, so that one barrier per join is enough."""
        arrays: dict[Type, list[str]] = {}
        for name, dtype in sums.items() if self.size > 1 else ():
            own = arrays.setdefault(dtype, [])
            fresh = f"shared_{dtype_name(dtype)}({self.shared_vectors * self.row_lanes})"
            buffer.line(f"{name} = {own[-2] if len(own) > 1 else fresh}")
            own.append(name)

    def joined(self, printer: ThreadPrinter, reduction: Reduction, own: VectorValue, name: str) -> VectorValue:
        """See `Team`. Join threads of a warp by shuffles, then warps through shared memory, in their order."""
        buffer, lanes = printer.buffer, self.row_lanes
        if self.size == 1:
            return own
        mask = self.teams
        while mask < WARP:
            other = VectorValue(buffer.emit(f"shuffle_xor({own.name}, {mask})"), own.dtype)
            own = getattr(printer, reduction.combine)(own, other)
            mask *= 2
        if self.teams < WARP:
            first = f"imod(thread_index(0), {WARP}) < {self.teams}"
            place = f"idiv(thread_index(0), {WARP}) * {self.teams} + imod(thread_index(0), {WARP})"
            with buffer.block(f"if {first}:"):
                buffer.line(f"store({name}, ({place}) * {lanes}, {own.name})")
        else:
            buffer.line(f"store({name}, thread_index(0) * {lanes}, {own.name})")
        buffer.line("barrier()")
        column = buffer.emit(f"imod(thread_index(0), {self.teams})")
        value = own
        for k in range(self.shared_vectors // self.teams):
            loaded = VectorValue(
                buffer.emit(f"load({name}, ({column} + {self.teams * k}) * {lanes}, {lanes})"), own.dtype
            )
            value = getattr(printer, reduction.combine)(value, loaded) if k else loaded
        return value


def _wire(dtype: Type) -> str:
    """Return the type, of at least 4 bytes, in which blocks send values of ``dtype``."""
    if dtype.size >= _LEAST_SENT:
        return dtype_name(dtype)
    return "float32" if dtype.is_floating else "int32"


def _shuffled(printer: ThreadPrinter, reduction: Reduction, value: VectorValue, lanes: int) -> VectorValue:
    """Emit the reduction of a scalar over ``lanes`` neighbouring lanes, a power of two."""
    dtype: Type = value.dtype
    while lanes > 1:
        lanes //= 2
        other = VectorValue(printer.buffer.emit(f"shuffle_xor({value.name}, {lanes})"), dtype)
        value = getattr(printer, reduction.combine)(value, other)
    return value
