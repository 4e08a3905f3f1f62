"""Convolutions of few input channels, such as the first of a network: line by line, as in a depthwise convolution.

An implicit matrix product spends much time on row addresses for short reductions. Here the accumulators of a run of
pixels by one or two vectors of output channels stay in registers for all taps, which are at constant offsets.
"""

from __future__ import annotations

import numpy as np

from ....core.dim import ceil_div, known_equal
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...statements import for_tasks, indent, kernel_text
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .blocking import Blocking, cut_lines
from .conv_output_rows import image_strides, row_offsets, stride_arguments
from .depthwise import (
    LINE,
    MOST_ROWS,
    WINDOWS,
    best_run,
    line_locals,
    line_unit,
    missing,
    taps_inside,
    volume_arguments,
)
from .epilogue_rows import Rows, kernel_name
from .nearby_blockings import line_blockings
from .panels import aligned_zeros, pack_panels
from .roofline import seconds
from .solver import Setting, Solver

__all__ = ["ConvSmallCin"]

MOST_CHANNELS = 4
"""Most input channels: with more, a tap is a product deep enough for panels. No figures kept."""
MOST_TERMS = 36
"""Most products of one output, all of which are unrolled."""
VECTORS = 2
"""Vectors of output channels that share input loads."""


class ConvSmallCin(Solver[ConvProblem]):
    """Solver for small kernels over up to four contiguous channels, with a stride of 1 or 2 along the line."""

    name = "conv_few_channels"
    open_batch = open_lens = True

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.transposed:
            return "the convolution is transposed"
        if problem.groups > 1 or problem.in_channels > MOST_CHANNELS:
            return f"the convolution is grouped or has more than {MOST_CHANNELS} channels"
        problem = problem.volume()
        taps, stride = problem.kernel[2], problem.stride[2]
        terms = problem.kernel[1] * taps * problem.in_channels
        if taps not in WINDOWS or problem.kernel[1] > MOST_ROWS or terms > MOST_TERMS:
            return "the kernel is one pixel wide, or too large"
        if stride > 2 or problem.dilation[2] > 1:
            return "the stride or the dilation along a line is too large"
        if not known_equal(problem.x_strides[3], problem.in_channels):
            return "the pixels of a line do not follow each other"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed lengths: panels, taps, input channels, columns of a panel."""
        columns = VECTORS * tile_for(problem.types).lanes
        return (-(-problem.out_channels // columns), problem.taps, problem.in_channels, columns)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        taps = weights.reshape(problem.out_channels, problem.in_channels, problem.taps).transpose(2, 1, 0)
        pack_panels(taps.reshape(-1, problem.out_channels), out.reshape(out.shape[0], -1, out.shape[-1]))
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        table = image_strides(problem, epilogue, strides)
        return Solution((_launch(problem.volume(), epilogue, table, threads, blocking),))

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return line_blockings(problem, threads)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.types)
        rows = problem.batch * problem.out_pixels
        columns = -(-problem.out_channels // tile.lanes) * tile.lanes
        inputs = problem.batch * problem.in_pixels * problem.in_channels
        moved = problem.itemsize * (inputs + rows * problem.out_channels)
        # Operations of a multiply-add, instead of 2: input loads take time, too.
        return seconds(tile, 2.2 * rows * columns * problem.taps * problem.in_channels, moved, threads)


def _launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    given: Blocking | None,
) -> Launch:
    """Return the launch for ``problem``, which has three spatial dimensions."""
    tile = tile_for(problem.types)
    out_lens, channels = problem.out_lens, problem.out_channels
    width = out_lens[2]
    run = best_run(width)
    lines = problem.batch * out_lens[0] * out_lens[1]
    unit = line_unit(width)
    line_block = cut_lines(tile, lines, unit, channels, threads, given).rows // unit
    line_blocks = ceil_div(lines, line_block)
    arguments = Arguments()
    arguments.pointer("x", "x", problem.dtype)
    arguments.pointer("w", "w", problem.dtype)
    rows = Rows(epilogue, problem.dtype, tile.lanes)
    rows.pointers(arguments)
    arguments.integers(channels=channels, lines=lines, line_block=line_block, taps=problem.taps)
    volume_arguments(arguments, problem)
    stride_arguments(arguments, strides)
    tap_size = problem.in_channels * VECTORS * tile.lanes
    own = line_locals(tile.dtype, tap_size, run * VECTORS * tile.lanes)
    task = _task(problem, epilogue, tile, rows, run, tap_size)
    text = kernel_text([*arguments.bind(), *own, *rows.invariant(), *for_tasks(task)])
    source = cpu_kernel(kernel_name("conv_few_channels", epilogue), text)
    moved = problem.itemsize * problem.batch * problem.in_pixels * problem.in_channels
    moved += problem.itemsize * problem.taps * problem.in_channels * channels
    moved += ITEMSIZE[epilogue.out_dtype(problem.dtype)] * problem.batch * problem.out_pixels * channels
    return Launch(source, arguments.values, TaskRange(line_blocks, 1), problem.flops, moved)


def _task(
    problem: ConvProblem, epilogue: Epilogue, tile: RegisterTile, rows: Rows, run: int, tap_size: int
) -> list[str]:
    columns = VECTORS * tile.lanes
    over = problem.out_channels % columns
    panel = [
        f"for c in range(0, channels - {columns - 1}, {columns}):",
        *indent(_runs(problem, tile, rows, run, VECTORS, 0)),
    ]
    if over:
        vectors, rest = -(-over // tile.lanes), over % tile.lanes
        panel += [f"c = channels - {over}", *_runs(problem, tile, rows, run, vectors, rest)]
    return [
        "n0 = 0",
        "line0 = task * line_block",
        "line1 = imin(lines, line0 + line_block)",
        "plane = idiv(line0, out_h)",
        "o_h = line0 - plane * out_h",
        "image = idiv(plane, out_d)",
        "o_d = plane - image * out_d",
        "for line in range(line0, line1):",
        *indent([
            *taps_inside("d"),
            *taps_inside("h"),
            *LINE.fill(planes="end_d - k_d", row0="k_h", row1="end_h"),
            "x_line = image * x_image + (i_d + k_d * dilation_d) * x_d + i_h * x_h - pad_w * x_w",
            f"w_line = k_d * kernel_h * kernel_w * {tap_size}",
            "pixel = (o_d * out_h + o_h) * out_w",
            *row_offsets(epilogue),
            *panel,
            "o_h += 1",
            "if o_h == out_h:",
            "    o_h = 0",
            "    o_d += 1",
            "    if o_d == out_d:",
            "        o_d = 0",
            "        image += 1",
        ]),
    ]  # fmt: skip


def _runs(problem: ConvProblem, tile: RegisterTile, rows: Rows, run: int, vectors: int, rest: int) -> list[str]:
    """Return statements that compute one line of the panel of output channels at ``c``.

    Args:
        vectors: vectors of the panel.
        rest: valid lanes of the last vector (0: all).
    """
    left, right = missing(problem)
    shape = (run, problem.kernel[1], problem.kernel[2], problem.stride[2], left, right, problem.in_channels, VECTORS)
    lines = []
    for v in range(vectors):
        part = bool(rest) and v == vectors - 1
        before, finish = rows.vector_text(part, v * run * tile.lanes)
        lines += [
            *([f"c += {tile.lanes}"] if v else []),
            *([f"rest = {rest}"] if part else []),
            *before,
            *(f"{place}_place = {place}_row + o_w * {place}_pixel{column}" for place, column in rows.moving()),
            f"for i in range({run}):",
            *indent([*finish, *(f"{place}_place += {place}_pixel" for place, _ in rows.moving())]),
        ]
    return [
        f"w_here = offset(w, w_line + c * taps * {problem.in_channels})",
        "panel0 = c",
        f"for o in range(0, out_w, {run}):",
        *indent([
            "c = panel0",
            f"o_w = imin(o, out_w - {run})",
            "x_here = offset(x, x_line + o_w * stride_w * x_w)",
            f"few_channels_{tile.dtype}(block, sums, x_here, w_here, o_w, {', '.join(map(str, shape))}, {tile.lanes})",
            *lines,
        ]),
    ]  # fmt: skip
