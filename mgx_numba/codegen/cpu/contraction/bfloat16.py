"""Products and convolutions with weights in bfloat16, over the tiles of `bfloat16_table`: words of two k.

The left-hand side is bfloat16, which is read where it lies if that is in words, or float32, whose rows a launch of its
own rounds.
"""

from __future__ import annotations

from ...problems.convolution import ConvProblem
from ...problems.element_types import ElementTypes
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.tile_table import declared_tile, tile_for
from .conv_int8 import ConvInt8, lies_in_words
from .gemm_int8 import GemmInt8, words_in_place

__all__ = ["ConvBfloat16", "GemmBfloat16"]

FORMED_BYTES = {"float32": 6, "bfloat16": 4}
"""Bytes that bringing an element on the left into words reads and writes."""
ROW_CYCLES = 10.0
"""Of the launch that does so, for each group of a pixel besides its elements: 6 to 16 on Zen 5, of 3 to 68 channels."""
FINISH_CYCLES = 4.5
"""By which a vector of a convolution's sums has to be quicker than in float32: in these sums were stored and read again
before tiles finished them in registers (Zen 5, ShuffleNet). With 1, which is what times of MobileNet-v2's layers say
now, that and EfficientNet-B0 take 0.90 and 0.95 of the time, but convolutions of 16 and 24 channels then read rounded
values, and errors of MobileNet-v2 become 9.6e-3 (root mean square) instead of 8.3e-3."""


def _refused(types: ElementTypes) -> str | None:
    if types.a not in FORMED_BYTES or (types.b, types.accumulator, types.out) != ("bfloat16", "float32", "float32"):
        what = f"the element types {'are' if types.uniform else 'differ:'} {types}"
        return f"{what}, not float32 or bfloat16 times bfloat16 with sums in float32"
    tile = declared_tile(types)
    return None if tile and (tile.packing.a or types.a) == "bfloat16" else f"no tile is declared for {types}"


class GemmBfloat16(GemmInt8):
    """float32, rounded to bfloat16, or bfloat16, times a constant bfloat16."""

    name = "gemm_bfloat16"

    def refused_types(self, problem: GemmProblem) -> str | None:
        return _refused(problem.types)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        product = super().estimate(problem, threads)
        if words_in_place(problem, tile_for(problem.types)) is not None:
            return product
        formed = problem.batch_count * problem.m * problem.k * FORMED_BYTES[problem.types.a]
        return product + formed / machine().bytes_per_second


class ConvBfloat16(ConvInt8):
    """Pixels of float32, rounded to bfloat16, or of bfloat16, times a constant bfloat16."""

    name = "conv_bfloat16"

    def refused_types(self, problem: ConvProblem) -> str | None:
        return _refused(problem.types)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        rows, results = problem.in_pixels * problem.groups, problem.out_pixels * problem.out_channels
        cycles, more = results / (machine().vector_bits // 32) * FINISH_CYCLES, 0.0
        if not lies_in_words(problem.volume(), tile_for(problem.types)):
            formed = problem.batch * problem.in_pixels * problem.in_channels * FORMED_BYTES[problem.types.a]
            more = formed / machine().bytes_per_second
            cycles += rows * ROW_CYCLES
        more += problem.batch * cycles / machine().clock / max(threads, 1)
        return super().estimate(problem, threads) + more
