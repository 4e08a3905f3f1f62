"""FlashAttention on AMD matrix cores, see `codegen.gpu.matrix_tiles`.

A wave owns as many queries as an instruction has columns. Scores are computed transposed (keys times queries), so a
lane holds scores of one query. Its weights then are right fragments of the products with values, which are stored
transposed in shared memory. All accumulators of a lane belong to one query, so row statistics need shuffles only
between lanes of the same query. Where each half of a wave holds a whole fragment, the halves exchange weights, and
values are permuted accordingly.

Float32 is multiplied as float32, or as TF32 where precision allows.
"""

from __future__ import annotations

from ....core.dim import Dim, ceil_div, less, preferred
from ...printer import CodeBuffer
from ...problems.attention import AttentionProblem
from ...problems.element_types import ITEMSIZE, element_types
from ..architecture import WARP, Architecture
from ..contraction.matrix_cores import joined
from ..driver.device import known_architecture
from ..matrix_tiles import MatrixTile, matrix_tiles
from .attention_text import AttentionText, exact_bases, finished, masked

KEYS = 64
"""Keys per tile; fewer where shared memory is too small, and half where a wave of 32 lanes holds more than 64 features
in registers. Not measured."""
THREADS = 256
"""Most threads per block: one wave of 64 for each SIMD of a compute unit."""
MOST_FEATURES = {32: 128, 64: 256}
"""Most features that fit the registers, by lanes per wave."""
PAD_BYTES = 16
"""Padding bytes per tile row, against bank conflicts."""
VECTOR_BYTES = 16
"""Bytes of the widest load."""
LARGER = 8
"""Binary exponent by which float16 weights are scaled, so that fewer are denormal; gfx90a flushes denormals."""
PIECE = 4
"""Scores that are exponentiated together; a lane's accumulators belong to at least as many keys."""


def attention_tile(problem: AttentionProblem, precision: str, arch: Architecture) -> tuple[MatrixTile, int] | None:
    """Return the MMA instruction and the keys per tile of a problem; None if no instruction applies or features exceed
    the registers. The larger instruction is preferred if there are enough queries and shared memory."""
    types = element_types(problem.dtype)
    if max(problem.depth, problem.width) > MOST_FEATURES[arch.wave]:
        return None
    for tile in matrix_tiles(arch, types, precision):
        keys = KEYS if arch.wave > WARP or max(problem.depth, problem.width) <= KEYS else KEYS // 2
        while _shared_bytes(problem, tile, keys) > arch.shared_bytes and keys > tile.side:
            keys //= 2
        fits = _shared_bytes(problem, tile, keys) <= arch.shared_bytes
        if fits and (tile.side == KEYS // 4 or preferred(less(tile.side // 2, problem.queries))):
            return tile, keys
    return None


def _lengths(problem: AttentionProblem, tile: MatrixTile) -> tuple[int, int]:
    """Return the padded features of keys and of values."""
    step = max(tile.depth, VECTOR_BYTES // ITEMSIZE[problem.dtype])
    return -(-problem.depth // step) * step, -(-problem.width // tile.side) * tile.side


def _shared_bytes(problem: AttentionProblem, tile: MatrixTile, keys: int) -> int:
    size, (depth, width) = ITEMSIZE[problem.dtype], _lengths(problem, tile)
    return keys * (depth * size + PAD_BYTES) + width * (keys * size + PAD_BYTES)


class MatrixAttentionText(AttentionText):
    """Kernel text of one problem.

    Attributes:
        tile: the MMA instruction.
        depth, width: padded features of keys and of values.
    """

    def __init__(self, problem: AttentionProblem, precision: str, pairs: bool) -> None:
        super().__init__(problem, pairs)
        arch = known_architecture()
        assert arch is not None
        found = attention_tile(problem, precision, arch)
        assert found is not None
        self.tile, self.keys = tile, _ = found
        self.waves = THREADS // tile.lanes
        if not isinstance(problem.queries, Dim):
            self.waves = min(self.waves, -(-problem.queries // tile.side))
        self.threads = tile.lanes * self.waves
        self.rows = tile.side * self.waves
        self.depth, self.width = _lengths(problem, tile)
        self.size = ITEMSIZE[problem.dtype]
        self.vector, pad = VECTOR_BYTES // self.size, PAD_BYTES // self.size
        self.key_pitch, self.value_pitch = self.depth + pad, self.keys + pad
        self.shared_bytes = 0  # it is declared in the text
        self._spread(ceil_div(problem.queries, self.rows))
        for name in ("q", "k", "v"):
            self.arguments.pointer(f"p_{name}", name, problem.dtype)
            for axis, stride in zip("bhs", getattr(problem, f"{name}_strides")):
                self.arguments.integer(f"{name}_{axis}", stride)
        self._declare(problem.keys)

    def lines(self) -> list[str]:
        """Return all statements of the kernel."""
        buffer, tile, dtype = CodeBuffer(), self.tile, self.problem.dtype
        self._begin(buffer)
        buffer.line(
            f"wave = idiv(thread, {tile.lanes})",
            f"own = thread - wave * {tile.lanes}",
            f"own_block = idiv(own, {tile.side})",
            f"own_line = own - own_block * {tile.side}",
            f"own_first = imod(own_block * {tile.held}, {tile.depth})",
            f"block_row = {self.block} * {self.rows}",
            f"row = block_row + wave * {tile.side} + own_line",
            f"tile_k = shared_{dtype}({self.keys * self.key_pitch})",
            f"tile_v = shared_{dtype}({self.width * self.value_pitch})",
            "q = offset(p_q, batch * q_b + head * q_h + imin(row, queries - 1) * q_s)",
            "k = offset(p_k, batch * k_b + shared_head * k_h)",
            "v = offset(p_v, batch * v_b + shared_head * v_h)",
            f"key_place = own_line * {self.key_pitch} + own_first",
            f"value_place = own_line * {self.value_pitch}",
        )
        if self.problem.causal:
            buffer.line(f"end = imin(end, block_row + {self.rows} + first_seen)")
        for step in range(self.depth // tile.depth):
            buffer.line(f"query{step} = {self._query(buffer, step)}")
        for j in range(self.width // tile.side):
            buffer.line(f"acc{j} = const_float32(0, {tile.sums})")
        buffer.line("top = const_float32(-INF, 0)")
        buffer.line("sum = const_float32(0, 0)")
        self._mask_rows(buffer)
        self._load(buffer, "begin")
        buffer.line("start = begin")
        with buffer.block("while start < end:"):
            buffer.line("barrier()")
            self._put(buffer)
            buffer.line("barrier()")
            self._load(buffer, f"start + {self.keys}")
            self._scores(buffer)
            self._weights(buffer)
            for j in range(self.width // tile.side):
                buffer.line(f"acc{j} = mul(acc{j}, splat(kept, {tile.sums}))")
            self._multiply_values(buffer)
            buffer.line(f"start = start + {self.keys}")
        self._finish(buffer)
        return buffer.lines

    def _query(self, buffer: CodeBuffer, step: int) -> str:
        """Emit the load of a lane's query fragment for one step along the features."""
        held, first = self.tile.held, step * self.tile.depth
        parts = []
        for at in range(0, held, min(held, self.vector)):
            count = min(held, self.vector)
            place = buffer.emit(f"own_first + {first + at}")
            if first + self.tile.depth <= self.problem.depth:
                parts.append(buffer.emit(f"load({'q'}, {place}, {count})"))
            else:
                value = buffer.emit(f"load(q, imin({place}, depth - {count}), {count})")
                zero = f"const_{self.problem.dtype}(0, {count})"
                parts.append(buffer.emit(f"where({place} < depth, {value}, {zero})"))
        return parts[0] if len(parts) == 1 else f"join2({', '.join(parts)})"

    def _sides(self) -> tuple[tuple[str, int, str, int], ...]:
        """Return (name, vectors per key, feature count as text, feature count) of keys and of values."""
        return (
            ("k", self.depth // self.vector, "depth", self.problem.depth),
            ("v", self.width // self.vector, "width", self.problem.width),
        )

    def _places(self, buffer: CodeBuffer, name: str, vectors: int, turn: int) -> tuple[str, str]:
        """Emit the key and the vector that a thread loads. Neighbouring threads load neighbouring features of keys, and
        the same features of neighbouring values, which are contiguous in the transposed tile."""
        item = buffer.emit(f"{turn * self.threads} + thread")
        if name == "k":
            line = buffer.emit(f"idiv({item}, {vectors})")
            return line, buffer.emit(f"{item} - {line} * {vectors}")
        vector = buffer.emit(f"idiv({item}, {self.keys})")
        return buffer.emit(f"{item} - {vector} * {self.keys}"), vector

    def _load(self, buffer: CodeBuffer, start: str) -> None:
        """Emit the loads of a thread's part of the tile at ``start``; elements outside are 0."""
        for name, vectors, length, features in self._sides():
            for turn in range(-(-self.keys * vectors // self.threads)):
                line, vector = self._places(buffer, name, vectors, turn)
                key, along = buffer.emit(f"{start} + {line}"), buffer.emit(f"{vector} * {self.vector}")
                inside = f"{key} < end"
                if vectors * self.vector > features:
                    inside = f"({inside}) & ({along} < {length})"
                    along = buffer.emit(f"imin({along}, {length} - {self.vector})")
                given = buffer.emit(f"load_aligned({name}, imin({key}, keys - 1) * {name}_s + {along}, {self.vector})")
                zero = f"const_{self.problem.dtype}(0, {self.vector})"
                buffer.line(f"{name}_next{turn} = where({inside}, {given}, {zero})")

    def _put(self, buffer: CodeBuffer) -> None:
        """Emit the stores of the loaded tile to shared memory, values transposed."""
        for name, vectors, _, _ in self._sides():
            count = self.keys * vectors
            for turn in range(-(-count // self.threads)):
                line, vector = self._places(buffer, name, vectors, turn)
                given = f"{name}_next{turn}"
                if (turn + 1) * self.threads > count:
                    with buffer.block(f"if {turn * self.threads} + thread < {count}:"):
                        self._put_vector(buffer, name, line, vector, given)
                else:
                    self._put_vector(buffer, name, line, vector, given)

    def _put_vector(self, buffer: CodeBuffer, name: str, line: str, vector: str, given: str) -> None:
        if name == "k":
            buffer.line(f"store_aligned(tile_k, {line} * {self.key_pitch} + {vector} * {self.vector}, {given})")
            return
        if self._exchanged:  # even positions before odd ones
            side = self.tile.side
            line = buffer.emit(f"{line} - imod({line}, {side}) + idiv(imod({line}, {side}), 2) + imod({line}, 2) * 8")
        for lane in range(self.vector):
            place = f"({vector} * {self.vector} + {lane}) * {self.value_pitch} + {line}"
            buffer.line(f"store_scalar(tile_v, {place}, extract({given}, {lane}))")

    @property
    def _exchanged(self) -> bool:
        """Return whether each half of a wave holds a whole fragment."""
        return self.tile.held == self.tile.depth

    def _scores(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of a tile of keys with the queries."""
        tile = self.tile
        for j in range(self.keys // tile.side):
            buffer.line(f"sums{j} = const_float32(0, {tile.sums})")
            for step in range(self.depth // tile.depth):
                place = f"key_place + {j * tile.side * self.key_pitch + step * tile.depth}"
                keys = f"load_aligned(tile_k, {place}, {tile.held})"
                buffer.line(f"sums{j} = {tile.name}(sums{j}, {keys}, query{step})")

    def _pieces(self) -> list[tuple[int, int]]:
        """Return (accumulator, first lane) of each group of `PIECE` scores."""
        return [(j, e) for j in range(self.keys // self.tile.side) for e in range(0, self.tile.sums, PIECE)]

    def _key(self, j: int, number: int) -> str:
        """Return the expression of a score's key, relative to the tile."""
        blocks = self.tile.lanes // self.tile.side
        block, inside = divmod(number, self.tile.group)
        return f"{j * self.tile.side + inside + self.tile.group * blocks * block} + own_block * {self.tile.group}"

    def _mask_rows(self, buffer: CodeBuffer) -> None:
        if self.problem.mask is not None:
            base = "imod(batch, period) * mask_b + head * mask_h"
            buffer.line(f"mask = offset(p_mask, {base} + imin(row, queries - 1) * mask_s)")

    def _weights(self, buffer: CodeBuffer) -> None:
        """Emit the weights from the scores (in units of log2(e)), and ``kept``, the factor of earlier accumulators."""
        problem = self.problem
        scaled = self.scaled
        for n, (j, e) in enumerate(self._pieces()):
            four = ", ".join(f"splat(extract(sums{j}, {e + i}), 1)" for i in range(PIECE))
            buffer.line(f"score{n} = join4({four})")
            if not scaled:
                buffer.line(f"score{n} = mul(score{n}, scale)")
            if problem.mask is not None:
                keys = [buffer.emit(f"imin(start + {self._key(j, e + i)}, keys - 1)") for i in range(PIECE)]
                found = ", ".join(f"splat(load_scalar(mask, {key} * mask_t), 1)" for key in keys)
                buffer.line(f"score{n} = {masked(problem.mask, buffer, f'score{n}', f'join4({found})')}")
        last = "imin(end, row + first_seen + 1)" if problem.causal else "end"
        limit = f"start + {self.keys} > " + ("imin(end, block_row + first_seen + 1)" if problem.causal else "end")
        with buffer.block(f"if {limit}:"):
            buffer.line(f"seen = {last} - start")
            for n, (j, e) in enumerate(self._pieces()):
                inside = ", ".join(f"splat(cast_int32({self._key(j, e + i)}), 1)" for i in range(PIECE))
                hidden = "const_float32(-INF, 4)"
                buffer.line(f"score{n} = where(lt(join4({inside}), splat(cast_int32(seen), 4)), score{n}, {hidden})")
        self._weigh(buffer, scaled)

    def _weigh(self, buffer: CodeBuffer, scaled: bool) -> None:
        count, half = len(self._pieces()), self.problem.dtype == "float16"
        buffer.line("peak = score0")
        for n in range(1, count):
            buffer.line(f"peak = max(peak, score{n})")
        buffer.line("high = reduce_max(peak)")
        self._join(buffer, "high", "max")
        buffer.line(
            *(["unscaled = splat(high, 4)"] if self.exact else []),
            *(["high = mul(high, scale)"] if scaled else []),
            *(["largest = splat(high, 4)"] if self.exact else []),
            "high = max(high, top)",
            "base = where(high == -INF, const_float32(0, 0), high)",
            "kept = exp2_quick(sub(top, base))",
            "top = high",
            f"bases = splat({f'sub(base, const_float32({LARGER}, 0))' if half else 'base'}, 4)",
            "scales = splat(scale, 4)",
            "total = const_float32(0, 4)",
        )
        if self.exact:
            exact_bases(buffer)
        for n in range(count):
            relative = f"fma(score{n}, scales, neg(bases))" if scaled else f"sub(score{n}, bases)"
            buffer.line(f"score{n} = exp2_quick({relative})")
            buffer.line(f"total = add(total, score{n})")
        buffer.line("sum = fma(sum, kept, reduce_add(total))")

    def _join(self, buffer: CodeBuffer, name: str, how: str) -> None:
        """Emit the reduction of a value over the lanes of one query."""
        for mask in (16, 32):
            if self.tile.side <= mask < self.tile.lanes:
                other = f"shuffle_xor({name}, {mask})" if mask < 32 else f"shuffle_halves({name})"
                buffer.line(f"{name} = {how}({name}, {other})")

    def _multiply_values(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of a tile of values with the weights."""
        tile, dtype = self.tile, self.problem.dtype
        of_tile = tile.sums // PIECE
        for j in range(self.keys // tile.side):
            names = [f"score{of_tile * j + n}" for n in range(of_tile)]
            if self._exchanged:
                self._multiply_step(buffer, self._both(buffer, names), j * tile.side)
                continue
            for first in range(0, tile.sums, tile.held):
                if tile.held < PIECE:
                    own, at = names[first // PIECE], first % PIECE
                    weights = joined([f"splat(extract({own}, {at + k}), 1)" for k in range(tile.held)])
                else:
                    parts = names[first // PIECE : (first + tile.held) // PIECE]
                    weights = parts[0] if len(parts) == 1 else f"join2({', '.join(parts)})"
                if dtype != "float32":
                    weights = f"cast_{dtype}({weights})"
                self._multiply_step(buffer, buffer.emit(weights), self._key(j, first))

    def _both(self, buffer: CodeBuffer, names: list[str]) -> str:
        """Emit the exchange of weights between the halves of a wave: weights of even positions before those of odd
        positions."""
        own = buffer.emit(f"join2({', '.join(names)})")
        other = buffer.emit(f"shuffle_xor({own}, 16)")
        first = buffer.emit(f"where(own_block == 0, {own}, {other})")
        second = buffer.emit(f"where(own_block == 0, {other}, {own})")
        return buffer.emit(f"cast_{self.problem.dtype}(join2({first}, {second}))")

    def _multiply_step(self, buffer: CodeBuffer, weights: str, key: int | str) -> None:
        """Emit the MMAs of one step along the keys, for all features."""
        tile = self.tile
        for j in range(self.width // tile.side):
            place = f"value_place + {j * tile.side * self.value_pitch} + {key}"
            buffer.line(f"acc{j} = {tile.name}(acc{j}, load_aligned(tile_v, {place}, {tile.held}), {weights})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Emit the division by the sum of weights, and the stores."""
        tile, problem = self.tile, self.problem
        self._join(buffer, "sum", "add")
        blocks = tile.lanes // tile.side
        with buffer.block("if row < queries:"):
            empty = "" if problem.nan_rows else "where(sum == 0, const_float32(0, 0), "
            buffer.line(f"inverse = {empty}div(const_float32(1, 0), sum){')' * bool(empty)}")
            buffer.line("to = offset(p_out, batch * out_b + head * out_h + row * out_s)")
            for j in range(self.width // tile.side):
                for first in range(0, tile.sums, tile.group):
                    feature = buffer.emit(
                        f"{j * tile.side + tile.group * blocks * (first // tile.group)} + own_block * {tile.group}"
                    )
                    lanes = [f"splat(extract(acc{j}, {first + i}), 1)" for i in range(tile.group)]
                    with buffer.block(f"if {feature} < width:"):
                        value = finished(
                            problem, buffer, f"mul({joined(lanes)}, splat(inverse, {tile.group}))", tile.group
                        )
                        buffer.line(f"store(to, {feature}, {value})")
