"""Products and convolutions with bfloat16 weights, over the tiles of `bfloat16_table`: a word holds two successive k.

The left-hand side is bfloat16 or float32. bfloat16 that already lies in words is read in place; float32 rows are
rounded by a separate launch.
"""

from __future__ import annotations

from ...problems.convolution import ConvProblem
from ...problems.element_types import ElementTypes
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.tile_table import declared_tile, tile_for
from .conv_int8 import ConvInt8, lies_in_words
from .gemm_int8 import GemmInt8, words_in_place

FORMED_BYTES = {"float32": 6, "bfloat16": 4}
"""Memory traffic (bytes read and written) of converting one left-hand element to words, by its dtype."""


def refused_elements(types: ElementTypes) -> str | None:
    """Return why no solver of this kind multiplies elements of these types; None if one does."""
    if types.a not in FORMED_BYTES or (types.b, types.accumulator, types.out) != ("bfloat16", "float32", "float32"):
        what = f"the element types {'are' if types.uniform else 'differ:'} {types}"
        return f"{what}, not float32 or bfloat16 times bfloat16 with sums in float32"
    tile = declared_tile(types)
    return None if tile and (tile.packing.a or types.a) == "bfloat16" else f"no tile is declared for {types}"


class GemmBfloat16(GemmInt8):
    """Matrix product of float32 (rounded to bfloat16) or bfloat16 by a constant bfloat16 matrix."""

    name = "gemm_bfloat16"

    def refused_types(self, problem: GemmProblem) -> str | None:
        return refused_elements(problem.types)

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        product = super().estimate(problem, threads)
        if words_in_place(problem, tile_for(problem.types)) is not None:
            return product
        formed = problem.batch_count * problem.m * problem.k * FORMED_BYTES[problem.types.a]
        return product + formed / machine().bandwidth(threads)


ROW_CYCLES = 10.0
"""Fixed cycles of the converting launch for each group of a pixel, beside its elements: 6 to 16 on Zen 5 for 3 to 68
channels."""
FINISH_CYCLES = 4.5
"""Cycles that a convolution must save for each vector of accumulators before bfloat16 is preferred to float32.

Measured on Zen 5 (ShuffleNet) when bfloat16 accumulators were still stored and reloaded before the epilogue. With 1,
which current times of MobileNet-v2's layers suggest, MobileNet-v2 and EfficientNet-B0 take 0.90 and 0.95 of the time.
But convolutions of 16 and 24 channels then read rounded values, and MobileNet-v2's root mean square error becomes
9.6e-3 instead of 8.3e-3.
"""


class ConvBfloat16(ConvInt8):
    """Convolution of float32 (rounded to bfloat16) or bfloat16 pixels by constant bfloat16 weights."""

    name = "conv_bfloat16"

    def refused_types(self, problem: ConvProblem) -> str | None:
        return refused_elements(problem.types)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        rows, results = problem.in_pixels * problem.groups, problem.out_pixels * problem.out_channels
        cycles, more = results / (machine().vector_bits // 32) * FINISH_CYCLES, 0.0
        if not lies_in_words(problem.volume(), tile_for(problem.types)):
            formed = problem.batch * problem.in_pixels * problem.in_channels * FORMED_BYTES[problem.types.a]
            more = formed / machine().bandwidth(threads)
            cycles += rows * ROW_CYCLES
        more += problem.batch * cycles / machine().clock / max(threads, 1)
        return super().estimate(problem, threads) + more
