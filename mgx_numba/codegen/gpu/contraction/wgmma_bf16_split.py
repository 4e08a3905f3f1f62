"""Float32 contractions with warpgroup MMA as three bfloat16 products, within 1e-5 of float32 (sm_90a).

Each number is split: high half = nearest bfloat16, low half = nearest bfloat16 of the remainder. The result is high *
high + high * low + low * high; low * low is omitted. The right operand's halves are neighbours in its slices
(`right_columns`). The left operand is loaded as float32; threads split it into registers while tensor cores multiply
the previous slice.

Tensor cores truncate accumulators towards zero. For long sums, partial sums of several slices are therefore added by
ordinary FP32 additions.

Infinities, NaN and numbers beyond the largest bfloat16 make non-finite accumulators. A warp that finds one recomputes
all its results element by element in float32. Numbers below 2**-110 lose some of their low half, which is denormal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.dim import Length, ceil_div, known_in, known_less_equal
from ...launch import Solution
from ...printer import CodeBuffer
from ...problems.gemm import GemmProblem
from ..architecture import WARP
from ..machine import multiprocessors
from .gpu_contraction import GpuContraction
from .right_columns import POSITIONS, OrderedColumns, ordered_columns, place_in_slice
from .wgmma import WarpgroupText, tile_question, warpgroup_launches
from .wgmma_epilogue import Part
from .wgmma_tiles import PART_SLICES, TileQuestion, WarpgroupTile, weighed_tiles


def bf16_split_solution(contraction: GpuContraction, tile: WarpgroupTile | None = None, splits: int = 0) -> Solution:
    """Return the launches of an applicable contraction.

    Convolution weights have the layout `weights.COLUMNS`; all right operands that of `Solution.halves` and
    `Solution.turns`. A missing ``tile`` or ``splits`` is chosen.

    Raises:
        UnsupportedError: no kernel exists for an operation of the epilogue.
    """
    return warpgroup_launches(_Bf16SplitText(contraction, tile, splits), "warpgroup_parts")


def bf16_split_tiles(contraction: GpuContraction) -> tuple[tuple[float, WarpgroupTile, int], ...]:
    """Return the tiles of an applicable contraction, see `weighed_tiles`."""
    return weighed_tiles(tile_question(contraction, parts=True), multiprocessors())


class _Bf16SplitText(WarpgroupText):
    """Kernel text of one contraction."""

    arrivals = 4  # a warp's, which reads a stage by its own loads

    def _right_dtype(self) -> str:
        return "bfloat16"

    def _order(self, contraction: GpuContraction) -> OrderedColumns:
        return ordered_columns(contraction, "bfloat16")

    def _question(self, contraction: GpuContraction) -> TileQuestion:
        return tile_question(contraction, parts=True)

    def _map_right(self, axes: Sequence[tuple[Length, Length]], box: tuple[int, int, int, int]) -> None:
        self.arguments.pointer("p_halves", self._right_place(), "bfloat16")
        self._halves_planes = []
        if isinstance(self._problem, GemmProblem):
            assert self.ordered is not None
            strides = self.ordered.batch_strides(self._problem)
            self._halves_planes = [
                (d, self.arguments.integer(f"halves{d}", stride))
                for d, stride in enumerate(strides)
                if not known_in(stride, 0)
            ]
        super()._map_right(axes, box)

    def _consume(self, buffer: CodeBuffer) -> None:
        columns, part = self.tile.columns, ceil_div(self._question(self.contraction).slices, self.splits)
        long = not known_less_equal(part, PART_SLICES)
        buffer.line(
            f"sums = wgmma_zero({columns})",
            f"own_line = (warp * 16 + idiv(lane, 4)) * {POSITIONS}",
            "near = own_line + (2 * quarter ^ idiv(lane, 4)) * 4",  # `TensorLayout`: how pieces of 16 bytes lie
            "far = own_line + (2 * quarter + 1 ^ idiv(lane, 4)) * 4",
            "last = slot",
            "k = begin",
            "high = const_int32(0, 8)",
            "low = high",
        )
        if long:
            buffer.line("whole = sums")
        with buffer.block("if k < end:"):
            self._halve(buffer, "high", "low")
        buffer.line("next_high = high")
        buffer.line("next_low = low")
        with buffer.block("while k < end:"):
            buffer.line(
                f"theirs = offset(ring_w, slot * {self.right_elements})",
                "both = join2(high, high)",
                "wgmma_fence()",
                "sums = wgmma_bfloat16_held(sums, both, theirs, 0)",
                "sums = wgmma_bfloat16_held(sums, low, theirs, 0)",
                "wgmma_commit()",
                "last = slot",
            )
            self._advance(buffer)
            with buffer.block("if k < end:"):
                self._halve(buffer, "next_high", "next_low")
            buffer.line("sums = wgmma_wait(sums, 0)", "wgmma_keep(both)", "wgmma_keep(low)")
            with buffer.block("if is_leader:"):
                self.sharing.release(buffer)
            buffer.line("high = next_high")
            buffer.line("low = next_low")
            if long:
                with buffer.block(f"if imod(k - begin, {PART_SLICES}) == 0:"):
                    buffer.line("whole = add_sums(whole, sums)")
                    buffer.line(f"sums = wgmma_zero({columns})")
        if long:
            buffer.line("sums = add_sums(whole, sums)")

    def _halve(self, buffer: CodeBuffer, high: str, low: str) -> None:
        """Emit the split of the thread's operands in stage ``slot`` into fragments of high and low halves."""
        buffer.line("mbarrier_wait(offset(full, slot), phase)")
        buffer.line(f"stage = offset(ring_x, slot * {self.left_elements})")
        words: dict[str, list[str]] = {"high": [], "low": []}
        for step, place in enumerate(("near", "far")):
            buffer.line(f"first{step} = load_aligned(stage, {place}, 4)")
            buffer.line(f"second{step} = load_aligned(stage, {place} + {8 * POSITIONS}, 4)")
        for step in (0, 1):
            rows = f"first{step}", f"second{step}"
            pairs = [f"{half}({row})" for half in ("low2", "high2") for row in rows]
            buffer.line(f"given{step} = join4({', '.join(pairs)})")
            buffer.line(f"high{step} = cast_bfloat16(given{step})")
            buffer.line(f"low{step} = cast_bfloat16(sub(given{step}, cast_float32(high{step})))")
            for half, own in words.items():
                own.append(f"pack_words({half}{step})")
        buffer.line(f"{high} = join2({', '.join(words['high'])})")
        buffer.line(f"{low} = join2({', '.join(words['low'])})")

    def _finish_tile(self, buffer: CodeBuffer, parts: Sequence[Part], ahead: int, wide: int) -> None:
        buffer.line("finite = finite_sums(sums)")
        mask = WARP // 2
        while mask:
            buffer.line(f"finite = min(finite, shuffle_xor(finite, {mask}))")
            mask //= 2
        with buffer.block("if finite == 1:"):
            super()._finish_tile(buffer, parts, ahead, wide)
        with buffer.block("else:"):
            self._finish_exactly(buffer)

    def _finish_exactly(self, buffer: CodeBuffer) -> None:
        """Emit the exact recomputation of a warp's rows in float32, and their epilogue."""
        buffer.line("item = lane")
        with buffer.block(f"while item < {16 * self.tile.columns}:"):
            buffer.line(
                f"below = idiv(item, {self.tile.columns})",
                "exact_row = first_row + warp * 16 + below",
                f"exact_column = first_column + item - below * {self.tile.columns}",
                f"item = item + {WARP}",
            )
            with buffer.block("if (exact_row < rows) & (exact_column < columns):"):
                self._add_exactly(buffer)
                if self.splits == 1:
                    self._store(buffer, ["exact"], "exact_row", "exact_column", 1)
                else:
                    buffer.line("store(p_scratch, (first_part + exact_row) * columns + exact_column, exact)")

    def _add_exactly(self, buffer: CodeBuffer) -> None:
        """Emit the K loop of one exact element; the right operand is the sum of its halves."""
        place = self.operands.row_place(buffer, "exact_row")
        buffer.line(
            *self._kept_column(),
            f"halves = offset(p_halves, {self._halves_plane()} + kept * slices * {2 * POSITIONS})",
            "exact = const_float32(0, 1)",
            "k = begin",
        )
        with buffer.block("while k < end:"):
            if isinstance(self._problem, GemmProblem):
                buffer.line(f"channel = k * {POSITIONS}")
                position, length = "channel + i", "depth"
            else:
                self._taps(buffer, "k")
                position, length = "tap * group_channels + channel + i", "group_channels"
            with buffer.block(f"for i in range(imin({POSITIONS}, {length} - channel)):"):
                self.operands.step(buffer, buffer.emit(position))
                inside, offset, _ = self.operands.left(buffer, place)
                with buffer.block(f"if {inside}:"):
                    half = buffer.emit(f"k * {2 * POSITIONS} + {_place_of('i')}")
                    two = [f"cast_float32(load(halves, {half} + {further}, 1))" for further in (0, POSITIONS)]
                    buffer.line(f"exact = fma(load(r_x, {offset}, 1), add({', '.join(two)}), exact)")
            buffer.line("k = k + 1")

    def _kept_column(self) -> list[str]:
        """Return statements for the stored index of ``exact_column``, see `permuted_lanes`."""
        if not self.lane_permutation:
            return ["kept = exact_column"]
        lanes = self.lane_permutation
        return [
            f"turn = imod(exact_column, {4 * lanes})",
            f"thread_of = idiv(turn, {lanes})",
            f"pair = idiv(turn - thread_of * {lanes}, 2)",
            "kept = exact_column - turn + pair * 8 + thread_of * 2 + imod(turn, 2)",
        ]

    def _halves_plane(self) -> str:
        """Return the offset of the plane's halves."""
        if not isinstance(self._problem, GemmProblem):
            return f"plane * columns * slices * {2 * POSITIONS}"
        indices = self.operands.plane_indices  # type: ignore[union-attr]
        return " + ".join(f"{indices[d]} * {stride}" for d, stride in self._halves_planes) or "0"


def _place_of(position: str) -> str:
    """Return the expression of `place_in_slice` for a position."""
    weights = [(bit, place_in_slice(1 << bit)) for bit in range(5)]
    return " + ".join(f"imod(idiv({position}, {1 << bit}), 2) * {place}" for bit, place in weights)
