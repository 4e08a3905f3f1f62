"""Products and convolutions on tensor cores: of 8 and 16 bits, and float32 as one product in TF32 or three.

Each warp has a part of the block's tile (`ring`); its sums go through memory of its own, so that rows are stored whole.
"""

from __future__ import annotations

from ...launch import Solution
from ...printer import CodeBuffer
from ..products import product_of
from .placed import PlacedRequest
from .ring import STAGING_PAD, WORDS, RingText, RingTile, ring_refusal, ring_solution

__all__ = ["TensorText", "refusal", "split_words", "tensor_solution"]

MASK = -(1 << 13)
"""Bits of a float32 number that TF32 keeps, as an int32."""


def refusal(placed: PlacedRequest) -> str:
    """Why tensor cores do not compute a contraction; empty if they do."""
    product = product_of(placed.request.problem.types)
    if product is None:
        return f"tensor cores have no products of {placed.request.problem.types}"
    if product.a == "float32" and placed.precision == "highest":
        return "products of float32 shall be those of float32"
    return ring_refusal(placed, product.capability)


def tensor_solution(placed: PlacedRequest, tile: RingTile | None = None, splits: int = 0) -> Solution:
    """The launches of a contraction that is not refused; of a convolution ``w`` is as `pack_columns` makes it.

    ``tile`` and ``splits`` are as of `RingText`.

    Raises:
        UnsupportedError: an operation around the contraction has no kernel.
    """
    return ring_solution(TensorText(placed, tile, splits), "tensor")


class TensorText(RingText):
    """The text of one contraction."""

    tiles = (RingTile(128, 128, 2, 4), RingTile(128, 64, 4, 2), RingTile(64, 64, 2, 2), RingTile(32, 32, 1, 2))
    split_tile = tiles[2]

    def __init__(self, placed: PlacedRequest, tile: RingTile | None, splits: int) -> None:
        super().__init__(placed, tile, splits)
        product = product_of(self.request.problem.types)
        assert product is not None
        self.product, self.dtype = product, product.a
        self.high, self.wide = self.tile.rows // self.tile.down, self.tile.columns // self.tile.across
        self.width = min(self.width, self.wide // 2)  # sixteen rows have a vector for each lane

    def _staged(self) -> int:
        return self.tile.threads // 32 * 16 * (self.tile.columns // self.tile.across + STAGING_PAD)

    def _start(self, buffer: CodeBuffer) -> None:
        for line in (
            "group = idiv(lane, 4)",
            "word = lane - group * 4",
            f"warp_down = idiv(warp, {self.tile.across})",
            f"warp_row = warp_down * {self.high}",
            f"warp_column = (warp - warp_down * {self.tile.across}) * {self.wide}",
            f"own_a = (warp_row + imod(lane, 16)) * {self.pitch} + idiv(lane, 16) * {self.lanes}",
            *self._own_right(),
        ):
            buffer.line(line)
        for i in range(self.high // 16):
            for j in range(self.wide // 8):
                buffer.line(f"acc{i}_{j} = const_{self.accumulator}(0, 4)")

    def _own_right(self) -> list[str]:
        """Statements for where a lane reads the right operand's slice."""
        if self.along:
            row = "warp_column + imod(lane, 8) + idiv(lane, 16) * 8"
            return [f"own_b = ({row}) * {self.pitch} + imod(idiv(lane, 8), 2) * {self.lanes}"]
        if self.dtype == "float32":
            return ["words_b = words_of(ring_b)", f"own_b = word * {self.turned_pitch} + warp_column + group"]
        return [f"own_b = imod(lane, 16) * {self.turned_pitch} + warp_column + idiv(lane, 16) * 8"]

    def _add_slice(self, buffer: CodeBuffer) -> None:
        buffer.line(f"slice_a = slot * {self.left_slot} + own_a")
        buffer.line(f"slice_b = slot * {self.right_slot} + own_b")
        for step in range(WORDS // 8):
            self._multiply(buffer, self.high // 16, self.wide // 8, step)

    def _multiply(self, buffer: CodeBuffer, rows: int, columns: int, step: int) -> None:
        """Add the products of one instruction's words, from word ``8 * step`` of the slices on."""
        split = self.dtype == "float32" and self.placed.precision == "high"
        first = 2 * step * self.lanes
        for i in range(rows):
            split_words(buffer, f"a{i}", f"ldmatrix4(ring_a, slice_a + {16 * i * self.pitch + first})", 4, split)
        for j in range(0, columns, 2):
            if self.along:
                four = buffer.emit(f"ldmatrix4(ring_b, slice_b + {8 * j * self.pitch + first})")
            elif self.dtype != "float32":
                four = buffer.emit(f"ldmatrix4_turned(ring_b, slice_b + {16 * step * self.turned_pitch + 8 * j})")
            else:
                words = [
                    f"load(words_b, slice_b + {(8 * step + 4 * on) * self.turned_pitch + 8 * (j + pair)}, 1)"
                    for pair in (0, 1)
                    for on in (0, 1)
                ]
                four = buffer.emit(f"join4({', '.join(words)})")
            for pair, half in enumerate(("low2", "high2")):
                split_words(buffer, f"b{j + pair}", f"{half}({four})", 2, split)
        for i in range(rows):
            for j in range(columns):
                pairs = [(f"a{i}l", f"b{j}"), (f"a{i}", f"b{j}l")] if split else []
                for a, b in [*pairs, (f"a{i}", f"b{j}")]:
                    buffer.line(f"acc{i}_{j} = mma_{self.product.name}(acc{i}_{j}, {a}, {b})")

    def _finish(self, buffer: CodeBuffer) -> None:
        """Sixteen rows of the warp at a time."""
        pitch, per_row = self.wide + STAGING_PAD, self.wide // self.width
        buffer.line(f"area = warp * {16 * pitch}")
        for i in range(self.high // 16):
            buffer.line("warp_barrier()")
            for j in range(self.wide // 8):
                for down, half in enumerate(("low2", "high2")):
                    place = f"area + (group + {8 * down}) * {pitch} + {8 * j} + word * 2"
                    buffer.line(f"store_aligned(staged, {place}, {half}(acc{i}_{j}))")
            buffer.line("warp_barrier()")
            row, column = f"first_row + warp_row + {16 * i} + below", "first_column + warp_column + side"
            self._store_staged(buffer, f"area + below * {pitch} + side", 16 * per_row // 32, per_row, row, column)


def split_words(buffer: CodeBuffer, name: str, words: str, lanes: int, split: bool) -> None:
    """Emit words of an operand; with ``split``, of float32, what TF32 keeps of each, and in ``<name>l`` what it
    leaves."""
    if not split:
        buffer.line(f"{name} = {words}")
        return
    buffer.line(f"{name}w = {words}")
    buffer.line(f"{name} = bitwise_and({name}w, const_int32({MASK}, {lanes}))")
    buffer.line(f"{name}l = bits_int32(sub(bits_float32({name}w), bits_float32({name})))")
