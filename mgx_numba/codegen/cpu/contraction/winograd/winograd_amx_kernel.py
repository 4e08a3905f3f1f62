"""The kernels of a Winograd convolution over matrix tiles (AMX), with float32 in two parts.

They differ from `kernel` in that the input transform writes both parts, and a call of the register tile computes all
panels of a block. If all inputs of a tile are so small that their parts would be denormal, the inputs are multiplied by
a power of two, and the outputs divided by it.
"""

from __future__ import annotations

from typing import ClassVar

from .....core.dim import Length, ceil_div, less, select
from ....statements import indent
from ...host import CACHE_LINE
from ...machine import machine
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import MATRIX_BLOCK
from ...records import Record, RecordText
from ..macro_kernel import next_height, run_tile
from .kernel import CALL, WinogradWriter, filter_plane
from .transform_table import INPUT_PLACE, PAIRED, SCALE, SMALL_BITS


def row_words(tile: RegisterTile, depth: int) -> int:
    """Return the words from one transformed tile to the next at a point: an odd number of cache lines.

    The rows of a register then fall into different cache sets.
    """
    return (depth // tile.step | 1) * tile.step


class WinogradAmxWriter(WinogradWriter):
    """Text and arguments of the kernels for one problem, over a tile of two parts."""

    record: ClassVar[Record] = MATRIX_BLOCK

    @property
    def name(self) -> str:
        return self.form.name + "_tiles"

    def _held(self) -> Length:
        return self.block.tiles

    def _row(self, depth: int) -> int:
        return row_words(self.tile, depth)

    def _input_words(self, words: int) -> int:
        return 2 * words + self.block.tiles

    def _declare(self, words: int) -> None:
        tile, depth = self.tile, self.tile.depth(self.problem.group_in)
        blocks = ceil_div(self.block.tiles, tile.rows)
        far = 4 * self.form.points * filter_plane(self.problem, tile) > machine().l2_bytes // 2
        lines = select(less(1, blocks), -(-tile.step_bytes // CACHE_LINE // blocks), 0) if far else 0
        self.arguments.integers(low=words, factors=2 * words, row_words=self._row(depth), far_share=lines)

    def _transformed_input(self, channels: str) -> list[str]:
        def call(scaled: int) -> str:
            target = f"offset(u, t * row_words), u_plane, low, {channels}"
            return f"winograd_input_parts(x, place, zero, {target}, {self.form.side}, {scaled}, {2 * PAIRED})"

        bits = RecordText(INPUT_PLACE, "place").get("bits")
        return [
            call(0),
            f"small = {bits} > 0 and {bits} < {SMALL_BITS}",
            f"store_scalar(u, factors + t, {1 / SCALE!r} if small else 1.0)",
            "if small:",
            f"    {call(1)}",
        ]

    def _products(self) -> list[str]:
        """Return statements for the products, point by point, each block of rows over all panels.

        Where filters come from beyond the L2 cache, each of several blocks prefetches a share of the next point's
        filters.
        """
        return [
            "if narrow:",
            "    wide -= 1",
            f"for point in range({self.form.points}):",
            *indent([
                "first_panel = point * v_plane + (group * panels + p0) * w_panel",
                self.tile_block.put("w", "offset(w, first_panel)"),
                "far = first_panel + v_plane",
                f"far_lines = far_share if point + 1 < {self.form.points} else 0",
                self.tile_block.put("far_lines", "far_lines"),
                "row = 0",
                "while row < count:",
                *indent([
                    "left = count - row",
                    *next_height(self.tile, tall=False),
                    *self.tile_block.fill(
                        exist="imin(left, height)", x_row="row_words", x_low="low",
                        x="offset(u, point * u_plane + row * row_words)",
                        acc="offset(products, point * m_plane + row * sums_ld)", far="offset(w, far)",
                    ),
                    *run_tile(self.tile, self.arguments, self.tile_block),
                    "far += far_lines * depth",
                    "row += height",
                ]),
            ]),
        ]  # fmt: skip

    def _after_output(self) -> list[str]:
        lanes = self.tile.lanes
        return [
            f"factor = load_scalar(scratch, {CALL.get('scratch')} + factors + t)",
            "if factor < 1.0:",
            f"    for c in range(0, {self.form.out**2} * sums_ld, {lanes}):",
            f"        store(sums, c, mul(load(sums, c, {lanes}), factor))",
        ]
