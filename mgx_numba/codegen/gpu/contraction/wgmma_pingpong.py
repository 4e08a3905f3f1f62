"""Ping-pong scheduling, as in CUTLASS: sets of warpgroups of a block alternate between tiles (sm_90a).

While one set runs its epilogue, tensor cores multiply the next set's tile. A set starts its K loop when the previous
set has consumed all its slices: mbarrier phases distinguish only two rounds, so no set may be a whole round ahead; and
sets that multiply together would also store together.
"""

from __future__ import annotations

from ....dataclass import dataclass
from ...printer import CodeBuffer
from .wgmma_tiles import WarpgroupTile


@dataclass(frozen=True)
class PingPong:
    """The sets of a tile's warpgroups; with one set only the step to the next tile is emitted."""

    tile: WarpgroupTile

    @property
    def sets(self) -> int:
        """Return the number of sets."""
        return self.tile.pingpong

    def declare(self, buffer: CodeBuffer) -> None:
        """Emit the mbarriers ``order``, one per set."""
        if self.sets > 1:
            buffer.line(f"order = shared_int64({self.sets})")

    def begin_barriers(self, buffer: CodeBuffer) -> None:
        """Emit the initialisation of the mbarriers by one thread."""
        for turn in range(self.sets if self.sets > 1 else 0):
            buffer.line(f"mbarrier_init(offset(order, {turn}), {self.tile.warpgroups})")

    def begin(self, buffer: CodeBuffer) -> None:
        """Emit the set of a thread, its ``warp`` within the set, and the set's first ``tile``."""
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
        """Emit the arrival that lets the next set start; ``is_leader`` selects one thread per warpgroup."""
        if self.sets > 1:
            with buffer.block("if is_leader:"):
                buffer.line(f"mbarrier_arrive(offset(order, imod(turn + 1, {self.sets})))")

    def next_tile(self, buffer: CodeBuffer) -> None:
        """Emit the step to the set's next tile."""
        if self.sets == 1:
            buffer.line("tile = tile + stride")
            return
        buffer.line(f"tile = tile + {self.sets} * stride")
        self._leave_out(buffer, str(self.sets - 1))

    def _leave_out(self, buffer: CodeBuffer, tiles: str) -> None:
        """Emit the step over the ring stages of ``tiles`` tiles, which other sets consume."""
        stages = self.tile.stages
        buffer.line(
            f"slot = slot + imax(end - begin, 0) * {tiles}",
            f"rounds = idiv32(slot, {stages})",
            f"slot = slot - rounds * {stages}",
            "phase = imod(phase + rounds, 2)",
        )
