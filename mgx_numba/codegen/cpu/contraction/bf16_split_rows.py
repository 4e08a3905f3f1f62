"""The left-hand side in two bfloat16 parts, for tiles that multiply float32 in parts: split it, and compute exceptions
in float32.

Rows of products have the format of `part_form`, in which the parts add up to any number that is not too small. The
multiplying kernel looks for rows whose numbers are all too small (`small_rows`), as their products could be denormals.

A launch that fills a pixel grid in parts flags the lines that bfloat16 cannot represent; so does a kernel that splits
rows for itself. Such a row has infinity, NaN, a number that rounds to infinity, or only numbers so small that their
remainder would be denormal. Its parts are the high and the low half of each number's bits. If a block of rows reads a
flagged line, or is too small, its accumulators are computed in float32 from the reassembled numbers, one by one.

Grids of one part have flags of infinity and NaN where tiles read past a tap's terms (`PaddedInput.noted`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....core.dim import Length, SharedLength, ceil_div, known_equal, known_in
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.gemm import GemmProblem
from ...statements import for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import TILE_TABLE_ROWS
from ..part_form import LARGEST, bits_of, number_text
from .blocking import odd
from .pack_kernel import row_start
from .solver import UnsuitedWeights

LINE_ELEMENTS = host.CACHE_LINE // 2
"""Elements of a part in a cache line."""
SMALLEST = 2.0**-30
"""Least magnitude of a row's largest number for which the row is split: the loss in smaller numbers of the row is below
2**-80 of it."""
SMALLEST_WEIGHT = 2.0**-70
"""The same limit for a column of weights: products of the two are far above the denormals."""


def split_weights(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the high and the low part, float32 each, of weights ``[..., k, n]``.

    Raises:
        UnsuitedWeights: bfloat16 cannot represent a weight, or all weights of a nonzero column are too small.
    """
    import ml_dtypes

    size = np.abs(weights)
    columns = size.max(axis=-2, initial=0)
    if not (columns <= LARGEST).all():
        raise UnsuitedWeights("weights that are not finite, or round to infinity")
    if ((columns < SMALLEST_WEIGHT) & (columns > 0)).any():
        raise UnsuitedWeights("a column of weights has none above the denormals of its low parts")
    high = weights.astype(ml_dtypes.bfloat16).astype(np.float32)
    return high, weights - high


def split_vector(value: str, at: str, left: str = "") -> list[str]:
    """Return statements that store both parts of a vector at element ``at`` of ``packed``, and update ``largest``.

    The low parts are ``low`` elements behind.

    Args:
        left: number of elements; "": a whole vector.
    """
    end, more = ("_tail", f", {left}") if left else ("", "")
    return [
        f"value = {value}",
        "largest = max(largest, bitwise_and(bits_int32(value), 0x7FFFFFFF))",
        "high = round_bfloat16(value)",
        f"store{end}(packed, {at}, high{more})",
        f"store{end}(packed, {at} + low, round_bfloat16(sub(value, cast_float32(high))){more})",
    ]


def halve_vector(value: str, at: str, left: str = "") -> list[str]:
    """Return statements that store the high and low halves of each number's bits into ``halves``, as `split_vector`
    does."""
    end, more = ("_tail", f", {left}") if left else ("", "")
    return [
        f"bits = bits_uint32({value})",
        f"store{end}(halves, {at}, cast_uint16(shift_right(bits, 16)){more})",
        f"store{end}(halves, {at} + low, cast_uint16(bitwise_and(bits, 0xFFFF)){more})",
    ]


def split_row(split: Sequence[str], halve: Sequence[str]) -> list[str]:
    """Return statements that split all of row ``task``, or halve its bits if it cannot be split, and store its flag in
    ``flags``."""
    lanes = LINE_ELEMENTS
    return [
        f"largest = const_int32(0, {lanes})",
        *split,
        *row_note(),
        "store_scalar(flags, task, 1 if halved else 0)",
        "if halved:",
        *indent(halve),
    ]


def row_note() -> list[str]:
    """Return statements that compute ``halved``: whether the row with the largest numbers ``largest`` cannot be
    split."""
    return [
        "most = reduce_max(largest)",
        f"halved = most > {bits_of(LARGEST)} or (most > 0 and most < {bits_of(SMALLEST)})",
    ]


def declare_parts(arguments: Arguments, low: Length, flags: Length) -> None:
    """Declare the arguments of a splitting launch: ``packed``, ``halves``, ``flags`` at byte ``flags`` of scratch, and
    ``low``."""
    arguments.pointer("packed", "scratch", "bfloat16")
    arguments.pointer("halves", "scratch", "uint16")
    arguments.pointer("flags", Operand("scratch", flags), "int32")
    arguments.integers(low=low)


@dataclass(frozen=True)
class SplitRows:
    """The left-hand rows in parts (`part_form`).

    Attributes:
        pack: launches that write the parts to scratch; empty if the rows already come in parts.
        strides: strides in words.
        low: words from the high to the low parts.
        scratch: bytes of scratch.
    """

    pack: tuple[Launch, ...]
    strides: tuple[SharedLength, ...]
    low: Length
    scratch: Length


def parts_pitch(k: Length) -> SharedLength:
    """Return the elements from one row of ``k`` of a part to the next.

    Rows are padded with zeros to an odd number of cache lines, so that the rows of a tile fall into different cache
    sets.
    """
    return odd(ceil_div(k, LINE_ELEMENTS)) * LINE_ELEMENTS


def fills_lines(problem: ConvProblem) -> bool:
    """Return whether the result's pixels are float32 that fill whole cache lines as parts, without zero padding."""
    return problem.types.uniform == "float32" and problem.out_channels % LINE_ELEMENTS == 0


def groups_end_lines(problem: ConvProblem) -> bool:
    """Return whether the zero padding of a group's channels, up to whole cache lines of parts, overlaps no channels of
    the next group."""
    return problem.groups == 1 or problem.group_out % LINE_ELEMENTS == 0


def split_rows(problem: GemmProblem, tile: RegisterTile) -> SplitRows:
    """Return the left-hand side of a product in parts. A row is one task; rows that a batch repeats are stored once."""
    together = tile.packing.k_interleave
    if problem.low_parts:
        return SplitRows((), (*(s // together for s in problem.a_strides[:-1]), 1), problem.low_parts // together, 0)
    lens = [*(1 if known_in(s, 0) else n for n, s in zip(problem.batch, problem.a_strides)), problem.m]
    pitch = parts_pitch(problem.k)
    row, rows = pitch // together, math.prod(lens)
    words = [row * math.prod(lens[d + 1 :]) for d in range(len(lens))]
    batch = len(problem.batch)
    words = [0 if known_in(s, 0) and d < batch else w for d, (w, s) in enumerate(zip(words, problem.a_strides))]
    size = ITEMSIZE["bfloat16"] * rows * pitch
    arguments = Arguments()
    arguments.pointer("x", "x", "float32")
    arguments.pointer("high", "scratch", "bfloat16")
    arguments.pointer("low", Operand("scratch", size), "bfloat16")
    arguments.integers(k=problem.k, k_stride=problem.a_strides[-1], pitch=pitch)
    contiguous = known_equal(problem.a_strides[-1], 1) or known_equal(problem.k, 1)

    def vector(left: str) -> list[str]:
        end, fill = ("_tail", f"{left}, 0, ") if left else ("", "")
        place = "x, start + c" if contiguous else "x, start + c * k_stride, k_stride"
        value = f"load{'' if contiguous else '_strided'}{end}({place}, {fill}{LINE_ELEMENTS})"
        return [f"store_parts(high, low, task * pitch + c, {value})"]

    task = [*row_start(arguments, lens, problem.a_strides), *vector_loop(LINE_ELEMENTS, vector, "0", "k")]
    name = f"split_{'rows' if contiguous else 'strided'}_kernel"
    source = cpu_kernel(name, kernel_text([*arguments.bind(), *for_tasks(task)]))
    moved = rows * (4 * problem.k + 4 * pitch)
    launch = Launch(source, arguments.values, TaskRange(rows, claim(rows, moved)), 0, moved)
    return SplitRows((launch,), (*words, 1), rows * row, 2 * size)


def small_rows(tile: RegisterTile) -> list[str]:
    """Return statements that count in ``special`` the rows, of ``left``, whose numbers in this step are below
    `SMALLEST` but not all zero.

    Other rows usually have a large enough number in their first cache line, and the scan of a row stops there.
    """
    lanes = tile.step
    words = f"load(x, start + c, {lanes})"
    return [
        "special = 0",
        "for i in range(left):",
        *indent([
            "start = x0 + (row + i) * x_ld + k0",
            "c = 0",
            "small = True",
            "while small and c < depth_now:",
            f"    words = bitwise_and({words}, 0x7FFF7FFF)",
            "    odd = bitwise_and(words, 0x7FFF0000)",
            f"    small = reduce_and(lt(max(odd, shift_left(words, 16)), {bits_of(SMALLEST)}))",
            f"    c += {lanes}",
            "if small:",
            f"    found = const_int32(0, {lanes})",
            f"    for c in range(0, depth_now, {lanes}):",
            f"        words = bitwise_or({words}, load(x, start + x_low + c, {lanes}))",
            "        found = bitwise_or(found, bitwise_and(words, 0x7FFF7FFF))",
            "    special += 1 if reduce_max(found) > 0 else 0",
        ]),
    ]  # fmt: skip


def one_by_one(
    tile: RegisterTile,
    terms: str,
    taps: str,
    start: str,
    flag: Sequence[str] = (),
    x: str = "x",
    first: str = "x0 + row * x_ld + k0 * x_step",
    apart: str = "x_ld",
) -> list[str]:
    """Return statements that add the products of a step to the accumulators of ``left`` rows in float32, one by one.

    Args:
        terms: expression of the numbers of each tap.
        taps: expression of the number of taps.
        start: expression that is not 0 if there are accumulators to add to.
        flag: statements that set ``halved``, the flag of the line that row ``i`` reads at tap ``t``; empty: parts are
            in `part_form`.
        x: pointer to the words of the rows. Where the tile has one part, that part is the number.
        first: word of the first row.
        apart: words from row to row.
    """
    lanes, columns, step, parts = tile.lanes, tile.columns, tile.step, tile.packing.parts
    low = step * columns
    factor = [f"factor = {number_text('a_high', 'a_low')}"]
    weight = "add(bits_float32(b_high), bits_float32(shift_left(b_low, 16)))"
    if parts == 1:
        factor, weight = ["factor = bits_float32(a_high)"], "bits_float32(b_high)"
    elif flag:
        factor = [
            "joined = bits_float32(bitwise_or(a_high, a_low))",
            "added = add(bits_float32(a_high), bits_float32(shift_left(a_low, 16)))",
            "factor = joined if halved != 0 else added",
        ]
    return [
        "for i in range(left):",
        f"    for c in range(0, sums_ld, {lanes}):",
        *indent([
            f"acc = const_float32(0, {lanes})",
            f"if {start} > 0:",
            f"    acc = load(sums, sums_row + i * sums_ld + c, {lanes})",
            f"right = w0 + (p0 + idiv(c, {columns})) * w_panel + ({start}) * w_step + imod(c, {columns})",
            f"for t in range({taps}):",
            *indent([
                *(flag if parts > 1 else []),
                f"at = {first} + table[t * {TILE_TABLE_ROWS}] + i * {apart}",
                f"for k in range({terms}):",
                *indent([
                    "word = idiv(k, 2)",
                    "half = 16 * imod(k, 2)",
                    *_halves(x, "at + word", "x_low" if parts > 1 else "", "half", lanes, "a"),
                    *factor,
                    "place = t * depth_now + word",
                    f"goal = right + idiv(place, {step}) * {parts * low} + imod(place, {step}) * {columns}",
                    *_halves("w", "goal", str(low) if parts > 1 else "", "half", lanes, "b", splat=False),
                    f"acc = fma(factor, {weight}, acc)",
                ]),
            ]),
            "store(sums, sums_row + i * sums_ld + c, acc)",
        ], 2),
    ]  # fmt: skip


def _halves(pointer: str, at: str, low: str, half: str, lanes: int, name: str, splat: bool = True) -> list[str]:
    """Return statements that load the parts of one half of a word into the high bits of int32 vectors.

    The low part, if there is one, goes to ``<name>_low``.
    """
    load = "load_splat" if splat else "load"
    high = f"{name}_high = shift_left(shift_right({load}({pointer}, {at}, {lanes}), {half}), 16)"
    if not low:
        return [high]
    return [high, f"{name}_low = bitwise_and(shift_right({load}({pointer}, {at} + {low}, {lanes}), {half}), 0xFFFF)"]
