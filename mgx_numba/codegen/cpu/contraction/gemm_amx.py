"""Matrix products over matrix tiles (AMX, `amx_table`).

Operands: float32 in two bfloat16 parts, float32 rounded to bfloat16 by constant bfloat16, and 8-bit integers. The
right-hand side is a constant, packed in whole steps. The left-hand side is converted to the tile's format by a separate
launch, unless it already has that format.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ....core.dim import Length, known_equal
from ...launch import Launch, Operand, Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ..machine import machine
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import matrix_tile
from .bf16_split_rows import SplitRows, split_rows, split_weights
from .blocking import Blocking, matrix_blockings
from .blocking_search import NEAR_PANELS
from .conv import ConvPointwise, pixel_product
from .conv_output_rows import LineGaps
from .gemm import LEFT, GemmPacked, distinct_matrices, product_launches
from .gemm_int8 import left_words, word_rows, words_in_place
from .pack_kernel import collapse
from .panels import aligned_zeros, pack_panels, panel_count, without_repeats
from .solver import NO_PARTS, Setting, seconds
from .split_on_the_fly import SplitOnTheFly, most_terms

FORM_SECONDS = 2.5e-10
"""Time (s) to convert one left-hand element to the tile's format: a dozen instructions for 16 elements, and the
traffic."""
COPY_SECONDS = 1.2e-10
"""Time (s) to copy one left-hand element that needs no conversion (bytes and bfloat16): 0.9e-10 to 1.4e-10 in
ResNet-50's layers on Emerald Rapids."""
NEAR_SECONDS = 1.2e-10
"""Time (s) to round one left-hand element in the multiplying kernel, for each block of panels."""
SPLIT_SECONDS = 3.4e-10
"""Time (s) to split one left-hand element in the multiplying kernel: MobileNet-v2's products on Emerald Rapids with two
threads, minus the fifth by which the estimates of vector code are too low for them."""
PARKED_SECONDS = 2.8e-10
"""Time (s) to store an accumulator and load it in the epilogue, from the same products: equal to 130 terms in parts.

Products of 16 to 144 terms are therefore faster in vector code, whose float32 accumulators stay in registers (32 terms,
16 columns: 93 us instead of 146). With operands in fewer bits, vector code parks its accumulators, too.
"""
MOST_BLOCKINGS = 10
"""Most blockings that tuning measures for solvers over matrix tiles. Their estimates of steps, and of data shared by
threads, are the least reliable (`refinement.matrix_blockings`)."""


def tile_of(types: ElementTypes) -> RegisterTile:
    """Return the matrix tile of ``types``, which `refused_tiles` has accepted."""
    tile = matrix_tile(types)
    assert tile is not None
    return tile


def in_parts(types: ElementTypes) -> bool:
    """Return whether matrix tiles multiply ``types`` in two parts of 16 bits, which is not exact."""
    return tile_of(types).packing.parts > 1


def refused_tiles(types: ElementTypes, fast_math: bool) -> str | None:
    """Return why matrix tiles cannot multiply ``types``; None if they can."""
    tile = matrix_tile(types)
    if tile is None or types.out != types.accumulator:
        return f"no tile of whole matrices is declared for {types}"
    if tile.packing.parts > 1 and not fast_math:
        return "fast_math is off, and products in parts have 16 bits of a number"
    return None


def part_rows(tile: RegisterTile, matrices: np.ndarray) -> np.ndarray:
    """Return weights ``[..., k, n]`` as rows of words; for each step the low parts follow the high parts.

    Raises:
        UnsuitedWeights: the weights cannot be split into bfloat16 parts.
    """
    if tile.packing.parts == 1:
        return word_rows(tile, matrices)
    both = [word_rows(tile, part) for part in split_weights(matrices)]
    *outer, depth, n = both[0].shape
    steps = [part.reshape(*outer, depth // tile.step, 1, tile.step, n) for part in both]
    return np.concatenate(steps, axis=-3).reshape(*outer, 2 * depth, n)


def _near(problem: GemmProblem, tile: RegisterTile) -> bool:
    """Return whether the multiplying kernel itself rounds the left-hand side to bfloat16.

    It then repeats the rounding for each block of panels, but reads the left-hand side in place.
    """
    if tile.packing.a != "bfloat16" or not known_equal(problem.a_strides[-1], 1):
        return False
    if problem.low_parts:
        return False
    few = panel_count(tile, problem.n) <= 2 * NEAR_PANELS and problem.k <= most_terms(tile)
    return problem.prologue is not None or few


def form_seconds(types: ElementTypes, elements: int, threads: int) -> float:
    """Return the time (s) to convert ``elements`` left-hand elements to the format of the tile of ``types``."""
    one = COPY_SECONDS if tile_of(types).packing.a == "" else FORM_SECONDS
    return machine().launch_seconds + one * elements / max(threads, 1)


def parked_seconds(tile: RegisterTile, sums: int, threads: int) -> float:
    """Return the time (s) that ``sums`` accumulators take beside their products, beyond the time in vector code."""
    return PARKED_SECONDS * sums / max(threads, 1) if tile.packing.parts > 1 else 0.0


class GemmAmx(GemmPacked):
    """Solver for products with a constant right-hand side over matrix tiles."""

    name = "gemm_tiles"
    looks_at_values = True
    reads_bf16_split = True
    most_blockings = MOST_BLOCKINGS
    revision = 1

    def refused_types(self, problem: GemmProblem) -> str | None:
        return refused_tiles(problem.types, problem.fast_math)

    def declines(self, problem: GemmProblem) -> str | None:
        if problem.low_parts and tile_of(problem.types).packing.parts == 1:
            return NO_PARTS
        if problem.prologue and (
            tile_of(problem.types).packing.a != "bfloat16" or not known_equal(problem.a_strides[-1], 1)
        ):
            return NOT_COMPUTED
        return "the sum is empty" if problem.k == 0 else super().declines(problem)

    def writes_bf16_split(self, problem: GemmProblem) -> bool:
        return True

    def rewrites(self, problem: GemmProblem) -> bool:
        return in_parts(problem.types)

    def packed_lens(self, problem: GemmProblem) -> tuple[int, ...]:
        tile = tile_of(problem.types)
        matrices = distinct_matrices(problem)
        return (matrices, panel_count(tile, problem.n), tile.packing.parts * tile.depth(problem.k), tile.columns)

    def pack_weights(self, problem: GemmProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights as `GemmPacked.pack_weights` does, in int32 words.

        Raises:
            UnsuitedWeights: the weights cannot be split into bfloat16 parts.
        """
        tile, lens = tile_of(problem.types), self.packed_lens(problem)
        out = aligned_zeros(lens, tile.right_word)
        distinct = without_repeats(weights, problem.b_strides)
        target = out.reshape(*distinct.shape[:-2], *lens[1:])
        for index in np.ndindex(*distinct.shape[:-2]):
            pack_panels(part_rows(tile, distinct[index]), target[index])
        return out

    def solve(self, problem: GemmProblem, setting: Setting) -> Solution:
        return self.product(problem, setting)

    def product(self, problem: GemmProblem, setting: Setting, gaps: LineGaps | None = None) -> Solution:
        """Return the launches of a product.

        Args:
            gaps: gaps between rows of the result that its strides do not describe.
        """
        epilogue, strides, threads, blocking = setting
        tile = tile_of(problem.types)
        pack: tuple[Launch, ...] = ()
        scratch: Length = 0
        x, words = LEFT, words_in_place(problem, tile)
        split: SplitRows | SplitOnTheFly | None = None
        if _near(problem, tile):
            split, words = SplitOnTheFly(problem.k, tile, problem.prologue), problem.a_strides
        elif tile.packing.parts > 1:
            split = split_rows(problem, tile)
            pack, words, scratch = split.pack, split.strides, split.scratch
        elif words is None:
            pack, words, scratch = left_words(problem, tile)
        if pack:
            x = Operand("scratch")
        assert words is not None
        product = dataclasses.replace(problem, a_strides=words)
        batched = collapse(product, epilogue, strides, self.panel_strides(problem))
        rows = self.packed_lens(problem)[-2]
        steps = (tile.packing.parts * tile.columns, tile.columns * rows)
        launches = product_launches(
            product, epilogue, batched, Operand("w"), steps, threads, blocking, x=x, name=self.name, tile=tile,
            split=split, gaps=gaps,
        )  # fmt: skip
        return Solution((*pack, *launches), scratch)

    def blockings(self, problem: GemmProblem, threads: int) -> list[Blocking]:
        tile = tile_of(problem.types)
        m, groups = problem.m, problem.batch_count
        if distinct_matrices(problem) == 1:  # all rows multiply the same matrix
            m, groups = m * groups, 1
        depth = tile.depth(problem.k)
        return matrix_blockings(tile, m, problem.n, depth, 1, groups, threads, forming=_near(problem, tile))

    def estimate(self, problem: GemmProblem, threads: int = 1) -> float:
        tile = tile_of(problem.types)
        matrices, panels, depth, columns = self.packed_lens(problem)
        shared = matrices == 1
        m = problem.m * (problem.batch_count if shared else 1)
        rows = -(-m // tile.step) * tile.step * (1 if shared else problem.batch_count)
        k = depth // tile.packing.parts * tile.packing.k_interleave
        moved = (
            problem.batch_count
            * problem.m
            * (ITEMSIZE[problem.types.a] * problem.k + ITEMSIZE[problem.types.accumulator] * problem.n)
            + 4 * matrices * panels * depth * columns
        )
        formed = 0.0
        if _near(problem, tile):
            one = SPLIT_SECONDS if tile.packing.parts > 1 else NEAR_SECONDS
            formed = one * problem.batch_count * problem.m * problem.k * -(-panels // NEAR_PANELS) / threads
        elif not problem.low_parts and words_in_place(problem, tile) is None:
            formed = form_seconds(problem.types, problem.batch_count * problem.m * problem.k, threads)
        formed += parked_seconds(tile, problem.batch_count * problem.m * problem.n, threads)
        return formed + seconds(tile, 2 * rows * panels * columns * k, moved, threads)


class ConvPointwiseAmx(ConvPointwise):
    """Solver for 1x1 convolutions over evenly spaced pixels, by matrix tiles."""

    name = "conv_1x1_tiles"
    looks_at_values = True
    line_gaps = True
    reads_bf16_split = True
    most_blockings = MOST_BLOCKINGS
    revision = 1
    _gemm = GemmAmx()

    def declines(self, problem: ConvProblem) -> str | None:
        return super().declines(problem) or self._gemm.declines(pixel_product(problem))

    def rewrites(self, problem: ConvProblem) -> bool:
        return in_parts(problem.types)

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return not problem.line_gap

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        return self._gemm.product(pixel_product(problem), setting, LineGaps.of(problem))

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return self._gemm.blockings(pixel_product(problem), threads)
