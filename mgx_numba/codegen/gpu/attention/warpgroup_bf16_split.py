"""FlashAttention-3 for float32 with warpgroup MMA (sm_90a), within 1e-5 of float32.

Each number is split into a high part (what the MMA's operand type keeps) and a low part (the remainder). Scores need
more accuracy, because they become exponents: high * high in TF32; the other products, two thousand times smaller, in
bfloat16 at twice the rate. Weights and values are split into bfloat16 halves: low * high + high * low + high * high.
Threads load keys and values as float32 while tensor cores multiply, and store the parts to a ring of tiles in shared
memory; each thread splits a part of a tile for all warpgroups. Weights are split in registers.

Tensor cores truncate accumulators towards zero: they accumulate one tile, and FP32 additions the tiles.

The high part of an infinity is 1 with its sign, the low part the infinity itself. Products with finite numbers and with
other infinities are then as in float32, and NaN only where float32 gives NaN. Values within 2**-17 of the largest
float32 may become infinity.
"""

from __future__ import annotations

from ....core.dim import Dim, all_of, ceil_div, less_equal, preferred
from ....dataclass import dataclass
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ..architecture import ARCHITECTURES
from ..contraction.tensor_cores import MASK, ONE, SIGN
from ..driver.device import known_architecture
from ..machine import multiprocessors
from .attention_text import AttentionText
from .warpgroups import BOX_BYTES, LEAST_QUERIES, ROWS, SLICE, AttentionTile, rows_of_warpgroups

KEYS = SLICE
"""Keys per tile: the K length of one MMA call on values."""
MOST_FEATURES = 80
"""Most features for which shared memory holds the parts of two tiles and of 128 queries."""
MOST_BYTES = ARCHITECTURES["sm_90a"].shared_bytes - (2 << 10)
"""Shared memory (bytes) for parts: the rest holds mbarriers and alignment to 1024."""
MOST_WARPGROUPS = 4
"""Most warpgroups per block; with more, the registers do not hold a tile's scores and two sets of accumulators of 40
features."""
LEAST_WARPGROUPS = 2
"""Least warpgroups per block, so that softmax of one overlaps MMAs of another."""
STAGES = 2
"""Ring tiles: one being multiplied, one complete or being stored. With three, 2 x 8 heads of 4096 queries and keys of
40 features took 422 us on an H200, with two 392, when scores were three TF32 products."""
GROUP = 8
"""Features that a thread splits at once: 16 bytes of bfloat16, and the K length of a TF32 MMA."""
VECTOR = 4
"""Float32 features per 16 bytes."""
PIECES = 8
"""16-byte pieces per 128-byte row."""
ROW_BYTES = 128
"""Bytes per row."""
PARTS = 4
"""Pieces per group of query or key features: two for float32 high parts, one each for bfloat16 values and low parts."""
STEP_BYTES = 32
"""Bytes of a row per MMA instruction."""
STEPS = 4
"""MMA instructions per 128-byte row."""
SHORT = -(1 << 16)
"""Mask of the float32 bits that bfloat16 keeps."""
LARGEST = 255 * 2.0**120
"""Largest finite bfloat16."""
PRODUCTS = (("low", "high"), ("high", "low"), ("high", "high"))
"""Products of weight and value halves, smallest first."""


def fits_bf16_split(problem: AttentionProblem, precision: str) -> bool:
    """Return whether these kernels apply to a problem that `attention_refusal` accepts."""
    arch = known_architecture()
    if arch is None or not arch.warpgroups or (problem.dtype, precision) != ("float32", "high"):
        return False
    if max(problem.depth, problem.width) > MOST_FEATURES:
        return False
    tiles = ceil_div(problem.queries, ROWS) * problem.heads * problem.batch
    return preferred(all_of(less_equal(LEAST_QUERIES, problem.queries), less_equal(least_tiles(), tiles)))


def least_tiles() -> int:
    """Return the least number of query tiles: one per multiprocessor. With fewer, split-KV by warps is faster: 12 heads
    of 128 queries and keys of 64 features took 9.4 us on an H200, by warps 7.2."""
    return multiprocessors()


def chosen_bf16_split_tile(problem: AttentionProblem) -> AttentionTile:
    """Return the tile with the least estimate; one block per multiprocessor.

    Among tiles that fit: the fewest queries per multiprocessor in sequence, then the most warpgroups. 2 x 8 heads of
    4096 queries and keys of 40 features took 392 us on an H200 with four warpgroups, 497 with three, 609 with two; 8 x
    12 of 384 of 64 features 66, 51 and 64, when scores were three TF32 products.
    """
    found = []
    for warpgroups in range(LEAST_WARPGROUPS, MOST_WARPGROUPS + 1):
        if _shared_bytes(problem, warpgroups, STAGES) <= MOST_BYTES:
            blocks = ceil_div(problem.queries, warpgroups * ROWS) * problem.heads * problem.batch
            rounds = 0 if isinstance(blocks, Dim) else -(-blocks // multiprocessors())  # of an open number alike
            found.append((rounds * warpgroups, -warpgroups))
    return AttentionTile(-min(found)[1], KEYS, STAGES, 1)


def _shared_bytes(problem: AttentionProblem, warpgroups: int, stages: int) -> int:
    """Return the shared memory per block (bytes): parts of queries, and of ``stages`` tiles."""
    boxes, across = _boxes(problem)
    return BOX_BYTES * (boxes * warpgroups + stages * (boxes + 2 * across))


def _boxes(problem: AttentionProblem) -> tuple[int, int]:
    """Return the 128-byte rows per position: for the parts of a query or key, and for each half of a value."""
    return -(-PARTS * -(-problem.depth // GROUP) // PIECES), -(-problem.width // SLICE)


@dataclass(frozen=True)
class _Groups:
    """Feature groups that the threads of a block split: ``groups`` per line, ``lines`` lines; features beyond
    ``features`` are zeros."""

    name: str
    lines: int
    groups: int
    features: int
    threads: int

    @property
    def turns(self) -> int:
        """Return the most groups per thread."""
        return -(-self.lines * self.groups // self.threads)

    @property
    def even(self) -> bool:
        """Return whether every thread has the same number of groups."""
        return self.lines * self.groups % self.threads == 0


class WarpgroupBf16SplitText(AttentionText):
    """Kernel text of one problem."""

    def __init__(self, problem: AttentionProblem, pairs: bool, tile: AttentionTile | None = None) -> None:
        """Prepare the text; a missing ``tile`` is chosen. The tile has `KEYS` keys."""
        super().__init__(problem, pairs)
        self.tile = tile = tile or chosen_bf16_split_tile(problem)
        self.keys, self.threads, self.resident_blocks = KEYS, 128 * tile.warpgroups, tile.blocks
        self.rows = ROWS * tile.warpgroups
        self.width = problem.width
        self.groups = -(-problem.depth // GROUP)
        boxes, across = _boxes(problem)
        self.query_bytes, self.key_bytes = boxes * tile.warpgroups * BOX_BYTES, boxes * BOX_BYTES
        self.value_bytes = across * BOX_BYTES
        self.slot_bytes = self.key_bytes + 2 * self.value_bytes
        self.shared_bytes = _shared_bytes(problem, tile.warpgroups, tile.stages)
        down = ceil_div(problem.queries, self.rows)
        self._spread(down)
        self.queries = _Groups("q", self.rows, self.groups, problem.depth, self.threads)
        self.loaded = (
            _Groups("k", KEYS, self.groups, problem.depth, self.threads),
            _Groups("v", KEYS, problem.width // GROUP, problem.width, self.threads),
        )
        for name in ("q", "k", "v"):
            self.arguments.pointer(f"p_{name}", name, problem.dtype)
            for axis, stride in zip("bhs", getattr(problem, f"{name}_strides")):
                self.arguments.integer(f"{name}_{axis}", stride)
        if problem.causal:
            self.arguments.integer("last_block", down - 1)
        self._declare(problem.keys)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, stages = CodeBuffer(), self.tile.stages
        self._begin(buffer)
        buffer.line(
            *rows_of_warpgroups(self.block, self.rows, self.problem.causal),
            "high_q = dynamic_float32(0)",
            "short_q = dynamic_bfloat16(0)",
            f"high_k = dynamic_float32({self.query_bytes})",
            f"short_k = dynamic_bfloat16({self.query_bytes})",
            f"high_v = dynamic_bfloat16({self.query_bytes + self.key_bytes})",
            f"low_v = dynamic_bfloat16({self.query_bytes + self.key_bytes + self.value_bytes})",
            f"full = shared_int64({stages})",
            f"empty = shared_int64({stages})",
            "q = offset(p_q, batch * q_b + head * q_h)",
            "k = offset(p_k, batch * k_b + shared_head * k_h)",
            "v = offset(p_v, batch * v_b + shared_head * v_h)",
        )
        if self.problem.causal:
            buffer.line(f"end = imin(end, block_row + {self.rows} + first_seen)")
        with buffer.block("if thread == 0:"):
            for stage in range(stages):
                buffer.line(f"mbarrier_init(offset(full, {stage}), {4 * self.tile.warpgroups})")
                buffer.line(f"mbarrier_init(offset(empty, {stage}), {self.tile.warpgroups})")
            buffer.line("mbarrier_fence()")
        buffer.line("barrier()")
        for groups in self.loaded:
            self._places(buffer, groups)
        self._load(buffer, "begin")
        self._queries(buffer)
        for stage in range(stages - 1):
            with buffer.block(f"if begin + {stage * KEYS} < end:"):
                self._store_tile(buffer, str(stage))
            self._load(buffer, f"begin + {(stage + 1) * KEYS}")
        buffer.line(f"acc = wgmma_zero({self.width})")
        self._begin_sums(buffer)
        buffer.line("slot = 0", "phase = 0", f"previous = {stages - 1}", "previous_phase = 1", "start = begin")
        with buffer.block("while start < end:"):
            self._next_tile(buffer)
        for j in range(self.width // 8):
            buffer.line(f"acc{j} = sums_part(acc, {j})")
        self._finish(buffer)
        return buffer.lines

    def _next_tile(self, buffer: CodeBuffer) -> None:
        """Emit the work on one tile, and the refill of the ring."""
        stages = self.tile.stages
        buffer.line("mbarrier_wait(offset(full, slot), phase)")
        self._scores(buffer)
        with buffer.block(f"if start + {(stages - 1) * KEYS} < end:"):
            with buffer.block("if start > begin:"):
                buffer.line("mbarrier_wait(offset(empty, previous), previous_phase)")
            self._store_tile(buffer, "previous")
        buffer.line("scores = wgmma_wait(scores, 0)")
        for j in range(KEYS // 8):
            buffer.line(f"score{j} = sums_part(scores, {j})")
        self._weights(buffer)
        self._pack_weights(buffer)
        self._multiply_values(buffer)
        self._load(buffer, f"start + {stages * KEYS}")
        buffer.line("warp_barrier()")  # behind which the assembler would ask for what is loaded, when it is needed
        buffer.line(
            "products = wgmma_wait(products, 0)",
            "wgmma_keep(high)",
            "wgmma_keep(low)",
        )
        with buffer.block("if is_leader:"):
            buffer.line("mbarrier_arrive(offset(empty, slot))")
        buffer.line(
            "acc = fma_sums(acc, kept0, kept1, products)",
            "previous = slot",
            "previous_phase = phase",
            "slot = slot + 1",
        )
        with buffer.block(f"if slot == {stages}:"):
            buffer.line("slot = 0")
            buffer.line("phase = 1 - phase")
        buffer.line(f"start = start + {KEYS}")

    def _queries(self, buffer: CodeBuffer) -> None:
        """Emit the split of the block's queries, all loads first; beyond the last query it is loaded again."""
        self._places(buffer, self.queries)
        for turn in range(self.queries.turns):
            source = buffer.emit(f"offset(q, imin(block_row + q_line{turn}, queries - 1) * q_s)")
            self._read(buffer, self.queries, source, turn)
        self._store_turns(buffer, self.queries, "0")

    def _places(self, buffer: CodeBuffer, groups: _Groups) -> None:
        """Emit the line and the group index of each of a thread's groups."""
        for turn in range(groups.turns):
            line, item = f"{groups.name}_line{turn}", buffer.emit(f"{turn * self.threads} + thread")
            buffer.line(f"{line} = idiv32({item}, {groups.groups})")
            buffer.line(f"{groups.name}_group{turn} = {item} - {line} * {groups.groups}")

    def _load(self, buffer: CodeBuffer, start: str) -> None:
        """Emit the loads of a thread's groups of the tile at ``start``. Beyond the end, values are zeros and keys
        arbitrary."""
        for groups in self.loaded:
            name = groups.name
            for turn in range(groups.turns):
                key = buffer.emit(f"{start} + {name}_line{turn}")
                source = buffer.emit(f"offset({name}, imin({key}, keys - 1) * {name}_s)")
                self._read(buffer, groups, source, turn, f"{key} < end" if name == "v" else "")

    def _read(self, buffer: CodeBuffer, groups: _Groups, source: str, turn: int, inside: str = "") -> None:
        """Emit the loads of a group; zeros if the condition ``inside`` is false."""
        whole = groups.groups * GROUP == groups.features
        for k in range(GROUP // VECTOR):
            at = buffer.emit(f"{groups.name}_group{turn} * {GROUP} + {VECTOR * k}")
            place = at if whole else f"imin({at}, depth - {VECTOR})"
            given = buffer.emit(f"load_aligned({source}, {place}, {VECTOR})")
            condition = inside if whole else f"{at} < depth"
            if condition:
                given = f"where({condition}, {given}, const_float32(0, {VECTOR}))"
            buffer.line(f"{groups.name}_given{turn}_{k} = {given}")

    def _store_tile(self, buffer: CodeBuffer, slot: str) -> None:
        """Emit the split of the loaded groups, their stores to a ring slot, and the arrival at its mbarrier."""
        for groups in self.loaded:
            self._store_turns(buffer, groups, slot)
        buffer.line("operand_fence()", "warp_barrier()")
        with buffer.block("if lane == 0:"):
            buffer.line(f"mbarrier_arrive(offset(full, {slot}))")

    def _store_turns(self, buffer: CodeBuffer, groups: _Groups, slot: str) -> None:
        """Emit the stores of the parts of all of a thread's groups."""
        store = self._store_halves if groups.name == "v" else self._store_parts
        for turn in range(groups.turns):
            if groups.even or turn < groups.turns - 1:
                store(buffer, groups, turn, slot)
            else:
                with buffer.block(f"if {groups.name}_line{turn} < {groups.lines}:"):
                    store(buffer, groups, turn, slot)

    def _store_halves(self, buffer: CodeBuffer, groups: _Groups, turn: int, slot: str) -> None:
        """Emit the bfloat16 halves of a group of values, and their stores."""
        given = buffer.emit(f"join2(v_given{turn}_0, v_given{turn}_1)")
        finite = buffer.emit(f"lt(abs({given}), const_float32(INF, {GROUP}))")
        limit = buffer.emit(f"where({finite}, const_float32({LARGEST!r}, {GROUP}), const_float32(1, {GROUP}))")
        high = buffer.emit(f"cast_bfloat16(min(max({given}, neg({limit})), {limit}))")
        low = buffer.emit(f"cast_bfloat16(sub({given}, cast_float32({high})))")
        for half, value in (("high", high), ("low", low)):
            to = f"offset({half}_v, {slot} * {self.slot_bytes // 2})"
            self._store_piece(buffer, groups, to, turn, f"v_group{turn}", value)

    def _store_parts(self, buffer: CodeBuffer, groups: _Groups, turn: int, slot: str) -> None:
        """Emit the parts of a group of a query or key, and their stores."""
        name, size = groups.name, 0 if groups.name == "q" else self.slot_bytes
        own, shorts, lows = f"{name}_group{turn}", [], []
        for k in range(GROUP // VECTOR):
            given = f"{name}_given{turn}_{k}"
            bits = buffer.emit(f"bits_int32({given})")
            finite = buffer.emit(f"lt(abs({given}), const_float32(INF, {VECTOR}))")
            tf32, sign, one, short = (f"const_int32({mask}, {VECTOR})" for mask in (MASK, SIGN, ONE, SHORT))
            signed = buffer.emit(f"bitwise_or(bitwise_and({bits}, {sign}), {one})")
            kept = buffer.emit(f"where({finite}, bitwise_and({bits}, {tf32}), {signed})")
            high = buffer.emit(f"bits_float32({kept})")
            to = f"offset(high_{name}, {slot} * {size // 4})"
            self._store_piece(buffer, groups, to, turn, f"{own} * {GROUP // VECTOR} + {k}", high)
            shorts.append(buffer.emit(f"cast_bfloat16(bits_float32(bitwise_and({kept}, {short})))"))
            lows.append(buffer.emit(f"cast_bfloat16(sub({given}, {high}))"))
        to = f"offset(short_{name}, {slot} * {size // 2})"
        for k, four in enumerate((shorts, lows) if name == "q" else (lows, shorts)):  # each times the other's
            piece = f"{own} + {(2 + k) * self.groups}"
            self._store_piece(buffer, groups, to, turn, piece, f"join2({', '.join(four)})")

    def _store_piece(
        self, buffer: CodeBuffer, groups: _Groups, to: str, turn: int, piece: str, value: str
    ) -> None:  # fmt: skip
        """Emit the store of a 16-byte piece of a line. The first 128-byte rows of all lines come first, then the second
        ones."""
        at = buffer.emit(piece)
        row = buffer.emit(f"idiv({at}, {PIECES}) * {groups.lines} + {groups.name}_line{turn}")
        buffer.line(f"operand_store({to}, {row}, imod({at}, {PIECES}), {value})")

    def _scores(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of the queries with the tile of keys in ``slot`` as one group, smallest products first."""
        sums = f"_first({KEYS}"
        for first, name, dtype, size in ((self.groups, "short", "bfloat16", 2), (0, "high", "float32", 4)):
            buffer.line("wgmma_fence()")  # also before those of another shape
            step, end = first, first + self.groups
            while step < end:
                box, at = divmod(step, STEPS)
                count = min(STEPS - at, end - step)
                q, k = ((box * lines * ROW_BYTES + at * STEP_BYTES) // size for lines in (self.rows, KEYS))
                left = f"offset({name}_q, {q} + group * {ROWS * ROW_BYTES // size})"
                right = f"offset({name}_k, slot * {self.slot_bytes // size} + {k})"
                buffer.line(f"scores = wgmma_{dtype}{sums}, {left}, {right}, 0, {count})")
                step, sums = step + count, "(scores"
        buffer.line("wgmma_commit()")

    def _pack_weights(self, buffer: CodeBuffer) -> None:
        """Emit the halves of the weights as left fragments."""
        words: dict[str, list[str]] = {"high": [], "low": []}
        for j in range(KEYS // 8):
            upper = buffer.emit(f"cast_bfloat16(score{j})")
            lower = buffer.emit(f"cast_bfloat16(sub(score{j}, cast_float32({upper})))")
            for own, made in zip(words.values(), (upper, lower)):
                own.append(f"pack_words({made})")
        for half, own in words.items():
            parts = [f"join4({', '.join(own[k : k + 4])})" for k in (0, 4)]
            buffer.line(f"{half} = join2({', '.join(parts)})")

    def _multiply_values(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of weights with the tile of values in ``slot`` as one group."""
        buffer.line(f"products = wgmma_zero({self.width})")
        buffer.line("wgmma_fence()")
        for own, theirs in PRODUCTS:
            v = f"offset({theirs}_v, slot * {self.slot_bytes // 2})"
            buffer.line(f"products = wgmma_bfloat16_held(products, {own}, {v}, 1)")
        buffer.line("wgmma_commit()")
