"""Matrix products over the register tile, with the right-hand side packed at compile time, read in place, or packed at
run time.

The left-hand side is always read in place, with any strides. One kernel serves all sizes and strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....core.dim import Dim, Length, SharedLength, known_equal, known_in, known_less, maximum
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import ALONG_N, MOVING, NOT_COMPUTED, Epilogue
from ...problems.gemm import GemmProblem
from ...statements import indent
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .bf16_split_rows import SplitRows, one_by_one, small_rows
from .blocking import Blocking, cut
from .conv_output_rows import LineGaps
from .convert_on_the_fly import ConvertOnTheFly, DequantOnTheFly, convert_on_the_fly
from .macro_kernel import MacroKernel
from .pack_kernel import Batched, collapse, pack_launch
from .panels import aligned_zeros, pack_panels, panel_count, without_repeats
from .prologue import PrologueRows, rows_conflict
from .solver import Setting, Solver, seconds, stored_types_refused
from .split_on_the_fly import SplitOnTheFly

PACKING_SECONDS = 1.5e-10
"""Time (s) to pack one element at run time."""
READ_IN_PLACE = 1.3
"""Ratio of the time of a product whose right-hand side is read in place to that of packed panels: columns past the last
must not be read, so accumulators pass through memory. CPU time on Zen 3, one thread: 1.3 (n = 401) to 2.2 (n = 1024,
whose rows share cache sets); at 1.0 products of 64 to 1024 rows and columns took 0.4 to 0.8 of ONNX Runtime's speed."""


LEFT = Operand("x")


class GemmPacked(Solver[GemmProblem]):
    """Solver for products whose right-hand side is a constant, packed into panels once; in 16 bits if it is stored so.

    An empty reduction (k = 0) becomes a reduction over a single zero.
    """

    name = "gemm"
    open_lens = True

    def refused_types(self, problem: GemmProblem) -> str | None:
        if problem.types.uniform is None:
            return stored_types_refused(problem.types) or (NOT_COMPUTED if problem.prologue else None)
        return super().refused_types(problem)

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue and not (known_less(0, problem.k) and known_equal(problem.a_strides[-1], 1)):
            return "the prologue reads an empty or strided sum"
        return None if problem.b_constant else "the right-hand side is not a constant"

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        tile = tile_for(problem.types)
        return (distinct_matrices(problem), panel_count(tile, problem.n), maximum(problem.k, 1), tile.columns)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        """Pack ``weights[*batch, k, n]``; along batch dimensions in which the problem's strides are 0 the first matrix
        is taken."""
        lens = self.packed_lens(problem)
        out = aligned_zeros(lens, problem.types.b)
        distinct = without_repeats(weights, problem.b_strides)
        target = out.reshape(*distinct.shape[:-2], *lens[1:])
        pack_panels(distinct, target[..., : problem.k, :])
        return out

    def panel_strides(self, problem: GemmProblem) -> tuple[SharedLength, ...]:
        """Return the batch strides of the packed panels, in elements."""
        _, panels, k, columns = self.packed_lens(problem)
        strides: list[Length] = []
        size: SharedLength = panels * k * columns
        for length, stride in zip(reversed(problem.batch), reversed(problem.b_strides[:-2])):
            strides.insert(0, 0 if known_in(stride, 0) else size)
            size *= 1 if known_in(stride, 0) else length
        return tuple(strides)

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        *_, k, columns = self.packed_lens(problem)
        batched = collapse(problem, epilogue, strides, self.panel_strides(problem))
        return Solution(
            product_launches(problem, epilogue, batched, Operand("w"), (columns, columns * k), threads, blocking)
        )

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        return product_seconds(problem, threads)


class Unpacked(Solver[GemmProblem]):
    """A solver whose right-hand side is an activation: nothing is packed at compile time."""

    open_lens = True

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        return ()

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        return weights

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.b_constant:
            return "the right-hand side is a constant: packing it is free"
        return "the sum is empty" if problem.k == 0 else self.declines_right(problem)

    def declines_right(self, problem: GemmProblem) -> str | None:
        """Return why a right-hand side that is an activation is refused; None if it is not."""
        return None


class GemmInPlace(Unpacked):
    """Solver for products whose right-hand side is an activation with contiguous rows, read in place."""

    name = "gemm_in_place"

    def declines_right(self, problem: GemmProblem) -> str | None:
        contiguous = known_equal(problem.b_strides[-1], 1) or known_equal(problem.n, 1)
        return None if contiguous else "the right-hand side's rows are not contiguous"

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        batched = collapse(problem, epilogue, strides, problem.b_strides[:-2])
        steps = (problem.b_strides[-2], tile_for(problem.types).columns)
        return Solution(
            product_launches(problem, epilogue, batched, Operand("w"), steps, threads, blocking, masked=True)
        )

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        return READ_IN_PLACE * product_seconds(problem, threads)


class GemmPacking(Unpacked):
    """Solver for products whose right-hand side is an activation of any strides, packed into scratch memory by a
    separate launch."""

    name = "gemm_packing"

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = tile_for(problem.types)
        panels = panel_count(tile, problem.n)
        matrix = panels * problem.k * tile.columns
        lens = distinct_lens(problem.batch, problem.b_strides)
        w_strides = tuple(
            0 if known_in(problem.b_strides[d], 0) else matrix * math.prod(lens[d + 1 :])
            for d in range(len(problem.batch))
        )
        *outer, k_stride, n_stride = problem.b_strides
        pack = pack_launch(tile, lens, outer, problem.n, n_stride, problem.k, k_stride)
        batched = collapse(problem, epilogue, strides, w_strides)
        steps = (tile.columns, tile.columns * problem.k)
        launches = product_launches(problem, epilogue, batched, Operand("scratch"), steps, threads, blocking)
        return Solution((*pack, *launches), math.prod(lens) * matrix * problem.itemsize)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        packed = distinct_matrices(problem) * problem.k * problem.n
        return product_seconds(problem, threads) + PACKING_SECONDS * packed / threads


def distinct_matrices(problem: GemmProblem) -> SharedLength:
    """Return the number of distinct right-hand sides of a batch."""
    return math.prod(distinct_lens(problem.batch, problem.b_strides))


def distinct_lens(batch: Sequence[Length], strides: Sequence[Length]) -> list[Length]:
    """Return the lengths of batch dimensions; 1 for each dimension along which the operand repeats."""
    return [1 if known_in(stride, 0) else length for length, stride in zip(batch, strides)]


def left_repeats(problem: GemmProblem, axis: int) -> bool:
    """Return whether the left-hand side repeats along batch dimension ``axis``."""
    return axis < len(problem.batch) and known_in(problem.a_strides[axis], 0)


def _sizes(problem: GemmProblem, tile: RegisterTile) -> tuple[int, int, int]:
    """Return the bytes of a left-hand word, a right-hand word and an accumulator."""
    return ITEMSIZE[tile.left_word], ITEMSIZE[tile.right_word], ITEMSIZE[problem.types.accumulator]


def product_seconds(problem: GemmProblem, threads: int, tile: RegisterTile | None = None) -> float:
    """Return the estimated time (s) of the product with both operands already packed, by default with the tile of its
    types."""
    tile = tile or tile_for(problem.types)
    columns = panel_count(tile, problem.n) * tile.columns
    left, right, out = _sizes(problem, tile)
    rows, depth = problem.batch_count * problem.m, tile.depth(problem.k)
    moved = rows * (left * depth + out * problem.n) + right * distinct_matrices(problem) * depth * columns
    return seconds(tile, 2 * problem.batch_count * problem.m * columns * problem.k, moved, threads)


def product_launches(
    problem: GemmProblem,
    epilogue: Epilogue,
    batched: Batched,
    w: Operand,
    w_steps: tuple[object, object],
    threads: int,
    blocking: Blocking | None,
    masked: bool = False,
    x: Operand = LEFT,
    name: str = "gemm",
    scratch: DequantOnTheFly | None = None,
    tile: RegisterTile | None = None,
    split: SplitRows | SplitOnTheFly | None = None,
    gaps: LineGaps | None = None,
) -> tuple[Launch, ...]:
    """Return one launch for each piece of the batch.

    Strides of a and w, in ``w_steps`` and in ``batched``, count words of the tile.

    Args:
        w_steps: strides of the right-hand side along k, and from panel to panel.
        masked: columns past the last must not be read, as the right-hand side is not packed.
        scratch: unpacks the right-hand side into a buffer step by step; ``w_steps`` is then unused.
        tile: register tile; None: the tile of the problem's types.
        split: how a left-hand side in parts is stored in ``x``, or how the kernel splits it.
        gaps: gaps between rows of the result that its strides do not describe.
    """
    tile = tile or tile_for(problem.types)
    how = (w, w_steps, threads, blocking, masked, x, name, scratch, tile, split, gaps)
    return tuple(_launch(problem, epilogue, piece, offsets, *how) for piece, offsets in batched.pieces())


def _launch(
    problem: GemmProblem,
    epilogue: Epilogue,
    batched: Batched,
    offsets: dict[str, SharedLength],
    w: Operand,
    w_steps: tuple[SharedLength, SharedLength],
    threads: int,
    given: Blocking | None,
    masked: bool,
    x: Operand,
    name: str,
    scratch: DequantOnTheFly | ConvertOnTheFly | None,
    tile: RegisterTile,
    split: SplitRows | SplitOnTheFly | None,
    gaps: LineGaps | None,
) -> Launch:
    depth, accumulator = maximum(tile.depth(problem.k), 1), problem.types.accumulator
    left, right, _ = _sizes(problem, tile)
    before: PrologueRows | SplitOnTheFly | None = split if isinstance(split, SplitOnTheFly) else None
    if problem.prologue and before is None:
        before = PrologueRows(problem.prologue, problem.dtype, tile)
    copying = copies_rows(problem, batched, tile) and not (before or masked or scratch or split)
    if copying:
        before, name = PrologueRows(None, tile.left_word, tile), f"{name}_copying"
    blocking = cut(tile, batched.m, problem.n, depth, 1, batched.count, threads, given, forming=before is not None)
    if before:
        blocking = before.fit(blocking, batched.m, problem.n, depth)
    if not copying:  # one buffer of the two
        scratch = scratch or convert_on_the_fly(tile, problem.types, batched.m, blocking, w_steps[1])
    if scratch:
        tile = scratch.tile
        blocking = scratch.fit(blocking, batched.m, problem.n, depth)
        w_steps = scratch.steps(blocking)
    name = f"{problem.prologue.name}_{name}" if problem.prologue else name
    macro = MacroKernel(name, accumulator, tile, epilogue, masked=masked)
    arguments = macro.arguments
    x = Operand(x.name, x.offset + offsets["x"] * left) if problem.k else w
    arguments.pointer("x", x, problem.types.a if before and not copying else tile.left_word)
    arguments.pointer(
        "w", Operand(w.name, w.offset + offsets["w"] * right), scratch.word if scratch else tile.right_word
    )
    arguments.pointer("zero", w, tile.left_word)
    bytes_at = {"out": ITEMSIZE[epilogue.out_dtype(accumulator)] * offsets["out"]}
    bytes_at |= {f"e{k}": ITEMSIZE[o.dtype] * offsets.get(f"e{k}", 0) for k, o in enumerate(epilogue.operands)}
    macro.rows.pointers(arguments, bytes_at)
    panels = panel_count(tile, problem.n)
    if scratch:
        scratch.declare(macro, blocking)
    if tile.finishes and not masked and not isinstance(problem.n % tile.columns, Dim):
        macro.steady, macro.x_row, macro.in_place = "True", "near_ld" if before else "x_ld", not before
        macro.contiguous = known_less(0, problem.k) and known_equal(problem.a_strides[-1], 1)
    macro.sizes(blocking, batched.m, problem.n, panels, depth, 1, batched.count, beside=False)
    x_step = problem.a_strides[-1] if problem.k else 0
    arguments.integers(x_step=x_step, w_step=w_steps[0], w_panel=w_steps[1])
    rank = len(batched.lens)
    arguments.integers(**{f"batch{d}": batched.lens[d] for d in range(1, rank)})
    for name, values in batched.strides.items():
        steps = [0] * len(values) if name == "x" and not problem.k else values
        arguments.integers(**{f"{name}_batch{d}": steps[d] for d in range(rank)})
        if name != "w":
            arguments.integers(**{f"{name}_ld": steps[-1]})
    if before:
        before.declare(macro, blocking, offsets)
    else:
        macro.read_even_rows()
    if isinstance(split, SplitRows):
        macro.read_matrix(split.low)
        read_parts(macro, problem.k)
    elif tile.step > 1 and not before:
        macro.read_matrix(0)
    macro.decode = ["column0 = 0", *_batch_lines(batched)]
    macro.row = _row_lines(epilogue, gaps is not None)
    if gaps:
        gaps.declare(macro, "(b0 * m + row)" if rank else "row")
    macro.row_steps = {name: f"{name}_ld" for name in batched.strides if name not in ("x", "w")}
    rows = batched.count * batched.m
    stored = epilogue.stored_bytes(accumulator)
    moved = rows * (left * tile.depth(problem.k) + stored * problem.n) + right * depth * panels * tile.columns
    flops = 2 * rows * problem.n * problem.k
    tasks = blocking.tasks(batched.m, panels, batched.count)
    return Launch(macro.source(), arguments.values, TaskRange(tasks, 1), flops, moved, epilogue.moving)


def copies_rows(problem: GemmProblem, batched: Batched, tile: RegisterTile) -> bool:
    """Return whether tiles read copies of the left-hand rows, which evict each other from the L1 cache."""
    if tile.step > 1 or known_less(problem.m, tile.rows) or not known_less(0, problem.k):
        return False
    row = batched.strides["x"][-1]
    contiguous = known_equal(problem.a_strides[-1], 1)
    return contiguous and isinstance(row, int) and rows_conflict(tile, row * ITEMSIZE[tile.left_word])


def read_parts(macro: MacroKernel, k: int) -> None:
    """Make the macro-kernel check for rows of ``k`` terms that are too small for products in parts."""
    macro.arguments.integers(terms=k)
    exact = one_by_one(macro.tile, "imin(2 * depth_now, terms - 2 * k0)", "1", "k0")
    macro.instead = [*small_rows(macro.tile), "if special > 0:", *indent(exact)]


def _batch_lines(batched: Batched) -> list[str]:
    """Return statements that compute from ``group`` the first element of each operand: ``x0``, ``w0``, ``out0``,
    ``e<k>0``."""
    rank = len(batched.lens)
    lines = ["rest = group"] if rank > 1 else []
    for d in range(rank - 1, 0, -1):
        lines += [f"b{d} = imod(rest, batch{d})", f"rest = idiv(rest, batch{d})"]
    if rank:
        lines.append("b0 = rest" if rank > 1 else "b0 = group")
    for name in batched.strides:
        terms = " + ".join(f"b{d} * {name}_batch{d}" for d in range(rank))
        lines.append(f"{name}0 = {terms or '0'}")
    return lines


def _row_lines(epilogue: Epilogue, apart: bool = False) -> list[str]:
    lines = [f"out_row = out0 + (row + i) * out_ld{' + apart' if apart else ''} + n0"]
    for k, operand in enumerate(epilogue.operands):
        if operand.access in MOVING:
            column = " + n0" if operand.access in ALONG_N else ""
            lines.append(f"e{k}_row = e{k}0 + (row + i) * e{k}_ld{column}")
    return lines
