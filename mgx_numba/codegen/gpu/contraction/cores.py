"""Shared code generation for contractions on tensor cores (NVIDIA) and matrix cores (AMD).

Each warp or wave computes its own sub-tile of the block tile from the shared-memory ring (`ring`). In the epilogue it
stages its accumulators in shared memory, so that whole rows are stored.
"""

from __future__ import annotations

from ...printer import CodeBuffer
from ..architecture import WARP
from .gpu_contraction import GpuContraction
from .ring import STAGING_PAD, RingText, RingTile


class CoresText(RingText):
    """Kernel text of one contraction; a subclass emits the MMA instruction.

    Attributes:
        high, wide: rows and columns of a warp's sub-tile.
    """

    def __init__(self, contraction: GpuContraction, tile: RingTile | None, splits: int) -> None:
        super().__init__(contraction, tile, splits)
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
        """Return the rows and columns per MMA instruction."""
        raise NotImplementedError

    def _own(self) -> list[str]:
        """Return statements that compute a lane's shared-memory offsets ``own_a`` and ``own_b``, and every name that
        `_stage` uses."""
        raise NotImplementedError

    def _multiply(self, buffer: CodeBuffer) -> None:
        """Emit the MMA instructions of one slice: ``acc<i>_<j> += slice_a @ slice_b``, where i and j number the
        instructions down and across the sub-tile."""
        raise NotImplementedError

    def _stage(self, buffer: CodeBuffer, i: int, j: int, pitch: int) -> None:
        """Emit the stores of ``acc<i>_<j>`` to the warp's staging ``area``; rows of the area are ``pitch`` elements
        apart."""
        raise NotImplementedError

    def _staged(self) -> int:
        return self.tile.down * self.tile.across * self._side[0] * (self.wide + STAGING_PAD)

    def _result_row(self, row: str) -> str:
        """Return the result's row of a row of the tile."""
        return f"first_row + {row}"

    def _parts(self) -> list[tuple[int, int]]:
        """Return the index pairs (down, across) of the MMA instructions of a sub-tile."""
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
        """Emit the epilogue for the rows of one MMA instruction at a time."""
        rows, columns = self._side
        pitch, per_row = self.wide + STAGING_PAD, self.wide // self.width
        meet = "warp_barrier()" if self.tile.wave == WARP else "barrier()"
        buffer.line(f"area = warp * {rows * pitch}")
        for i in range(self.high // rows):
            buffer.line(meet)
            for j in range(self.wide // columns):
                self._stage(buffer, i, j, pitch)
            buffer.line(meet)
            row, column = self._result_row(f"warp_row + {rows * i} + below"), "first_column + warp_column + side"
            turns = rows * per_row // self.tile.wave
            self._store_staged(buffer, [f"area + below * {pitch} + side"], turns, per_row, row, column)
