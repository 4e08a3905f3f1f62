"""Depthwise convolution: every channel is a group of its own and has one output channel.

A task is a block of channels by a block of output lines. Within it so few channels are done at a time that the lines
of the input which their taps read stay in the L1 cache. A line is computed in runs of pixels, whose sums for one vector
of channels stay in registers while the taps pass.
"""

from __future__ import annotations

import math

import numpy as np

from ..cpu.tile_table import RegisterTile, tile_for
from ..kernel import KernelSource
from ..launch import Launch
from .blocking import Blocking, cut_lines, line_order
from .pack import aligned_zeros
from .problem import ITEMSIZE, NOT_COMPUTED, ConvProblem, Epilogue
from .roofline import seconds
from .rows import image_strides, row_offsets, stride_arguments
from .solver import NO_EPILOGUE, Plan, Strides
from .text import Arguments, Rows, indent, kernel_name
from .tile_source import PIXELS_SLOT, RUNS, depthwise_source

__all__ = ["ConvDepthwise"]

TAP_LINES = 512
"""Most lines of taps: those that fit the table on the stack."""
COMING = 2
"""Most lines of the input that are fetched ahead."""
SUMS_BYTES = 32768
"""Stack memory for the sums of one piece of a line."""
PIECE_BYTES = 8192
"""Sums of one piece of a line that stay in the L1 cache until they are finished."""
LINES_BYTES = 24576
"""Input of one line's taps that stays in the L1 cache for the next line."""
WINDOWS = range(2, 8)
"""Numbers of taps along a line for which there are kernels that load an input vector once for all of them."""


class ConvDepthwise:
    """Depthwise convolution, any size, stride, dilation and padding."""

    name = "conv_depthwise"

    def refusal(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.transposed:
            return "the convolution is transposed"
        if problem.group_in != 1 or problem.group_out != 1:
            return "a group has more than one channel"
        if math.prod(problem.kernel[:-1]) > TAP_LINES:
            return f"the kernel has more than {TAP_LINES} lines of taps"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Panels of one vector of channels, taps, channels of a panel."""
        lanes = tile_for(problem.dtype).lanes
        return (-(-problem.out_channels // lanes), problem.taps, lanes)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        lanes = out.shape[-1]
        taps = weights.reshape(problem.out_channels, problem.taps).T
        for panel in range(out.shape[0]):
            part = taps[:, panel * lanes : (panel + 1) * lanes]
            out[panel, :, : part.shape[1]] = part
        return out

    def plan(
        self,
        problem: ConvProblem,
        epilogue: Epilogue = NO_EPILOGUE,
        strides: Strides = (),
        threads: int = 1,
        blocking: Blocking | None = None,
    ) -> Plan:
        table = image_strides(problem, epilogue, strides)
        return Plan((_launch(problem.volume(), epilogue, table, threads, blocking),))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.dtype)
        rows = problem.batch * problem.out_pixels
        moved = problem.itemsize * (problem.batch * problem.in_pixels + rows) * problem.out_channels
        columns = -(-problem.out_channels // tile.lanes) * tile.lanes
        return seconds(tile, 2.7 * rows * columns * problem.taps, moved, threads)


def _launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    given: Blocking | None,
) -> Launch:
    """``problem`` has three spatial dimensions."""
    tile = tile_for(problem.dtype)
    channels, out_lens, kernel = problem.out_channels, problem.out_lens, problem.kernel
    run = _run(out_lens[2])
    lines = problem.batch * out_lens[0] * out_lens[1]
    line_block, channel_block = _blocks(problem, tile, lines, threads, given)
    line_blocks, parts = -(-lines // line_block), -(-channels // channel_block)
    first = line_order(lines * out_lens[2], channels)
    line_every, part_every = (1, line_blocks) if first == "lines" else (parts, 1)
    slice_ = _slice(problem, tile, run, channel_block)
    piece = run * max(1, min(-(-out_lens[2] // run), PIECE_BYTES // (problem.itemsize * run * slice_)))
    sliding = kernel[2] in WINDOWS and problem.stride[2] <= 2 and problem.dilation[2] == 1
    window, stride = (kernel[2], problem.stride[2]) if sliding else (1, 1)
    arguments = Arguments()
    arguments.pointer("x", "x", problem.dtype)
    arguments.pointer("w", "w", problem.dtype)
    rows = Rows(epilogue, problem.dtype, tile.lanes)
    rows.pointers(arguments)
    inner = arguments.callee(depthwise_source(tile, window, stride))
    arguments.integers(
        channels=channels, lines=lines, line_block=line_block, channel_block=channel_block,
        line_blocks=line_blocks, line_every=line_every, part_blocks=parts, part_every=part_every, slice=slice_,
        piece=piece, run=run, taps=problem.taps,
        groups=kernel[2] // window, group_step=problem.dilation[2], column_step=1 if sliding else problem.stride[2],
        x_image=problem.x_strides[0], x_d=problem.x_strides[1], x_h=problem.x_strides[2], x_w=problem.x_strides[3],
    )  # fmt: skip
    for axis, name in enumerate("dhw"):
        arguments.integers(**{
            f"in_{name}": problem.in_lens[axis], f"out_{name}": out_lens[axis], f"kernel_{name}": kernel[axis],
            f"stride_{name}": problem.stride[axis], f"dilation_{name}": problem.dilation[axis],
            f"pad_{name}": problem.pads_begin[axis],
        })  # fmt: skip
    stride_arguments(arguments, strides)
    text = "\n".join([
        "def kernel(args, begin, end):",
        *indent([*arguments.lines, *_locals(tile), *rows.invariant(), "for task in range(begin, end):"]),
        *indent(_task(rows, epilogue, inner, tile.lanes), 2),
    ])  # fmt: skip
    source = KernelSource(kernel_name("depthwise", epilogue), text + "\n")
    size = problem.itemsize
    moved = size * (problem.batch * problem.in_pixels + problem.taps) * channels
    moved += ITEMSIZE[epilogue.out_dtype(problem.dtype)] * problem.batch * problem.out_pixels * channels
    return Launch(source, tuple(arguments.values), line_blocks * parts, 1, problem.flops, moved)


def _run(pixels: int) -> int:
    """Pixels to take at a time, so that few sums of the last run of a line are for nothing."""
    return min(RUNS, key=lambda run: -(-pixels // run) * (run + 2))


def _blocks(
    problem: ConvProblem, tile: RegisterTile, lines: int, threads: int, given: Blocking | None
) -> tuple[int, int]:
    """Lines and channels of one task."""
    width = problem.out_lens[2]
    blocking = cut_lines(tile, lines, width, problem.out_channels, threads, given)
    return blocking.rows // width, blocking.panels * tile.columns


def _slice(problem: ConvProblem, tile: RegisterTile, run: int, channels: int) -> int:
    """Channels to do at a time."""
    line = problem.kernel[0] * problem.kernel[1] * problem.in_lens[2] * problem.itemsize
    most = SUMS_BYTES // (problem.itemsize * run)
    near = max(LINES_BYTES // line, 2 * tile.lanes)
    return min(near, most, -(-channels // tile.lanes) * tile.lanes) // tile.lanes * tile.lanes


def _locals(tile: RegisterTile) -> list[str]:
    return [
        "block = local_int64(16)",
        f"table = local_int64({2 * (TAP_LINES + COMING)})",
        f"sums = local_{tile.dtype}({SUMS_BYTES // ITEMSIZE[tile.dtype]})",
        "put_words(block, 1, table)",
        "put_pointer(block, 3, sums)",
        "block[5] = groups",
        "block[6] = group_step",
        "block[7] = column_step",
        "block[8] = x_w",
        "block[10] = in_w",
        f"block[12] = taps * {tile.lanes}",
        f"block[{PIXELS_SLOT}] = run",
    ]


def _task(rows: Rows, epilogue: Epilogue, inner: int, lanes: int) -> list[str]:
    return [
        "line0 = imod(idiv(task, line_every), line_blocks) * line_block",
        "line1 = imin(lines, line0 + line_block)",
        "first = imod(idiv(task, part_every), part_blocks) * channel_block",
        "last = imin(channels, first + channel_block)",
        "for n0 in range(first, last, slice):",
        *indent([
            "columns = imin(last - n0, slice)",
            f"sums_ld = idiv(columns + {lanes - 1}, {lanes}) * {lanes}",
            "block[11] = columns",
            "block[13] = sums_ld",
            "put_pointer(block, 2, offset(w, n0 * taps))",
            "for line in range(line0, line1):",
            *indent([
                "plane = idiv(line, out_h)",
                "o_h = line - plane * out_h",
                "image = idiv(plane, out_d)",
                "o_d = plane - image * out_d",
                *_tap_lines(),
                "put_pointer(block, 0, offset(x, image * x_image + n0))",
                "for o_w in range(0, out_w, piece):",
                *indent([
                    "count = imin(out_w - o_w, piece)",
                    "block[9] = o_w * stride_w - pad_w",
                    f"call_kernel(args, {inner}, block, 0, idiv(count + run - 1, run))",
                    "pixel = (o_d * out_h + o_h) * out_w + o_w",
                    "sums_row = 0",
                    "for i in range(count):",
                    *indent([*row_offsets(epilogue), *rows.text(), "sums_row += sums_ld", "pixel += 1"]),
                ]),
            ]),
        ]),
    ]  # fmt: skip


def _tap_lines() -> list[str]:
    """Statements: the table of the lines of taps that lie in the input, for one line of the output.

    After them come the lines that the next line of the output will need besides.
    """
    return [
        "found = 0",
        "for k_d in range(kernel_d):",
        "    i_d = o_d * stride_d - pad_d + k_d * dilation_d",
        "    if i_d >= 0 and i_d < in_d:",
        "        for k_h in range(kernel_h):",
        "            i_h = o_h * stride_h - pad_h + k_h * dilation_h",
        "            if i_h >= 0 and i_h < in_h:",
        "                table[2 * found] = i_d * x_d + i_h * x_h",
        "                table[2 * found + 1] = (k_d * kernel_h + k_h) * kernel_w",
        "                found += 1",
        "block[4] = found",
        "coming = 0",
        "if line + 1 < line1 and found > 0:",
        "    reach = o_h * stride_h - pad_h + (kernel_h - 1) * dilation_h",
        f"    for i_h in range(imax(reach + 1, 0), imin(reach + 1 + imin(stride_h, {COMING}), in_h)):",
        "        table[2 * (found + coming)] = table[2 * found - 2] + (i_h - reach) * x_h",
        "        coming += 1",
        "block[15] = coming",
    ]
