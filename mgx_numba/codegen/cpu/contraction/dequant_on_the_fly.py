"""Text that dequantises block-quantised weights step by step into a float32 buffer, from which tiles read them."""

from __future__ import annotations

import dataclasses

from ....core.dim import Length, maximum, minimum
from ....dataclass import dataclass
from ...problems.gemm import BlockFormat
from ...statements import indent
from ..microkernels.register_tile import RegisterTile
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

SCRATCH_BYTES = 65536
"""Stack memory (bytes) for the weights of a step; each tile of rows reads them once, from L2 at the worst."""


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
