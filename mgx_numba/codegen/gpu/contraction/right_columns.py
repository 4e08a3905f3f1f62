"""Right operands in the order in which warpgroups take slices of them: columns of 128 bytes of the sum, one after the
other.

Of float32 that is multiplied in parts a slice of 32 positions has the halves of its numbers: 32 of bfloat16 nearest to
them, and 32 of what these leave. Within a slice the positions lie so that each thread finds what it multiplies with
them in two vectors of 16 bytes of the left operand's row. A constant may be kept so; of anything else a launch before
the product makes it, in every run.
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
from ..cluster.indexing import Axes
from ..kernel import block_of_plane, gpu_kernel, plane_grid
from .placed import PlacedRequest
from .wgmma_tiles import SLICE_BYTES

__all__ = ["POSITIONS", "OrderedColumns", "halves_in_pieces", "in_halves", "ordered_columns", "place_in_slice"]

POSITIONS = SLICE_BYTES // 4
"""Positions of the sum of a slice: numbers of float32 in 128 bytes."""
THREADS = 256
"""Threads of a block. No figures kept."""
COLUMNS = 64
"""Columns of a block, which are read 256 bytes at a time where they lie side by side. No figures kept."""
PIECES = 8
"""Vectors of 16 bytes of a column's slice."""
PIECE_POSITIONS = 1 << 17
"""Numbers that are made halves of at once: 512 KiB of float32, so that what lies between stays in a CPU's cache. Fewer
take one thread as long, and 16 threads wait for the interpreter's lock between them."""
_rooms = threading.local()
"""``numbers``: memory of a thread for what lies between, a megabyte: new memory for each piece takes as long again."""
LARGEST = float(np.uint32(0x7F7F0000).view(np.float32))
"""The largest bfloat16."""
LARGEST_REST = float(np.uint32(0x7B7F0000).view(np.float32))
"""The largest low half: the sum of both largest ones is still a float32."""


def place_in_slice(position: int) -> int:
    """Where a position of a slice lies among its halves: thread c of four has positions 8 c to 8 c + 7 of a row, of
    which an instruction takes four, two from place 2 c on and two from 8 further."""
    thread, rest = divmod(position, 8)
    step, half, one = rest // 4, rest // 2 % 2, rest % 2
    return 16 * step + 8 * half + 2 * thread + one


def in_halves(columns: np.ndarray) -> np.ndarray:
    """Halves of float32 ``[..., k]``: bfloat16 ``[..., slices * 64]``, with zeros behind the last position.

    Infinities and NaN are high halves, with 0 as the low one; numbers beyond the largest bfloat16 have that.
    """
    halves, pieces = halves_in_pieces(columns)
    run_all(pieces)
    return halves


def halves_in_pieces(
    columns: np.ndarray, order: np.ndarray | None = None
) -> tuple[np.ndarray, list[Callable[[], None]]]:
    """The memory of `in_halves`, and what fills it: functions that any threads may call, at once.

    Args:
        order: int ``[n]``, in which the ``n`` columns of all axes but the last shall lie; None for as they do.
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
    """Write halves of some of the rows ``[n, k]``, by their numbers, as bits of bfloat16 ``[_, slices, 2, positions]``.

    What ml_dtypes converts one by one, and no other thread meanwhile, takes some ten times as long.
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
    """Memory of the calling thread for float32 ``[2, size]``."""
    if size > PIECE_POSITIONS:  # of one column
        return np.empty((2, size), np.float32)
    if not hasattr(_rooms, "numbers"):
        _rooms.numbers = np.empty(2 * PIECE_POSITIONS, np.float32)
    return _rooms.numbers[: 2 * size].reshape(2, size)


class _Beyond:
    """Numbers of which some are no bfloat16 when they are rounded.

    Attributes:
        finite: the numbers, with 0 for what is not finite; ``clipped`` no larger than the largest bfloat16.
        others: where they are not finite, and ``rest`` the bits of bfloat16 of these.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.others = ~np.isfinite(values)
        self.finite = np.where(self.others, np.float32(0), values)
        self.clipped = np.clip(self.finite, -LARGEST, LARGEST)
        self.rest = values[self.others].astype(ml_dtypes.bfloat16).view(np.uint16)


def _round(bits: np.ndarray, out: np.ndarray) -> None:
    """Numbers of float32, as bits, such that their upper halves are those of the nearest bfloat16, ties to even; none
    is beyond `LARGEST`."""
    np.right_shift(bits, 16, out=out)
    out &= 1
    out += 0x7FFF
    out += bits


@dataclass(frozen=True)
class OrderedColumns:
    """A right operand in slices.

    Attributes:
        dtype: of what is in a slice: bfloat16 for halves of float32, or float32.
        lens, strides: of the planes, and strides between them of the right operand, which is ``w`` of float32.
        columns, apart: columns of a plane, and elements from one to the next.
        depth, step: positions of a sum, and elements from one to the next.
        stored: whether ``w`` is what a launch would make of it.
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
        """Of a column."""
        found: Length = ceil_div(self.depth, POSITIONS)
        return found

    @property
    def row(self) -> Length:
        """Elements of a column."""
        return self.slices * SLICE_BYTES // ITEMSIZE[self.dtype]

    @property
    def bytes(self) -> Length:
        """Those that a launch writes; none where that is not needed."""
        return 0 if self.stored else prod(self.lens) * self.columns * self.slices * SLICE_BYTES

    @property
    def moved(self) -> SharedLength:
        """Bytes that a launch reads and writes."""
        return 0 if self.stored else self.bytes + prod(self.lens) * self.columns * self.depth * 4

    def batch_strides(self, problem: GemmProblem) -> tuple[Length, ...]:
        """Strides of the planes of a product in what a launch writes, or of which ``w`` consists."""
        rank, size = len(problem.batch), self.columns * self.row
        found: list[Length] = [0] * rank
        for d in reversed(range(rank)):
            if not known_less_equal(problem.batch[d], 1) and not known_in(problem.b_strides[d], 0):
                found[d], size = size, size * problem.batch[d]
        return tuple(found)

    def launch(self, at: int) -> Launch:
        """The launch that makes the columns, from byte ``at`` of ``scratch`` on."""
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
        """Emit the loads of a tile, along what is contiguous, and its stores to the block's memory, of halves high ones
        before low ones; what lies outside is 0."""
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
        """Emit the stores of whole vectors."""
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
        """Elements from one column of a slice to the next in a block's memory: an odd number of words, so that the
        columns of a warp lie in different banks."""
        return POSITIONS + 4 // ITEMSIZE[self.dtype]


def _halves(buffer: CodeBuffer, given: str) -> tuple[str, str]:
    """Emit the halves of two lanes, see `in_halves`."""
    finite = buffer.emit(f"lt(abs({given}), const_float32(INF, 2))")
    high = buffer.emit(f"rounded_bfloat16(where({finite}, {_clipped(given, LARGEST)}, {given}))")
    rest = buffer.emit(f"where({finite}, sub({given}, cast_float32({high})), const_float32(0, 2))")
    return high, buffer.emit(f"rounded_bfloat16({_clipped(rest, LARGEST_REST)})")


def _clipped(value: str, most: float) -> str:
    """Two lanes no larger than ``most``, whatever their sign, in the text."""
    return f"min(max({value}, const_float32({-most!r}, 2)), const_float32({most!r}, 2))"


def ordered_columns(placed: PlacedRequest, dtype: str = "float32") -> OrderedColumns:
    """The right operand of a contraction in slices; weights of a convolution lie in the order `weights.COLUMNS`.

    Halves of constants that may be stored in any order are stored.
    """
    problem = placed.problem
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
    return replace(found, stored=dtype == "bfloat16" and placed.constant and placed.any_order)
