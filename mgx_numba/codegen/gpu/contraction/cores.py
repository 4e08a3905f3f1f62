"""What contractions on tensor cores and on matrix cores have in common: a wave has a part of the block's tile (`ring`).

Its sums go through memory of its own, so that rows are stored whole.
"""

from __future__ import annotations

from ...printer import CodeBuffer
from ..architecture import WARP
from .placed import PlacedRequest
from .ring import STAGING_PAD, RingText, RingTile

__all__ = ["CoresText"]


class CoresText(RingText):
    """The text of one contraction; subclasses say what an instruction multiplies.

    Attributes:
        high, wide: rows and columns of a wave.
    """

    def __init__(self, placed: PlacedRequest, tile: RingTile | None, splits: int) -> None:
        super().__init__(placed, tile, splits)
        self.width = min(self.width, self._side[0] * self.wide // self.tile.wave)  # its rows have one for each lane

    @property
    def high(self) -> int:
        """See the class."""
        return self.tile.rows // self.tile.down

    @property
    def wide(self) -> int:
        """See the class."""
        return self.tile.columns // self.tile.across

    @property
    def _side(self) -> tuple[int, int]:
        """Rows and columns of an instruction."""
        raise NotImplementedError

    def _own(self) -> list[str]:
        """Statements for where a lane reads slices, ``own_a`` and ``own_b``, and whatever `_stage` names."""
        raise NotImplementedError

    def _multiply(self, buffer: CodeBuffer) -> None:
        """Emit what adds the products of the slices at ``slice_a`` and ``slice_b`` to ``acc<i>_<j>``, by instructions
        down and across."""
        raise NotImplementedError

    def _stage(self, buffer: CodeBuffer, i: int, j: int, pitch: int) -> None:
        """Emit the stores of ``acc<i>_<j>`` to the wave's ``area``, whose rows are ``pitch`` sums apart."""
        raise NotImplementedError

    def _staged(self) -> int:
        return self.tile.down * self.tile.across * self._side[0] * (self.wide + STAGING_PAD)

    def _parts(self) -> list[tuple[int, int]]:
        """The wave's instructions down and across."""
        rows, columns = self._side
        return [(i, j) for i in range(self.high // rows) for j in range(self.wide // columns)]

    def _start(self, buffer: CodeBuffer) -> None:
        rows, columns = self._side
        buffer.line(
            f"warp_down = idiv(warp, {self.tile.across})",
            f"warp_row = warp_down * {self.high}",
            f"warp_column = (warp - warp_down * {self.tile.across}) * {self.wide}",
            *self._own(),
        )
        for i, j in self._parts():
            buffer.line(f"acc{i}_{j} = const_{self.accumulator}(0, {rows * columns // self.tile.wave})")

    def _add_slice(self, buffer: CodeBuffer) -> None:
        buffer.line(f"slice_a = slot * {self.left_slot} + own_a")
        buffer.line(f"slice_b = slot * {self.right_slot} + own_b")
        self._multiply(buffer)

    def _finish(self, buffer: CodeBuffer) -> None:
        """As many rows of the wave at a time as an instruction has."""
        rows, columns = self._side
        pitch, per_row = self.wide + STAGING_PAD, self.wide // self.width
        meet = "warp_barrier()" if self.tile.wave == WARP else "barrier()"
        buffer.line(f"area = warp * {rows * pitch}")
        for i in range(self.high // rows):
            buffer.line(meet)
            for j in range(self.wide // columns):
                self._stage(buffer, i, j, pitch)
            buffer.line(meet)
            row, column = f"first_row + warp_row + {rows * i} + below", "first_column + warp_column + side"
            turns = rows * per_row // self.tile.wave
            self._store_staged(buffer, [f"area + below * {pitch} + side"], turns, per_row, row, column)
