"""Products and convolutions on NVIDIA tensor cores (mma.sync): 8 and 16 bits, and float32 as one or three TF32
products."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ....core.dim import is_symbolic, known_in
from ...printer import CodeBuffer
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ..cluster.flat_index import whole_vectors, widest
from ..driver.device import known_architecture
from ..products import product_of
from .cores import CoresText
from .gpu_contraction import VECTOR_BYTES, GpuContraction
from .operands import Extent
from .ring import NARROW, RingForm, RingTile, ring_refusal

MASK = -(1 << 13)
"""Mask of the float32 bits that TF32 keeps, as an int32."""
RESIDENT_THREADS = 512
"""Threads of a multiprocessor at a time. Without this limit tiles of 128 columns take 145 to 168 registers, of which a
multiprocessor has enough for one block of 256 threads."""
SIGN, ONE = -(1 << 31), 0x3F800000
"""Float32 bit patterns as int32: the sign bit, and the number 1."""


def tensor_refusal(contraction: GpuContraction) -> str:
    """Return the reason why tensor cores do not compute a contraction; "" if they do."""
    return product_refusal(contraction) or ring_refusal(contraction)


def product_refusal(contraction: GpuContraction) -> str:
    """Return the reason why no tensor cores multiply a contraction's elements; "" if some do."""
    types, arch = contraction.request.problem.types, known_architecture()
    product = product_of(types)
    if product is None:
        return f"tensor cores have no products of {types}"
    if arch is not None and arch.capability < product.capability:
        return f"{arch.name} has no products of {types}"
    if product.a == "float32" and contraction.precision == "highest":
        return "products of float32 shall be those of float32"
    return ""


class TensorText(CoresText):
    """Kernel text of one contraction."""

    tiles: ClassVar[tuple[RingTile, ...]] = (
        RingTile(128, 128, 2, 4),
        RingTile(128, 64, 4, 2),
        RingTile(64, 64, 2, 2),
        RingTile(32, 32, 1, 2),
    )
    split_tile = tiles[2]

    def __init__(self, contraction: GpuContraction, tile: RingTile | None, splits: int) -> None:
        super().__init__(contraction, tile, splits)
        product = product_of(self.request.problem.types)
        assert product is not None
        self.product, self.dtype = product, product.a
        split = self.dtype == "float32" and self.contraction.precision == "high"
        if self.form.copied and not split:  # else loads in flight, or remainders, would spill
            self.blocks = RESIDENT_THREADS // self.tile.threads

    @property
    def _side(self) -> tuple[int, int]:
        return 16, 8

    def _own(self) -> list[str]:
        left = f"own_a = (warp_row + imod(lane, 16)) * {self.pitch} + idiv(lane, 16) * {self.lanes}"
        return ["group = idiv(lane, 4)", "word = lane - group * 4", left, *self._own_right()]

    def _own_right(self) -> list[str]:
        """Return statements that compute a lane's read offset in the right operand's slice."""
        if self.along:
            row = "warp_column + imod(lane, 8) + idiv(lane, 16) * 8"
            return [f"own_b = ({row}) * {self.pitch} + imod(idiv(lane, 8), 2) * {self.lanes}"]
        if self.dtype == "float32":
            return ["words_b = words_of(ring_b)", f"own_b = word * {self.transposed_pitch} + warp_column + group"]
        return [f"own_b = imod(lane, 16) * {self.transposed_pitch} + warp_column + idiv(lane, 16) * 8"]

    def _multiply(self, buffer: CodeBuffer) -> None:
        """Emit the MMAs of a slice, eight words of K per instruction."""
        for step in range(self.form.words // 8):
            self._step(buffer, self.high // 16, self.wide // 8, step)

    def _step(self, buffer: CodeBuffer, rows: int, columns: int, step: int) -> None:
        split = self.dtype == "float32" and self.contraction.precision == "high"
        first = 2 * step * self.lanes
        for i in range(rows):
            split_words(buffer, f"a{i}", f"ldmatrix4(ring_a, {self._left_place(i, step)})", 4, split)
        for j in range(0, columns, 2):
            if self.along:
                four = buffer.emit(f"ldmatrix4(ring_b, slice_b + {8 * j * self.pitch + first})")
            elif self.dtype != "float32":
                four = buffer.emit(f"ldmatrix4_turned(ring_b, slice_b + {16 * step * self.transposed_pitch + 8 * j})")
            else:
                words = [
                    f"load(words_b, slice_b + {(8 * step + 4 * on) * self.transposed_pitch + 8 * (j + pair)}, 1)"
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

    def _left_place(self, i: int, step: int) -> str:
        """Return the offset of a lane's row of the left operand's fragment ``i`` down the sub-tile."""
        return f"slice_a + {16 * i * self.pitch + 2 * step * self.lanes}"

    def _stage(self, buffer: CodeBuffer, i: int, j: int, pitch: int) -> None:
        for down, half in enumerate(("low2", "high2")):
            place = f"area + (group + {8 * down}) * {pitch} + {8 * j} + word * 2"
            buffer.line(f"store_aligned(staged, {place}, {half}(acc{i}_{j}))")


class NarrowText(TensorText):
    """Kernel text of a product whose rows are no whole vectors: threads load fewer neighbouring elements.

    Sums shorter than a slice have slices of fewer instructions: 1640 x 19 x 9 took 4.2 us on an H200, most of them for
    loads behind the sum.
    """

    @classmethod
    def form_of(cls, contraction: GpuContraction) -> RingForm:
        depth = Extent.of(contraction.problem).depth
        if is_symbolic(depth):
            return NARROW
        words = -(-depth * ITEMSIZE[contraction.problem.types.a] // 4)
        fitting = (n for n in (8, 16) if words <= n)
        return replace(NARROW, words=next(fitting, NARROW.words))

    def _loaded_lanes(self) -> tuple[int, int]:
        return narrow_lanes(self.contraction)


def narrow_refusal(contraction: GpuContraction) -> str:
    """Return the reason why `NarrowText` does not compute a contraction; "" if it does."""
    problem, arch = contraction.problem, known_architecture()
    reason = product_refusal(contraction)
    if reason or (arch is not None and not arch.nvidia):
        return reason or "AMD's matrix cores take whole vectors"
    if not isinstance(problem, GemmProblem) or problem.prologue is not None:
        return "it is no product, or has a prologue"
    if not known_in(problem.a_strides[-1], 1):
        return "the left operand's rows are not contiguous"
    if not (known_in(problem.b_strides[len(problem.batch)], 1) or known_in(problem.b_strides[-1], 1)):
        return "neither rows nor columns of the right operand are contiguous"
    if known_in(problem.b_strides[-1], 1) and ITEMSIZE[problem.types.b] == 1:
        return f"columns of {problem.types.b} cannot be turned"
    return "" if min(narrow_lanes(contraction)) * ITEMSIZE[problem.types.a] < VECTOR_BYTES else "rows are whole vectors"


def narrow_lanes(contraction: GpuContraction) -> tuple[int, int]:
    """Return the elements per aligned load of both operands of a product."""
    problem = contraction.problem
    assert isinstance(problem, GemmProblem)
    most, rank, right = VECTOR_BYTES // ITEMSIZE[problem.types.a], len(problem.batch), problem.b_strides
    along = known_in(right[rank], 1)
    apart = (*right[:rank], right[-1] if along else right[rank])
    return (
        widest(most, lambda lanes: whole_vectors(lanes, problem.k, *problem.a_strides[:-1])),
        widest(most, lambda lanes: whole_vectors(lanes, problem.k if along else problem.n, *apart)),
    )


def split_words(buffer: CodeBuffer, name: str, words: str, lanes: int, split: bool) -> None:
    """Emit the fragment ``name`` of an operand from ``words``.

    With ``split`` (float32 as three TF32 products): ``name`` holds the TF32 part, ``<name>l`` the remainder. For an
    infinity or a NaN the TF32 part is 1 with its sign and the remainder holds the value, so that it is multiplied only
    by the high part of the other operand, whose sign is right.
    """
    if not split:
        buffer.line(f"{name} = {words}")
        return
    buffer.line(f"{name}w = {words}")
    mask, sign, one = (f"const_int32({bits}, {lanes})" for bits in (MASK, SIGN, ONE))
    finite = f"lt(abs(bits_float32({name}w)), const_float32(INF, {lanes}))"
    signed = f"bitwise_or(bitwise_and({name}w, {sign}), {one})"
    buffer.line(f"{name} = where({finite}, bitwise_and({name}w, {mask}), {signed})")
    buffer.line(f"{name}l = bits_int32(sub(bits_float32({name}w), bits_float32({name})))")
