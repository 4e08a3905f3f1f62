"""Convolutions over matrix tiles (AMX), from a pixel grid (`pixel_grid`) that a launch fills unless the input already
is one."""

from __future__ import annotations

import math

import numpy as np

from ....core.dim import known_equal
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ...statements import indent
from ..microkernels.tile_table import TILE_TABLE_ROWS
from .bf16_split_rows import groups_end_lines, one_by_one
from .blocking import Blocking, cut, groups_inside, matrix_blockings
from .conv import ConvPointwise, tap_matrices
from .conv_output_rows import image_strides, row_offsets, stride_arguments
from .gemm_amx import MOST_BLOCKINGS, form_seconds, in_parts, parked_seconds, part_rows, refused_tiles, tile_of
from .macro_kernel import MacroKernel
from .padded_input import PaddedInput, pad_launch, padded_input_refusal
from .panels import aligned_zeros, pack_panels, panel_count
from .solver import Setting, Solver, seconds


class ConvAmx(Solver[ConvProblem]):
    """Solver for convolutions over one or two spatial dimensions that are not transposed."""

    name = "conv_tiles"
    open_batch = open_lens = True
    looks_at_values = True
    line_gaps = True
    most_blockings = MOST_BLOCKINGS
    revision = 1

    def refused_types(self, problem: ConvProblem) -> str | None:
        return refused_tiles(problem.types, problem.fast_math)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if ConvPointwise().declines(problem) is None:
            return "it is a product of matrices"
        if problem.groups > 1 and problem.group_in % tile_of(problem.types).packing.k_interleave:
            return "the channels of a group are no whole words"
        return padded_input_refusal(problem)

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return not problem.line_gap and groups_end_lines(problem)

    def rewrites(self, problem: ConvProblem) -> bool:
        return in_parts(problem.types)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the length of the panels of all groups."""
        return (math.prod(_panel_lens(PaddedInput(problem, tile_of(problem.types)))),)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights into int32 words.

        Raises:
            UnsuitedWeights: the weights cannot be split into bfloat16 parts.
        """
        tile = tile_of(problem.types)
        grid = PaddedInput(problem, tile)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        panels = out.reshape(_panel_lens(grid))
        matrices = tap_matrices(problem, weights)
        if grid.merged:
            matrices = [
                _merged(matrices[first : first + problem.kernel[-1]], grid.pixel_elements)
                for first in range(0, len(matrices), problem.kernel[-1])
            ]
        depth = tile.packing.parts * tile.depth(grid.terms)
        for tap, rows in enumerate(part_rows(tile, np.stack(matrices))):
            pack_panels(rows, panels[:, :, tap * depth : (tap + 1) * depth])
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        grid = PaddedInput(problem, tile_of(problem.types))
        fill = () if grid.in_place else (pad_launch(grid),)
        return Solution((*fill, _product(grid, setting, self.name)), grid.scratch)

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        grid = PaddedInput(problem, tile_of(problem.types))
        depth, images = grid.tile.depth(grid.terms), problem.groups * problem.batch
        shared = problem.groups == 1
        return matrix_blockings(
            grid.tile, grid.rows, problem.group_out, depth, grid.taps, images, threads, shared=shared
        )

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_of(problem.types)
        grid = PaddedInput(problem, tile)
        groups, panels, _, columns = lens = _panel_lens(grid)
        rows = problem.batch * -(-grid.rows // tile.step) * tile.step
        k = grid.taps * tile.depth(grid.terms) * tile.packing.k_interleave
        moved = problem.batch * grid.volume.in_pixels * problem.in_channels * ITEMSIZE[problem.types.a]
        moved += problem.batch * problem.out_pixels * problem.out_channels * ITEMSIZE[problem.types.out]
        formed = 0.0
        if not grid.in_place:
            formed = form_seconds(problem.types, problem.batch * grid.image * tile.packing.k_interleave, threads)
        formed += parked_seconds(tile, problem.batch * grid.rows * problem.out_channels, threads)
        return formed + seconds(tile, 2 * rows * groups * panels * columns * k, moved + 4 * math.prod(lens), threads)


def _panel_lens(grid: PaddedInput) -> tuple[int, int, int, int]:
    """Return the lengths of the packed weights in words: groups, panels, rows of a panel, columns of a panel."""
    tile, problem = grid.tile, grid.problem
    depth = tile.packing.parts * grid.taps * tile.depth(grid.terms)
    return problem.groups, panel_count(tile, problem.group_out), depth, tile.columns


def _merged(matrices: list[np.ndarray], pixel: int) -> np.ndarray:
    """Return the weights of all taps as ``[group, taps * pixel, group_out]``, zero where a pixel is padded beyond its
    channels."""
    groups, channels, columns = matrices[0].shape
    whole = np.zeros((groups, len(matrices), pixel, columns), matrices[0].dtype)
    for tap, matrix in enumerate(matrices):
        whole[:, tap, :channels] = matrix
    return whole.reshape(groups, -1, columns)


def _product(grid: PaddedInput, setting: Setting, name: str) -> Launch:
    """Return the launch that multiplies the grid's rows by the weights."""
    problem, tile, p = grid.problem, grid.tile, grid.volume
    epilogue, strides, threads, given = setting
    groups, panels, rows_of_panel, columns = _panel_lens(grid)
    depth, images = tile.depth(grid.terms), groups * problem.batch
    shared = groups == 1
    blocking = cut(tile, grid.rows, problem.group_out, depth, grid.taps, images, threads, given, shared=shared)
    inside = shared and groups_inside(blocking, tile, grid.rows, panels, depth, grid.taps, images)
    accumulator = problem.types.accumulator
    macro = MacroKernel(name, accumulator, tile, epilogue, several_taps=True, some_exist=True)
    arguments = macro.arguments
    arguments.pointer("x", Operand("x" if grid.in_place else "scratch"), tile.left_word)
    arguments.pointer("w", Operand("w"), tile.right_word)
    arguments.pointer("zero", Operand("w"), tile.left_word)
    macro.rows.pointers(arguments)
    macro.sizes(blocking, grid.rows, problem.group_out, panels, depth, grid.taps, images, False, inside)
    arguments.integers(
        x_step=1, w_step=tile.packing.parts * columns, w_panel=rows_of_panel * columns, x_ld=p.stride[2] * grid.pixel,
        x_image=grid.image, x_group=problem.group_in // tile.packing.k_interleave if groups > 1 else 0,
        width=grid.width, out_w=p.out_lens[2], line=grid.line, lines=grid.lines, phases=grid.phases,
        across=1 if grid.merged else p.kernel[2], down_step=p.dilation[1], tap_step=p.dilation[2] * grid.pixel,
        images=problem.batch,
    )  # fmt: skip
    macro.read_matrix(grid.low)
    stride_arguments(arguments, image_strides(problem, epilogue, strides))
    if not known_equal(problem.line_gap, 0):
        arguments.integers(out_gap=problem.line_gap)
    macro.setup += ["filled = -1"]
    macro.decode = [
        "part = idiv(group, images)",
        "image = group - part * images",
        "x0 = image * x_image + part * x_group",
        "w0 = part * panels * w_panel",
        "column0 = part * n",
    ]
    macro.table = ["if t0 != filled:", "    filled = t0", *indent(_tap_places()), macro.at_row()]
    macro.before_rows = ["o_h = idiv(row, width)", "o_w = row - o_h * width"]
    macro.row = [
        "exists = o_w < out_w",
        "pixel = o_h * out_w + o_w",
        *row_offsets(epilogue, "" if known_equal(problem.line_gap, 0) else "o_h"),
        "o_w += 1",
        "if o_w == width:",
        "    o_w = 0",
        "    o_h += 1",
    ]
    if grid.noted:
        _read_notes(macro, grid)
    moved = grid.image * problem.batch * ITEMSIZE[tile.left_word] * tile.packing.parts
    moved += groups * panels * rows_of_panel * columns * ITEMSIZE[tile.right_word]
    moved += epilogue.stored_bytes(accumulator) * problem.batch * problem.out_pixels * problem.out_channels
    tasks = blocking.tasks(grid.rows, panels, images)
    return Launch(macro.source(), arguments.values, TaskRange(tasks, 1), problem.flops, moved, epilogue.moving)


def _tap_places() -> list[str]:
    """Return statements that compute the offset of each tap of this step for output (0, 0)."""
    return [
        "for t in range(taps_now):",
        "    down = idiv(t0 + t, across)",
        "    tap_line = down * down_step",
        "    tap_phase = imod(tap_line, phases)",
        "    place = (tap_phase * lines + idiv(tap_line, phases)) * line + (t0 + t - down * across) * tap_step",
        f"    table[t * {TILE_TABLE_ROWS}] = place",
    ]


def _read_notes(macro: MacroKernel, grid: PaddedInput) -> None:
    """Make the macro-kernel check the flags of the lines that its rows read."""
    macro.arguments.pointer("flags", Operand("scratch", grid.flags), "int32")
    macro.arguments.integers(terms=grid.terms, reach=grid.reach)
    flag = [
        "down = idiv(t0 + t, across) * down_step",
        "place = imod(down, phases) * lines + idiv(row + i, width) + idiv(down, phases)",
        "halved = load_scalar(flags, image * phases * lines + place)",
    ]
    macro.instead = [
        "special = 0",
        "for r in range(phases):",
        "    for y in range(idiv(row, width), imin(idiv(row + left - 1, width) + reach + 1, lines)):",
        "        special += load_scalar(flags, (image * phases + r) * lines + y)",
        "if special > 0:",
        *indent(one_by_one(macro.tile, "imin(2 * depth_now, terms - 2 * k0)", "taps_now", "(t0 * depth + k0)", flag)),
    ]
