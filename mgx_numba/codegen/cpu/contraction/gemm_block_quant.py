"""Products of many rows with block-quantised weights: panels are dequantised to float32 on the way to the register
tile."""

from __future__ import annotations

import dataclasses

from ...launch import Operand, Solution
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .batches import collapse
from .block_quant import BlockSolver, packed_lens
from .dequant_on_the_fly import DequantOnTheFly
from .gemm import GemmPacked, product_launches
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
