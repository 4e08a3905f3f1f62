"""Sets of a block's warpgroups that take tiles in turns, CUTLASS's ping-pong schedule (sm_90a).

While one set stores the sums of its tile, tensor cores multiply that of the next one. A set begins with its slices when
the one before has seen all of its own: barriers of the ring tell a phase from the one before it only, so nobody may be
a whole round early; and sets that multiplied at once would also store at once.
"""

from __future__ import annotations

from ....dataclass import dataclass
from ...printer import CodeBuffer
from .wgmma_tiles import WarpgroupTile

__all__ = ["PingPong"]


@dataclass(frozen=True)
class PingPong:
    """The sets of a tile's warpgroups; with one set nothing is emitted but the step to the next tile."""

    tile: WarpgroupTile

    @property
    def sets(self) -> int:
        """How many there are."""
        return self.tile.pingpong

    def declare(self, buffer: CodeBuffer) -> None:
        """Emit the barriers by which sets follow one another; ``order`` has one for each."""
        if self.sets > 1:
            buffer.line(f"order = shared_int64({self.sets})")

    def begin_barriers(self, buffer: CodeBuffer) -> None:
        """Emit what one thread does for these."""
        for turn in range(self.sets if self.sets > 1 else 0):
            buffer.line(f"mbarrier_init(offset(order, {turn}), {self.tile.warpgroups})")

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit which set a thread of ``warp`` belongs to, which then counts within the set, and its first ``tile``."""
        if self.sets == 1:
            return
        buffer.line(
            f"turn = idiv(warp, {4 * self.tile.warpgroups})",
            f"warp = warp - turn * {4 * self.tile.warpgroups}",
            "tile = tile + turn * stride",
            "order_phase = 1 - imin(turn, 1)",  # what the first set waits for at first is over
        )
        self._leave_out(buffer, "turn")

    def wait(self, buffer: CodeBuffer) -> None:
        """Emit the wait for the set's turn."""
        if self.sets > 1:
            buffer.line("mbarrier_wait(offset(order, turn), order_phase)")
            buffer.line("order_phase = 1 - order_phase")

    def hand_on(self, buffer: CodeBuffer) -> None:
        """Emit what lets the next set begin; ``leads``: the thread speaks for its warpgroup."""
        if self.sets > 1:
            with buffer.block("if leads:"):
                buffer.line(f"mbarrier_arrive(offset(order, imod(turn + 1, {self.sets})))")

    def next_tile(self, buffer: CodeBuffer) -> None:
        """Emit the step to the set's next tile."""
        if self.sets == 1:
            buffer.line("tile = tile + stride")
            return
        buffer.line(f"tile = tile + {self.sets} * stride")
        self._leave_out(buffer, str(self.sets - 1))

    def _leave_out(self, buffer: CodeBuffer, tiles: str) -> None:
        """Emit the step over the stages of so many tiles, which other sets multiply."""
        stages = self.tile.stages
        buffer.line(
            f"slot = slot + imax(end - begin, 0) * {tiles}",
            f"rounds = idiv32(slot, {stages})",
            f"slot = slot - rounds * {stages}",
            "phase = imod(phase + rounds, 2)",
        )
