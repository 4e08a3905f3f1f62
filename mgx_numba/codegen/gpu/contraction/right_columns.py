"""Right operands in the layout of warpgroup slices: 128 bytes of K per column, column after column.

For float32 that is multiplied as bfloat16 pairs, a slice of 32 positions holds 32 high halves (the nearest bfloat16)
and 32 low halves (the nearest bfloat16 of the remainder). Positions within a slice are permuted so that a thread's
operands correspond to two 16-byte vectors of the left operand's row. Constants can be stored in this layout; other
operands are converted by a launch before every product.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import ml_dtypes
import numpy as np

from ....core.dim import Length, SharedLength, ceil_div, known_in, known_less_equal
from ....core.pages import aligned_bytes
from ....dataclass import dataclass
from ....parallel import run_all
from ...arguments import Arguments
from ...launch import Launch, Operand
from ...printer import CodeBuffer
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ..cluster.flat_index import Axes
from ..kernel import block_of_plane, gpu_kernel, plane_grid
from .gpu_contraction import GpuContraction
from .wgmma_tiles import SLICE_BYTES

POSITIONS = SLICE_BYTES // 4
"""K elements per slice: float32 numbers in 128 bytes."""
THREADS = 256
"""Threads per block of the conversion kernel. No figures kept."""
COLUMNS = 64
"""Columns per block of the conversion kernel, read 256 bytes at a time if they are contiguous. No figures kept."""
PIECES = 8
"""16-byte vectors per column and slice."""
PIECE_POSITIONS = 1 << 17
"""Numbers that one task splits on the host: 512 KiB of float32, so that intermediate arrays stay in the CPU's cache.
Smaller tasks are no faster on one thread, and 16 threads then contend for the GIL."""
_rooms = threading.local()
"""Thread-local scratch memory ``numbers`` (1 MiB). Allocating it for each task would double the time."""
LARGEST = float(np.uint32(0x7F7F0000).view(np.float32))
"""Largest finite bfloat16."""
LARGEST_REST = float(np.uint32(0x7B7F0000).view(np.float32))
"""Largest low half, such that its sum with `LARGEST` is a finite float32."""


def place_in_slice(position: int) -> int:
    """Return the index of a position among the halves of a slice.

    Thread c of four loads positions 8 c to 8 c + 7 of a row. One MMA takes four of them: two at index 2 c and two at
    index 2 c + 8.
    """
    thread, rest = divmod(position, 8)
    step, half, one = rest // 4, rest // 2 % 2, rest % 2
    return 16 * step + 8 * half + 2 * thread + one


def in_halves(columns: np.ndarray) -> np.ndarray:
    """Return the halves of float32 ``[..., k]`` as bfloat16 ``[..., slices * 64]``, zero-padded.

    Infinities and NaN become a high half with a low half of 0. Numbers beyond the largest bfloat16 get that as their
    high half.
    """
    halves, pieces = halves_in_pieces(columns)
    run_all(pieces)
    return halves


def halves_in_pieces(
    columns: np.ndarray, order: np.ndarray | None = None
) -> tuple[np.ndarray, list[Callable[[], None]]]:
    """Return the array of `in_halves`, uninitialised, and thread-safe tasks that fill it.

    Args:
        order: int ``[n]``, permutation of the ``n`` columns (all axes but the last, flattened); None for the identity.
    """
    *lens, depth = columns.shape
    slices = -(-depth // POSITIONS)
    halves = aligned_bytes(prod(lens) * slices * SLICE_BYTES).view(np.uint16)
    pieces: list[Callable[[], None]] = []
    if halves.size:
        rows, made = columns.reshape(-1, depth), halves.reshape(-1, slices, 2, POSITIONS)
        together = max(1, PIECE_POSITIONS // (slices * POSITIONS))
        for start in range(0, len(rows), together):
            taken = slice(start, start + together)
            pieces.append(partial(_write_halves, rows, taken if order is None else order[taken], made[taken]))
    return halves.view(ml_dtypes.bfloat16).reshape(*lens, slices * 2 * POSITIONS), pieces


@np.errstate(all="ignore")  # of the thread that calls
def _write_halves(rows: np.ndarray, taken: slice | np.ndarray, halves: np.ndarray) -> None:
    """Write the halves of rows ``rows[taken]`` (``[n, k]``) as bfloat16 bits ``[_, slices, 2, positions]``.

    About ten times as fast as ml_dtypes, which converts element by element and holds the GIL.
    """
    rows = rows[taken]
    count, slices = halves.shape[:2]
    whole, bits = _room(count * slices * POSITIONS).reshape(2, count, slices, POSITIONS)
    bits = bits.view(np.uint32)
    behind = slices * POSITIONS - rows.shape[1]
    pairs = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, behind))) if behind else rows, np.float32).view(np.uint64)
    np.copyto(  # thread, step, half: see `place_in_slice`
        whole.view(np.uint64).reshape(count, slices, 2, 2, 4),
        pairs.reshape(count, slices, 4, 2, 2).transpose(0, 1, 3, 4, 2),
    )
    beyond = None
    if not (whole.min() >= -LARGEST and whole.max() <= LARGEST):
        beyond = _Beyond(whole)
        np.copyto(whole, beyond.clipped)
    _round(whole.view(np.uint32), bits)
    np.right_shift(bits, 16, out=halves[:, :, 0], casting="unsafe")
    bits &= 0xFFFF0000
    np.subtract(whole if beyond is None else beyond.finite, bits.view(np.float32), out=whole)
    if beyond is not None:
        np.clip(whole, -LARGEST_REST, LARGEST_REST, out=whole)
    _round(whole.view(np.uint32), bits)
    np.right_shift(bits, 16, out=halves[:, :, 1], casting="unsafe")
    if beyond is not None:
        halves[:, :, 0][beyond.others] = beyond.rest


def _room(size: int) -> np.ndarray:
    """Return the calling thread's scratch memory as float32 ``[2, size]``."""
    if size > PIECE_POSITIONS:  # of one column
        return np.empty((2, size), np.float32)
    if not hasattr(_rooms, "numbers"):
        _rooms.numbers = np.empty(2 * PIECE_POSITIONS, np.float32)
    return _rooms.numbers[: 2 * size].reshape(2, size)


class _Beyond:
    """Numbers, some of which are not finite as bfloat16.

    Attributes:
        finite: the numbers, with 0 in place of infinities and NaN.
        clipped: ``finite`` clipped to the largest bfloat16.
        others: mask of infinities and NaN.
        rest: bfloat16 bits of the masked numbers.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.others = ~np.isfinite(values)
        self.finite = np.where(self.others, np.float32(0), values)
        self.clipped = np.clip(self.finite, -LARGEST, LARGEST)
        self.rest = values[self.others].astype(ml_dtypes.bfloat16).view(np.uint16)


def _round(bits: np.ndarray, out: np.ndarray) -> None:
    """Round float32 bits so that the upper half is the nearest bfloat16, ties to even. Numbers must not exceed
    `LARGEST`."""
    np.right_shift(bits, 16, out=out)
    out &= 1
    out += 0x7FFF
    out += bits


@dataclass(frozen=True)
class OrderedColumns:
    """A right operand in the slice layout of this module.

    Attributes:
        dtype: element type in a slice: bfloat16 for halves, or float32.
        lens, strides: lengths of the planes' axes, and the strides of the original float32 operand along them.
        columns, apart: columns per plane, and their stride.
        depth, step: K elements, and their stride.
        stored: whether ``w`` has the slice layout already, so that no launch converts it.
    """

    dtype: str
    lens: tuple[Length, ...]
    strides: tuple[Length, ...]
    columns: Length
    apart: Length
    depth: Length
    step: Length
    stored: bool = False

    @property
    def slices(self) -> Length:
        """Return the slices per column."""
        found: Length = ceil_div(self.depth, POSITIONS)
        return found

    @property
    def row(self) -> Length:
        """Return the elements per column, including padding."""
        return self.slices * SLICE_BYTES // ITEMSIZE[self.dtype]

    @property
    def bytes(self) -> Length:
        """Return the bytes that the conversion launch writes; 0 without a launch."""
        return 0 if self.stored else prod(self.lens) * self.columns * self.slices * SLICE_BYTES

    @property
    def moved(self) -> SharedLength:
        """Return the bytes that the conversion launch reads and writes."""
        return 0 if self.stored else self.bytes + prod(self.lens) * self.columns * self.depth * 4

    def batch_strides(self, problem: GemmProblem) -> tuple[Length, ...]:
        """Return the strides of a product's batch axes in the slice layout."""
        rank, size = len(problem.batch), self.columns * self.row
        found: list[Length] = [0] * rank
        for d in reversed(range(rank)):
            if not known_less_equal(problem.batch[d], 1) and not known_in(problem.b_strides[d], 0):
                found[d], size = size, size * problem.batch[d]
        return tuple(found)

    def launch(self, at: int) -> Launch:
        """Return the launch that converts the operand, to offset ``at`` (bytes) of ``scratch``."""
        arguments, buffer = Arguments(), CodeBuffer()
        arguments.pointer("p_w", "w", "float32")
        arguments.pointer("p_to", Operand("scratch", at), self.dtype)
        arguments.integers(
            columns=self.columns, apart=self.apart, depth=self.depth, step=self.step, slices=self.slices
        )  # fmt: skip
        planes = Axes(arguments, "b", self.lens, [self.strides])
        block, places = block_of_plane(arguments, self.slices, prod(self.lens))
        buffer.line(
            *arguments.bind(),
            "thread = thread_index(0)",
            *places,
            f"slice = {block}",
            f"first = block_index(2) * {COLUMNS}",
            f"tile = shared_{self.dtype}({COLUMNS * self._pitch * (4 // ITEMSIZE[self.dtype])})",
        )
        places = planes.split(buffer, "plane")
        buffer.line(f"r_w = offset(p_w, {planes.offset(0, places)})")
        self._read(buffer)
        buffer.line("barrier()")
        self._write(buffer)
        name = "halves" if self.dtype == "bfloat16" else "columns"
        values = arguments.values
        kernel = gpu_kernel(f"{name}_in_slices_kernel", buffer.lines, THREADS, len(values))
        grid = plane_grid(self.slices, prod(self.lens), THREADS, ceil_div(self.columns, COLUMNS))
        return Launch(kernel, values, grid, 0, self.moved)

    def _read(self, buffer: CodeBuffer) -> None:
        """Emit the loads of a tile along its contiguous axis and its stores to shared memory, high halves before low
        halves; elements outside the operand are 0."""
        across = known_in(self.apart, 1)
        length = COLUMNS if across else POSITIONS
        buffer.line(f"other = idiv32(thread, {length})")
        buffer.line(f"inner = thread - other * {length}")
        found = []
        for turn in range(COLUMNS * POSITIONS // THREADS):
            other = buffer.emit(f"other + {turn * (THREADS // length)}")
            column, position = ("inner", other) if across else (other, "inner")
            n, k = buffer.emit(f"first + {column}"), buffer.emit(f"slice * {POSITIONS} + {position}")
            place = f"imin({k}, depth - 1) * step + imin({n}, columns - 1) * apart"
            inside = buffer.emit(f"({k} < depth) & ({n} < columns)")
            value = buffer.emit(f"load(r_w, {place}, 1)")
            found.append((f"{column} * {self._pitch} + {position}", f"where({inside}, {value}, const_float32(0, 1))"))
        if self.dtype == "float32":
            for at, value in found:
                buffer.line(f"store(tile, {at}, {value})")
            return
        for two in zip(found[::2], found[1::2]):
            halves = _halves(buffer, buffer.emit(f"join2({two[0][1]}, {two[1][1]})"))
            for lane, (at, _) in enumerate(two):
                for below, half in enumerate(halves):
                    one = f"splat(extract({half}, {lane}), 1)"
                    buffer.line(f"store(tile, {below * COLUMNS * self._pitch} + {at}, {one})")

    def _write(self, buffer: CodeBuffer) -> None:
        """Emit the vector stores of a tile from shared memory."""
        elements = SLICE_BYTES // PIECES // ITEMSIZE[self.dtype]
        buffer.line(f"line = idiv32(thread, {PIECES})")
        buffer.line(f"piece = thread - line * {PIECES}")
        for turn in range(COLUMNS * PIECES // THREADS):
            column = buffer.emit(f"line + {turn * (THREADS // PIECES)}")
            place = (
                f"((plane * columns + first + {column}) * slices + slice) * {PIECES * elements} + piece * {elements}"
            )
            with buffer.block(f"if first + {column} < columns:"):
                if self.dtype == "float32":
                    value = f"load(tile, {column} * {self._pitch} + piece * {elements}, {elements})"
                else:  # `place_in_slice`: pairs of each of four threads
                    below = f"idiv(piece, {PIECES // 2}) * {COLUMNS}"
                    start = buffer.emit(f"({below} + {column}) * {self._pitch} + imod(piece, {PIECES // 2}) * 2")
                    pairs = [f"load_aligned(tile, {start} + {8 * thread}, 2)" for thread in range(4)]
                    value = f"join4({', '.join(pairs)})"
                buffer.line(f"store_aligned(p_to, {place}, {value})")

    @property
    def _pitch(self) -> int:
        """Return the shared-memory pitch of a column: an odd number of words, which avoids bank conflicts."""
        return POSITIONS + 4 // ITEMSIZE[self.dtype]


def _halves(buffer: CodeBuffer, given: str) -> tuple[str, str]:
    """Emit the split of two lanes into high and low halves, see `in_halves`."""
    finite = buffer.emit(f"lt(abs({given}), const_float32(INF, 2))")
    high = buffer.emit(f"cast_bfloat16(where({finite}, {_clipped(given, LARGEST)}, {given}))")
    rest = buffer.emit(f"where({finite}, sub({given}, cast_float32({high})), const_float32(0, 2))")
    return high, buffer.emit(f"cast_bfloat16({_clipped(rest, LARGEST_REST)})")


def _clipped(value: str, most: float) -> str:
    """Return the expression of two lanes clipped to [-most, most]."""
    return f"min(max({value}, const_float32({-most!r}, 2)), const_float32({most!r}, 2))"


def ordered_columns(contraction: GpuContraction, dtype: str = "float32") -> OrderedColumns:
    """Return the right operand of a contraction in the slice layout; convolution weights have the layout
    `weights.COLUMNS`.

    A constant with `GpuContraction.any_order` is stored in that layout.
    """
    problem = contraction.problem
    if isinstance(problem, ConvProblem):
        full, inputs = problem, problem.group_in
        columns = full.group_out * full.taps
        lens: tuple[Length, ...] = (full.groups,)
        found = OrderedColumns(dtype, lens, (columns * inputs,), columns, inputs, inputs, 1)
    else:
        rank, strides = len(problem.batch), problem.b_strides
        moving = [(n, s) for n, s in zip(problem.batch, strides) if not known_less_equal(n, 1) and not known_in(s, 0)]
        lens, steps = tuple(n for n, _ in moving), tuple(s for _, s in moving)
        found = OrderedColumns(dtype, lens or (1,), steps or (0,), problem.n, strides[-1], problem.k, strides[rank])
    return replace(found, stored=dtype == "bfloat16" and contraction.constant and contraction.any_order)
