"""Products and convolutions of float32 as float32 has them: multiply-adds of ordinary arithmetic, from a ring (`ring`).

A block's 256 threads lie as 16 by 16 over its tile; each has every sixteenth row, and as many columns.
"""

from __future__ import annotations

from ...printer import CodeBuffer
from .placed import PlacedRequest
from .ring import STAGING_PAD, RingText, RingTile, ring_refusal

__all__ = ["FmaText", "fma_refusal"]

SIDE = 16
"""Threads along either side of a tile."""
STEP = 4
"""Positions of the sum that a thread loads at once: 16 bytes."""


def fma_refusal(placed: PlacedRequest) -> str:
    """Why these kernels do not compute a contraction; empty if they do."""
    types = placed.request.problem.types
    if types.uniform != "float32":
        return f"slices of {types} do not come to a ring"
    return ring_refusal(placed)


class FmaText(RingText):
    """The text of one contraction."""

    tiles = (RingTile(128, 128, 2, 4), RingTile(64, 64, 2, 4))
    split_tile = tiles[1]

    def __init__(self, placed: PlacedRequest, tile: RingTile | None, splits: int) -> None:
        super().__init__(placed, tile, splits)
        self.own = self.tile.rows // SIDE
        self.width = min(self.width, STEP)

    def _staged(self) -> int:
        return self.tile.threads // 32 * 2 * (self.tile.columns + STAGING_PAD)

    def _start(self, buffer: CodeBuffer) -> None:
        buffer.line(f"down_thread = idiv(thread, {SIDE})")
        buffer.line(f"side_thread = thread - down_thread * {SIDE}")
        for i in range(self.own):
            buffer.line(f"acc{i} = const_float32(0, {self.own})")

    def _column(self, j: int) -> str:
        """A thread's column ``j`` of the tile: neighbours side by side where vectors of the slice have them so."""
        if self.along:
            return f"side_thread + {SIDE * j}"
        return f"side_thread * {STEP} + {j // STEP * SIDE * STEP + j % STEP}"

    def _add_slice(self, buffer: CodeBuffer) -> None:
        buffer.line(f"slice_a = slot * {self.left_slot} + down_thread * {self.pitch}")
        with buffer.block(f"for step in range({self.form.words // STEP}):"):
            for i in range(self.own):
                buffer.line(f"a{i} = load_aligned(ring_a, slice_a + {SIDE * i * self.pitch} + step * {STEP}, {STEP})")
            self._columns(buffer)
            for k in range(STEP):
                for i in range(self.own):
                    buffer.line(f"acc{i} = fma(splat(extract(a{i}, {k}), {self.own}), b{k}, acc{i})")

    def _columns(self, buffer: CodeBuffer) -> None:
        """Emit, for each of the step's positions, the right operand in the thread's columns."""
        stage = f"slot * {self.right_slot}"
        if self.along:
            for j in range(self.own):
                place = f"{stage} + ({self._column(j)}) * {self.pitch} + step * {STEP}"
                buffer.line(f"c{j} = load_aligned(ring_b, {place}, {STEP})")
        for k in range(STEP):
            parts = []
            for first in range(0, self.own, STEP):
                if self.along:
                    lanes = ", ".join(f"splat(extract(c{first + j}, {k}), 1)" for j in range(STEP))
                    parts.append(f"join4({lanes})")
                else:
                    place = f"{stage} + (step * {STEP} + {k}) * {self.turned_pitch} + {self._column(first)}"
                    parts.append(f"load_aligned(ring_b, {place}, {STEP})")
            buffer.line(f"b{k} = {parts[0]}" if len(parts) == 1 else f"b{k} = join2({', '.join(parts)})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Two rows of the warp at a time."""
        pitch, per_row = self.tile.columns + STAGING_PAD, self.tile.columns // self.width
        buffer.line(f"area = warp * {2 * pitch}")
        buffer.line(f"mine = area + (down_thread - warp * 2) * {pitch}")
        for i in range(self.own):
            buffer.line("warp_barrier()")
            for j in range(self.own):
                buffer.line(f"store_scalar(staged, mine + {self._column(j)}, extract(acc{i}, {j}))")
            buffer.line("warp_barrier()")
            row = f"first_row + warp * 2 + {SIDE * i} + below"
            place = f"area + below * {pitch} + side"
            self._store_staged(buffer, place, 2 * per_row // 32, per_row, row, "first_column + side")
