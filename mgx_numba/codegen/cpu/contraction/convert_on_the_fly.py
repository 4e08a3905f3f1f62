"""Text that converts 16-bit weights, or block-quantised weights, to float32, step by step, in a buffer from which the
float32 tiles read them.

A tile of 16-bit weights (`stored_table`) converts them for each group of its rows, and passes its accumulators to the
epilogue through memory. Where many groups of rows read the same weights, one conversion serves all groups, and the
float32 tile runs the epilogue in registers.
"""

from __future__ import annotations

import dataclasses

from ....core.dim import Length, less, less_equal, maximum, minimum, permitted, preferred
from ....dataclass import dataclass
from ...problems.element_types import ElementTypes, element_types
from ...problems.gemm import BlockFormat
from ...statements import indent
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .block_quant import (
    LANES_TOGETHER,
    block_words,
    codes_place,
    head_words,
    offset_of,
    points_of,
    scale_of,
    unit_of,
    weight_of,
)
from .blocking import Blocking, fit
from .macro_kernel import MacroKernel
from .prologue import SCRATCH_BYTES

FEWEST_TILES = 3
"""Least groups of rows for which a conversion pays: it takes about a third of the time of one group's products."""
FEWEST_PANELS = 4
"""Least panels that must fit the buffer together, as rows are otherwise read too often.

Times in bfloat16 and float16, relative to float32, on Zen 5 limited to AVX2. BERT: 0.92 and 0.88 both with 4 and
without a buffer, 0.91 and 0.87 with 2, 1.06 and 1.07 with 1. ShuffleNet: 1.03 and 1.01 with 4, 1.04 and 1.04 with 2,
1.02 and 1.02 with 1, 1.13 and 1.09 without a buffer.
"""


@dataclass
class ConvertOnTheFly:
    """Weights packed for the tile ``stored``; ``tile`` is the float32 tile with the same columns."""

    word: str
    tile: RegisterTile
    packed_panel: int

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int, taps: int = 1) -> Blocking:
        """Return ``blocking`` with the most panels that fit the buffer."""
        most = SCRATCH_BYTES // (4 * self._panel(blocking))
        return fit(dataclasses.replace(blocking, panels=minimum(blocking.panels, most)), self.tile, m, n, depth, taps)

    def steps(self, blocking: Blocking) -> tuple[int, Length]:
        """Return the elements of the buffer from one term to the next, and from one panel to the next."""
        return self.tile.columns, self._panel(blocking)

    def declare(self, macro: MacroKernel, blocking: Blocking) -> None:
        """Set the macro-kernel's ``setup`` and ``scratch``. Weights that successive tasks share are converted once."""
        tile = self.tile
        macro.arguments.integers(packed_panel=self.packed_panel)
        macro.setup += [f"near = local_float32({SCRATCH_BYTES // 4})", "held = -1"]
        start, terms = ("t0 * depth + k0", "taps_now * depth_now") if macro.several_taps else ("k0", "depth_now")
        vectors = [
            f"store(near, goal + {v * tile.lanes}, cast_float32(load(w, source + i + {v * tile.lanes}, {tile.lanes})))"
            for v in range(tile.vectors)
        ]
        macro.scratch = [
            "if keep == 1 or held != outer:",
            "    held = outer",
            "    for p in range(imin(panels - p0, p_block)):",
            f"        source = w0 + (p0 + p) * packed_panel + ({start}) * {tile.columns}",
            f"        for i in range(0, ({terms}) * {tile.columns}, {tile.columns}):",
            "            goal = p * w_panel + i",
            *indent(vectors, 3),
        ]

    def _panel(self, blocking: Blocking) -> Length:
        return blocking.taps * blocking.depth * self.tile.columns


def convert_on_the_fly(
    own: RegisterTile, types: ElementTypes, rows: Length, blocking: Blocking, packed_panel: int
) -> ConvertOnTheFly | None:
    """Return how 16-bit weights, packed for the tile ``own``, are converted for ``rows`` rows; None if that tile should
    read them.

    Args:
        blocking: the blocking of the float32 tile.
    """
    if types.uniform is not None or not types.a == types.accumulator == types.out:
        return None
    tile = tile_for(element_types(types.a))
    if own.packing.k_interleave > 1 or own.step > 1 or (own.columns, own.lanes) != (tile.columns, tile.lanes):
        return None
    if preferred(less(minimum(rows, blocking.rows), FEWEST_TILES * tile.rows)) or not tile.finishes:
        return None
    scratch = ConvertOnTheFly(types.b, tile, packed_panel)
    together = minimum(FEWEST_PANELS, blocking.panels)
    return scratch if permitted(less_equal(4 * scratch.steps(blocking)[1] * together, SCRATCH_BYTES)) else None


@dataclass
class DequantOnTheFly:
    """Block-quantised weights of k rows; ``panel_words`` is the length of a packed panel, a vector of columns."""

    form: BlockFormat
    k: int
    panel_words: int
    tile: RegisterTile
    word = "int32"

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int) -> Blocking:
        """Return ``blocking`` with steps of whole blocks that fit the buffer."""
        size = self.form.size
        most = SCRATCH_BYTES // (4 * self.tile.columns)
        rows = minimum(most, maximum(blocking.depth, size)) // size * size
        wanted = dataclasses.replace(blocking, depth=rows, panels=minimum(blocking.panels, most // rows))
        return fit(wanted, self.tile, m, n, depth, 1)

    def steps(self, blocking: Blocking) -> tuple[int, Length]:
        """Return the elements of the buffer from one k to the next, and from one panel to the next."""
        whole = -(-blocking.depth // self.form.size) * self.form.size
        return self.tile.columns, whole * self.tile.columns

    def declare(self, macro: MacroKernel, blocking: Blocking) -> None:
        """Set the macro-kernel's ``setup`` and ``scratch``."""
        form, tile, arguments = self.form, self.tile, macro.arguments
        if form.half_scales:
            arguments.pointer("halves", "w", "float16")
        arguments.integers(panel_words=self.panel_words, first_words=head_words(form, self.k, tile.lanes))
        macro.setup.append(f"near = local_float32({SCRATCH_BYTES // 4})")
        macro.scratch = [
            "for p in range(imin(panels - p0, p_block)):",
            f"    for v in range({tile.vectors}):",
            *indent(self._panel(), 2),
        ]

    def _panel(self) -> list[str]:
        form, lanes, columns = self.form, self.tile.lanes, self.tile.columns
        words, groups = unit_of(form)
        per = groups * LANES_TOGETHER
        raw = [f"raw{i}" for i in range(words)]
        unit = [
            f"{name} = load(own_blocks, at + (unit * {words} + {i}) * {lanes}, {lanes})" for i, name in enumerate(raw)
        ]
        for k in range(per):
            weight = weight_of(form, raw, k, "point", "scale", "shift")
            unit.append(f"store(near, goal + (unit * {per} + {k}) * {columns}, {weight})")
        half = form.half_scales
        return [
            f"start = ((p0 + p) * {self.tile.vectors} + v) * panel_words",
            "own_panel = offset(w, start)",
            "own_blocks = offset(own_panel, first_words)",
            *(["own_halves = offset(halves, 2 * (start + first_words))"] if half else []),
            *([f"factor = bits_float32(load(own_panel, 0, {lanes}))"] if half else []),
            f"for number in range(idiv(k0, {form.size}), idiv(k0 + depth_now + {form.size - 1}, {form.size})):",
            *indent([
                f"scale = {scale_of(form, 'own_blocks', 'own_halves', 'number', lanes)}",
                *(["scale = mul(scale, factor)"] if half else []),
                *([f"shift = {offset_of(form, 'own_blocks', 'own_halves', 'number', lanes)}"] if form.offsets else []),
                *(["shift = mul(shift, factor)"] if form.offsets and half else []),
                f"point = {points_of(form, 'own_panel', 'number', 'int32', lanes)}",
                f"at = {codes_place(form, 'number', lanes)}",
                f"goal = p * w_panel + (number * {form.size} - k0) * {columns} + v * {lanes}",
                f"for unit in range({block_words(form) // words}):",
                *indent(unit),
            ]),
        ]  # fmt: skip
