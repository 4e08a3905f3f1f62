"""Products of a few rows with constant weights, bound by the bandwidth of the weights.

Several panels are streamed side by side, since several memory streams are faster than one, and all rows are multiplied
with them at once. Software does not prefetch: hardware prefetching of a few streams is faster alone (weights in L3: 120
against 100 GB/s on one core; in memory there is no difference). A task is a range of adjacent panels.

Unpacked weights are read in both layouts:
- Weights [k, n]: a task accumulates a panel of columns, row of weights by row of weights.
- Weights [n, k]: each result is a dot product along contiguous k. A step reads several rows of weights, so that each
  vector of the left-hand side is loaded once for all of them.

The weights of a task stay in the cache for the next rows of the left-hand side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from ....core.dim import Dim, Length, ceil_div, known_equal, less_equal, preferred
from ...alternatives import fixed
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...problems.gemm import GemmProblem
from ...statements import indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..microkernels.register_tile import FMA_CHAINS, RegisterTile
from ..microkernels.tile_table import tile_for
from .blocking import Blocking
from .epilogue_rows import Rows, kernel_name
from .gemm import GemmPacked, product_seconds
from .solver import Setting, Solver, peak_flops

MOST_ROWS = 4
"""Most rows whose accumulators fit the registers beside two panels of weights; for more rows a register tile reuses
weights better."""
UNROLL = 4
"""Unroll factor, and number of independent accumulator chains: a multiply-add has a latency of 4 cycles. Longer loops
lose more at their ends."""
ALONE_BYTES = 1 << 18
"""Weight bytes that one thread reads faster than two threads can synchronise."""
WIDE_UNPACKING = 1.5
"""Time factor of 16-bit weights with 512-bit vectors, of which half a vector is loaded at a time.

4 MB of float16 take 1.4 times as long as 16-bit integers with scales, which are loaded whole and estimated with 1.1
(Zen 5, one thread).
"""
BFLOAT16_UNPACKING = 1.15
"""Time factor of bfloat16 weights with narrower vectors: 1.08 times the time of 16-bit integers. float16, which has a
conversion instruction, takes 0.88 times."""
CLAIM_BYTES = 16 << 10
"""Weight bytes that a thread would read in the time of a claim, 0.13 us, as each claim restarts the streams (Zen 5,
weights in L3)."""


CLAIMS = 4
"""Claims of each thread where lengths are symbolic: a quarter of its time is the most that another waits for it."""


class GemvPacked(GemmPacked):
    """Solver for products of up to four rows; weights are packed, and may be stored in fewer bits, as for other
    solvers."""

    name = "gemv"
    _streams: ClassVar[Mapping[int, float]] = {4: 0.97, 2: 1.0, 1: 1.05}
    """Relative time to read a byte, by the number of panels read side by side (measured, AVX-512, any memory)."""
    packed_as = GemmPacked.name
    _most_rows: ClassVar[int] = MOST_ROWS
    _stored_as: str | None = None
    """Dtype of the packed weights' words, if it differs from the problem's."""

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if isinstance(problem.m, Dim) and problem.m < 1:
            return "there are no rows"
        if not known_equal(problem.batch_count, 1) or problem.m > self._most_rows:
            return f"more than {self._most_rows} rows or one product"
        return "the sum is empty" if problem.k == 0 else super().declines(problem)

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        """Return one launch, without blocking.

        For a symbolic number of rows the kernel has the largest possible number of rows, or one if the example is one.
        Missing rows repeat the last row.
        """
        epilogue, strides, threads, _ = setting
        tile, rows_here = tile_for(problem.types), problem.m
        in_turn = isinstance(rows_here, Dim) or rows_here > self._most_rows
        if in_turn:
            problem = dataclasses.replace(problem, m=1 if rows_here == 1 else self._most_rows)
            in_turn = problem.m != 1
        columns = self._panel_columns(problem, tile)
        panels = -(-problem.n // columns)
        stored, sums = self._stored_as or tile.right_word, problem.types.accumulator
        size = self._weights_read(problem) * ITEMSIZE[stored]
        most = tile.rows * tile.vectors * tile.lanes // (fixed(problem.m) * columns)
        streams, grain = self._tasks(panels, size, most, threads)
        groups = -(-panels // streams)
        arguments = Arguments()
        arguments.pointer("x", "x", problem.types.a)
        arguments.pointer("w", "w", stored)
        rows = Rows(epilogue, sums, tile.lanes)
        rows.pointers(arguments)
        arguments.integers(n=problem.n, depth=problem.k, panels=panels)
        if in_turn:
            arguments.integers(count=rows_here)
        arguments.integers(x_step=problem.a_strides[-1], x_ld=problem.a_strides[-2], out_ld=problem.out_strides[-1])
        for k, operand in enumerate(epilogue.operands):
            if operand.access in ("full", "per_m"):
                own = strides[k] if k < len(strides) and strides[k] else (problem.n if operand.access == "full" else 1,)
                arguments.integers(**{f"e{k}_ld": own[-1]})
        self._declare(arguments, problem)
        starts = [f"x{r}" if in_turn else f"{r} * x_ld" for r in range(fixed(problem.m))]
        product = [f"panel = group * {streams}", *self._product(problem, tile, streams, starts)]
        count = "count" if in_turn else ""
        if in_turn:
            product = [*(f"x{r} = imin(row0 + {r}, count - 1) * x_ld" for r in range(fixed(problem.m))), *product]
        made = finished_rows(fixed(problem.m), epilogue, rows, streams * columns, product, count=count)
        text = kernel_text([*arguments.bind(), *made])
        kernel = cpu_kernel(kernel_name(self.name, epilogue), text)
        flops = 2 * rows_here * problem.n * problem.k
        moved = ITEMSIZE[sums] * rows_here * (problem.k + problem.n) + size
        return Solution((Launch(kernel, arguments.values, TaskRange(groups, grain), flops, moved),))

    def _tasks(self, panels: Length, size: Length, most: int, threads: int) -> tuple[int, Length]:
        """Return the number of panels side by side, at most ``most``, and how many groups of them to claim at a time.

        Args:
            size: bytes of all panels.
        """
        if isinstance(panels, Dim) or isinstance(size, Dim):
            streams = max(s for s in self._streams if s == 1 or s <= most)
            if streams > 1 and not preferred(less_equal(streams, panels)):
                streams = 1
            return streams, ceil_div(-(-panels // streams), 1 if threads == 1 else CLAIMS * threads)
        workers = threads if size > ALONE_BYTES else 1
        streams = best_streams(self._streams, most, panels, workers)
        return streams, task_grain(-(-panels // streams), size, workers)

    def _weights_read(self, problem: GemmProblem) -> int:
        """Return the number of weights in memory."""
        return math.prod(self.packed_lens(problem))

    def _declare(self, arguments: Arguments, problem: GemmProblem) -> None:
        """Declare the arguments that only this solver's product reads."""

    def _panel_columns(self, problem: GemmProblem, tile: RegisterTile) -> int:
        return tile.columns

    def _product(self, problem: GemmProblem, tile: RegisterTile, streams: int, starts: Sequence[str]) -> list[str]:
        return _product(problem, tile, streams, starts)

    def blockings(self, problem: GemmProblem, threads: int) -> list[Blocking]:
        """Return no alternatives: weights are read once, in memory order."""
        return []

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        """Return less than the estimate of the solver for any number of rows, which measures slower for few rows."""
        # The factor breaks ties between equal estimates in favour of this solver.
        return 0.9 * _unpacking(problem) * super().estimate(problem, threads)


def _unpacking(problem: GemmProblem) -> float:
    """Return the time of reading 16-bit weights, relative to reading the same bytes without conversion."""
    if problem.types.b == problem.types.accumulator:
        return 1.0
    if host.host().vector_bits == 512:
        return WIDE_UNPACKING
    return BFLOAT16_UNPACKING if problem.types.b == "bfloat16" else 1.0


def best_streams(costs: Mapping[int, float], most: int, panels: int, threads: int) -> int:
    """Return the number of panels side by side, at most ``most``, that minimises the time of the thread with the most
    groups.

    Half a group is added for threads that do not end together.
    """

    def time(streams: int) -> float:
        groups = -(-panels // streams)
        return (-(-groups // threads) + 0.5 * (threads > 1)) * streams * costs[streams]

    return min((s for s in costs if s == 1 or s <= most), key=time)


def task_grain(groups: int, size: int, threads: int, claim_bytes: int = CLAIM_BYTES) -> int:
    """Return the number of groups to claim at a time that minimises the time of the thread with the most groups.

    Half a claim is added for threads that do not end together.

    Args:
        size: bytes of all groups.
        claim_bytes: bytes that are read in the time of a claim.
    """
    if threads == 1:
        return groups
    each = size / groups

    def bytes_of(grain: int) -> float:
        claims = -(-groups // grain)
        return -(-claims // threads) * (grain * each + claim_bytes) + 0.5 * grain * each

    return min(range(1, -(-groups // threads) + 1), key=bytes_of)


def chain_sets(chains: int, unroll: int) -> int:
    """Return into how many independent sets ``chains`` accumulator chains are unrolled to hide latency: a divisor of
    ``unroll``."""
    sets = 1
    while sets < unroll and sets * chains < FMA_CHAINS:
        sets *= 2
    return sets


def finished_rows(
    m: int,
    epilogue: Epilogue,
    rows: Rows,
    columns: int,
    product: list[str],
    streams: int = 1,
    count: str = "",
) -> list[str]:
    """Return statements that compute all groups of ``columns`` columns of m rows; ``product`` fills ``sums``.

    Args:
        count: expression of the number of rows, of which the product computes m from ``row0``; "": there are m rows.
        streams: number of panels that hold the columns of a group, each ``groups`` panel widths after the one before.
    """
    width, own = columns // streams, "(i - row0)" if count else "i"
    row = [
        "out_row = i * out_ld + n0",
        f"sums_row = {own} * {columns}" + (f" + stream * {width}" if streams > 1 else ""),
    ]
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ("full", "per_m"):
            row.append(f"e{k}_row = i * e{k}_ld" + (" + n0" if operand.access == "full" else ""))
    some = f"row0, imin(row0 + {m}, {count})" if count else str(m)
    finish = [f"for i in range({some}):", *indent([*row, *rows.text()])]
    if streams == 1:
        body = [f"n0 = group * {width}", f"columns = imin(n - n0, {width})", *product, *finish]
    else:
        place = [f"n0 = (group + stream * groups) * {width}", f"columns = imin(n - n0, {width})"]
        body = [*product, f"for stream in range({streams}):", *indent([*place, "if columns > 0:", *indent(finish)])]
    if count:
        body = [f"for row0 in range(0, {count}, {m}):", *indent(body)]
    return [
        f"sums = local_{rows.dtype}({m * columns})",
        *rows.invariant(),
        "for group in range(begin, end):",
        *indent(body),
    ]


def _product(problem: GemmProblem, tile: RegisterTile, streams: int, starts: Sequence[str]) -> list[str]:
    """Return statements that accumulate ``sums`` [row, column] of the group's panels; panels after the last one repeat
    it.

    Args:
        starts: expressions of the first element of each left-hand row.
    """
    m, lanes, vectors, columns = len(starts), tile.lanes, tile.vectors, tile.columns
    sets = chain_sets(m * streams * vectors, UNROLL)
    sums, stored = problem.types.accumulator, problem.types.b != problem.types.accumulator
    cells = [(q, v, r) for q in range(streams) for v in range(vectors) for r in range(m)]
    lines = [f"w{q} = offset(w, imin(panel + {q}, panels - 1) * depth * {columns})" for q in range(streams)]
    lines += [f"s{s}_{q}_{v}_{r} = const_{sums}(0, {lanes})" for s in range(sets) for q, v, r in cells]
    step = "" if known_equal(problem.a_strides[-1], 1) else " * x_step"

    def term(place: str, s: int) -> list[str]:
        body = [f"a{r} = load_splat(x, {starts[r]} + ({place}){step}, {lanes})" for r in range(m)]
        for q in range(streams):
            for v in range(vectors):
                weights = f"load(w{q}, ({place}) * {columns} + {v * lanes}, {lanes})"
                body.append(f"b = cast_{sums}({weights})" if stored else f"b = {weights}")
                body += [f"s{s}_{q}_{v}_{r} = fma(a{r}, b, s{s}_{q}_{v}_{r})" for r in range(m)]
        return body

    lines += [f"whole = depth - imod(depth, {UNROLL})", f"for k in range(0, whole, {UNROLL}):"]
    for u in range(UNROLL):
        lines += indent(term(f"k + {u}", u % sets))
    lines += ["for k in range(whole, depth):", *indent(term("k", 0))]
    for q, v, r in cells:
        total = f"s0_{q}_{v}_{r}"
        for s in range(1, sets):
            total = f"add({total}, s{s}_{q}_{v}_{r})"
        lines.append(f"store(sums, {(r * streams + q) * columns + v * lanes}, {total})")
    return lines


_MOST_UNPACKED_ROWS = 64
"""Most rows of the left-hand side: from some tens on packing the weights in each run is quicker (see `estimate`)."""
REUSE = 0.5
"""Fraction of peak arithmetic: a multiply-add of 4 rows by 4 rows of weights takes half a load, of two a cycle."""


_PREFERENCE = 0.9
"""Ratio to the estimate of the solver for any number of rows, which applies to the same problems: this is chosen."""


class GemvRows(GemvPacked):
    """Solver for products of some rows with weights that are not packed, whose k are contiguous."""

    name = "gemv_rows"
    packed_as = ""
    _streams: ClassVar = {1: 1.0}

    def refused_types(self, problem: GemmProblem) -> str | None:
        refused = Solver.refused_types(self, problem)
        if refused is None and problem.types.single not in ("float32", "float64"):
            return f"no loop is written for {problem.types}"
        return refused

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.b_constant:
            return "the right-hand side is a constant: packing it is free"
        if not known_equal(problem.batch_count, 1) or not 0 < problem.m <= _MOST_UNPACKED_ROWS:
            return f"more than {_MOST_UNPACKED_ROWS} rows or one product"
        return None if problem.k > 0 and self._contiguous(problem) else "sums are empty, or weights not contiguous"

    def _contiguous(self, problem: GemmProblem) -> bool:
        return known_equal(problem.b_strides[-2], 1) and known_equal(problem.a_strides[-1], 1)

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        return ()

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        return weights

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        """Return the time of reading all operands once, or of the arithmetic."""
        arithmetic = 2 * problem.m * problem.n * problem.k / (REUSE * peak_flops(tile_for(problem.types)) * threads)
        return max(product_seconds(problem, threads), arithmetic)

    def _weights_read(self, problem: GemmProblem) -> int:
        return problem.n * problem.k

    def _declare(self, arguments: Arguments, problem: GemmProblem) -> None:
        arguments.integers(w_ld=problem.b_strides[-1])

    def _product(self, problem: GemmProblem, tile: RegisterTile, streams: int, starts: Sequence[str]) -> list[str]:
        """Return statements that compute ``sums`` [row, column] of a panel; columns past the last repeat it."""
        m, lanes, columns, dtype = len(starts), tile.lanes, tile.columns, problem.types.accumulator
        beside = 4
        cells = [(j, r) for j in range(beside) for r in range(m)]

        def terms(left: str, right: str) -> list[str]:
            lines = [f"a{r} = {left.format(start=starts[r])}" for r in range(m)]
            for j in range(beside):
                lines.append(f"b = {right.format(j=j)}")
                lines += [f"s{j}_{r} = fma(a{r}, b, s{j}_{r})" for r in range(m)]
            return lines

        body = [f"w{j} = offset(w, imin(panel * {columns} + column + {j}, n - 1) * w_ld)" for j in range(beside)]
        body += [f"s{j}_{r} = const_{dtype}(0, {lanes})" for j, r in cells]
        body += ["for k in range(0, depth - left, " + f"{lanes}):"]
        body += indent(terms(f"load(x, {{start}} + k, {lanes})", f"load(w{{j}}, k, {lanes})"))
        place = "depth - left"
        ends = f"load_tail(x, {{start}} + {place}, left, 0, {lanes})", f"load_tail(w{{j}}, {place}, left, 0, {lanes})"
        body += ["if left > 0:", *indent(terms(*ends))]
        body += [f"store_scalar(sums, {r * columns} + column + {j}, reduce_add(s{j}_{r}))" for j, r in cells]
        return [f"left = depth & {lanes - 1}", f"for column in range(0, {columns}, {beside}):", *indent(body)]


class GemvColumns(GemvRows):
    """Solver for products of one row with weights that are not packed, whose n are contiguous.

    The tile of a matrix product reads a few vectors of each row of weights, far from each other: 176x2048 weights take
    4 times as long on Zen 5.
    """

    name = "gemv_columns"
    _most_rows: ClassVar[int] = 1
    _streams: ClassVar = {8: 0.95, 4: 1.0, 2: 1.2, 1: 1.5}

    def declines(self, problem: GemmProblem) -> str | None:
        return super().declines(problem) if known_equal(problem.m, 1) else "several rows"

    def _contiguous(self, problem: GemmProblem) -> bool:
        return known_equal(problem.b_strides[-1], 1)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        """Return less than the estimate of the solver for any number of rows."""
        return _PREFERENCE * product_seconds(problem, threads)

    def _declare(self, arguments: Arguments, problem: GemmProblem) -> None:
        arguments.integers(w_ld=problem.b_strides[-2])

    def _product(self, problem: GemmProblem, tile: RegisterTile, streams: int, starts: Sequence[str]) -> list[str]:
        """Return statements that compute ``sums`` of adjacent panels; columns past the last are not read."""
        lanes, vectors, dtype = tile.lanes, streams * tile.vectors, problem.types.accumulator
        sets = chain_sets(vectors, UNROLL)

        def product(count: str) -> list[str]:
            def term(place: str, own: int) -> list[str]:
                lines = [
                    f"a = load_splat(x, ({place}) * x_step, {lanes})",
                    f"w_k = ({place}) * w_ld + n1",
                ]
                for v in range(vectors):
                    part = f"w, w_k + {v * lanes}"
                    right = f"load_tail({part}, left{v}, 0, {lanes})" if count else f"load({part}, {lanes})"
                    lines.append(f"s{own}_{v} = fma(a, {right}, s{own}_{v})")
                return lines

            lines = [f"left{v} = imax(0, imin({count} - {v * lanes}, {lanes}))" for v in range(vectors) if count]
            lines += [f"s{own}_{v} = const_{dtype}(0, {lanes})" for own in range(sets) for v in range(vectors)]
            lines += [f"for k in range(0, whole, {UNROLL}):"]
            for u in range(UNROLL):
                lines += indent(term(f"k + {u}", u % sets))
            lines += ["for k in range(whole, depth):", *indent(term("k", 0))]
            for v in range(vectors):
                total = f"s0_{v}"
                for own in range(1, sets):
                    total = f"add({total}, s{own}_{v})"
                lines.append(f"store(sums, {v * lanes}, {total})")
            return lines

        width = streams * tile.columns
        lines = [f"n1 = group * {width}", f"whole = depth - imod(depth, {UNROLL})"]
        if known_equal(problem.n % width, 0):
            return [*lines, *product("")]
        part = ["else:", *indent(product("(n - n1)"))]
        return [*lines, f"if n1 + {width} <= n:", *indent(product("")), *part]
