"""Large matrix products by Strassen's method, for `fast_math`: 7 block products instead of 8, at one level or two.

Sums of blocks cost time and round, so the method pays for large products only. Each result element has an error in
proportion to all of its blocks of rows and columns, not to its own row and column. For values of one distribution
around zero the mean error is 2.3 times that of a plain product with one level, 3.2 times with two; 2.9 and 4.6 times if
one operand is never negative. Infinities and NaN do not spread: a task that meets one, or whose sums overflow, is
recomputed as plain products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from .....dataclass import dataclass
from ....launch import Operand, Solution
from ....problems.epilogue import NOT_COMPUTED
from ....problems.gemm import GemmProblem
from ...machine import machine
from ...microkernels.tile_table import tile_for
from ..blocking import Blocking
from ..gemm import GemmPacked
from ..pack_kernel import Batched, collapse
from ..solver import Setting, Solver
from .kernel import strassen_launch
from .strassen_blocking import Cut, best_cut, given_cut, has_cut

EFFICIENCY = 0.92
"""Measured ratio of the costs of `strassen_blocking` to clock cycles; a higher value would select this method where a
plain product is faster."""


@dataclass(frozen=True)
class GemmStrassen(Solver[GemmProblem]):
    """Solver by Strassen's method over ``levels`` levels (1 or 2). The right-hand side is a constant, packed as for
    `GemmPacked`.

    Lengths need not be even: blocks of rows and of columns may overlap. The reduction length must be divisible into
    blocks.
    """

    levels: int
    method: ClassVar[str] = "strassen"
    unrecorded: ClassVar[float] = math.inf
    _plain = GemmPacked()

    @property
    def name(self) -> str:
        return f"gemm_strassen_{self.levels}"

    def declines(self, problem: GemmProblem) -> str | None:
        tile = tile_for(problem.types)
        if problem.prologue:
            return NOT_COMPUTED
        if not problem.fast_math:
            return "fast_math is off, and sums of blocks change rounding"
        if not problem.b_constant:
            return "the right-hand side is not a constant"
        if problem.dtype != "float32" or max(tile.variants()) > tile.lanes:
            return "there is no tile for it"
        if problem.a_strides[-1] != 1:
            return "the rows of the left-hand side are not contiguous"
        if problem.k == 0 or problem.k % ((1 << self.levels) * tile.lanes):
            return "the sum does not divide into blocks"
        rows, _ = self._together(problem)
        return None if has_cut(self.levels, tile, rows, problem.n, problem.k) else "it is too small"

    def rewrites(self, problem: GemmProblem) -> bool:
        return True

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        return self._plain.packed_lens(problem)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        return self._plain.pack_weights(problem, weights)

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        batched = collapse(problem, epilogue, strides, self._plain.panel_strides(problem))
        tile = tile_for(problem.types)
        size = (self.levels, tile, batched.m, problem.n, problem.k, threads)
        cut = best_cut(*size)[0] if blocking is None else None
        if cut is None:
            cut = given_cut(*size, blocking or Blocking(batched.m, 1, 1, problem.k))
        launches, scratch = [], 0
        for offsets in _products(batched):
            launch, room = strassen_launch(self.levels, problem, epilogue, batched, offsets, Operand("w"), cut, threads)
            launches.append(launch)
            scratch = max(scratch, room)
        return Solution(tuple(launches), scratch)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        _, seconds = self._cut(problem, threads)
        rows = problem.m * problem.batch_count
        moved = problem.itemsize * (rows * (problem.k + problem.n) + problem.k * problem.n)
        return max(seconds, moved / machine().bandwidth(threads))

    def blockings(self, problem: GemmProblem, threads: int) -> list[Blocking]:
        """Return blockings near the solver's own choice."""
        cut, _ = self._cut(problem, threads)
        if cut is None:
            return []
        near = []
        for rows, panels, turned in (
            (2, 1, False), (1, 2, False), (0.5, 1, False), (1, 0.5, False),
            (0.5, 1, True), (0.5, 2, True), (1, 1, True),
        ):  # fmt: skip
            sizes = max(1, int(cut.rows * rows)), max(1, int(cut.panels * panels))
            near.append(Blocking(*sizes, 1, cut.depth, 1 + (cut.by_rows != turned)))
        return near

    def _cut(self, problem: GemmProblem, threads: int) -> tuple[Cut | None, float]:
        """Return the best blocking of one product, and the seconds of all products."""
        rows, products = self._together(problem)
        cut, cycles = best_cut(self.levels, tile_for(problem.types), rows, problem.n, problem.k, threads)
        return cut, cycles / (EFFICIENCY * machine().clock) * products

    @staticmethod
    def _together(problem: GemmProblem) -> tuple[int, int]:
        """Return the rows of a product and the number of products; a batch with one right-hand side counts as one
        product."""
        if any(problem.b_strides[:-2]):
            return problem.m, problem.batch_count
        return problem.m * problem.batch_count, 1


def _products(batched: Batched) -> Iterator[dict[str, int]]:
    """Yield the element offsets of each product of a batch, by operand."""
    for index in np.ndindex(*batched.lens):
        yield {name: sum(i * s for i, s in zip(index, own)) for name, own in batched.strides.items()}
