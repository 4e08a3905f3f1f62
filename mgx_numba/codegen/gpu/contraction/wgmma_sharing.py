"""TMA multicast within a thread block cluster: blocks load shared operands for each other (sm_90a).

The tiles of a cluster form a grid of ``cluster`` rows and ``across`` columns, numbered down the columns first. Blocks
in one grid row use the same rows of the left operand, blocks in one grid column the same columns of the right operand.
Each of them loads a part and multicasts it to all.
"""

from __future__ import annotations

from ....dataclass import dataclass
from ...printer import CodeBuffer
from .wgmma_tiles import WarpgroupTile


@dataclass(frozen=True)
class Sharing:
    """The grid of blocks in a cluster.

    Attributes:
        down, side: blocks per grid column, and per grid row.
    """

    down: int
    side: int

    @classmethod
    def of(cls, tile: WarpgroupTile) -> Sharing:
        """Return the grid of a tile's cluster."""
        return cls(tile.cluster, tile.across)

    @property
    def blocks(self) -> int:
        """Return the blocks per cluster."""
        return self.down * self.side

    @property
    def readers(self) -> int:
        """Return the number of blocks that read some multicast load of one block, including the block itself."""
        return self.down + self.side - 1

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the index of the cluster's first ``tile``, and the block's position in the cluster."""
        buffer.line(f"tile = idiv32(block_index(0), {self.blocks})")
        if self.blocks == 1:
            return
        buffer.line("rank = cluster_rank()")
        buffer.line(f"rank_side = idiv(rank, {self.down})")
        buffer.line(f"rank_down = rank - rank_side * {self.down}")

    def part(self, size: int, operand: str) -> str:
        """Return the start of the block's part of ``x`` rows or ``w`` columns, in parts of ``size``."""
        count, number = (self.side, "rank_side") if operand == "x" else (self.down, "rank_down")
        return f"{number} * {size}" if count > 1 else "0"

    def load(self, buffer: CodeBuffer, operand: str, to: str, place: str, tap: str = "") -> None:
        """Emit the TMA load of a box of ``x`` or ``w``, multicast to all blocks that multiply it. ``tap`` is the im2col
        offset (two numbers) or ""."""
        name, more = f"tensor_load{'_window' * bool(tap)}", [tap] * bool(tap)
        if operand == "x" and self.side > 1:
            beside = sum(1 << self.down * k for k in range(self.side))
            name, more = f"{name}_to", [*more, str(beside), "rank_down"]
        elif operand == "w" and self.down > 1:
            below = (1 << self.down) - 1
            name, more = f"{name}_to", [*more, str(below), f"rank_side * {self.down}"]
        buffer.line(f"{name}({', '.join((to, f'map_{operand}', 'arrived', place, *more))})")

    def release(self, buffer: CodeBuffer) -> None:
        """Emit the arrival that releases stage ``last`` to all blocks that load into it."""
        buffer.line("mbarrier_arrive(offset(empty, last))")
        for k in range(1, self.down):
            at = f"rank_side * {self.down} + imod(rank_down + {k}, {self.down})"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
        for k in range(1, self.side):
            at = f"imod(rank_side + {k}, {self.side}) * {self.down} + rank_down"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
