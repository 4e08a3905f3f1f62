"""FlashAttention-3 with warpgroup MMA and TMA loads (sm_90a): Shah et al., 2024.

A warpgroup owns 64 queries. Queries and keys are multiplied from shared memory; the weights are left fragments in
registers. Softmax of one tile overlaps the MMAs of the previous tile's values. Keys and values have a ring of tiles
each; one thread refills a stage when all warpgroups have consumed it. No warpgroup is a producer: where the driver
links kernels, ptxas ignores that registers are reallocated to the consumers, whose accumulators spill.
"""

from __future__ import annotations

from ....core.dim import (
    SharedLength,
    ceil_div,
    is_symbolic,
    known_equal,
    known_in,
    less,
    less_equal,
    permitted,
    preferred,
)
from ....dataclass import dataclass
from ...launch import TensorLayout
from ...printer import CodeBuffer
from ...problems.attention import MASK_WORDS, AttentionProblem
from ...problems.element_types import ITEMSIZE
from ..contraction.wgmma_operands import moves
from ..driver.device import known_architecture
from ..machine import multiprocessors
from .attention_text import AttentionText

TYPES = ("float16", "bfloat16")
"""Element types whose values an MMA reads transposed: PTX ISA, "wgmma.mma_async"."""
SLICE = 64
"""Elements of 128 bytes: features, or keys, per MMA call."""
STEP = 16
"""Features per MMA instruction."""
ROWS = 64
"""Queries per warpgroup."""
LEAST_QUERIES = 33
"""Least queries: with fewer, over half of a warpgroup's rows would be padding."""
LONG_CAUSAL = 1024
"""Least queries for which a causal block has 128 queries and keys of more than 64 features; of smaller tiles fewer
scores are masked: 8 x 32 heads of 160 of 128 features take 17 us on an H200, with 128 by 128 26; 16 x 11 of 640 of 80
features 50 with 128 by 64, and 58."""
PAIRED_FEATURES = 96
"""Most features of which the accumulators of two blocks of two warpgroups fit the registers."""
FEW_KEYS, LEAST_TILES = 1024, 2
"""Most keys that are not split among blocks, and least tiles of a part. 11 heads of 98 queries and 3552 keys of 80
features took 53 us on an H200 in 11 blocks; 14 such tiles of 128 keys take as long as the second launch."""
MOST_REGISTERS, REGISTER_FILE = 255, 1 << 16
"""Most registers of a thread, and registers of a multiprocessor: CUDA C++ programming guide, "Technical specifications
per compute capability"."""
OTHER_REGISTERS = 48
"""Registers beside accumulators, scores, weights and mask: addresses, maxima, sums. An estimate, no figures kept."""
MOST_FEATURES = 256
"""Most columns of an MMA, and most features whose accumulators fit the registers."""
BOX_BYTES = SLICE * SLICE * 2
"""Bytes of 64 positions of 64 features."""


@dataclass(frozen=True)
class AttentionTile:
    """The work of a block.

    Attributes:
        warpgroups: warpgroups, each of `ROWS` queries.
        keys: keys per tile, a multiple of 32.
        stages: ring tiles of keys, and of values.
        blocks: resident blocks per multiprocessor.
    """

    warpgroups: int
    keys: int
    stages: int
    blocks: int


def fits_warpgroups(problem: AttentionProblem) -> bool:
    """Return whether these kernels apply to a problem that `attention_refusal` accepts."""
    arch = known_architecture()
    if arch is None or not arch.warpgroups or problem.dtype not in TYPES:
        return False
    if preferred(less(problem.queries, LEAST_QUERIES)):
        return False
    along = (problem.queries, problem.q_strides), (problem.keys, problem.k_strides), (problem.keys, problem.v_strides)
    repeats = any(known_in(own[2], 0) and not known_equal(n, 1) for n, own in along)
    return not repeats and max(problem.depth, problem.width) <= MOST_FEATURES


def chosen_tile(problem: AttentionProblem) -> AttentionTile:
    """Return the tile of a problem, by measurements on an H200 (`bench.gpu_attention`).

    With one warpgroup per block, several blocks share a multiprocessor, and softmax of one overlaps MMAs of another: 8
    x 12 heads of 384 queries and keys of 64 features take 14.4 us, with two warpgroups 16 to 19. Where feature rows are
    not whole 128-byte rows (TMA loads one in some nine cycles), or accumulators exceed the registers, more warpgroups
    share each tile of keys: 2 x 8 heads of 4096 of 40 features take 238 us, 152 with two warpgroups and 144 with four;
    4 x 16 of 2048 of 128 take 293, and 251 with two. Of 65 to 96 features two such blocks share a multiprocessor: 2 x
    64 heads of 1280 of 96 take 142 us, with one block of 128 keys 172; 2 x 8 heads of 1024 of 80, one block each, 15
    with 128 keys and 23.

    Of 129 to 192 features 96 keys fit twice: 4 x 8 heads of 1792 queries and 192 keys of 192 take 40 us, with 64 keys
    41. Of causal ones 64 keys fit three times: 4 x 16 heads of 2048 take 246 us, with 96 keys 259; 8 x 9 of 250 16.4
    and 19.0.

    Causal attention of at most 32 features takes one warpgroup: 4 x 12 heads of 1600 35 us, two 40.

    Windows of at most 64 queries and keys take one warpgroup and four blocks per multiprocessor: 512 x 3 heads of 49 of
    32 features with a mask take 13.2 us; with six blocks 13.1, eight (spills) 24.5, two warpgroups 26.6, four 60.0.
    """
    features = max(problem.depth, problem.width)
    if features <= SLICE and preferred(less_equal(problem.queries, ROWS)):
        if permitted(less_equal(problem.keys, SLICE)):
            return AttentionTile(1, 64, 1, 4)
        if features < SLICE:
            return AttentionTile(1, 64, 2, 4)
    few = permitted(less_equal(problem.keys, SLICE))
    if features > 2 * SLICE and few:
        return AttentionTile(1, 64, 1, 2)
    if features > 2 * SLICE:
        if features <= 3 * SLICE and permitted(less_equal(problem.keys, 2 * SLICE)):
            return AttentionTile(2, 128, 1, 1)
        if features > 3 * SLICE:
            return AttentionTile(2, 64, 2, 1)
        return AttentionTile(2, 64, 3, 1) if problem.causal else AttentionTile(2, 3 * SLICE // 2, 2, 1)
    short = features > SLICE and preferred(less(problem.queries, LONG_CAUSAL))
    if problem.causal and (short or features <= SLICE // 2):
        groups = 2 if SLICE < features <= 80 else 1  # by times on an H200 (`bench.gpu_random --tiles`)
        return AttentionTile(groups, 64, 2, 2)
    if features > SLICE and few:
        return AttentionTile(1, 64, 1, 3)
    if features > SLICE:
        full = preferred(less_equal(2 * multiprocessors(), _blocks(problem, 2)))
        paired = features <= PAIRED_FEATURES and full and not problem.causal
        return AttentionTile(2, 64, 2, 2) if paired else AttentionTile(2, 128, 2, 1)
    if features == SLICE:
        return AttentionTile(1, 128, 2, 2)
    wide, narrow = (ceil_div(problem.queries, n * ROWS) * n for n in (4, 2))  # warpgroups, some of them without rows
    many = preferred(less_equal(multiprocessors(), _blocks(problem, 4))) and preferred(less_equal(4 * wide, 5 * narrow))
    return AttentionTile(4, 64, 4, 1) if many else AttentionTile(2, 64, 3, 1)


def _blocks(problem: AttentionProblem, warpgroups: int) -> SharedLength:
    """Return the blocks of a problem with ``warpgroups`` warpgroups each."""
    return ceil_div(problem.queries, warpgroups * ROWS) * problem.heads * problem.batch


def _pieces(features: int) -> list[int]:
    """Return the features of each TMA box. Boxes do not exceed the tensor, because rows that do load slowly."""
    return [min(SLICE, features - first) for first in range(0, features, SLICE)]


def rows_of_warpgroups(block: str, rows: int, causal: bool) -> list[str]:
    """Return statements for a thread's queries ``row0`` and ``row1``, and ``is_leader``, one thread per warpgroup.

    Args:
        block: index of the block along the queries.
        rows: queries per block.
        causal: blocks with the most visible keys come first.
    """
    first = f"(last_block - {block})" if causal else block
    return [
        "group = idiv(warp, 4)",
        f"block_row = {first} * {rows}",
        f"first_row = block_row + group * {ROWS}",
        "row0 = block_row + warp * 16 + row_in",
        "row1 = row0 + 8",
        "is_leader = imod(thread, 128) == 0",
    ]


class WarpgroupAttentionText(AttentionText):
    """Kernel text of one problem.

    ``full_k`` and ``full_v`` are the mbarriers of ring stages that TMA has filled, ``empty_k`` and ``empty_v`` of those
    that all warpgroups have consumed. ``slot`` is the stage of the tile whose scores are known, ``next`` the stage
    after it, ``previous`` the stage before it.

    Attributes:
        depth_boxes: TMA boxes along the features of a query or key.
        width_boxes: TMA boxes along the features of a value.
        key_boxes: MMAs of values per tile of keys, each over at most `SLICE` keys.
        mma_steps: MMA instructions along the features of each box of a key.
        ordered_rows: see `AttentionText`.
        loads_mask_early: whether registers suffice to load the mask while scores are computed.
    """

    def __init__(self, problem: AttentionProblem, pairs: bool, tile: AttentionTile | None = None) -> None:
        """Prepare the text; a missing ``tile`` is chosen."""
        super().__init__(problem, pairs)
        self.tile = tile = tile or chosen_tile(problem)
        self.keys, self.resident_blocks = tile.keys, tile.blocks
        self.threads = 128 * tile.warpgroups
        self.rows = ROWS * tile.warpgroups
        self.ordered_rows = ROWS
        self.depth_boxes, self.width_boxes = -(-problem.depth // SLICE), -(-problem.width // SLICE)
        self.width = -(-problem.width // 8) * 8
        self.mma_steps = [-(-own // STEP) for own in _pieces(problem.depth)]
        self.query_bytes = self.depth_boxes * tile.warpgroups * BOX_BYTES
        self.key_boxes = -(-tile.keys // SLICE)
        self.key_bytes, self.value_bytes = (
            self.depth_boxes * tile.keys * SLICE * 2,
            self.width_boxes * self.key_boxes * BOX_BYTES,
        )
        self.shared_bytes = self.query_bytes + tile.stages * (self.key_bytes + self.value_bytes)
        each = REGISTER_FILE // (self.threads * tile.blocks)
        self.loads_mask_early = self._registers() <= min(MOST_REGISTERS, each)
        down = ceil_div(problem.queries, self.rows)
        blocks, part = down * problem.heads * problem.batch, problem.keys
        if not (is_symbolic(blocks) or is_symbolic(part)) and part > FEW_KEYS:
            part = self._split(blocks, multiprocessors() * tile.blocks, ceil_div(part, self.keys) // LEAST_TILES)
        self._spread(down)
        if self.ordered:
            self.arguments.integer("last_block", down - 1)
        self._plane: dict[str, str] = {}
        multiplied = [own if own % STEP == 0 else SLICE for own in _pieces(problem.depth)]
        self._boxes: dict[str, list[int]] = {"q": multiplied, "k": multiplied, "v": _pieces(problem.width)}
        self._map("q", problem.depth, problem.queries, problem.heads, problem.q_strides, self.rows)
        self._map("k", problem.depth, problem.keys, problem.kv_heads, problem.k_strides, tile.keys)
        self._map("v", problem.width, problem.keys, problem.kv_heads, problem.v_strides, SLICE)
        self._declare(part)

    def _registers(self) -> int:
        """Return the estimated registers of a thread that holds a tile's mask: accumulators, scores, weights, mask."""
        mask = self.problem.mask
        words = self.tile.keys // 2 if mask is not None and mask.dtype == "float32" else self.tile.keys // 4
        if mask is not None and mask.bits:
            words = 2 * MASK_WORDS
        return self.width // 2 + self.tile.keys // 2 + self.tile.keys // 4 + words + OTHER_REGISTERS

    def _map(
        self,
        name: str,
        features: int,
        positions: SharedLength,
        heads: int,
        strides: tuple[SharedLength, ...],
        box: int,
    ) -> None:
        """Declare the tensor map of an operand with boxes of ``box`` positions, and the coordinates of its plane."""
        lanes = 16 // ITEMSIZE[self.problem.dtype]
        axes = [(features, 1), (positions, strides[2]), (heads, strides[1]), (self.problem.batch, strides[0])]
        moving = [axes[0], *((n, s) if moves(n) and not known_in(s, 0) else (1, lanes) for n, s in axes[1:])]
        lens, steps = (tuple(own) for own in zip(*moving))
        for own in sorted({*self._boxes[name]}):
            layout = TensorLayout(self.problem.dtype, lens, steps, (own, box, 1, 1))
            self.arguments.tensor_map(f"map_{name}{own}", name, layout)
        head = "head" if name == "q" else "shared_head"
        self._plane[name] = f"{head if moves(lens[2]) else 0}, {'batch' if moves(lens[3]) else 0}"

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tile, dtype = CodeBuffer(), self.tile, self.problem.dtype
        self._begin(buffer)
        buffer.line(
            *rows_of_warpgroups(self.block, self.rows, self.ordered),
            f"tile_q = dynamic_{dtype}(0)",
            f"tile_k = dynamic_{dtype}({self.query_bytes})",
            f"tile_v = dynamic_{dtype}({self.query_bytes + tile.stages * self.key_bytes})",
            *(f"{name} = shared_int64({n})" for name, n in self._barriers().items()),
            f"group_q = offset(tile_q, group * {ROWS * SLICE})",
            "is_loader = thread == 0",
        )
        self._limit_keys(buffer, "block_row", self.rows)
        with buffer.block("if is_loader:"):
            for name, count in self._barriers().items():
                for k in range(count):
                    arrivals = tile.warpgroups if name.startswith("empty") else 1
                    buffer.line(f"mbarrier_init(offset({name}, {k}), {arrivals})")
            buffer.line("mbarrier_fence()")
        buffer.line("barrier()")
        self._consume(buffer)
        return buffer.lines

    def _consume(self, buffer: CodeBuffer) -> None:
        """Emit the loop over the tiles of keys."""
        buffer.line(f"acc = wgmma_zero({self.width})")
        self._begin_sums(buffer)
        with buffer.block("if begin < end:"):
            self._first_tile(buffer)
            with buffer.block("while start < end:"):
                self._next_tile(buffer)
            self._wait_for(buffer, "full_v", "slot", "phase")
            if self.problem.limited:
                self._clear_values(buffer)
            self._multiply_values(buffer)
            buffer.line("acc = wgmma_wait(acc, 0)")
        for j in range(self.width // 8):
            buffer.line(f"acc{j} = sums_part(acc, {j})")
        self._finish(buffer)

    def _barriers(self) -> dict[str, int]:
        """Return the names and counts of the mbarriers: tiles that have arrived, tiles that all warpgroups have
        consumed."""
        return {"full_q": 1} | dict.fromkeys(("full_k", "full_v", "empty_k", "empty_v"), self.tile.stages)

    def _first_tile(self, buffer: CodeBuffer) -> None:
        """Emit the initial fill of the ring, and the weights of the first tile."""
        with buffer.block("if is_loader:"):
            self._load_queries(buffer)
            for stage in range(self.tile.stages):
                with buffer.block(f"if begin + {stage * self.keys} < end:"):
                    self._load_tile(buffer, "k", f"begin + {stage * self.keys}", str(stage))
                    self._load_tile(buffer, "v", f"begin + {stage * self.keys}", str(stage))
        buffer.line("slot = 0", "phase = 0", "next = 0", "next_phase = 0", "previous = 0", "previous_phase = 0")
        buffer.line("start = begin")
        self._wait_for(buffer, "full_q", "0", "0")
        self._wait_for(buffer, "full_k", "0", "0")
        self._scores(buffer)
        if self.loads_mask_early:
            self._load_mask(buffer)
        self._read_scores(buffer, 0)
        self._weights(buffer)
        self._pack_weights(buffer)
        self._advance(buffer)

    def _next_tile(self, buffer: CodeBuffer) -> None:
        """Emit the scores and weights of the next tile, overlapped with the MMAs of the previous tile's values.

        The wait for keys stands between softmax and the wait for the MMAs: it ends a basic block, and ptxas moves no
        instruction out of one.
        """
        self._scores(buffer)
        self._wait_for(buffer, "full_v", "slot", "phase")
        self._multiply_values(buffer)
        with buffer.block("if is_loader:"):  # when the thread's own products are under way
            self._refill(buffer)
        if self.loads_mask_early:
            self._load_mask(buffer)
        self._read_scores(buffer, 1)
        self._weights(buffer)
        buffer.line("previous = slot", "previous_phase = phase", "slot = next", "phase = next_phase")
        self._advance(buffer)
        buffer.line("acc = wgmma_wait(acc, 0)")
        for part in range(self.key_boxes):
            buffer.line(f"wgmma_keep(own{part})")
        with buffer.block("if is_leader:"):
            buffer.line("mbarrier_arrive(offset(empty_v, previous))")
        buffer.line("acc = scale_sums(acc, kept0, kept1)")
        self._pack_weights(buffer)

    def _advance(self, buffer: CodeBuffer) -> None:
        """Emit the step to the next tile of keys, and the wait for it."""
        buffer.assign("start", f"start + {self.keys}")
        buffer.line("next = next + 1")
        with buffer.block(f"if next == {self.tile.stages}:"):
            buffer.line("next = 0")
            buffer.line("next_phase = 1 - next_phase")
        with buffer.block("if start < end:"):
            self._wait_for(buffer, "full_k", "next", "next_phase")

    def _load_queries(self, buffer: CodeBuffer) -> None:
        """Emit the TMA loads of the block's queries."""
        buffer.line(f"mbarrier_expect(full_q, {self._loaded_bytes('q', self.rows)})")
        for piece, own in enumerate(self._boxes["q"]):
            to = f"offset(tile_q, {piece * self.rows * SLICE})"
            place = f"place4({piece * SLICE}, block_row, {self._plane['q']})"
            buffer.line(f"tensor_load({to}, map_q{own}, full_q, {place})")

    def _load_tile(self, buffer: CodeBuffer, name: str, key: str, slot: str) -> None:
        """Emit the TMA loads of the tile of keys (``name`` "k") or values ("v") at ``key``."""
        size, pieces = (self.key_bytes, self.depth_boxes) if name == "k" else (self.value_bytes, self.width_boxes)
        box, loaded = (self.keys,) * 2 if name == "k" else (SLICE, SLICE * self.key_boxes)
        buffer.line(f"mbarrier_expect(offset(full_{name}, {slot}), {self._loaded_bytes(name, loaded)})")
        for below in range(0, loaded, box):
            for piece, own in enumerate(self._boxes[name]):
                to = f"offset(tile_{name}, {slot} * {size // 2} + {(below * pieces + piece * box) * SLICE})"
                place = f"place4({piece * SLICE}, {key} + {below}, {self._plane[name]})"
                buffer.line(f"tensor_load({to}, map_{name}{own}, offset(full_{name}, {slot}), {place})")

    def _loaded_bytes(self, name: str, positions: int) -> int:
        """Return the bytes of an operand's boxes of ``positions`` positions."""
        return sum(self._boxes[name]) * positions * ITEMSIZE[self.problem.dtype]

    def _refill(self, buffer: CodeBuffer) -> None:
        """Emit the refill of stages: keys of the tile before the current scores, and values before those, once all
        warpgroups have consumed them."""
        stages = self.tile.stages
        with buffer.block(f"if start + {(stages - 1) * self.keys} < end:"):
            buffer.line("mbarrier_wait(offset(empty_k, slot), phase)")
            self._load_tile(buffer, "k", f"start + {(stages - 1) * self.keys}", "slot")
        with buffer.block(f"if (start > begin + {self.keys}) & (start + {(stages - 2) * self.keys} < end):"):
            buffer.line("mbarrier_wait(offset(empty_v, previous), previous_phase)")
            self._load_tile(buffer, "v", f"start + {(stages - 2) * self.keys}", "previous")

    def _wait_for(self, buffer: CodeBuffer, barrier: str, slot: str, phase: str) -> None:
        buffer.line(f"mbarrier_wait(offset({barrier}, {slot}), {phase})")

    def _scores(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of the queries with the next tile of keys as one group."""
        dtype = self.problem.dtype
        buffer.line("wgmma_fence()")
        for piece in range(self.depth_boxes):
            q = f"offset(group_q, {piece * self.rows * SLICE})"
            k = f"offset(tile_k, next * {self.key_bytes // 2} + {piece * self.keys * SLICE})"
            what = f"wgmma_{dtype}(scores" if piece else f"wgmma_{dtype}_first({self.keys}"
            buffer.line(f"scores = {what}, {q}, {k}, 0, {self.mma_steps[piece]})")
        buffer.line("wgmma_commit()")

    def _read_scores(self, buffer: CodeBuffer, pending: int) -> None:
        """Emit the wait for the scores; ``pending`` later MMA groups may still run."""
        buffer.line(f"scores = wgmma_wait(scores, {pending})")
        with buffer.block("if is_leader:"):
            buffer.line("mbarrier_arrive(offset(empty_k, next))")
        for j in range(self.keys // 8):
            buffer.line(f"score{j} = sums_part(scores, {j})")

    def _pack_weights(self, buffer: CodeBuffer) -> None:
        """Emit the weights as left fragments."""
        for part in range(self.key_boxes):
            scores = range(SLICE // 8 * part, min(SLICE // 8 * (part + 1), self.keys // 8))
            words = [f"pack_words(cast_{self.problem.dtype}(score{j}))" for j in scores]
            halves = [f"join4({', '.join(words[k : k + 4])})" for k in range(0, len(words), 4)]
            buffer.line(f"own{part} = {halves[0] if len(halves) == 1 else f'join2({halves[0]}, {halves[1]})'}")

    def _clear_values(self, buffer: CodeBuffer) -> None:
        """Emit zeros for the last tile's values beyond the end: a cache may hold NaN there, which a weight of zero does
        not hide."""
        with buffer.block("if start > end:"):
            buffer.line("item = thread")
            with buffer.block(f"while item < {self.value_bytes // 16}:"):
                buffer.line(
                    f"line = idiv(item, {SLICE // 8})",
                    f"box = idiv(line, {SLICE})",
                    f"key = start - {self.keys} + idiv(box, {self.width_boxes}) * {SLICE} + line - box * {SLICE}",
                )
                with buffer.block("if key >= end:"):
                    zero = f"const_{self.problem.dtype}(0, 8)"
                    buffer.line(f"store_aligned(tile_v, slot * {self.value_bytes // 2} + item * 8, {zero})")
                buffer.line(f"item = item + {self.threads}")
            buffer.line("operand_fence()", "barrier()")

    def _multiply_values(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of weights with the tile of values in ``slot`` as one group."""
        buffer.line("wgmma_fence()")
        for part in range(self.key_boxes):
            v = f"offset(tile_v, slot * {self.value_bytes // 2} + {part * self.width_boxes * SLICE * SLICE})"
            buffer.line(f"acc = wgmma_{self.problem.dtype}_held(acc, own{part}, {v}, 1)")
        buffer.line("wgmma_commit()")
