"""Products of many rows with block-quantised weights.

Panels are dequantised to float32 on the way to the register tile, or multiplied as they are by rows of bytes.
"""

from __future__ import annotations

import dataclasses

from ....core.dim import Dim
from ...launch import Operand, Solution
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .block_quant import BlockSolver, packed_lens
from .convert_on_the_fly import DequantOnTheFly
from .gemm import GemmPacked, product_launches
from .gemv_block_quant import MOST_ROWS, OPEN_ROWS, GemvBlockQuant, planned_product
from .pack_kernel import collapse
from .quantised_rows import multiplies_integers, multiplies_quads
from .solver import Setting

VECTOR_CYCLES = 1.5
"""Cycles to dequantise one vector of codes into the buffer: six instructions, four at a time."""


class GemmBlockQuant(BlockSolver):
    """Solver for any number of rows. It packs weights as `GemvBlockQuant` does, so weights that both use are stored
    once."""

    name = "gemm_nbits"

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        return "the sum is empty" if problem.k == 0 else None

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        assert problem.blocks is not None
        scratch = DequantOnTheFly(problem.blocks, problem.k, packed_lens(problem)[1], tile_for(problem.types))
        batched = collapse(problem, epilogue, strides, (0,) * len(problem.batch))
        launches = product_launches(
            problem, epilogue, batched, Operand("w"), (0, 0), threads, blocking,
            name=f"gemm_{problem.blocks.bits}bits", scratch=scratch,
        )  # fmt: skip
        return Solution(launches)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        dense = GemmPacked().estimate(dataclasses.replace(problem, blocks=None), threads)
        vectors = problem.k * problem.n / tile_for(problem.types).lanes
        return dense + VECTOR_CYCLES * vectors / machine().clock / max(threads, 1)


class GemmBlockQuantBytes(GemvBlockQuant):
    """Solver for rows whose blocks may be rounded to bytes, as `GemvBlockQuant` rounds up to `MOST_ROWS` rows.

    One instruction multiplies four codes of a column, where dequantised weights take four. Errors are at most half a
    step of 127 of a block's largest element.
    """

    name = "gemm_nbits_bytes"
    revision = 2

    def declines(self, problem: GemmProblem) -> str | None:
        rows = problem.batch_count * problem.m
        if isinstance(rows, Dim) and problem.batch:
            return "a symbolic number of rows is not that of one product"
        if problem.prologue:
            return NOT_COMPUTED
        form = problem.blocks
        if form is None or not (form.int8_rows and multiplies_integers(problem) and multiplies_quads()):
            return "rows are not multiplied as bytes"
        return "the sum is empty" if problem.k == 0 else None

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        return planned_product(problem, setting, OPEN_ROWS)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        seconds = super().estimate(problem, threads)
        few = problem.batch_count * problem.m <= MOST_ROWS
        return 2 * seconds if few else seconds  # rows up to the next multiple of `OPEN_ROWS` are computed and dropped
