"""Rows split into parts, or rounded to bfloat16, by the multiplying kernel itself, after a prologue or for few columns.

Separate launches do the same (`parts.split_rows`, `gemm_int8.left_words`). Here the result goes to stack memory, one
block of rows at a time, just before the tile reads it, so no other launch has to reload it. A block with a row that
cannot be split is multiplied in float32 as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ....core.dim import Length, ceil_div, known_less_equal, less_equal, select
from ....dataclass import dataclass
from ...launch import Operand
from ...printer import print_body
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import Prologue
from ...statements import indent
from .. import host
from ..microkernels.register_tile import RegisterTile
from ..records import Record, RecordText, pointer
from .bf16_split_rows import LINE_ELEMENTS, halve_vector, one_by_one, row_note, split_vector
from .blocking import Blocking, fit, odd
from .macro_kernel import MacroKernel, even_table
from .prologue import SCRATCH_BYTES

_WORD = 4  # bytes
_LINE = host.CACHE_LINE // _WORD
SCRATCH_BLOCK = Record("near rows", (pointer("rows"),))
"""The record of the buffer's address, which kernels read as words, as bfloat16 and as halves of float32."""


def most_terms(tile: RegisterTile) -> int:
    """Return the most terms of a row that fit the buffer at once."""
    return _most_words(tile) * tile.packing.k_interleave


def _most_words(tile: RegisterTile) -> int:
    """Return the most words of one part of a row, an odd number of cache lines, such that all rows of the tile fit."""
    lines = SCRATCH_BYTES // (tile.packing.parts * tile.rows * host.CACHE_LINE)
    return (lines - 1 | 1) * _LINE


@dataclass
class SplitOnTheFly:
    """Rows of ``k`` contiguous terms, ``x_ld`` elements apart, with a prologue or without."""

    k: int
    tile: RegisterTile
    prologue: Prologue | None = None

    def fit(self, blocking: Blocking, m: Length, n: int, depth: int) -> Blocking:
        """Return ``blocking`` with steps that fit the buffer."""
        most = _most_words(self.tile)
        if known_less_equal(blocking.depth, most):
            return blocking
        even = select(less_equal(blocking.depth, most), blocking.depth, ceil_div(depth, ceil_div(depth, most)))
        return fit(dataclasses.replace(blocking, depth=even), self.tile, m, n, depth, 1)

    def declare(self, macro: MacroKernel, blocking: Blocking, offsets: Mapping[str, int]) -> None:
        """Set the macro-kernel's ``setup``, ``table`` and ``instead``; ``offsets`` has the first element of each
        operand ``a<k>``."""
        arguments = macro.arguments
        near_ld = odd(blocking.depth // _LINE) * _LINE
        low = self.tile.rows * near_ld
        arguments.integers(near_ld=near_ld, low=2 * low, terms=self.k)
        for k, operand in enumerate(self.prologue.operands if self.prologue else ()):
            start = ITEMSIZE[operand.dtype] * offsets[f"a{k}"]
            arguments.pointer(f"a{k}_at", Operand(f"a{k}", start), operand.dtype)
        place = RecordText(SCRATCH_BLOCK, "near_block")
        macro.setup += [
            f"near = local_int32({SCRATCH_BYTES // _WORD})",
            place.local(),
            place.put("rows", "near"),
            f"packed = {place.elements('rows', 'bfloat16')}",
            f"halves = {place.elements('rows', 'uint16')}",
            "filled = 0",
        ]
        macro.read_matrix(low, "near_ld")
        macro.table = [*even_table("near_ld"), *self._rows(), macro.block.put("x", "offset(near, 0)")]
        if self.tile.packing.parts == 1:
            return
        terms = "imin(2 * depth_now, terms - 2 * k0)"
        exact = one_by_one(self.tile, terms, "1", "k0", ["halved = 1"], "near", "0", "near_ld")
        macro.instead = ["if special > 0:", *indent(exact)]

    def _rows(self) -> list[str]:
        """Return statements that round ``left`` rows, or split them, or halve the bits of all if a row cannot be
        split."""
        first = [*self._splats(), "terms_now = imin(2 * depth_now, terms - 2 * k0)"]
        if self.tile.packing.parts == 1:
            return [*first, "for i in range(left):", *indent([*self._place(), *self._walk(_rounded)])]
        return [
            *first,
            "special = 0",
            "for i in range(left):",
            *indent([
                *self._place(),
                f"largest = const_int32(0, {LINE_ELEMENTS})",
                *self._walk(split_vector),
                *row_note(),
                "special += 1 if halved else 0",
            ]),
            "if special > 0:",
            "    for i in range(left):",
            *indent([*self._place(), *self._walk(halve_vector)], 2),
        ]  # fmt: skip

    @staticmethod
    def _place() -> list[str]:
        return ["x_row = x0 + (row + i) * x_ld + 2 * k0", "near_row = 2 * i * near_ld"]

    def _splats(self) -> list[str]:
        operands = enumerate(self.prologue.operands if self.prologue else ())
        return [f"a{k} = load_splat(a{k}_at, a{k}0, {LINE_ELEMENTS})" for k, o in operands if o.access == "scalar"]

    def _walk(self, write: Callable[[str, str], list[str]]) -> list[str]:
        def body(rest: str) -> list[str]:
            end, more = ("_tail", f"{rest}, 0, ") if rest else ("", "")
            term = f"load{end}(x, x_row + c, {more}{LINE_ELEMENTS})"
            if self.prologue is None:
                return write(term, "near_row + c")
            lines = [f"term = {term}"]
            for k, operand in enumerate(self.prologue.operands):
                if operand.access == "per_k":
                    lines.append(f"a{k} = load{end}(a{k}_at, a{k}0 + 2 * k0 + c, {more}{LINE_ELEMENTS})")
            names = ("term", *(f"a{k}" for k in range(len(self.prologue.operands))))
            made, result = print_body(self.prologue.body, names, LINE_ELEMENTS, self.prologue.fast_math, "u")
            if rest:
                zero = f"const_float32(0, {LINE_ELEMENTS})"
                result = f"where(lane_mask({rest}, {LINE_ELEMENTS}), {result}, {zero})"
            return [*lines, *made, *write(result, "near_row + c")]

        return [
            f"rest = terms_now & {LINE_ELEMENTS - 1}",
            "c = terms_now - rest",
            "if rest > 0:",
            *indent(body("rest")),
            f"for c in range(0, terms_now - rest, {LINE_ELEMENTS}):",
            *indent(body("")),
        ]


def _rounded(value: str, at: str) -> list[str]:
    return [f"store(packed, {at}, round_bfloat16({value}))"]
