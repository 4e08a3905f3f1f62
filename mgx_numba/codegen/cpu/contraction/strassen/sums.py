"""Sums of blocks for a product by Strassen's method, as jobs that its tiles do on the side.

A job is one sum of two places in memory, `SIDE_WORDS` in a queue. The driver queues those for the next step, and for
the next outer product some of each step; what the tiles of a step could not do is done by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...microkernels.register_tile import RegisterTile
from ..epilogue_rows import indent
from .blocks import LEFT_OPERATIONS, RIGHT_PANELS, left_pieces, next_strip
from .form import LEFT, RIGHT
from .tile_table import INNER, LEFT_PITCH, SIDE_WORDS, strassen_slot

__all__ = ["RIGHT_OPERANDS", "Sums", "form"]

_QUEUE = 192
"""Jobs that the queue holds."""
_AHEAD = 1024
"""Elements of packed panels that are brought near ahead of the sum."""
_RIGHT_SUMS = ((1, 0), (3, 1), (3, 4), (2, 6))
"""Winograd's right-hand sums, a difference each: quadrants are numbered 0 to 3, these sums 4 to 7."""
RIGHT_OPERANDS = (0, 6, 5, 7, 4, 3, 2)
"""Which of them each product multiplies with."""
_NEAR, _FAR, _PLACE, _ZEROS = 0, 4, 8, 15
"""Terms of left-hand sums: quadrants of the outer sum's first block, of its second, the products' left-hand sides."""
_ADD, _SUBTRACT, _OUTER = 0, 1, 2
"""Signs of the second term: the last is that of the outer sum."""
_TWO_BLOCKS = (
    (0, _NEAR + 0, _FAR + 0, _OUTER), (3, _NEAR + 3, _FAR + 3, _OUTER), (6, _NEAR + 1, _FAR + 1, _OUTER),
    (4, _NEAR + 2, _FAR + 2, _OUTER), (2, _PLACE + 0, _PLACE + 4, _SUBTRACT), (1, _PLACE + 3, _PLACE + 2, _SUBTRACT),
    (5, _PLACE + 6, _PLACE + 1, _SUBTRACT), (4, _PLACE + 4, _PLACE + 3, _ADD),
)  # fmt: skip
"""Product, terms and sign of each left-hand sum, in an order in which they can be made: Winograd's form, after the
quadrants of an outer sum of two blocks."""
_ONE_BLOCK = (
    (0, _NEAR + 0, _ZEROS, _ADD), (3, _NEAR + 3, _ZEROS, _ADD), (6, _NEAR + 1, _ZEROS, _ADD),
    (2, _NEAR + 0, _NEAR + 2, _SUBTRACT), (1, _NEAR + 3, _PLACE + 2, _SUBTRACT),
    (5, _NEAR + 1, _PLACE + 1, _SUBTRACT), (4, _NEAR + 2, _NEAR + 3, _ADD),
)  # fmt: skip
"""The same where the outer product takes a block as it is."""


def form(name: str, word: int, outer: str) -> list[str]:
    """One sum of the outer level: its first block, if there is a second (``<name>_two``), that, and its sign."""
    return [
        f"form = ({word} >> (6 * {outer})) & 63 if levels == 2 else 0",
        f"{name}_two = (form >> 2) & 1",
        f"{name}_sign = form >> 5",
        f"{name}0 = form & 3",
        f"{name}1 = (form >> 3) & 3",
    ]


class Sums:
    """Text that fills the queue, ``job`` to ``jobs`` of it to do. ``operands`` are the right-hand sides of the next
    step by their numbers in `RIGHT_OPERANDS`; ``making`` is set while left-hand sides of ``outer_made`` are missing."""

    def __init__(self, tile: RegisterTile) -> None:
        self.tile = tile
        self.dtype, self.lanes = tile.dtype, tile.lanes
        self.pieces = left_pieces(tile)

    def locals(self) -> list[str]:
        """Statements at the start of the kernel."""
        lines = [
            f"queue = local_int64({(_QUEUE + INNER) * len(SIDE_WORDS)})",
            f"most_jobs = imin({INNER} * strips, {_QUEUE})",
            f"sums = local_int64({RIGHT_PANELS * 4})",
            f"operands = local_int64({RIGHT_PANELS})",
            "terms = local_int64(16)",
            f"zeros = local_{self.dtype}({LEFT_PITCH})",
            f"for c in range(0, k_block, {self.lanes}):",
            f"    store(zeros, c, const_{self.dtype}(0, {self.lanes}))",
            f"moves = local_int64({2 * LEFT_OPERATIONS})",
        ]
        for start, operations in ((0, _ONE_BLOCK), (LEFT_OPERATIONS, _TWO_BLOCKS)):
            for i, (product, one, other, sign) in enumerate(operations, start):
                lines.append(f"moves[{i}] = {one | other << 4 | product << 8 | sign << 11}")
        return lines

    def _queued(self, pointers: Sequence[str], sign: str, vectors: str, runs: str, pitches: Sequence[str]) -> list[str]:
        lines = [f"entry = jobs * {len(SIDE_WORDS)}"]
        lines += [f"put_pointer(queue, entry + {i}, {pointer})" for i, pointer in enumerate(pointers)]
        words = (sign, vectors, runs, *pitches)
        lines += [f"queue[entry + {i}] = {word}" for i, word in enumerate(words, len(pointers))]
        return [*lines, "jobs += 1"]

    def right(self) -> list[str]:
        """Where the right-hand sides of the next step are, and jobs for the sums among them."""
        columns = self.tile.columns

        def quadrant(h: int, term: str) -> str:
            panel = f"imin(p0 + (({term} & 1) * 2 + {h & 1}) * p_block, panels - p_block) + panel_of_block_next"
            k = f"(({term} >> 1) * 2 + {h >> 1}) * idiv(depth, grid) + part_of_k_next * k_block"
            return f"offset(w, ({panel}) * w_panel + ({k}) * {columns})"

        area = "offset(scratch, 2 * base + right_size - right_at + {} * right_area)"
        lines = form("b_block", RIGHT, "outer_next")
        for h in range(4):
            lines += [
                f"put_pointer(operands, {h}, {quadrant(h, 'b_block0')})",
                "if b_block_two > 0:",
                *indent([
                    f"put_pointer(sums, {4 * h}, {area.format(h)})",
                    f"sums[{4 * h + 1}] = operands[{h}]",
                    f"put_pointer(sums, {4 * h + 2}, {quadrant(h, 'b_block1')})",
                    f"sums[{4 * h + 3}] = b_block_sign",
                    f"operands[{h}] = sums[{4 * h}]",
                ]),
            ]  # fmt: skip
        for i, (one, other) in enumerate(_RIGHT_SUMS, 4):
            lines += [
                f"put_pointer(operands, {i}, {area.format(i)})",
                f"sums[{4 * i}] = operands[{i}]",
                f"sums[{4 * i + 1}] = operands[{one}]",
                f"sums[{4 * i + 2}] = operands[{other}]",
                f"sums[{4 * i + 3}] = 1",
            ]
        pointers = [f"offset(local_pointer_{self.dtype}(sums, 4 * kind + {i}), line * {columns})" for i in range(3)]
        vectors = f"lines * {self.tile.vectors}"
        return [
            *lines,
            "share = most_jobs - imin(left_share * making, most_jobs)",
            f"kind = 0 if b_block_two > 0 else {RIGHT_PANELS // 2}",
            f"pieces = imin(idiv(share, {RIGHT_PANELS} - kind), most_pieces)",
            "pieces = imax(pieces, fewest_pieces)",
            "whole = idiv(k_block, pieces)",
            "over = k_block - whole * pieces",
            f"while kind < {RIGHT_PANELS}:",
            *indent([
                "line = 0",
                "for piece in range(pieces):",
                *indent([
                    "lines = whole + (1 if piece < over else 0)",
                    *self._queued(pointers, "sums[4 * kind + 3]", vectors, "1", [str(_AHEAD)] * 3),
                    "line += lines",
                ]),
                "kind += 1",
            ]),
        ]  # fmt: skip

    def begin_left(self, outer: str, part: str) -> list[str]:
        """From now on, the left-hand sides of that outer product and part of the sum are to be made."""
        return [
            f"outer_made = {outer}",
            f"part_made = {part}",
            "lefts_made = lefts + imod(part_made * outers + outer_made, kept) * strips * strip_size",
            *form("a_block", LEFT, "outer_made"),
            "row_made = 0",
            "strip_made = 0",
            "item = 0",
            "making = 1",
        ]

    def left(self) -> list[str]:
        """As many jobs for those as there is room for."""
        places = []
        for name, first in (("a_block0", _NEAR), ("a_block1", _FAR)):
            for h in range(4):
                line = f"(imin(m0 + (({name} >> 1) * 2 + {h >> 1}) * m_block, m - m_block) + row_made) * x_ld"
                column = f"(({name} & 1) * 2 + {h & 1}) * idiv(depth, grid) + part_made * k_block"
                places.append(f"put_pointer(terms, {first + h}, offset(x, {line} + {column}))")
        for u in range(INNER):
            place = f"lefts_made + strip_made * strip_size + block[{strassen_slot('left0') + u}]"
            places.append(f"put_pointer(terms, {_PLACE + u}, offset(scratch, {place}))")
        places.append(f"put_pointer(terms, {_ZEROS}, zeros)")
        read = (
            f"(x_ld if {term} < {_PLACE} else (0 if {term} == {_ZEROS} else {LEFT_PITCH}))" for term in ("one", "other")
        )
        pitches = [str(LEFT_PITCH), *read]
        pointers = [
            f"offset(local_pointer_{self.dtype}(terms, {term}), first_row * {pitch})"
            for term, pitch in zip((f"{_PLACE} + ((move >> 8) & 7)", "one", "other"), pitches, strict=True)
        ]
        sign = f"(a_block_sign if move >> 11 == {_OUTER} else move >> 11)"
        return [
            "while making > 0 and jobs < most_jobs:",
            *indent([
                "if item == 0:",
                *indent([
                    *next_strip(self.tile, "m_block - row_made"),
                    "rows_made = imin(m_block - row_made, height)",
                    *places,
                ]),
                f"operation = idiv(item, {self.pieces})",
                f"piece = item - operation * {self.pieces}",
                f"first_row = idiv(rows_made * piece, {self.pieces})",
                f"last_row = idiv(rows_made * (piece + 1), {self.pieces})",
                f"move = moves[operation + {LEFT_OPERATIONS} * a_block_two]",
                "one = move & 15",
                "other = (move >> 4) & 15",
                *self._queued(pointers, sign, f"idiv(k_block, {self.lanes})", "last_row - first_row", pitches),
                "item += 1",
                f"if item == ({len(_ONE_BLOCK)} + a_block_two) * {self.pieces}:",
                "    item = 0",
                "    row_made += rows_made",
                "    strip_made += 1",
                "    making = 1 if strip_made < strips else 0",
            ]),
        ]  # fmt: skip

    def take(self) -> list[str]:
        """Give the next jobs to a call of the tile."""
        return [
            f"share = imin(jobs - job, {INNER})",
            f"block[{strassen_slot('jobs')}] = share",
            f"put_words(block, {strassen_slot('side')}, words_from(queue, job * {len(SIDE_WORDS)}))",
            "job += share",
        ]

    def directly(self) -> list[str]:
        """Do the jobs that are left."""
        word = {name: f"queue[entry + {i}]" for i, name in enumerate(SIDE_WORDS)}
        pointer = {
            name: f"local_pointer_{self.dtype}(queue, entry + {SIDE_WORDS.index(name)})" for name in SIDE_WORDS[:3]
        }
        return [
            "while job < jobs:",
            *indent([
                f"entry = job * {len(SIDE_WORDS)}",
                f"signs = const_{self.dtype}(1, {self.lanes})",
                f"if {word['sign']} > 0:",
                "    signs = neg(signs)",
                f"for run in range({word['runs']}):",
                *indent([
                    *(f"{name} = offset({pointer[name]}, run * {word[f'{name}_pitch']})" for name in SIDE_WORDS[:3]),
                    f"for c in range(0, {word['vectors']} * {self.lanes}, {self.lanes}):",
                    f"    prefetch(first, {word['first_pitch']} + c)",
                    f"    prefetch(second, {word['second_pitch']} + c)",
                    f"    store(made, c, fma(load(second, c, {self.lanes}), signs, load(first, c, {self.lanes})))",
                ]),
                "job += 1",
            ]),
        ]  # fmt: skip
