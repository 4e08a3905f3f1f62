"""Products and convolutions with weights in bfloat16, over the tiles of `bfloat16_table`: words of two k.

The left-hand side is float32; a launch of its own rounds its rows to bfloat16.
"""

from __future__ import annotations

from ...problems.convolution import ConvProblem
from ...problems.element_types import ElementTypes
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.tile_table import declared_tile
from .conv_int8 import ConvInt8
from .gemm_int8 import GemmInt8

__all__ = ["ConvBfloat16", "GemmBfloat16"]

ROUNDED_BYTES = 6
"""Bytes that rounding an element on the left reads and writes."""
ROW_CYCLES = 10.0
"""Of the launch that rounds, for each group of a pixel besides its elements: 6 to 16 on Zen 5, of 3 to 68 channels."""
FINISH_CYCLES = 4.5
"""In which a vector of sums of a convolution is stored and read again for what follows (Zen 5, ShuffleNet)."""


def _refused(types: ElementTypes) -> str | None:
    if (types.a, types.b, types.accumulator, types.out) != ("float32", "bfloat16", "float32", "float32"):
        return f"the element types {'are' if types.uniform else 'differ:'} {types}, not float32 times bfloat16"
    tile = declared_tile(types)
    return None if tile and tile.packing.a == "bfloat16" else f"no tile is declared for {types}"


class GemmBfloat16(GemmInt8):
    """float32, rounded to bfloat16, times a constant bfloat16."""

    name = "gemm_bfloat16"

    def refused_types(self, problem: GemmProblem) -> str | None:
        return _refused(problem.types)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        rounded = problem.batch_count * problem.m * problem.k * ROUNDED_BYTES
        return super().estimate(problem, threads) + rounded / machine().bytes_per_second


class ConvBfloat16(ConvInt8):
    """Pixels of float32, rounded to bfloat16, times a constant bfloat16."""

    name = "conv_bfloat16"

    def refused_types(self, problem: ConvProblem) -> str | None:
        return _refused(problem.types)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        rounded = problem.batch * problem.in_pixels * problem.in_channels * ROUNDED_BYTES
        rows, results = problem.in_pixels * problem.groups, problem.out_pixels * problem.out_channels
        lanes = machine().vector_bits // 32
        cycles = problem.batch * (rows * ROW_CYCLES + results / lanes * FINISH_CYCLES)
        more = rounded / machine().bytes_per_second + cycles / machine().clock / max(threads, 1)
        return super().estimate(problem, threads) + more
