"""What blocks of a cluster bring for one another: boxes that all who multiply them get at once (sm_90a).

Tiles of a cluster's blocks lie in ``cluster`` rows and ``across`` columns of tiles, numbered down each column first.
Those of a row of tiles multiply the same rows of the left operand, those of a column the same columns of the right one:
each brings a part of them to all.
"""

from __future__ import annotations

from ....dataclass import dataclass
from ...printer import CodeBuffer
from .wgmma_tiles import WarpgroupTile

__all__ = ["Sharing"]


@dataclass(frozen=True)
class Sharing:
    """The blocks of a cluster.

    Attributes:
        down, side: how many lie below one another, and beside one another.
    """

    down: int
    side: int

    @classmethod
    def of(cls, tile: WarpgroupTile) -> Sharing:
        """That of a tile."""
        return cls(tile.cluster, tile.across)

    @property
    def blocks(self) -> int:
        """Those of a cluster."""
        return self.down * self.side

    @property
    def readers(self) -> int:
        """Blocks that read something which one of them brings, itself among them."""
        return self.down + self.side - 1

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the number of the block's ``tile`` or its cluster's, and where in that the block is."""
        buffer.line(f"tile = idiv32(block_index(0), {self.blocks})")
        if self.blocks == 1:
            return
        buffer.line("rank = cluster_rank()")
        buffer.line(f"rank_side = idiv(rank, {self.down})")
        buffer.line(f"rank_down = rank - rank_side * {self.down}")

    def part(self, size: int, operand: str) -> str:
        """Where this block's part of the rows of ``x`` or the columns of ``w`` begins, of parts of so many."""
        count, number = (self.side, "rank_side") if operand == "x" else (self.down, "rank_down")
        return f"{number} * {size}" if count > 1 else "0"

    def bring(self, buffer: CodeBuffer, operand: str, to: str, place: str, tap: str = "") -> None:
        """Emit the request for a box of ``x`` or ``w``, moved by a ``tap`` (two numbers, or none), which all blocks get
        that multiply it."""
        name, more = f"tensor_load{'_window' * bool(tap)}", [tap] * bool(tap)
        if operand == "x" and self.side > 1:
            beside = sum(1 << self.down * k for k in range(self.side))
            name, more = f"{name}_to", [*more, str(beside), "rank_down"]
        elif operand == "w" and self.down > 1:
            below = (1 << self.down) - 1
            name, more = f"{name}_to", [*more, str(below), f"rank_side * {self.down}"]
        buffer.line(f"{name}({', '.join((to, f'map_{operand}', 'arrived', place, *more))})")

    def release(self, buffer: CodeBuffer) -> None:
        """Emit the arrival that leaves stage ``last`` to all blocks that bring something there."""
        buffer.line("mbarrier_arrive(offset(empty, last))")
        for k in range(1, self.down):
            at = f"rank_side * {self.down} + imod(rank_down + {k}, {self.down})"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
        for k in range(1, self.side):
            at = f"imod(rank_side + {k}, {self.side}) * {self.down} + rank_down"
            buffer.line(f"mbarrier_arrive_at(offset(empty, last), {at})")
