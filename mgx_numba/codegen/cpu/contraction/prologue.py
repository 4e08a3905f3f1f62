"""Text of a prologue: the rows of a register tile are computed, or copied, into a small buffer that the tile reads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from ....core.dim import Length, ceil_div, known_less_equal, less_equal, select
from ....dataclass import dataclass
from ...launch import Operand
from ...printer import print_body
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import Prologue
from ...statements import indent
from ..machine import machine
from ..microkernels.register_tile import RegisterTile
from .blocking import Blocking, fit, odd
from .macro_kernel import MacroKernel, even_table

SCRATCH_BYTES = 65536
"""Stack memory (bytes) of kernels that compute, copy or convert rows or weights before the tile reads them."""
TOGETHER = 4
"""Rows that are computed together, so that operands are loaded once."""
LINE = 64
"""Bytes of a cache line. Rows of an odd number of lines are spread over the cache sets."""


def rows_conflict(tile: RegisterTile, row_bytes: int) -> bool:
    """Return whether more rows of a tile share a set of the L1 cache than the set has ways.

    A line of a row is read once for each of its 16 terms. If rows evict each other's lines, each of these reads comes
    from the L2 cache: on one thread of Zen 4 128x1024x1024 runs at 92 GFLOP/s, 128x1040x1024 at 112.

    Args:
        row_bytes: distance of the rows in bytes.
    """
    of = machine()
    lines = {row * row_bytes // LINE for row in range(tile.rows)}
    sets = Counter(line % of.l1_sets for line in lines)
    return max(sets.values()) > of.l1_ways


@dataclass
class PrologueRows:
    """A prologue over rows ``x_ld`` elements apart with contiguous terms; without a prologue, a copy of the rows."""

    prologue: Prologue | None
    dtype: str
    tile: RegisterTile

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int) -> Blocking:
        """Return ``blocking`` with steps that fit the buffer."""
        most = (SCRATCH_BYTES // max(self.tile.rows, self.tile.tall) // LINE - 1) * LINE // ITEMSIZE[self.dtype]
        if known_less_equal(blocking.depth, most):
            return blocking
        even = select(less_equal(blocking.depth, most), blocking.depth, ceil_div(depth, ceil_div(depth, most)))
        return fit(dataclasses.replace(blocking, depth=even), self.tile, m, n, depth, 1)

    def declare(self, macro: MacroKernel, blocking: Blocking, offsets: Mapping[str, int]) -> None:
        """Set the macro-kernel's ``setup`` and ``table``; ``offsets`` has the first element of each operand
        ``a<k>``."""
        size, arguments = ITEMSIZE[self.dtype], macro.arguments
        arguments.integers(near_ld=odd(ceil_div(blocking.depth * size, LINE)) * LINE // size)
        for k, operand in enumerate(self.prologue.operands if self.prologue else ()):
            start = ITEMSIZE[operand.dtype] * offsets[f"a{k}"]
            arguments.pointer(f"a{k}_at", Operand(f"a{k}", start), operand.dtype)
        macro.setup = [f"near = local_{self.dtype}({SCRATCH_BYTES // size})", "filled = 0"]
        macro.table = [*even_table("near_ld"), *self._rows(), macro.block.put("x", "offset(near, 0)")]

    def _rows(self) -> list[str]:
        given = self.prologue.operands if self.prologue else ()
        operands = [(f"a{index}", operand.access) for index, operand in enumerate(given)]
        splats = [f"{a} = load_splat({a}_at, {a}0, {self.tile.lanes})" for a, access in operands if access == "scalar"]
        vectors = [a for a, access in operands if access == "per_k"]
        places = [f"at{r} = imin(i + {r}, left - 1)" for r in range(TOGETHER)]
        places += [f"x_row{r} = x0 + (row + at{r}) * x_ld + k0" for r in range(TOGETHER)]
        places += [f"near_row{r} = at{r} * near_ld" for r in range(TOGETHER)]
        return [
            *splats,
            f"rest = depth_now & {self.tile.lanes - 1}",
            f"for i in range(0, left, {TOGETHER}):",
            *indent(places),
            "    k = depth_now - rest",
            "    if rest > 0:",
            *indent(self._vectors(vectors, tail=True), 2),
            f"    for k in range(0, depth_now - rest, {self.tile.lanes}):",
            *indent(self._vectors(vectors, tail=False), 2),
        ]

    def _computed(self) -> tuple[list[str], str]:
        """Return the statements that compute a vector of ``term``, and the name of the result."""
        if self.prologue is None:
            return [], "term"
        names = ("term", *(f"a{k}" for k in range(len(self.prologue.operands))))
        body, result = print_body(self.prologue.body, names, self.tile.lanes, self.prologue.fast_math, "u")
        return list(body), result

    def _vectors(self, operands: list[str], tail: bool) -> list[str]:
        """Return statements that compute one vector of each row of a group."""
        lanes = self.tile.lanes
        load, more, store = ("load_tail", ", rest, 1", "store_tail") if tail else ("load", "", "store")
        body, result = self._computed()
        lines = [f"{a} = {load}({a}_at, {a}0 + k0 + k{more}, {lanes})" for a in operands]
        for r in range(TOGETHER):
            lines.append(f"term = {load}(x, x_row{r} + k{more}, {lanes})")
            lines += body
            lines.append(f"{store}(near, near_row{r} + k, {result}{', rest' if tail else ''})")
        return lines
