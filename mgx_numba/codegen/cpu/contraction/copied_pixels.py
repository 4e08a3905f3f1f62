"""Text that copies the input pixels of a register tile's rows to a small buffer, tap by tap.

Input pixels that are a multiple of 4 KiB apart (512 channels at stride 2, 1024 at stride 1) share a set of the L1
cache (`prologue.rows_conflict`). In the buffer a row has the terms of all its taps, one tap behind the other, so the
tile reads evenly spaced rows of one tap. One thread of Zen 4, 512 channels to 512, 3 taps at stride 2: 92 GFLOP/s, in
place 49.
"""

from __future__ import annotations

import dataclasses

from ....core.dim import Length
from ....dataclass import dataclass
from ...problems.element_types import ITEMSIZE
from ...statements import indent
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import TILE_TABLE_ROWS
from ..records import RecordText
from .blocking import Blocking, fit, odd
from .indirection import PLACES_BLOCK
from .macro_kernel import MacroKernel, even_table
from .prologue import LINE, SCRATCH_BYTES


@dataclass
class CopiedPixels:
    """The copied rows of ``tile``, each of a step's taps times channels."""

    tile: RegisterTile

    @property
    def _size(self) -> int:
        return ITEMSIZE[self.tile.left_word]

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int, taps: int) -> Blocking:
        """Return ``blocking`` with steps that fit the buffer: several whole taps, or channels of one tap."""
        most = (SCRATCH_BYTES // max(self.tile.variants()) // LINE - 1) * LINE // self._size
        steps = -(-depth // most)
        if steps > 1:
            smaller = dataclasses.replace(blocking, taps=1, depth=-(-depth // steps))
        else:
            smaller = dataclasses.replace(blocking, taps=min(blocking.taps, most // depth))
        return fit(smaller, self.tile, m, n, depth, taps)

    def declare(self, macro: MacroKernel, blocking: Blocking) -> None:
        """Add the copy to the macro-kernel's ``table``, after the statements that call the offsets kernel."""
        size, lanes, places = self._size, self.tile.lanes, RecordText(PLACES_BLOCK, "places")
        lines = -(-blocking.taps * blocking.depth * size // LINE)
        macro.arguments.integers(near_ld=odd(lines) * LINE // size)
        macro.x_row = "near_ld"
        macro.setup += [
            f"near = local_{self.tile.left_word}({SCRATCH_BYTES // size})",
            f"near_table = local_int64({TILE_TABLE_ROWS})",
            "filled = 0",
            macro.block.put("offsets", "near_table"),
        ]
        zeros = f"const_{self.tile.left_word}(0, {lanes})"
        macro.table += [
            *even_table("near_ld", "near_table"),
            f"terms = {places.get('tile_depth')}",
            f"rest = terms & {lanes - 1}",
            f"for t in range({places.get('tile_taps')}):",
            "    for i in range(left):",
            f"        place = table[t * {TILE_TABLE_ROWS} + i]",
            "        goal = i * near_ld + t * terms",
            "        if place < 0:",
            *indent(_copy(lanes, zeros, zeros), 3),
            "        else:",
            "            place += x0 + k0 + anchor",
            *indent(_copy(lanes, f"load(x, place + c, {lanes})", f"load_tail(x, place + c, rest, 1, {lanes})"), 3),
            *macro.block.fill(x="offset(near, 0)", taps=1, depth="taps_now * depth_now"),
        ]


def _copy(lanes: int, whole: str, part: str) -> list[str]:
    """Return statements that store ``terms`` elements at ``goal``: vectors ``whole``, and ``part`` for the rest."""
    return [
        f"for c in range(0, terms - rest, {lanes}):",
        f"    store(near, goal + c, {whole})",
        "if rest > 0:",
        "    c = terms - rest",
        f"    store_tail(near, goal + c, {part}, rest)",
    ]
