"""Transposed convolutions over matrix tiles (AMX) where each output pixel receives one tap.

All input pixels are multiplied by the weights of each tap; the rows of each product are written to a lattice
(`transposed`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....core.dim import known_equal, known_same
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ..microkernels.register_tile import RegisterTile
from .bf16_split_rows import SplitRows, split_rows
from .blocking import Blocking, cut
from .conv import pixel_product, tap_matrices, uneven_pixels
from .conv_output_rows import image_strides, lattice_arguments, lattice_rows, phase_of_group, stride_arguments
from .conv_transposed import taps_apart, weights_stay_cached
from .gemm import read_parts
from .gemm_amx import MOST_BLOCKINGS, form_seconds, in_parts, parked_seconds, part_rows, refused_tiles, tile_of
from .gemm_int8 import left_words, words_in_place
from .macro_kernel import MacroKernel
from .nearby_blockings import matrix_blockings
from .panels import aligned_zeros, pack_panels, panel_count
from .solver import NO_PARTS, Setting, Solver, seconds


class ConvTransposedAmx(Solver[ConvProblem]):
    """Solver for transposed convolutions whose kernel equals its stride: float32 in parts, bfloat16 or integers."""

    name = "conv_transposed_tiles"
    open_batch = open_lens = True
    looks_at_values = True
    line_gaps = True
    reads_bf16_split = True
    most_blockings = MOST_BLOCKINGS
    revision = 1

    def refused_types(self, problem: ConvProblem) -> str | None:
        return refused_tiles(problem.types, problem.fast_math)

    def declines(self, problem: ConvProblem) -> str | None:
        if not problem.transposed:
            return "the convolution is not transposed"
        if problem.prologue:
            return NOT_COMPUTED
        if not taps_apart(problem):
            return "output pixels receive several taps or none"
        if problem.low_parts and tile_of(problem.types).packing.parts == 1:
            return NO_PARTS
        *image, pixel, _ = pixel_product(problem).a_strides
        if (
            problem.low_parts
            and not known_equal(problem.batch, 1)
            and not known_same(image, [problem.in_pixels * pixel])
        ):
            return "images in parts do not follow one another"
        return uneven_pixels(problem)

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return not problem.line_gap

    def rewrites(self, problem: ConvProblem) -> bool:
        return in_parts(problem.types)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed lengths: taps, panels, rows of a panel (including its low parts), columns."""
        tile = tile_of(problem.types)
        depth = tile.packing.parts * tile.depth(problem.in_channels)
        return (problem.taps, panel_count(tile, problem.out_channels), depth, tile.columns)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights into int32 words.

        Raises:
            UnsuitedWeights: the weights cannot be split into bfloat16 parts.
        """
        tile = tile_of(problem.types)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        for panels, (matrix,) in zip(out, tap_matrices(problem, weights), strict=True):
            pack_panels(part_rows(tile, matrix), panels)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        tile, pixels = tile_of(problem.types), pixel_product(problem)
        if tile.packing.parts > 1:
            split = split_rows(pixels, tile)
            x = "scratch" if split.pack else "x"
            product = self._product(problem, setting, tile, split.strides[-2], split, x)
            return Solution((*split.pack, product), split.scratch)
        words = words_in_place(pixels, tile)
        if words is not None:
            return Solution((self._product(problem, setting, tile, words[-2], x="x"),))
        pack, words, scratch = left_words(pixels, tile)
        return Solution((*pack, self._product(problem, setting, tile, words[-2])), scratch)

    def _product(
        self,
        problem: ConvProblem,
        setting: Setting,
        tile: RegisterTile,
        row: int,
        split: SplitRows | None = None,
        x: str = "scratch",
    ) -> Launch:
        """Return the launch that multiplies all pixels by the weights of each tap, a group for each tap.

        Args:
            row: words of ``x`` from pixel to pixel.
        """
        epilogue, strides, threads, given = setting
        volume, accumulator = problem.volume(), problem.types.accumulator
        taps, panels, rows_of_panel, columns = lens = self.packed_lens(problem)
        depth, rows = tile.depth(problem.in_channels), problem.batch * problem.in_pixels
        blocking = cut(tile, rows, problem.out_channels, depth, 1, taps, threads, given)
        near = weights_stay_cached(problem)
        if near:  # all taps of one block of rows, then the next block
            blocking = replace(blocking, parts=blocking.parts * blocking.row_blocks(rows))
        macro = MacroKernel(self.name, accumulator, tile, epilogue)
        arguments = macro.arguments
        arguments.pointer("x", Operand(x), tile.left_word)
        arguments.pointer("w", Operand("w"), tile.right_word)
        arguments.pointer("zero", Operand("w"), tile.left_word)
        macro.rows.pointers(arguments)
        macro.sizes(blocking, rows, problem.out_channels, panels, depth, 1, taps, beside=near)
        axes = ("h", "w") if known_equal(volume.out_lens[0], 1) else ("d", "h", "w")
        arguments.integers(
            x_step=1, w_step=tile.packing.parts * columns, w_panel=rows_of_panel * columns, x_ld=row,
            pixels=problem.in_pixels, **{f"out_{axis}": volume.in_lens["dhw".index(axis)] for axis in axes},
        )  # fmt: skip
        macro.read_even_rows()
        macro.read_matrix(split.low if split else 0)
        stride_arguments(arguments, image_strides(problem, epilogue, strides))
        if not known_equal(problem.line_gap, 0):
            arguments.integers(out_gap=problem.line_gap)
        lattice_arguments(arguments, axes, [(0, *point) for point in zip(volume.stride, volume.out_lens)])
        macro.decode = ["x0 = 0", "w0 = group * panels * w_panel", "column0 = 0", *phase_of_group(axes)]
        macro.before_rows, macro.row = lattice_rows(epilogue, axes, apart=not known_equal(problem.line_gap, 0))
        if split:
            read_parts(macro, problem.in_channels)
        moved = 4 * (tile.packing.parts * rows * row + math.prod(lens))
        moved += epilogue.stored_bytes(accumulator) * taps * rows * problem.out_channels
        tasks = TaskRange(blocking.tasks(rows, panels, taps), 1)
        return Launch(macro.source(), arguments.values, tasks, problem.flops, moved, epilogue.moving)

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        tile = tile_of(problem.types)
        rows, depth = problem.batch * problem.in_pixels, tile.depth(problem.in_channels)
        return matrix_blockings(tile, rows, problem.out_channels, depth, 1, problem.taps, threads)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_of(problem.types)
        taps, panels, _, columns = lens = self.packed_lens(problem)
        rows = -(-problem.batch * problem.in_pixels // tile.step) * tile.step
        k = tile.depth(problem.in_channels) * tile.packing.k_interleave
        moved = problem.batch * problem.in_pixels * problem.in_channels * ITEMSIZE[problem.types.a]
        moved += problem.batch * problem.out_pixels * problem.out_channels * ITEMSIZE[problem.types.out]
        formed = 0.0
        if not problem.low_parts and words_in_place(pixel_product(problem), tile) is None:
            elements = problem.batch * problem.in_pixels * problem.in_channels
            formed = form_seconds(problem.types, elements, threads)
        formed += parked_seconds(tile, problem.batch * problem.out_pixels * problem.out_channels, threads)
        return formed + seconds(tile, 2 * rows * taps * panels * columns * k, moved + 4 * math.prod(lens), threads)
