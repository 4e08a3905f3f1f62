"""Attention of float32 by warpgroups, as three products of parts each (sm_90a): within 1e-5 of float32.

A number is a high part, what an operand of tensor cores keeps of it, and a low one, what that leaves; low times high,
high times low and high times high are added. Scores are products in TF32, since an error of theirs is one of a weight's
exponent; weights and values are halved in bfloat16, of which tensor cores multiply twice as many, and turned. Threads
read keys and values as they are, while tensor cores multiply, and store the parts to a ring of tiles in the block's
memory; each thread does so for a part of a tile, for all warpgroups. Weights are halved where they are, in registers.
Tensor cores cut off what does not fit a sum, always towards zero: they add up the values of one tile, and ordinary
multiply-adds what was before.

The parts of an infinity are one of its sign, and itself: products with parts of a finite number, or of another
infinity, are then what they are in float32, and NaN only where that has NaN. Values within 2**-17 of the largest
float32 may become infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ..contraction.tensor import MASK
from ..contraction.wgmma_tiles import multiprocessors
from ..driver.device import known_architecture, selected_architecture
from .text import AttentionText
from .warpgroups import BOX_BYTES, LEAST_QUERIES, ROWS, SLICE, AttentionTile

__all__ = ["WarpgroupPartsText", "chosen_parts_tile", "fits_parts"]

KEYS = SLICE
"""Keys of a tile: positions of values that one call multiplies."""
MOST_FEATURES = 80
"""Features of which a block's memory has the parts of two tiles beside those of 128 queries."""
MOST_WARPGROUPS = 4
"""Of a block: with more, registers do not hold a tile's scores and sums of 40 features twice."""
LEAST_WARPGROUPS = 2
"""Those of which one makes weights while another multiplies."""
RESERVED = 2 << 10
"""Bytes of a block's memory besides tiles: its barriers, and what brings tiles to a multiple of 1024."""
MOST_STAGES = 3
"""Tiles of a ring at most: one that is multiplied, one that is complete, one that is being stored."""
STEP = 8
"""Features that one instruction multiplies in TF32: 32 bytes."""
STEPS = 4
"""Of a row of 128 bytes."""
LANES = STEP * STEPS
"""Features of float32 in such a row."""
PIECES = 8
"""Pieces of 16 bytes of such a row."""
VECTOR = 4
"""Features of float32 in 16 bytes."""
LARGEST = 255 * 2.0**120
"""The largest bfloat16."""
PRODUCTS = (("low", "high"), ("high", "low"), ("high", "high"))
"""Parts of the left and of the right operand that are multiplied, smaller products first."""


def fits_parts(problem: AttentionProblem, precision: str) -> bool:
    """Whether warpgroups compute a problem that `attention_refusal` lets pass."""
    arch = known_architecture()
    if arch is None or not arch.warpgroups or (problem.dtype, precision) != ("float32", "high"):
        return False
    return problem.queries >= LEAST_QUERIES and max(problem.depth, problem.width) <= MOST_FEATURES


def chosen_parts_tile(problem: AttentionProblem) -> AttentionTile:
    """The tile that should be the fastest, each block on a multiprocessor of its own.

    Of those that fit it is that whose multiprocessors have the fewest queries one after the other; of these, that of
    the most warpgroups.
    """
    found, most = [], selected_architecture().shared_bytes - RESERVED
    for warpgroups in range(LEAST_WARPGROUPS, MOST_WARPGROUPS + 1):
        stages = [n for n in range(2, MOST_STAGES + 1) if _shared_bytes(problem, warpgroups, n) <= most]
        if stages:
            blocks = -(-problem.queries // (warpgroups * ROWS)) * problem.heads * problem.batch
            rounds = -(-blocks // multiprocessors())
            found.append((rounds * warpgroups, -warpgroups, AttentionTile(warpgroups, KEYS, max(stages), 1)))
    return min(found, key=lambda f: f[:2])[2]


def _shared_bytes(problem: AttentionProblem, warpgroups: int, stages: int) -> int:
    """Memory of a block: parts of queries, and of so many tiles."""
    boxes, across = _boxes(problem)
    return BOX_BYTES * (boxes * warpgroups + stages * (boxes + 2 * across))


def _boxes(problem: AttentionProblem) -> tuple[int, int]:
    """Rows of 128 bytes of a position: the parts of its features as a query or a key, high ones first, and each part of
    its values."""
    return -(-2 * -(-problem.depth // STEP) // STEPS), -(-problem.width // SLICE)


@dataclass(frozen=True)
class _Pieces:
    """Pieces of 16 bytes that threads make the parts of: ``groups`` at each of so many ``lines``, of ``lanes`` features
    each; of these there are ``features``, and then zeros."""

    name: str
    lines: int
    groups: int
    lanes: int
    features: int
    threads: int

    @property
    def turns(self) -> int:
        """Pieces of a thread at most."""
        return -(-self.lines * self.groups // self.threads)

    @property
    def even(self) -> bool:
        """Whether every thread has a piece in every turn."""
        return self.lines * self.groups % self.threads == 0


class WarpgroupPartsText(AttentionText):
    """The text of one problem."""

    def __init__(self, problem: AttentionProblem, pairs: bool, tile: AttentionTile | None = None) -> None:
        """``tile`` is chosen if it is not given; it has `KEYS` keys."""
        super().__init__(problem, pairs)
        self.tile = tile = tile or chosen_parts_tile(problem)
        self.keys, self.threads, self.together = KEYS, 128 * tile.warpgroups, tile.blocks
        self.rows = ROWS * tile.warpgroups
        self.width = problem.width
        self.steps = -(-problem.depth // STEP)
        boxes, across = _boxes(problem)
        self.query_bytes, self.key_bytes = boxes * tile.warpgroups * BOX_BYTES, boxes * BOX_BYTES
        self.value_bytes = across * BOX_BYTES
        self.slot_bytes = self.key_bytes + 2 * self.value_bytes
        self.shared_bytes = _shared_bytes(problem, tile.warpgroups, tile.stages)
        down = -(-problem.queries // self.rows)
        self.blocks = (down, problem.heads, problem.batch)
        groups = self.steps * STEP // VECTOR
        self.queries = _Pieces("q", self.rows, groups, VECTOR, problem.depth, self.threads)
        self.brought = (
            _Pieces("k", KEYS, groups, VECTOR, problem.depth, self.threads),
            _Pieces("v", KEYS, problem.width // (2 * VECTOR), 2 * VECTOR, problem.width, self.threads),
        )
        for name in ("q", "k", "v"):
            self.arguments.pointer(f"p_{name}", name, problem.dtype)
            for axis, stride in zip("bhs", getattr(problem, f"{name}_strides")):
                self.arguments.integer(f"{name}_{axis}", stride)
        if problem.causal:
            self.arguments.integer("last_block", down - 1)
        self._declare(problem.keys)

    def lines(self) -> list[str]:
        """All statements of the kernel."""
        buffer, stages = CodeBuffer(), self.tile.stages
        self._begin(buffer)
        first = "(last_block - block_index(0))" if self.problem.causal else "block_index(0)"  # the longest first
        for line in (
            "group = idiv(warp, 4)",
            f"block_row = {first} * {self.rows}",
            f"first_row = block_row + group * {ROWS}",
            "row0 = block_row + warp * 16 + row_in",
            "row1 = row0 + 8",
            "parts_q = dynamic_float32(0)",
            f"parts_k = dynamic_float32({self.query_bytes})",
            f"high_v = dynamic_bfloat16({self.query_bytes + self.key_bytes})",
            f"low_v = dynamic_bfloat16({self.query_bytes + self.key_bytes + self.value_bytes})",
            f"come = shared_int64({stages})",
            f"read = shared_int64({stages})",
            "leads = imod(thread, 128) == 0",
            "q = offset(p_q, batch * q_b + head * q_h)",
            "k = offset(p_k, batch * k_b + shared_head * k_h)",
            "v = offset(p_v, batch * v_b + shared_head * v_h)",
        ):
            buffer.line(line)
        if self.problem.causal:
            buffer.line(f"end = imin(end, block_row + {self.rows} + first_seen)")
        with buffer.block("if thread == 0:"):
            for stage in range(stages):
                buffer.line(f"mbarrier_init(offset(come, {stage}), {4 * self.tile.warpgroups})")
                buffer.line(f"mbarrier_init(offset(read, {stage}), {self.tile.warpgroups})")
            buffer.line("mbarrier_fence()")
        buffer.line("barrier()")
        for pieces in self.brought:
            self._places(buffer, pieces)
        self._load(buffer, "begin")
        self._queries(buffer)
        with buffer.block("if begin < end:"):
            self._split(buffer, "0")
        for stage in range(1, stages - 1):
            with buffer.block(f"if begin + {stage * KEYS} < end:"):
                self._load(buffer, f"begin + {stage * KEYS}")
                self._split(buffer, str(stage))
        buffer.line(f"acc = wgmma_zero({self.width})")
        self._begin_sums(buffer)
        for line in ("slot = 0", "phase = 0", f"before = {stages - 1}", "before_phase = 1", "start = begin"):
            buffer.line(line)
        with buffer.block("while start < end:"):
            self._next(buffer)
        for j in range(self.width // 8):
            buffer.line(f"acc{j} = sums_part(acc, {j})")
        self._finish(buffer)
        return buffer.lines

    def _next(self, buffer: CodeBuffer) -> None:
        """Emit what is done with one tile, and with what comes after those that are in the ring."""
        stages = self.tile.stages
        coming = f"start + {(stages - 1) * KEYS}"
        buffer.line("mbarrier_wait(offset(come, slot), phase)")
        self._scores(buffer)
        self._load(buffer, coming)
        buffer.line("scores = wgmma_wait(scores, 0)")
        for j in range(KEYS // 8):
            buffer.line(f"score{j} = sums_part(scores, {j})")
        self._weights(buffer)
        self._words(buffer)
        with buffer.block(f"if {coming} < end:"):
            with buffer.block("if start > begin:"):
                buffer.line("mbarrier_wait(offset(read, before), before_phase)")
            self._split(buffer, "before")
        self._mix(buffer)
        for line in (
            "mixed = wgmma_wait(mixed, 0)",
            "wgmma_keep(high)",
            "wgmma_keep(low)",
        ):
            buffer.line(line)
        with buffer.block("if leads:"):
            buffer.line("mbarrier_arrive(offset(read, slot))")
        for line in (
            "acc = fma_sums(acc, kept0, kept1, mixed)",
            "before = slot",
            "before_phase = phase",
            "slot = slot + 1",
        ):
            buffer.line(line)
        with buffer.block(f"if slot == {stages}:"):
            buffer.line("slot = 0")
            buffer.line("phase = 1 - phase")
        buffer.line(f"start = start + {KEYS}")

    def _queries(self, buffer: CodeBuffer) -> None:
        """Emit what makes parts of the block's queries, all of whose loads come first; those behind the last one are as
        that."""
        pieces = self.queries
        self._places(buffer, pieces)
        for turn in range(pieces.turns):
            source = buffer.emit(f"offset(q, imin(block_row + q_line{turn}, queries - 1) * q_s)")
            buffer.line(f"q_given{turn} = {self._read(buffer, pieces, source, f'q_piece{turn}')}")
        self._store_turns(buffer, pieces, "0")

    def _places(self, buffer: CodeBuffer, pieces: _Pieces) -> None:
        """Emit where in a tile the pieces of a thread are."""
        for turn in range(pieces.turns):
            line, item = f"{pieces.name}_line{turn}", buffer.emit(f"{turn * self.threads} + thread")
            buffer.line(f"{line} = idiv32({item}, {pieces.groups})")
            buffer.line(f"{pieces.name}_piece{turn} = {item} - {line} * {pieces.groups}")

    def _load(self, buffer: CodeBuffer, start: str) -> None:
        """Emit the loads of a thread's pieces of the tile from ``start`` on; of a value behind the end come zeros, of a
        key anything that there is."""
        for pieces in self.brought:
            name = pieces.name
            for turn in range(pieces.turns):
                key = buffer.emit(f"{start} + {name}_line{turn}")
                source = buffer.emit(f"offset({name}, imin({key}, keys - 1) * {name}_s)")
                given = self._read(buffer, pieces, source, f"{name}_piece{turn}")
                if name == "v":
                    given = f"where({key} < end, {given}, const_float32(0, {pieces.lanes}))"
                buffer.line(f"{name}_given{turn} = {given}")

    def _read(self, buffer: CodeBuffer, pieces: _Pieces, source: str, piece: str) -> str:
        """Emit the loads of a piece; gives its features."""
        found = []
        for first in range(0, pieces.lanes, VECTOR):
            at = buffer.emit(f"{piece} * {pieces.lanes} + {first}")
            if pieces.groups * pieces.lanes == pieces.features:
                found.append(buffer.emit(f"load_aligned({source}, {at}, {VECTOR})"))
            else:
                value = buffer.emit(f"load_aligned({source}, imin({at}, depth - {VECTOR}), {VECTOR})")
                found.append(buffer.emit(f"where({at} < depth, {value}, const_float32(0, {VECTOR}))"))
        return found[0] if len(found) == 1 else buffer.emit(f"join2({', '.join(found)})")

    def _split(self, buffer: CodeBuffer, slot: str) -> None:
        """Emit the parts of what was loaded, their stores to a slot, and the arrival at its barrier."""
        for pieces in self.brought:
            self._store_turns(buffer, pieces, slot)
        for line in ("operand_fence()", "warp_barrier()"):
            buffer.line(line)
        with buffer.block("if lane == 0:"):
            buffer.line(f"mbarrier_arrive(offset(come, {slot}))")

    def _store_turns(self, buffer: CodeBuffer, pieces: _Pieces, slot: str) -> None:
        """Emit the stores of the parts of all of a thread's pieces."""
        name = pieces.name
        for turn in range(pieces.turns):
            line = f"{name}_line{turn}"
            own = line, f"{name}_piece{turn}", f"{name}_given{turn}", slot
            if pieces.even or turn < pieces.turns - 1:
                self._store_parts(buffer, pieces, *own)
            else:
                with buffer.block(f"if {line} < {pieces.lines}:"):
                    self._store_parts(buffer, pieces, *own)

    def _store_parts(
        self, buffer: CodeBuffer, pieces: _Pieces, line: str, piece: str, given: str, slot: str
    ) -> None:  # fmt: skip
        """Emit the parts of a piece, and their stores."""
        lanes = pieces.lanes
        finite = buffer.emit(f"lt(abs({given}), const_float32(INF, {lanes}))")
        if pieces.name == "v":
            limit = buffer.emit(f"where({finite}, const_float32({LARGEST!r}, {lanes}), const_float32(1, {lanes}))")
            high = buffer.emit(f"rounded_bfloat16(min(max({given}, neg({limit})), {limit}))")
            low = buffer.emit(f"rounded_bfloat16(sub({given}, cast_float32({high})))")
            row = buffer.emit(f"idiv({piece}, {PIECES}) * {KEYS} + {line}")
            place = f"{row}, imod({piece}, {PIECES})"
            for half, value in (("high", high), ("low", low)):
                buffer.line(f"operand_store(offset({half}_v, {slot} * {self.slot_bytes // 2}), {place}, {value})")
            return
        kept = buffer.emit(f"bits_float32(bitwise_and(bits_int32({given}), const_int32({MASK}, {lanes})))")
        one = f"const_float32(1, {lanes})"
        high = buffer.emit(f"where({finite}, {kept}, min(max({given}, neg({one})), {one}))")
        low = buffer.emit(f"sub({given}, {high})")
        to = "parts_q" if pieces.name == "q" else f"offset(parts_k, {slot} * {self.slot_bytes // 4})"
        for first, value in ((0, high), (pieces.groups, low)):
            at = buffer.emit(f"{piece} + {first}")
            row = buffer.emit(f"idiv({at}, {PIECES}) * {pieces.lines} + {line}")
            buffer.line(f"operand_store({to}, {row}, imod({at}, {PIECES}), {value})")

    def _scores(self, buffer: CodeBuffer) -> None:
        """Emit the products of the queries with the tile of keys in ``slot``, as a group."""
        buffer.line("wgmma_fence()")
        what = f"wgmma_float32_first({KEYS}"
        first = {"high": 0, "low": self.steps}
        for own, theirs in PRODUCTS:
            for step in range(self.steps):
                (own_box, own_at), (box, at) = (divmod(first[part] + step, STEPS) for part in (own, theirs))
                q = f"offset(parts_q, {own_box * self.rows * LANES + own_at * STEP} + group * {ROWS * LANES})"
                k = f"offset(parts_k, slot * {self.slot_bytes // 4} + {box * KEYS * LANES + at * STEP})"
                buffer.line(f"scores = {what}, {q}, {k}, 0, 1)")
                what = "wgmma_float32(scores"
        buffer.line("wgmma_commit()")

    def _words(self, buffer: CodeBuffer) -> None:
        """Emit the halves of the weights, as left operands."""
        words: dict[str, list[str]] = {"high": [], "low": []}
        for j in range(KEYS // 8):
            upper = buffer.emit(f"rounded_bfloat16(score{j})")
            lower = buffer.emit(f"rounded_bfloat16(sub(score{j}, cast_float32({upper})))")
            for own, made in zip(words.values(), (upper, lower)):
                own.append(f"pack_words({made})")
        for half, own in words.items():
            parts = [f"join4({', '.join(own[k : k + 4])})" for k in (0, 4)]
            buffer.line(f"{half} = join2({', '.join(parts)})")

    def _mix(self, buffer: CodeBuffer) -> None:
        """Emit the products of weights with the tile of values in ``slot``, as a group."""
        buffer.line(f"mixed = wgmma_zero({self.width})")
        buffer.line("wgmma_fence()")
        for own, theirs in PRODUCTS:
            v = f"offset({theirs}_v, slot * {self.slot_bytes // 2})"
            buffer.line(f"mixed = wgmma_bfloat16_held(mixed, {own}, {v}, 1)")
        buffer.line("wgmma_commit()")
