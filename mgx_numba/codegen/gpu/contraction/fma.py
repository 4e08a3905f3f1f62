"""Products and convolutions in full float32: FMAs of ordinary arithmetic units, operands from the shared-memory ring
(`ring`).

The lanes of a warp form an 8 by 4 grid over its sub-tile. A lane owns every eighth row, and four neighbouring columns
of every sixteen. Loads of a step (four K elements) by a warp are free of bank conflicts, and every loaded word is
reused as often as accumulator registers allow.
"""

from __future__ import annotations

from ...printer import CodeBuffer
from ..architecture import WARP
from .fma_tiles import TILES, TOGETHER, FmaTile, fma_form, fma_ring_bytes, weighed_tiles
from .gpu_contraction import GpuContraction
from .ring import RingForm, RingText, ring_refusal

DOWN, ACROSS = 8, 4
"""Lanes of a warp along the rows, and along the columns, of its sub-tile."""
STEP = 4
"""K elements per load of a thread, and neighbouring columns per lane: 16 bytes."""
STAGING_PAD = 16
"""Padding words per staged row. Eight lanes store at once, two rows of four vectors, which the padding puts in
different banks."""
AT_ONCE = 4
"""Rows of a lane that are staged together; the staging area fits in two ring slices of 16 words."""


def fma_refusal(contraction: GpuContraction) -> str:
    """Return the reason why the FMA kernel does not apply to a contraction; "" if it applies."""
    types = contraction.request.problem.types
    if types.uniform != "float32":
        return f"slices of {types} do not come to a ring"
    return ring_refusal(contraction)


class FmaText(RingText):
    """Kernel text of one contraction.

    Attributes:
        high, wide: rows and columns of a warp's sub-tile.
        own_rows: rows per lane.
        own_groups: groups of neighbouring columns per lane.
    """

    tiles = TILES
    blocks, spread = TOGETHER, STEP
    tile: FmaTile

    def __init__(self, contraction: GpuContraction, tile: FmaTile | None, splits: int) -> None:
        super().__init__(contraction, tile, splits)
        tile = self.tile
        self.high, self.wide = tile.rows // tile.down, tile.columns // tile.across
        self.own_rows, self.own_groups = self.high // DOWN, self.wide // (ACROSS * STEP)
        self.width = min(self.width, STEP)

    @classmethod
    def form_of(cls, contraction: GpuContraction) -> RingForm:
        return fma_form(contraction)

    @staticmethod
    def _ring_bytes() -> int:
        return fma_ring_bytes()

    @classmethod
    def chosen(cls, contraction: GpuContraction) -> tuple[FmaTile, int]:
        """See `RingText.chosen`: the tile with the least estimated time."""
        _, tile, splits = weighed_tiles(contraction)[0]
        return tile, splits

    def _staged(self) -> int:
        return self.tile.threads // WARP * AT_ONCE * DOWN * (self.tile.columns // self.tile.across + STAGING_PAD)

    def _start(self, buffer: CodeBuffer) -> None:
        tile = self.tile
        buffer.line(
            f"deep = idiv(warp, {tile.down * tile.across})",
            f"beside = warp - deep * {tile.down * tile.across}",
            f"warp_down = idiv(beside, {tile.across})",
            f"warp_row = warp_down * {self.high}",
            f"warp_column = (beside - warp_down * {tile.across}) * {self.wide}",
            f"down_lane = idiv(lane, {ACROSS})",
            f"side_lane = lane - down_lane * {ACROSS}",
            f"first_k = deep * {self.form.words // tile.deep}",
            f"own_a = (warp_row + down_lane) * {self.pitch} + first_k",
        )
        if self.along:
            buffer.line(f"own_b = (idiv(warp_column, {STEP}) + side_lane) * {self.pitch} + first_k")
        else:
            buffer.line(f"own_b = first_k * {self.transposed_pitch} + warp_column + side_lane * {STEP}")
        for i in range(self.own_rows):
            for g in range(self.own_groups):
                buffer.line(f"acc{i}_{g} = const_float32(0, {STEP})")

    def _add_slice(self, buffer: CodeBuffer) -> None:
        buffer.line(f"slice_a = slot * {self.left_slot} + own_a")
        buffer.line(f"slice_b = slot * {self.right_slot} + own_b")
        with buffer.block(f"for step in range({self.form.words // self.tile.deep // STEP}):"):
            for i in range(self.own_rows):
                place = f"slice_a + {DOWN * i * self.pitch}"
                buffer.line(f"a{i} = load_aligned(ring_a, {place}, {STEP})")
            if self.along:
                self._add_along(buffer)
            else:
                self._add_transposed(buffer)
            buffer.line(f"slice_a = slice_a + {STEP}")
            buffer.line(f"slice_b = slice_b + {STEP * (1 if self.along else self.transposed_pitch)}")

    def _add_along(self, buffer: CodeBuffer) -> None:
        """Emit the FMAs of a step for a right operand that is contiguous along K, one column group at a time."""
        for g in range(self.own_groups):
            for q in range(STEP):
                place = f"slice_b + {(g * ACROSS + q * self.tile.columns // STEP) * self.pitch}"
                buffer.line(f"c{q} = load_aligned(ring_b, {place}, {STEP})")
            for k in range(STEP):
                lanes = ", ".join(f"splat(extract(c{q}, {k}), 1)" for q in range(STEP))
                buffer.line(f"b = join4({lanes})")
                for i in range(self.own_rows):
                    buffer.line(f"acc{i}_{g} = fma(splat(extract(a{i}, {k}), {STEP}), b, acc{i}_{g})")

    def _add_transposed(self, buffer: CodeBuffer) -> None:
        """Emit the FMAs of a step for a right operand that is contiguous along columns, one K element at a time."""
        for k in range(STEP):
            for g in range(self.own_groups):
                place = f"slice_b + {k * self.transposed_pitch + g * ACROSS * STEP}"
                buffer.line(f"b{g} = load_aligned(ring_b, {place}, {STEP})")
            for i in range(self.own_rows):
                for g in range(self.own_groups):
                    buffer.line(f"acc{i}_{g} = fma(splat(extract(a{i}, {k}), {STEP}), b{g}, acc{i}_{g})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the epilogue, `AT_ONCE` rows of each lane at a time. Warps with partial sums of one sub-tile
        (intra-block split-K) each add and store some of the rows."""
        pitch, per_row, deep = self.wide + STAGING_PAD, self.wide // self.width, self.tile.deep
        meet = "warp_barrier()" if deep == 1 else "barrier()"
        rows = AT_ONCE * DOWN
        area, apart = rows * pitch, self.tile.down * self.tile.across * rows * pitch
        buffer.line(f"mine = warp * {area} + down_lane * {pitch} + side_lane * {STEP}")
        buffer.line(f"first_below = deep * {rows // deep}")
        buffer.line(f"area = beside * {area}")
        for first in range(0, self.own_rows, AT_ONCE):
            buffer.line(meet)
            for i in range(AT_ONCE):
                for g in range(self.own_groups):
                    place = f"mine + {i * DOWN * pitch + g * ACROSS * STEP}"
                    buffer.line(f"store_aligned(staged, {place}, acc{first + i}_{g})")
            buffer.line(meet)
            row = f"first_row + warp_row + {first * DOWN} + first_below + below"
            column = "first_column + warp_column + side"
            place = f"area + (first_below + below) * {pitch} + side"
            places = [place + f" + {d * apart}" * (d > 0) for d in range(deep)]
            self._store_staged(buffer, places, rows // deep * per_row // WARP, per_row, row, column)
