"""3x3 convolutions of stride 1 by Winograd's minimal filtering, for `fast_math`.

A task transforms the input of a block of output tiles (m x m pixels each), multiplies the block with the transformed
weights at each of the n * n points (n = m + 2) over the register tile, transforms the products back, and finishes them
with the epilogue. The transformed block stays in the L2 cache. The transforms of the activations are in
:mod:`mgx_numba.codegen.cpu.winograd`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .blocking import Blocking
from .pack import aligned_zeros
from .problem import ConvProblem, Epilogue
from .roofline import BYTES_PER_SECOND, CLOCK
from .rows import image_strides
from .solver import NO_EPILOGUE, Plan, Strides
from .winograd_blocks import best_block, given_block
from .winograd_kernel import WinogradWriter, panel_lens

__all__ = ["ConvWinograd"]

# Transform of a filter line g[3]: rows of G.
_FILTER = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}


@dataclass(frozen=True)
class ConvWinograd:
    """F(m x m, 3 x 3) for m = 2 or 4."""

    m: int

    @property
    def name(self) -> str:
        return f"conv_winograd_{self.m}x{self.m}"

    @property
    def points(self) -> int:
        """Multiplications of one tile and channel."""
        return (self.m + 2) ** 2

    def refusal(self, problem: ConvProblem) -> str | None:
        if not problem.fast_math:
            return "fast_math is off, and Winograd's transforms change rounding"
        if problem.transposed or problem.groups > 1:
            return "the convolution is transposed or grouped"
        if len(problem.kernel) < 2 or problem.kernel[-2:] != (3, 3):
            return "the kernel is not 3x3"
        if max(problem.stride) > 1 or max(problem.dilation) > 1:
            return "a stride or dilation is larger than 1"
        if any(n != 1 for n in (*problem.kernel[:-2], *problem.in_lens[:-2], *problem.out_lens[:-2])):
            return "the convolution is over three dimensions"
        if any((*problem.pads_begin[:-2], *problem.pads_end[:-2])):
            return "the convolution is over three dimensions"
        if problem.in_channels % 4:
            return "the input channels are not a multiple of 4"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Transformed panels of each point, then a row of zeros."""
        return (math.prod(panel_lens(self.m, problem)) + problem.in_channels,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        lens = panel_lens(self.m, problem)
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        panels = out[: math.prod(lens)].reshape(lens)
        line = np.asarray(_FILTER[self.m])
        both = np.einsum("ia,jb->abij", line, line).reshape(9, self.points)
        filters = weights.reshape(*weights.shape[:2], 3, 3) if weights.ndim != 4 else weights
        columns = lens[-1]
        for panel in range(lens[1]):
            part = filters[panel * columns : (panel + 1) * columns].astype(np.float64)
            transformed = part.reshape(*part.shape[:2], 9) @ both
            panels[:, panel, :, : part.shape[0]] = transformed.transpose(2, 1, 0)
        return out

    def plan(
        self,
        problem: ConvProblem,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Plan:
        if blocking is None:
            block, _ = best_block(self.m, problem, threads)
        else:
            block = given_block(self.m, problem, threads, blocking)
        return WinogradWriter(self.m, problem, epilogue, image_strides(problem, epilogue, strides), block).plan()

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        _, cycles = best_block(self.m, problem, threads)
        pixels = problem.in_pixels * problem.in_channels + problem.out_pixels * problem.out_channels
        moved = problem.itemsize * (problem.batch * pixels + math.prod(panel_lens(self.m, problem)))
        return max(cycles / CLOCK, moved / BYTES_PER_SECOND)
