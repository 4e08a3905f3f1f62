"""FlashAttention-2 on tensor cores of warps (Dao, 2023): float32 accumulators, float32 operands multiplied in TF32.

A warp owns sixteen queries. Their scores against a tile of keys stay in registers: they are scaled, masked, and
exponentiated with a running maximum (online softmax). Accumulator fragments have the layout of left operands, so the
weights multiply the tile of values directly. Tiles of keys and values are double-buffered in shared memory. With few
queries, several blocks process parts of the keys (split-KV), and the last block or a second launch combines them.

Of sixteen queries or fewer, as in a step of a decoder, the warps of a block share the keys: each takes every fourth
tile into memory of its own, and meets the others at the end alone, where they combine their partial results. The last
block of a head combines those of the blocks; with more rows a second launch does, since one block would take longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....core.dim import Dim, SharedLength, ceil_div, is_symbolic, less_equal, permitted, preferred
from ...launch import Grid, Launch, Solution
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ...problems.element_types import ITEMSIZE
from ..architecture import ARCHITECTURES
from ..cluster.flat_index import whole_vectors
from ..contraction.tensor_cores import split_words
from ..driver.device import known_architecture
from ..kernel import gpu_kernel
from ..machine import multiprocessors
from ..products import PRODUCTS
from .attention_text import AttentionText
from .matrix_cores import MatrixAttentionText, attention_tile
from .new_rows import NewRows
from .split_kv import AT_ONCE, LANES, add_parts, join_split_kv, split_scratch, store_sums
from .warpgroup_bf16_split import WarpgroupBf16SplitText, fits_bf16_split
from .warpgroups import AttentionTile, WarpgroupAttentionText, fits_warpgroups

TYPES = ("float16", "bfloat16", "float32")
VECTOR_BYTES = 16
"""Bytes of the widest copy."""
PAD_BYTES = 16
"""Padding bytes per tile row, which puts the eight rows of a fragment, and the words of every second row, in different
banks."""
STEP_BYTES = 32
"""Bytes of each row per MMA instruction."""
ROWS = 16
"""Queries per warp: the rows of an MMA."""
SUMS = 8
"""Value features per MMA."""
MOST_WARPS = 4
"""Most warps per block: one for each scheduler of a multiprocessor."""
MOST_FEATURES = 256
"""Most features whose accumulators fit a warp's registers."""
KEYS = 64
"""Keys per tile; fewer if features exceed `WIDE_BYTES`. No figures kept."""
SHORT_KEYS = 32
"""Keys per tile of blocks of one warp, which computes 64 of 128 features in 4.1 us on an H200, and 32 in 3.3. A decoder
of 8 billion 4-bit weights took 1% longer with 64, also with 3000 positions, and 0.4 to 3% with 16."""
LEAST_KEYS = 16
"""Least keys per tile: the rows of two fragments."""
WIDE_BYTES = 256
"""Most bytes of features for which two tiles of `KEYS` keys and values fit in shared memory."""
APART_FEATURES = 96
"""Most value features for which a thread holds accumulators twice, see `_FlashText.apart`."""
LEAST_SHARED = ARCHITECTURES["sm_75"].shared_bytes
"""Shared memory (bytes) of the smallest device, which has no asynchronous copies."""
SPLIT_BLOCKS, SHORT_BLOCKS = 2, 4
"""Target number of blocks per multiprocessor of split-KV; and of blocks of one warp, of which four fit with tiles of 96
features. With two, 16 x 48 query rows, 6 key heads and 1536 keys of 96 features took 56 us on an H200, cuDNN 30."""
FEW_TILES = 2
"""Most tiles of keys that are not split, of each warp: 72 keys in two parts took 7.0 us on an H200, of which the second
launch some two."""
LEAST_TILES = 2
"""Least tiles per part with several warps: 128 queries and keys of 12 heads take 4.9 us on an H200 with parts of one
tile, 3.5 with two. Of warps that share keys each takes one tile: one query and 513 keys took 5.6 us, and 6.9 with
two."""


def attention_refusal(problem: AttentionProblem, precision: str) -> str:
    """Return the reason why no kernel applies; "" if one applies.

    Args:
        problem: its operands must be aligned to 16 bytes.
        precision: of float32 products, as in `GpuContraction`.
    """
    if problem.dtype not in TYPES:
        return f"tensor cores have no attention of {problem.dtype}"
    arch = known_architecture()
    if arch is not None and not arch.nvidia:
        if problem.limited or attention_tile(problem, precision, arch) is None:
            return f"{arch.name} has no matrix cores for this"
    elif problem.dtype == "float32" and precision == "highest":
        return "tensor cores multiply float32 in TF32"
    elif arch is not None and PRODUCTS[problem.dtype, problem.dtype].capability > arch.capability:
        return f"{arch.name} has no products of {problem.dtype}"
    vector = VECTOR_BYTES // ITEMSIZE[problem.dtype]
    if problem.depth % vector or problem.width % SUMS:
        return f"{problem.depth} and {problem.width} features are no whole vectors"
    if max(problem.depth, problem.width) > MOST_FEATURES:
        return f"more than {MOST_FEATURES} features"
    if not problem.features_contiguous:
        return "features do not follow one another"
    apart = [s for own in (problem.k_strides, problem.v_strides, problem.q_strides) for s in own[:3]]
    if not permitted(whole_vectors(vector, *apart)):
        return "positions are no whole vectors apart"
    return ""


def attention_solution(
    problem: AttentionProblem,
    precision: str,
    origin: str = "",
    pairs: bool = False,
    tile: AttentionTile | None = None,
    rows: NewRows | None = None,
    several: bool = False,
) -> Solution:
    """Return the launches of an applicable problem. Operands: ``q``, ``k``, ``v``, ``mask``, ``limits``, ``out``,
    ``scratch``, and those of the epilogue.

    Args:
        pairs: whether the result is aligned to two elements.
        tile: warpgroup tile; None to choose it.
        rows: what the launch for a single query computes itself, if `takes_rows` holds. It then reads no ``q`` if there
            are parts of queries, and writes new rows of ``k`` and ``v``.
        several: whether another solution serves a single query.
    """
    if not several:
        problem = problem.with_grouped_rows(several=True)
    text: _FlashText | MatrixAttentionText | WarpgroupAttentionText | WarpgroupBf16SplitText
    arch = known_architecture()
    if rows is not None:
        text, how = _FlashText(problem, precision, pairs, rows), "_of_new_rows"
    elif arch is not None and not arch.nvidia:
        text, how = MatrixAttentionText(problem, precision, pairs), "_matrix"
    elif fits_warpgroups(problem):
        text, how = WarpgroupAttentionText(problem, pairs, tile), "_warpgroup"
    elif fits_bf16_split(problem, precision) and not problem.limited:
        text, how = WarpgroupBf16SplitText(problem, pairs, tile), "_warpgroup_parts"
    else:
        text, how = _FlashText(problem, precision, pairs), ""
    lines, values = text.lines(), text.arguments.values
    mask = problem.mask
    masked = "" if mask is None else "_filled_mask" if mask.replaces else f"_{mask.dtype}_mask"
    joins = text.in_parts and not text.sharers
    work = "" if joins or not problem.epilogue.name else f"_{problem.epilogue.name}"
    seen = f"{'_limited' * problem.limited}{'_causal' * problem.causal}{masked}"
    name = f"attention{how}_{problem.dtype}{seen}{work}_kernel"
    launch = Launch(
        kernel=gpu_kernel(name, lines, text.threads, len(values), origin, text.resident_blocks),
        args=values,
        geometry=Grid(text.blocks, (text.threads, 1, 1), text.shared_bytes),
        flops=problem.flops,
        bytes=problem.bytes,
    )
    if joins:
        return join_split_kv(text.problem, launch, text.splits)
    return Solution((launch,), split_scratch(text.problem, text.splits) if text.in_parts else 0)


def takes_rows(problem: AttentionProblem) -> bool:
    """Return whether the launch for one query can compute new rows itself (`NewRows`): one block has all heads of a
    group, and tiles are copied asynchronously, after the rows are written."""
    arch = known_architecture()
    group = problem.group
    return (arch is None or (arch.nvidia and arch.copies)) and not is_symbolic(group) and group <= ROWS


def _fits(features: int, keys: int) -> bool:
    """Return whether two tiles of keys and values of ``features`` bytes fit in the shared memory of a device without
    asynchronous copies."""
    return 4 * keys * (features + STEP_BYTES + PAD_BYTES) <= LEAST_SHARED


class _FlashText(AttentionText):
    """Kernel text of one problem.

    Attributes:
        warps: warps per block with rows of their own.
        split: whether float32 is computed as three TF32 products.
        copied: whether tiles are copied asynchronously; otherwise they pass through registers.
        tile_bytes: memory for two tiles of keys and values.
        apart: whether tensor cores accumulate one tile only, and FP32 additions the tiles; tensor cores truncate
            accumulators towards zero.
    """

    def __init__(
        self, problem: AttentionProblem, precision: str, pairs: bool, rows: NewRows | None = None
    ) -> None:  # fmt: skip
        super().__init__(problem, pairs)
        self.rows = rows
        size = ITEMSIZE[problem.dtype]
        self.split = problem.dtype == "float32" and precision == "high"
        self.apart = self.split and problem.width <= APART_FEATURES
        self.vector, self.step = VECTOR_BYTES // size, STEP_BYTES // size
        arch = known_architecture()
        self.copied = arch is None or arch.copies
        short = preferred(less_equal(problem.queries, ROWS))
        held = 1 if short else MOST_WARPS
        if not isinstance(problem.queries, Dim):
            held = min(MOST_WARPS, -(-problem.queries // ROWS))
        self.warps = held if self.copied else MOST_WARPS  # that hold a tile
        self.ordered_rows = ROWS * self.warps
        features = max(problem.depth, problem.width) * size
        self.keys = SHORT_KEYS if short else KEYS
        while features * self.keys > WIDE_BYTES * KEYS or not (self.copied or _fits(features, self.keys)):
            self.keys //= 2
        while not is_symbolic(problem.keys) and LEAST_KEYS <= self.keys // 2 >= problem.keys:
            self.keys //= 2
        self.depth, self.width = -(-problem.depth // self.step) * self.step, -(-problem.width // 16) * 16
        self.key_pitch, self.value_pitch = (n + PAD_BYTES // size for n in (self.depth, self.width))
        self.key_slot, self.value_slot = self.keys * self.key_pitch, self.keys * self.value_pitch
        self.tile_bytes = self.shared_bytes = 2 * size * (self.key_slot + self.value_slot)
        down = ceil_div(problem.queries, ROWS * self.warps)
        blocks, tiles = down * problem.heads * problem.batch, ceil_div(problem.keys, self.keys)
        wanted = multiprocessors() * (SHORT_BLOCKS if short else SPLIT_BLOCKS)
        self.sharers = self._warps_of_keys(blocks, tiles) if short and self.copied else 0
        self.threads = 32 * self.warps
        self.computes_queries = rows is not None and bool(rows.queries)
        if self.sharers:
            self.threads, wanted = 32 * self.sharers, wanted // self.sharers
            self.shared_bytes = self.sharers * self.tile_bytes
        self.finishes = LANES if self.sharers else None
        few = preferred(less_equal(tiles, FEW_TILES * (self.sharers or (KEYS // SHORT_KEYS if short else 1))))
        most = 1 if few else ceil_div(tiles, self.sharers or 1) if short else tiles // LEAST_TILES
        part = self._split(blocks, wanted, most)
        self._spread(down)
        self.query_place = self.shared_bytes // size
        if self.computes_queries:
            self.shared_bytes += problem.queries * self.key_pitch * size
        for name in ("q", "k", "v")[self.computes_queries :]:
            self.arguments.pointer(f"p_{name}", name, problem.dtype)
            for axis, stride in zip("bhs", getattr(problem, f"{name}_strides")):
                self.arguments.integer(f"{name}_{axis}", stride)
        self._declare(part)
        if self.sharers and self.in_parts:
            self.arguments.pointer("p_counters", "counters", "int32")
            self.arguments.integer("down", down)
        if rows is not None:
            rows.declare(self.arguments)

    def _warps_of_keys(self, blocks: SharedLength, tiles: SharedLength) -> int:
        """Return the warps that share the keys of each of ``blocks`` blocks, so many that all blocks are resident at
        once: 0 for one warp."""
        arch = known_architecture()
        most, warps = LEAST_SHARED if arch is None else arch.shared_bytes, MOST_WARPS
        while warps > 1 and (
            warps * self.tile_bytes + ROWS * self.key_pitch * ITEMSIZE[self.problem.dtype] > most
            or (not is_symbolic(tiles) and tiles < warps)
            or (not is_symbolic(blocks) and blocks > multiprocessors() * (most // (warps * self.tile_bytes)))
        ):
            warps //= 2
        return warps if warps > 1 else 0

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, problem = CodeBuffer(), self.problem
        size = ITEMSIZE[problem.dtype]
        self._begin(buffer)
        own = f"offset(dynamic_{problem.dtype}(0), warp * {self.tile_bytes // size})"
        if self.sharers:
            buffer.line("warp = warp_index()")
        buffer.line(
            f"first_row = {self.block} * {ROWS * self.warps}",
            f"row0 = first_row + {'' if self.sharers else f'warp * {ROWS} + '}row_in",
            "row1 = row0 + 8",
            f"tile_k = {own if self.sharers else f'dynamic_{problem.dtype}(0)'}",
            f"tile_v = offset(tile_k, {2 * self.key_slot})",
            *(
                [f"q = offset(dynamic_{problem.dtype}(0), {self.query_place})", f"q_s = {self.key_pitch}"]
                if self.computes_queries
                else ["q = offset(p_q, batch * q_b + head * q_h)"]
            ),
            "k = offset(p_k, batch * k_b + shared_head * k_h)",
            "v = offset(p_v, batch * v_b + shared_head * v_h)",
        )
        self._limit_keys(buffer, "first_row", ROWS * self.warps)
        if self.rows is None:
            self._queries(buffer)
        for j in range(self.width // 8):
            buffer.line(f"acc{j} = const_float32(0, 4)")
        self._begin_sums(buffer)
        buffer.line("slot = 0")
        if self.sharers:
            buffer.line(f"begin = begin + warp * {self.keys}")
        if self.rows is None:
            self._fetch(buffer, "begin", "0")
        else:
            self._write_rows(buffer, self.rows)
            self._queries(buffer)
        if not self.copied:
            self._put(buffer, "0")
        buffer.line("start = begin")
        apart, meet = self.keys * (self.sharers or 1), "warp_barrier()" if self.sharers else "barrier()"
        with buffer.block("while start < end:"):
            self._fetch(buffer, f"start + {apart}", "(1 - slot)")
            if self.copied:
                buffer.line("copy_wait(1)")
            buffer.line(meet)
            self._scores(buffer)
            self._weights(buffer)
            buffer.line("factors = join4(splat(kept0, 1), splat(kept0, 1), splat(kept1, 1), splat(kept1, 1))")
            for j in range(self.width // 8):
                buffer.line(f"mixed{j} = const_float32(0, 4)" if self.apart else f"acc{j} = mul(acc{j}, factors)")
            self._multiply_values(buffer)
            for j in range(self.width // 8 if self.apart else 0):
                buffer.line(f"acc{j} = fma(acc{j}, factors, mixed{j})")
            if not self.copied:
                self._put(buffer, "(1 - slot)")
            buffer.line(meet)
            buffer.line(f"start = start + {apart}")
            buffer.line("slot = 1 - slot")
        if self.copied:
            buffer.line("copy_wait(0)")
        if self.sharers:
            self._join_warps(buffer)
        else:
            self._finish(buffer)
        return buffer.lines

    def _write_rows(self, buffer: CodeBuffer, rows: NewRows) -> None:
        """Emit the copies of the first tile but the new row, the block's queries, the new row if its place is in the
        block's part, and the copy of that row."""
        buffer.line("place = load_scalar(p_places, batch * place_stride)")
        self._fetch(buffer, "begin", "0", "!=")
        rows.print_queries(buffer, self.problem.queries, self.threads, self.key_pitch)
        with buffer.block("if (split * part <= place) & (place < imin(keys, split * part + part)):"):
            rows.print_rows(buffer, self.threads)
        buffer.line("barrier()")
        with buffer.block(f"if (begin <= place) & (place < begin + {self.keys}):"):
            self._fetch(buffer, "begin", "0", "==")
        buffer.line("copy_commit()")

    def _join_warps(self, buffer: CodeBuffer) -> None:
        """Emit the combination of the warps' partial results: the result, or the partial result of a part of the keys.
        The last block of all parts then combines the parts."""
        problem, pitch = self.problem, self.problem.width + 8  # eight floats spread rows over the banks
        self._add_sums(buffer)
        buffer.line("barrier()", "held = dynamic_float32(0)", f"pitch = {pitch}")
        for r in (0, 1):
            with buffer.block(f"if row{r} < queries:"):
                line = buffer.emit(f"warp * {ROWS} + row_in + {8 * r}")
                self._store_part(buffer, r, "held", f"{line} * {pitch}", f"{self.sharers * ROWS * pitch} + {line} * 2")
        buffer.line("barrier()", "across = idiv32(width, 4)", f"items = imin({ROWS}, queries - first_row) * across")
        if self.in_parts:
            buffer.line("lines = batches * heads * queries")
        with self._each_row(buffer):
            add_parts(buffer, "held", str(self.sharers), str(ROWS), "row", self.sharers)
            if self.in_parts:
                buffer.line("line = ((split * batches + batch) * heads + head) * queries + first_row + row")
                buffer.line("store_aligned(p_scratch, line * width + feature, sums)")
                with buffer.block("if feature == 0:"):
                    buffer.line("pair = join2(splat(top, 1), splat(total, 1))")
                    buffer.line(f"store_aligned(p_scratch, {self._splits} * lines * width + line * 2, pair)")
            else:
                store_sums(problem, buffer, f"{self._row_place} + feature")
        if self.in_parts:
            self._join_blocks(buffer)

    def _join_blocks(self, buffer: CodeBuffer) -> None:
        """Emit the combination of the parts by the last block. Parts behind the valid keys take no part in it."""
        parts = self._splits
        buffer.line("last = shared_int32(1)", f"parts = {parts}")
        if self.problem.limited:
            seen = "imin(valid, first_seen + 1)" if self.problem.causal and self.problem.one_position else "valid"
            buffer.line(f"parts = imax(imin({parts}, idiv({seen} + part - 1, part)), 1)")
        buffer.line("barrier()")
        with buffer.block("if thread == 0:"):
            buffer.line("store_scalar(last, 0, 0)")
            with buffer.block("if split < parts:"):
                counter = f"offset(p_counters, (batch * heads + head) * down + {self.block})"
                buffer.line(f"store_scalar(last, 0, last_block({counter}, parts))")
        buffer.line("barrier()")
        with buffer.block("if load_scalar(last, 0) == 1:"):
            buffer.line("pitch = width")
            with self._each_row(buffer):
                row = "(batch * heads + head) * queries + first_row + row"
                add_parts(buffer, "p_scratch", "parts", "lines", f"({row})", AT_ONCE, f"{parts} * lines * pitch")
                store_sums(self.problem, buffer, f"{self._row_place} + feature")

    _row_place = "batch * out_b + head * out_h + (first_row + row) * out_s"

    @contextmanager
    def _each_row(self, buffer: CodeBuffer) -> Iterator[None]:
        """Emit the loop over a thread's vectors, each of a ``row`` of the block and from a ``feature`` on."""
        with buffer.block(f"for item in range(thread, items, {self.threads}):"):
            buffer.line("row = idiv32(item, across)", f"feature = (item - row * across) * {LANES}")
            yield

    @property
    def sums(self) -> str:
        """Return the name prefix of the value accumulators."""
        return "mixed" if self.apart else "acc"

    def _queries(self, buffer: CodeBuffer) -> None:
        """Emit the warp's queries as left fragments of all steps along the features."""
        for r in (0, 1):
            buffer.line(f"q{r} = words_of(offset(q, imin(row{r}, queries - 1) * q_s))")
        whole = self.depth == self.problem.depth
        for step in range(self.depth // self.step):
            words = []
            for on in (0, 1):
                for r in (0, 1):
                    at = f"{8 * step + 4 * on} + word"
                    if whole or not (on and step == self.depth // self.step - 1):
                        words.append(buffer.emit(f"load(q{r}, {at}, 1)"))
                    else:
                        words.append(buffer.emit("const_int32(0, 1)"))
            buffer.line(f"own{step} = join4({', '.join(words)})")

    def _fetch(self, buffer: CodeBuffer, start: str, slot: str, only: str = "") -> None:
        """Emit the copies of the tile of keys and values at ``start``, or the loads that `_put` stores; keys beyond the
        end are zeros. ``only``: how keys that are copied compare to ``place``; then the copies' group stays open."""
        for name, vectors, length in (
            ("k", self.depth // self.vector, "depth"),
            ("v", self.width // self.vector, "width"),
        ):
            copying = 32 if self.sharers else self.threads
            turns, even = -(-self.keys * vectors // copying), self.keys * vectors % copying == 0
            if not self.copied:
                for turn in range(turns):
                    self._place(buffer, vectors, str(turn))
                    source, inside = self._source(name, length, start)
                    given = f"load_aligned({name}, {source}, {self.vector})"
                    zero = f"const_{self.problem.dtype}(0, {self.vector})"
                    buffer.line(f"{name}_next{turn} = where({inside}, {given}, {zero})")
                continue
            inside_keys = buffer.block(f"if {start} < end:")  # else zeros would be copied, which nothing reads
            with inside_keys, buffer.block(f"for turn in range({turns}):"):
                self._place(buffer, vectors, "turn")
                source, inside = self._source(name, length, start)
                copy = f"copy_async(tile_{name}, {self._to(name, slot)}, {name}, {source}, {inside})"
                wanted = [f"({start} + line {only} place)"] * bool(only) + [f"(line < {self.keys})"] * (not even)
                if not wanted:
                    buffer.line(copy)
                else:
                    with buffer.block(f"if {' & '.join(wanted)}:"):
                        buffer.line(copy)
        if self.copied and not only:
            buffer.line("copy_commit()")

    def _put(self, buffer: CodeBuffer, slot: str) -> None:
        """Emit the stores of the loaded tile."""
        for name, features in (("k", self.depth), ("v", self.width)):
            vectors = features // self.vector
            for turn in range(-(-self.keys * vectors // self.threads)):
                self._place(buffer, vectors, str(turn))
                with buffer.block(f"if line < {self.keys}:"):
                    buffer.line(f"store_aligned(tile_{name}, {self._to(name, slot)}, {name}_next{turn})")

    def _place(self, buffer: CodeBuffer, vectors: int, turn: str) -> None:
        """Emit the tile row ``line`` and the feature ``along`` of the thread's vector number ``turn``."""
        buffer.line(f"item = {turn} * 32 + lane" if self.sharers else f"item = {turn} * {self.threads} + thread")
        buffer.line(f"line = idiv(item, {vectors})")
        buffer.line(f"along = (item - line * {vectors}) * {self.vector}")

    def _source(self, name: str, length: str, start: str) -> tuple[str, str]:
        """Return the source offset of that vector, and the condition that it exists."""
        key = f"({start} + line)"
        source = f"imin({key}, keys - 1) * {name}_s + imin(along, {length} - {self.vector})"
        return source, f"({key} < end) & (along < {length})"

    def _to(self, name: str, slot: str) -> str:
        """Return the shared-memory offset of that vector."""
        pitch, slots = (self.key_pitch, self.key_slot) if name == "k" else (self.value_pitch, self.value_slot)
        return f"{slot} * {slots} + line * {pitch} + along"

    def _scores(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of the queries with a tile of keys, eight keys at a time."""
        buffer.line(f"key_row = slot * {self.key_slot} + (imod(lane, 8) + idiv(lane, 16) * 8) * {self.key_pitch}")
        buffer.line(f"key_place = key_row + imod(idiv(lane, 8), 2) * {self.vector}")
        for pair in range(self.keys // 16):
            for half in (0, 1):
                buffer.line(f"score{2 * pair + half} = const_float32(0, 4)")
            for step in range(self.depth // self.step):
                place = f"key_place + {16 * pair * self.key_pitch + self.step * step}"
                self._left(buffer, f"own{step}")
                self._multiply(buffer, "score", pair, f"ldmatrix4(tile_k, {place})")

    def _left(self, buffer: CodeBuffer, words: str) -> None:
        """Emit the left fragment of the following MMAs."""
        split_words(buffer, "left", words, 4, self.split)

    def _multiply(self, buffer: CodeBuffer, sums: str, pair: int, right: str) -> None:
        """Emit the MMAs with a pair of right fragments into the accumulators ``sums`` number ``2 * pair`` and the
        next."""
        buffer.line(f"theirs = {right}")
        for half, part in enumerate(("low2", "high2")):
            split_words(buffer, "right", f"{part}(theirs)", 2, self.split)
            own = f"{sums}{2 * pair + half}"
            for a, b in [("leftl", "right"), ("left", "rightl"), ("left", "right")][0 if self.split else 2 :]:
                buffer.line(f"{own} = mma_{self.problem.dtype}({own}, {a}, {b})")

    def _multiply_values(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of the weights with a tile of values."""
        dtype = self.problem.dtype
        if dtype == "float32":
            self._multiply_split_values(buffer)
            return
        buffer.line(f"value_row = slot * {self.value_slot} + imod(lane, 16) * {self.value_pitch}")
        buffer.line("value_place = value_row + idiv(lane, 16) * 8")
        for step in range(self.keys // 16):
            words = [f"pack_words(cast_{dtype}(score{2 * step + j}))" for j in (0, 1)]
            self._left(buffer, f"join2({', '.join(words)})")
            for pair in range(self.width // 16):
                place = f"value_place + {16 * step * self.value_pitch + 16 * pair}"
                self._multiply(buffer, self.sums, pair, f"ldmatrix4_turned(tile_v, {place})")

    def _multiply_split_values(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of float32 weights with values. Of eight keys the even ones come first: a lane holds their
        weights where a left fragment has its first words."""
        buffer.line("words_v = words_of(tile_v)")
        buffer.line(f"value_place = slot * {self.value_slot} + word * {2 * self.value_pitch} + row_in")
        for step in range(self.keys // 8):
            own = buffer.emit(f"bits_int32(score{step})")
            self._left(buffer, f"join4({', '.join(f'splat(extract({own}, {k}), 1)' for k in (0, 2, 1, 3))})")
            for pair in range(self.width // 16):
                words = [
                    f"load(words_v, value_place + {(8 * step + odd) * self.value_pitch + 16 * pair + 8 * half}, 1)"
                    for half in (0, 1)
                    for odd in (0, 1)
                ]
                self._multiply(buffer, self.sums, pair, f"join4({', '.join(words)})")
