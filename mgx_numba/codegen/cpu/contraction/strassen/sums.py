"""Sums of blocks for a product by Strassen's method, as jobs that its tiles do on the side.

A job is one sum of two memory regions, a `SIDE_SUM` in a queue. The driver queues the jobs for the next step, and in
each step some for the next outer product. Jobs that the tiles of a step could not do are done directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....statements import indent
from ...microkernels.register_tile import RegisterTile
from ...records import Record, RecordText, Word, pointer
from .strassen_blocking import LEFT, LEFT_OPERATIONS, RIGHT, RIGHT_PANELS, left_pieces, next_strip
from .tile_table import INNER, LEFT_PITCH, SIDE_SUM, SUM_PLACES

_QUEUE = 192
"""Jobs that the queue holds."""
_AHEAD = 1024
"""Prefetch distance (elements) of packed panels in a sum."""
_RIGHT_SUMS = ((1, 0), (3, 1), (3, 4), (2, 6))
"""Terms of Winograd's right-hand sums, each a difference: quadrants are numbered 0 to 3, these sums 4 to 7."""
_RIGHT_SUM = Record(
    "right-hand sum", (pointer("made", "first + second"), pointer("first"), pointer("second"), Word("sign", "1: minus"))
)
"""The record of each kind of right-hand sum that the next step uses."""
_OPERANDS = RecordText(
    Record("right-hand sides", (pointer("place", "of quadrants and sums, as `_RIGHT_SUMS` counts", RIGHT_PANELS),)),
    "operands",
)
_JOB = RecordText(SIDE_SUM, "queue", "entry")
"""The job that begins at word ``entry`` of the queue."""
RIGHT_OPERANDS = (0, 6, 5, 7, 4, 3, 2)
"""The right-hand quadrant or sum that each product multiplies."""
_TERMS = RecordText(
    Record(
        "terms of left-hand sums",
        (
            pointer("near", "quadrants of the outer sum's first block", 4),
            pointer("far", "quadrants of its second block", 4),
            pointer("place", "the products' left-hand sides", INNER),
            pointer("zeros", "a row of zeros"),
        ),
    ),
    "terms",
)
_NEAR, _FAR, _PLACE, _ZEROS = (_TERMS.record.number(field) for field in ("near", "far", "place", "zeros"))
_ADD, _SUBTRACT, _OUTER = 0, 1, 2
"""Signs of the second term; the third is the sign of the outer sum."""
_TWO_BLOCKS = (
    (0, _NEAR + 0, _FAR + 0, _OUTER), (3, _NEAR + 3, _FAR + 3, _OUTER), (6, _NEAR + 1, _FAR + 1, _OUTER),
    (4, _NEAR + 2, _FAR + 2, _OUTER), (2, _PLACE + 0, _PLACE + 4, _SUBTRACT), (1, _PLACE + 3, _PLACE + 2, _SUBTRACT),
    (5, _PLACE + 6, _PLACE + 1, _SUBTRACT), (4, _PLACE + 4, _PLACE + 3, _ADD),
)  # fmt: skip
"""Product, terms and sign of each left-hand sum in Winograd's form, ordered so that terms precede their uses; first the
quadrants of an outer sum of two blocks."""
_ONE_BLOCK = (
    (0, _NEAR + 0, _ZEROS, _ADD), (3, _NEAR + 3, _ZEROS, _ADD), (6, _NEAR + 1, _ZEROS, _ADD),
    (2, _NEAR + 0, _NEAR + 2, _SUBTRACT), (1, _NEAR + 3, _PLACE + 2, _SUBTRACT),
    (5, _NEAR + 1, _PLACE + 1, _SUBTRACT), (4, _NEAR + 2, _NEAR + 3, _ADD),
)  # fmt: skip
"""The same sums where the outer product uses a single block."""


def form(name: str, word: int, outer: str) -> list[str]:
    """Return statements that decode one outer sum: its first block, whether it has a second (``<name>_two``), that
    block and its sign."""
    return [
        f"form = ({word} >> (6 * {outer})) & 63 if levels == 2 else 0",
        f"{name}_two = (form >> 2) & 1",
        f"{name}_sign = form >> 5",
        f"{name}0 = form & 3",
        f"{name}1 = (form >> 3) & 3",
    ]


def _sum(kind: int | str) -> RecordText:
    """Return the record of a right-hand sum by its kind, a number or a variable name."""
    size = _RIGHT_SUM.size
    return RecordText(_RIGHT_SUM, "sums", size * kind if isinstance(kind, int) else f"{size} * {kind}")


def right_operand(number: str) -> str:
    """Return the expression of a right-hand side's address, by its number in `_RIGHT_SUMS`."""
    return _OPERANDS.address("place", number)


class Sums:
    """Text that fills the job queue; jobs ``job`` to ``jobs`` are pending.

    ``operands`` are the right-hand sides of the next step in the order of `RIGHT_OPERANDS`. ``making`` is set while
    left-hand sides of ``outer_made`` are missing.
    """

    def __init__(self, tile: RegisterTile, block: RecordText) -> None:
        """``block`` is the tile's argument block."""
        self.tile, self.block = tile, block
        self.dtype, self.lanes = tile.dtype, tile.lanes
        self.pieces = left_pieces(tile)

    def locals(self) -> list[str]:
        """Return the statements at the start of the kernel."""
        lines = [
            f"queue = local_int64({(_QUEUE + INNER) * SIDE_SUM.size})",
            f"most_jobs = imin({INNER} * strips, {_QUEUE})",
            f"sums = local_int64({RIGHT_PANELS * _RIGHT_SUM.size})",
            _OPERANDS.local(),
            _TERMS.local(),
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
        job = dict(zip(SUM_PLACES, pointers, strict=True)) | {"sign": sign, "vectors": vectors, "runs": runs}
        job |= {f"{name}_pitch": pitch for name, pitch in zip(SUM_PLACES, pitches, strict=True)}
        return [f"entry = jobs * {SIDE_SUM.size}", *_JOB.fill(**job), "jobs += 1"]

    def right(self) -> list[str]:
        """Return statements that locate the right-hand sides of the next step, and queue jobs for the sums among
        them."""
        columns = self.tile.columns

        def quadrant(h: int, term: str) -> str:
            panel = f"imin(p0 + (({term} & 1) * 2 + {h & 1}) * p_block, panels - p_block) + panel_of_block_next"
            k = f"(({term} >> 1) * 2 + {h >> 1}) * idiv(depth, grid) + part_of_k_next * k_block"
            return f"offset(w, ({panel}) * w_panel + ({k}) * {columns})"

        area = "offset(scratch, 2 * base + right_size - right_at + {} * right_area)"
        lines = form("b_block", RIGHT, "outer_next")
        for h in range(4):
            lines += [
                _OPERANDS.put("place", quadrant(h, "b_block0"), h),
                "if b_block_two > 0:",
                *indent([
                    _sum(h).put("made", area.format(h)),
                    _sum(h).put_address("first", _OPERANDS.address("place", h)),
                    _sum(h).put("second", quadrant(h, "b_block1")),
                    _sum(h).put("sign", "b_block_sign"),
                    _OPERANDS.put_address("place", _sum(h).address("made"), h),
                ]),
            ]  # fmt: skip
        for i, (one, other) in enumerate(_RIGHT_SUMS, 4):
            lines += [
                _OPERANDS.put("place", area.format(i), i),
                _sum(i).put_address("made", _OPERANDS.address("place", i)),
                _sum(i).put_address("first", _OPERANDS.address("place", one)),
                _sum(i).put_address("second", _OPERANDS.address("place", other)),
                _sum(i).put("sign", 1),
            ]
        pointers = [f"offset({_sum('kind').elements(name, self.dtype)}, line * {columns})" for name in SUM_PLACES]
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
                    *self._queued(pointers, _sum("kind").get("sign"), vectors, "1", [str(_AHEAD)] * 3),
                    "line += lines",
                ]),
                "kind += 1",
            ]),
        ]  # fmt: skip

    def begin_left(self, outer: str, part: str) -> list[str]:
        """Return statements that start the left-hand sides of outer product ``outer`` and part ``part`` of the
        reduction."""
        return [
            f"outer_made = {outer}",
            f"part_made = {part}",
            "lefts_made = lefts + imod(part_made * outers + outer_made, kept) * strips * strip_size",
            *form("a_block", LEFT, "outer_made"),
            "row_made = 0",
            "rows_made = 0",
            "strip_made = 0",
            "item = 0",
            "making = 1",
        ]

    def left(self) -> list[str]:
        """Return statements that queue as many left-hand jobs as there is room for."""
        places = []
        for name, field in (("a_block0", "near"), ("a_block1", "far")):
            for h in range(4):
                line = f"(imin(m0 + (({name} >> 1) * 2 + {h >> 1}) * m_block, m - m_block) + row_made) * x_ld"
                column = f"(({name} & 1) * 2 + {h & 1}) * idiv(depth, grid) + part_made * k_block"
                places.append(_TERMS.put(field, f"offset(x, {line} + {column})", h))
        for u in range(INNER):
            place = f"lefts_made + strip_made * strip_size + {self.block.get('left', u)}"
            places.append(_TERMS.put("place", f"offset(scratch, {place})", u))
        places.append(_TERMS.put("zeros", "zeros"))
        read = (
            f"(x_ld if {term} < {_PLACE} else (0 if {term} == {_ZEROS} else {LEFT_PITCH}))" for term in ("one", "other")
        )
        pitches = [str(LEFT_PITCH), *read]
        pointers = [
            f"offset({term}, first_row * {pitch})"
            for term, pitch in zip(
                (
                    _TERMS.elements("place", self.dtype, "((move >> 8) & 7)"),
                    _TERMS.elements("near", self.dtype, "one"),  # any term, indexed from the first
                    _TERMS.elements("near", self.dtype, "other"),
                ),
                pitches,
                strict=True,
            )
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
        """Return statements that pass the next jobs to a call of the tile."""
        return [
            f"share = imin(jobs - job, {INNER})",
            *self.block.fill(jobs="share", side=f"words_from(queue, job * {SIDE_SUM.size})"),
            "job += share",
        ]

    def directly(self) -> list[str]:
        """Return statements that do the remaining jobs."""
        places = []
        for name in SUM_PLACES:
            start, pitch = _JOB.elements(name, self.dtype), _JOB.get(f"{name}_pitch")
            places.append(f"{name} = offset({start}, run * {pitch})")
        return [
            "while job < jobs:",
            *indent([
                f"entry = job * {SIDE_SUM.size}",
                f"signs = const_{self.dtype}(1, {self.lanes})",
                f"if {_JOB.get('sign')} > 0:",
                "    signs = neg(signs)",
                f"for run in range({_JOB.get('runs')}):",
                *indent([
                    *places,
                    f"for c in range(0, {_JOB.get('vectors')} * {self.lanes}, {self.lanes}):",
                    f"    prefetch(first, {_JOB.get('first_pitch')} + c)",
                    f"    prefetch(second, {_JOB.get('second_pitch')} + c)",
                    f"    store(made, c, fma(load(second, c, {self.lanes}), signs, load(first, c, {self.lanes})))",
                ]),
                "job += 1",
            ]),
        ]  # fmt: skip
