"""GEMV for a few rows with unpacked weights, in both layouts.

- Weights [k, n]: a task accumulates a panel of columns, row of weights by row of weights.
- Weights [n, k]: each result is a dot product along contiguous k. A step reads several rows of weights, so that each
  vector of the left-hand side is loaded once for all of them.

The weights of a task stay in the cache for the next rows of the left-hand side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ....core.dim import Dim, known_equal
from ...arguments import Arguments
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ...statements import indent
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .gemm import product_seconds
from .gemv import UNROLL, GemvPacked, chain_sets
from .solver import Solver, peak_flops

MOST_ROWS = 64
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

    def refused_symbols(self, problem: GemmProblem) -> str | None:
        if isinstance(problem.n, Dim) or isinstance(problem.k, Dim):
            return "the weights' lengths are symbolic"
        return super().refused_symbols(problem)

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.b_constant:
            return "the right-hand side is a constant: packing it is free"
        if not known_equal(problem.batch_count, 1) or not 0 < problem.m <= MOST_ROWS:
            return f"more than {MOST_ROWS} rows or one product"
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
        if problem.n % width == 0:
            return [*lines, *product("")]
        part = ["else:", *indent(product("(n - n1)"))]
        return [*lines, f"if n1 + {width} <= n:", *indent(product("")), *part]
