"""Teams of threads that share a row, and how they join their partial reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ....core.types import Type, numpy_dtype
from ....dataclass import dataclass
from ...printer import CodeBuffer, VectorValue
from ...reductions import Reduction
from ..architecture import WARP
from ..printer import ThreadPrinter, dtype_name

__all__ = ["WARP", "ColumnTeam", "RowTeam", "Team"]

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
    """Threads whole warps apart, whose vectors lie across rows: each lane of a vector is another row."""

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

    def begin(self, buffer: CodeBuffer, sums: Mapping[str, Type]) -> None:
        """See `Team`. Two arrays per type alternate, so that one barrier per join is enough."""
        arrays: dict[Type, list[str]] = {}
        for name, dtype in sums.items() if self.size > 1 else ():
            own = arrays.setdefault(dtype, [])
            fresh = f"shared_{dtype_name(dtype)}({self.threads * self.row_lanes})"
            buffer.line(f"{name} = {own[-2] if len(own) > 1 else fresh}")
            own.append(name)

    def joined(self, printer: ThreadPrinter, reduction: Reduction, own: VectorValue, name: str) -> VectorValue:
        """See `Team`. Join through shared memory, in the order of members."""
        buffer, lanes = printer.buffer, self.row_lanes
        if self.size == 1:
            return own
        buffer.line(f"store({name}, thread_index(0) * {lanes}, {own.name})")
        buffer.line("barrier()")
        column = buffer.emit(f"imod(thread_index(0), {self.teams})")
        value = own
        for k in range(self.size):
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
