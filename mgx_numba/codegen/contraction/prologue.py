"""Text of a prologue: the rows of one register tile are computed into a small buffer, from which the tile reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from ..cpu.tile_table import RegisterTile
from ..launch import Operand
from .blocking import Blocking, fit
from .problem import ITEMSIZE, Prologue
from .text import Arguments, indent

__all__ = ["PrologueRows"]

NEAR_BYTES = 65536
"""Stack memory for the rows."""
LINE = 64
"""Bytes of a cache line. Rows of an odd number of lines are spread over the sets of a cache."""


@dataclass
class PrologueRows:
    """A prologue over rows that lie ``x_ld`` elements apart and whose terms are contiguous."""

    prologue: Prologue
    dtype: str
    tile: RegisterTile

    def fit(self, blocking: Blocking, m: int, n: int, depth: int) -> Blocking:
        """The blocking with steps that are short enough for the buffer."""
        most = (NEAR_BYTES // self.tile.rows // LINE - 1) * LINE // ITEMSIZE[self.dtype]
        if blocking.depth <= most:
            return blocking
        even = -(-depth // -(-depth // most))
        return fit(dataclasses.replace(blocking, depth=even), self.tile, m, n, depth, 1)

    def declare(
        self, arguments: Arguments, blocking: Blocking, offsets: Mapping[str, int]
    ) -> tuple[list[str], list[str]]:
        """The skeleton's ``setup`` and ``table``; ``offsets`` has the first element of each operand ``a<k>``."""
        size = ITEMSIZE[self.dtype]
        arguments.integers(near_ld=(-(-blocking.depth * size // LINE) | 1) * LINE // size)
        for k, operand in enumerate(self.prologue.operands):
            start = ITEMSIZE[operand.dtype] * offsets[f"a{k}"]
            arguments.pointer(f"a{k}_at", Operand(f"a{k}", start), operand.dtype)
        return [f"near = local_{self.dtype}({NEAR_BYTES // size})", "filled = 0"], [
            "if left != filled:",
            "    filled = left",
            "    for i in range(16):",
            "        table[i] = imin(i, left - 1) * near_ld",
            "for i in range(left):",
            *indent(self._row()),
            "put_pointer(block, 0, offset(near, 0))",
        ]

    def _row(self) -> list[str]:
        lanes = self.tile.lanes
        places, splats = ["x_row = x0 + (row + i) * x_ld + k0"], []
        whole, part = [f"term = load(x, x_row + k, {lanes})"], [f"term = load_tail(x, x_row + k, rest, 1, {lanes})"]
        for index, operand in enumerate(self.prologue.operands):
            name = f"a{index}"
            if operand.access == "scalar":
                splats.append(f"{name} = load_splat({name}_at, {name}0 + (row + i) * {name}_ld, {lanes})")
                continue
            places.append(f"{name}_row = {name}0 + (row + i) * {name}_ld + k0")
            whole.append(f"{name} = load({name}_at, {name}_row + k, {lanes})")
            part.append(f"{name} = load_tail({name}_at, {name}_row + k, rest, 1, {lanes})")
        body = [line.replace("LANES", str(lanes)) for line in self.prologue.lines]
        result = self.prologue.result
        return [
            *places,
            *splats,
            "near_row = i * near_ld",
            f"rest = depth_now & {lanes - 1}",
            "k = depth_now - rest",
            "if rest > 0:",
            *indent([*part, *body, f"store_tail(near, near_row + k, {result}, rest)"]),
            f"for k in range(0, depth_now - rest, {lanes}):",
            *indent([*whole, *body, f"store(near, near_row + k, {result})"]),
        ]
