"""Convolutions with bfloat16 weights, over the tiles of `bfloat16_table`."""

from __future__ import annotations

from ...problems.convolution import ConvProblem
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .bfloat16 import FORMED_BYTES, refused_elements
from .conv_int8 import ConvInt8, lies_in_words

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
