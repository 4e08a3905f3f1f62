"""Epilogue of warpgroup MMA kernels: from accumulator registers to stored results, a few vectors at a time (sm_90a).

Four threads exchange accumulators of a row, or the right operand's columns are permuted so that each thread holds
neighbours. A thread then processes vectors of its two rows; loads of the epilogue's operands are issued several vectors
ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ....dataclass import dataclass
from ...printer import CodeBuffer, VectorValue
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import ACCESSES
from .contraction_text import ContractionText
from .gpu_contraction import LINE_BYTES, VECTOR_BYTES
from .wgmma_tiles import AHEAD, AHEAD_REGISTERS, EARLY_REGISTERS, WarpgroupTile

NARROW = 8
"""Elements per vector of a lane under register pressure. With 16 (8-bit results) and per-column scales and biases ptxas
spills for tiles of 128 by 256 and for two blocks of 128 by 128."""
_ALL, _OF_EACH = frozenset(ACCESSES), frozenset({"full"})


class WarpgroupEpilogueText(ContractionText):
    """Kernel text of the epilogue of a warpgroup tile.

    Attributes:
        tile: the warpgroup tile.
        splits: split-K factor; partial sums are stored without an epilogue.
        reads: whether the epilogue has an operand with one element per result.
        sums: accumulators per result element; two for a gated linear unit.
        width: neighbouring results per store of a thread.
        turns, gated: see `Solution`.
        rounds_first: whether threads exchange results (16 bits) instead of accumulators (32 bits).
    """

    tile: WarpgroupTile
    splits: int
    reads: bool

    def _share_columns(self, columns: int) -> None:
        """Set ``width``, and the column permutation of the right operand that gives a thread neighbouring accumulators:
        ``lane_permutation`` and ``gated``, see `Solution`."""
        sums = self.sums = self.request.epilogue.sums
        roomy = self.tile.spare_registers >= AHEAD_REGISTERS
        most = min(VECTOR_BYTES // ITEMSIZE[self.out_dtype], 16 if roomy else NARROW, self.tile.columns // 4)
        self.width = self.contraction.lanes(columns // sums, most)
        while sums > 1 and self.width > 2 and (columns % (8 * self.width) or self.tile.columns % (8 * self.width)):
            self.width //= 2
        apart = 4 * self.width * sums
        gathered = self.contraction.any_order and self.width > 2 and columns % apart == self.tile.columns % apart == 0
        self.lane_permutation = self.width if gathered else 0
        self.rounds_first = self._exchanges_words()
        self.gated = 4 * max(2, self.width) if sums > 1 else 0

    def _exchanges_words(self) -> bool:
        """Return whether threads exchange 16-bit results instead of accumulators, which halves the traffic."""
        whole = self.splits == 1 and self.width > 2 and self.sums == 1 and not self.lane_permutation
        same = all(operand.access not in ("full", "per_n") for operand in self.request.epilogue.operands)
        return whole and same and ITEMSIZE[self.out_dtype] == 2

    def _prefetch_vectors(self, buffer: CodeBuffer) -> None:
        """Emit prefetches of the tile's slice of per-column vectors (biases, scales) during the K loop.

        They would otherwise come from DRAM, and few registers are left to hide that. With ping-pong scheduling each set
        of warpgroups prefetches for its own tiles.
        """
        place = "thread" if self.tile.pingpong == 1 else "(warp * 32 + lane)"
        for k, operand in enumerate(self.request.epilogue.operands if self.splits == 1 else ()):
            if operand.access == "per_n":
                own = LINE_BYTES // ITEMSIZE[operand.dtype]
                lines = self.tile.columns // self.sums // own
                with buffer.block(f"if {place} <= {lines}:"):  # a first line that is half another's
                    buffer.line(f"prefetch_l2(r_e{k}, imin(first_result + {place} * {own}, results - 1))")

    def _finish_tile(self, buffer: CodeBuffer, parts: Sequence[Part], ahead: int, wide: int) -> None:
        """Emit the epilogue of all parts; operands are loaded ``ahead`` parts early."""
        for p, part in enumerate(parts):
            for soon in parts[p : p + ahead + 1]:
                self._load_part(buffer, soon)
            self._load_late(buffer, part)
            self._finish_part(buffer, part, wide)

    def _parts_ahead(self) -> int:
        """Return the number of parts whose epilogue operands are loaded ahead; the first ones before the K loop ends.

        Per-column vectors serve both rows of a part. With several of them, registers suffice for one part (tile of 192
        by 128, GELU after float32 scales and biases: 125 registers, 106 without).
        """
        if self.splits > 1 or self.tile.spare_registers < EARLY_REGISTERS:
            return 0
        at_once = self.tile.reads_at_once
        ahead = max(0, (at_once // 2 if self.reads else at_once) - int(at_once < AHEAD))
        if self.reads:
            return ahead
        shared = (o.dtype for o in self.request.epilogue.operands if o.access == "per_n")
        held = sum(self.width * ITEMSIZE[dtype] for dtype in shared)
        return min(ahead, max(int(ahead > 1), ahead * VECTOR_BYTES // max(held, 1)))

    def _load_part(self, buffer: CodeBuffer, part: Part) -> None:
        """Emit the addresses of a part's vectors and the loads of its epilogue operands, unless done before."""
        if part.places:
            return
        rows = [buffer.emit(f"first_line + {8 * half}") for half in (0, 1)]
        near = [buffer.emit(f"imin({row}, rows - 1)") for row in rows]
        early = _OF_EACH if self.reads else _ALL
        for k in range(max(1, 2 // self.width)):
            column = buffer.emit(f"first_result + side + {part.first + k}")
            inside = buffer.emit(f"imin({column}, results - {self.width})")
            for half in (0, 1):
                place, extras = self._place_of(buffer, near[half], inside, early)
                stored = f"({rows[half]} < rows) & ({column} < results)"
                part.places.append(SumVector(half, k, near[half], inside, stored, place, extras))

    def _load_late(self, buffer: CodeBuffer, part: Part) -> None:
        """Emit the loads that `_load_part` omits. If an operand has one element per result, registers are kept for it;
        per-column and per-row operands are in the L1 cache since the previous tile."""
        if self.reads and self.splits == 1:
            for own in part.places:
                own.extras.update(self._place_of(buffer, own.row, own.column, _ALL - _OF_EACH)[1])

    def _finish_part(self, buffer: CodeBuffer, part: Part, wide: int) -> None:
        """Emit the epilogue and stores of a part; ``wide`` accumulators of a row are neighbours.

        All loads precede the first store, because the compiler does not move loads across stores; they are in flight
        together.
        """
        lanes = self.width
        store = "store_aligned" if lanes > 1 else "store"
        name = "sums_in_turns" if self.lane_permutation or self.rounds_first else "sums_row"
        pieces = range(self.sums * part.piece, self.sums * (part.piece + 1))
        rows = [[buffer.emit(f"{name}(sums, {half}, {piece}, {wide})") for piece in pieces] for half in (0, 1)]
        values = []
        for own in part.places:
            sums = [row if lanes > 1 else f"splat(extract({row}, {own.lane}), 1)" for row in rows[own.half]]
            extras = [extra for _, extra in sorted(own.extras.items())]
            value = self._finished(buffer, sums, extras, lanes) if self.splits == 1 else sums[0]
            values.append(buffer.emit(f"row_of_turns({value})") if self.rounds_first else value)
        for own, value in zip(part.places, values):
            with buffer.block(f"if {own.stored}:"):
                if self.splits == 1:
                    self._put(buffer, own.place, value, lanes, True)
                else:
                    buffer.line(f"{store}(p_scratch, {own.place}, {value})")

    def _place_of(
        self, buffer: CodeBuffer, row: str, column: str, accesses: frozenset[str]
    ) -> tuple[str, dict[int, VectorValue]]:
        """Emit the address of a row's results from ``column``, and the epilogue operands with an access in
        ``accesses``. Partial sums have no operands."""
        if self.splits == 1:
            place, extras = self._extras(buffer, row, column, self.width, True, accesses)
            return buffer.emit(place), extras
        return buffer.emit(f"(first_part + {row}) * columns + {column}"), {}


@dataclass(frozen=True)
class SumVector:
    """Results that a thread computes and stores as one vector.

    Attributes:
        half: which of the thread's two rows.
        lane: index among neighbouring accumulators, if a vector is one element.
        row, column: position of the first element in the result; may exceed it.
        stored: condition that the vector is inside the result.
        place: its offset.
        extras: values of the epilogue's operands, by operand number.
    """

    half: int
    lane: int
    row: str
    column: str
    stored: str
    place: str
    extras: dict[int, VectorValue]


@dataclass
class Part:
    """Accumulators that a thread processes together, of both of its rows.

    Attributes:
        piece: index among the pieces of a row, see `sums_row`.
        first: first column of the piece in the tile.
        places: its vectors, once the loads of epilogue operands are emitted.
    """

    piece: int
    first: int
    places: list[SumVector] = field(default_factory=list)
