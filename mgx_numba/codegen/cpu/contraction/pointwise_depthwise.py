"""A 1x1 convolution and the depthwise convolution of its result in one launch: the first half of an inverted residual.

The intermediate image, several times as large as input and output, is computed line by line in memory that stays in the
core's cache; it never exists as a whole.

A task is a *chunk* of output lines by a part of the channels. It processes its lines in *bands*: the product's kernel
computes the pixels that the band's taps read and that are missing, then the depthwise kernel computes the band. Both
kernels are those of `conv` and `depthwise`, called with argument blocks of their own. In these the intermediate image's
address is the task's memory minus an offset, so that pixels are at the addresses the kernels expect.

Pixels that the next band reads again are moved to the front. Pixels that two chunks read are computed twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import FLOAT32, ITEMSIZE
from ...problems.epilogue import Epilogue
from ...statements import for_tasks, indent, kernel_text
from ..host import CACHE_LINE
from ..kernel import cpu_kernel
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .blocking import FOREIGN_CYCLES, Blocking, fit, line_order
from .conv import ConvPointwise, uneven_pixels
from .depthwise import DEPTHWISE_OPERATIONS, ConvDepthwise, lines_at_once
from .panels import panel_count
from .roofline import seconds
from .solver import Setting, Solver, Strides

__all__ = ["BEFORE", "PointwiseDepthwise"]

NEAR_PARTS = 2
"""The intermediate lines take at most one part in this many of the L2 cache. With 4 or 8, moving pixels between bands,
or re-reading the input for each part of the channels, costs more.

16 to 96 channels of 112x112 pixels at stride 2, one thread of Zen 5: 271 us; 278 to 317 with 4; 302 in two launches.
"""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of channel parts that are tried. With several parts a chunk can have all lines, so that no line is computed
twice, but each part re-reads the input."""
SHARES = (1, 2, 3, 4)
"""Numbers of tasks for each thread that are tried."""
MOVE_CYCLES = 4
"""Cycles to move a vector to the front, from 14 and 56 bands of the layer above on Zen 5."""
FEWEST_ROWS = 48
"""Least rows of the product's blocks, four tiles, so that narrow lines are not computed tile by tile.

A remainder of less than a tile is no block of its own, which would re-read all weights: 960 channels of 7x7 pixels take
0.94 of the time on Zen 5.
"""
BEFORE = "before_"
"""Prefix of the names of the product's operands, except its input ``x``."""


@dataclass(frozen=True)
class _Cut:
    """How the work is cut into tasks.

    Attributes:
        panels: weight panels of a part of the channels.
        columns: channels of a part.
        rows: rows of a block of the product.
        band: output lines of a band.
        bands: bands of a chunk.
        all_bands: bands of all output lines.
        slot: elements of a task's memory.
    """

    panels: int
    columns: int
    rows: int
    band: int
    bands: int
    all_bands: int
    slot: int

    @property
    def chunks(self) -> int:
        return -(-self.all_bands // self.bands)


@dataclass(frozen=True)
class PointwiseDepthwise(Solver[ConvProblem]):
    """Solver for a depthwise convolution (any kernel, stride, dilation, padding) of a 1x1 convolution's result with no
    other reader.

    ``pointwise``, ``epilogue`` and ``strides`` describe the 1x1 convolution. Weights are packed as by `ConvPointwise`
    and `ConvDepthwise`. Launches name the product's operands ``x`` (its input), ``before_w`` and ``before_e0``, ... .
    """

    pointwise: ConvProblem
    epilogue: Epilogue
    strides: Strides

    name = "conv_1x1_depthwise"

    def refused_types(self, problem: ConvProblem) -> str | None:
        if {problem.types, self.pointwise.types} != {FLOAT32} or self.epilogue.out_dtype("float32") != "float32":
            return "not all element types are float32"
        return None

    def declines(self, problem: ConvProblem) -> str | None:
        own = self.pointwise
        reason = ConvPointwise().declines(own) or ConvDepthwise().declines(problem)
        if reason:
            return reason
        if own.prologue or self.epilogue.gated or self.epilogue.in_parts or own.low_parts or own.line_gap:
            return "the product reads or writes another form than rows of float32"
        if len(problem.in_lens) != 2:
            return "there are not two spatial dimensions"
        if (own.batch, own.out_lens, own.out_channels) != (problem.batch, problem.in_lens, problem.in_channels):
            return "the depthwise convolution reads something else than all of the product"
        if {own.out_strides[-1], problem.x_strides[-1]} != {own.out_channels} or uneven_pixels(problem):
            return "between the pixels of the product's result lies something else"
        steps = [own.x_strides, own.out_strides, problem.x_strides, *(place for place in self.strides if place)]
        if problem.batch > 1 and any(step[0] != own.in_pixels * step[-1] for step in steps):
            return "the images of the product are no rows of one matrix"
        return None

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return ConvDepthwise().writes_bf16_split(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        return ConvDepthwise().packed_lens(problem)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        return ConvDepthwise().pack_weights(problem, weights)

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        how = self._cut(problem, setting.threads)
        own, pixels, pitch = self.pointwise, self.pointwise.in_pixels, how.columns
        rows = Blocking(how.rows, how.panels, 1, own.in_channels)
        given = replace(own, out_strides=(pixels * pitch, pitch))
        (product,) = ConvPointwise().plan(given, self.epilogue, self.strides, 1, rows).launches
        between = (pixels * pitch, problem.in_lens[1] * pitch, pitch)
        lines = Blocking(how.band * problem.out_lens[-1], how.panels, 1, 1)
        (depthwise,) = (
            ConvDepthwise()
            .plan(replace(problem, x_strides=between), setting.epilogue, setting.strides, 1, lines)
            .launches
        )
        return Solution((self._joined(problem, how, product, depthwise),), ITEMSIZE["float32"] * self._slots(how))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        """Return the estimates of the two solvers without the intermediate image's traffic.

        Redundant pixels and the idle threads at the last chunks are added.
        """
        own, how, tile = self.pointwise, self._cut(problem, threads), tile_for(FLOAT32)
        made = min((how.bands * how.band - 1) * problem.stride[0] + _reach(problem), _lines(own))
        rows = max(own.batch * own.in_pixels, how.chunks * made * problem.in_lens[1])
        flops = 2.0 * rows * panel_count(tile, own.out_channels) * tile.columns * own.in_channels
        vectors = problem.batch * problem.out_pixels * -(-problem.out_channels // tile.lanes)
        flops += DEPTHWISE_OPERATIONS * vectors * tile.lanes * problem.taps
        moved = own.batch * own.in_pixels * own.in_channels + problem.batch * problem.out_pixels * problem.out_channels
        tasks = how.chunks * self._parts(how)
        return seconds(tile, flops * -(-tasks // threads) * threads / tasks, ITEMSIZE["float32"] * moved, threads)

    def _parts(self, how: _Cut) -> int:
        """Return the number of parts of the channels."""
        return -(-panel_count(tile_for(FLOAT32), self.pointwise.out_channels) // how.panels)

    def _slots(self, how: _Cut) -> int:
        """Return the elements of the memory of all tasks."""
        return how.slot * how.chunks * self._parts(how)

    def _joined(self, problem: ConvProblem, how: _Cut, product: Launch, depthwise: Launch) -> Launch:
        pixels, channels = problem.batch * problem.in_pixels, problem.in_channels
        parts = self._parts(how)
        lines_first = line_order(problem.batch * problem.out_pixels, channels) == "lines"
        arguments = Arguments()
        arguments.pointer("scratch", "scratch", "float32")
        arguments.callee("product", product.kernel)
        arguments.callee("depthwise", depthwise.kernel)
        arguments.integers(
            slot=how.slot, chunks=how.chunks, parts=parts, part_columns=how.columns, band=how.band, bands=how.bands,
            all_bands=how.all_bands, lines=_lines(problem), rows=how.rows, row_blocks=-(-pixels // how.rows),
            row_block_size=how.rows * how.columns, in_h=problem.in_lens[0], in_w=problem.in_lens[1],
            out_h=problem.out_lens[0], stride_h=problem.stride[0], pad_h=problem.pads_begin[0], reach=_reach(problem),
            band_every=1 if lines_first else parts, part_every=how.all_bands if lines_first else 1,
        )  # fmt: skip
        own = {name: name if name == "x" else f"{BEFORE}{name}" for name in product.operands}
        blocks = (
            arguments.block("product_block", product, {**own, "out": "scratch"}),
            arguments.block("depthwise_block", depthwise, {"x": "scratch"}),
        )
        lines = [
            *arguments.bind(),
            *(line for block in blocks for line in arguments.own_block(block)),
            *for_tasks(_task(arguments, tile_for(FLOAT32).lanes)),
        ]
        name = f"{product.kernel.name.removesuffix('_kernel')}_{depthwise.kernel.name}"
        between = 2 * ITEMSIZE["float32"] * pixels * channels
        return Launch(
            cpu_kernel(name, kernel_text(lines)), arguments.values, TaskRange(how.chunks * parts),
            product.flops + depthwise.flops, product.bytes + depthwise.bytes - between,
        )  # fmt: skip

    def _cut(self, problem: ConvProblem, threads: int) -> _Cut:
        """Return the cut whose last thread ends first, among the cuts whose task memory fits the cache, if there are
        any."""
        own, tile = self.pointwise, tile_for(FLOAT32)
        all_panels, lines, width = panel_count(tile, own.out_channels), _lines(problem), problem.in_lens[1]
        most, pixels = -(-max(width, FEWEST_ROWS) // tile.rows) * tile.rows, own.batch * own.in_pixels
        if most < pixels < most + tile.rows:
            most += tile.rows
        costs: dict[_Cut, tuple[bool, float]] = {}
        for panels in {-(-all_panels // min(parts, all_panels)) for parts in PARTS}:
            wanted = Blocking(most, panels, 1, own.in_channels)
            rows = fit(wanted, tile, pixels, own.out_channels, own.in_channels, 1)
            parts = -(-all_panels // rows.panels)
            columns = min(rows.panels * tile.columns, own.out_channels)
            for share in SHARES if threads > 1 else (1,):
                chunk = -(-lines // min(lines, -(-share * threads // parts)))
                how = _bands(problem, rows.panels, columns, rows.rows, chunk)
                work = rows.panels * tile.vectors * tile.cycles
                read = min((chunk - 1) * problem.stride[0] + _reach(problem), _lines(own)) * width + rows.rows
                cost = read * own.in_channels * (work + FOREIGN_CYCLES * ITEMSIZE["float32"])
                cost += chunk * problem.out_lens[1] * problem.taps * work
                again = max(_reach(problem) - problem.stride[0], 0) * width + rows.rows / 2
                cost += (how.bands - 1) * again * columns / tile.lanes * MOVE_CYCLES
                far = ITEMSIZE["float32"] * how.slot > machine().l2_bytes // NEAR_PARTS
                costs[how] = far, cost * -(-how.chunks * parts // threads)
        return min(costs, key=lambda how: (*costs[how], how.slot))


def _lines(problem: ConvProblem) -> int:
    """Return the output lines of all images."""
    return problem.batch * problem.out_lens[0]


def _reach(problem: ConvProblem) -> int:
    """Return the input lines that an output line spans, from the first to the last tap."""
    return problem.dilation[0] * (problem.kernel[0] - 1) + 1


def _needed(problem: ConvProblem, line: int) -> tuple[int, int]:
    """Return the range of input lines, over all images, that output line ``line`` reads: the first, and the last plus
    one."""
    image, o_h = divmod(line, problem.out_lens[0])
    i_h, height = o_h * problem.stride[0] - problem.pads_begin[0], problem.in_lens[0]
    first, stop = (min(max(at, 0), height) for at in (i_h, i_h + _reach(problem)))
    return image * height + first, image * height + stop


def _bands(problem: ConvProblem, panels: int, columns: int, rows: int, chunk: int) -> _Cut:
    """Return the cut of chunks of ``chunk`` lines: bands as high as the cache allows, or one line less for whole pairs
    of lines."""
    lines, width = _lines(problem), problem.in_lens[1]
    near = machine().l2_bytes // NEAR_PARTS // ITEMSIZE["float32"] // columns - 2 * rows
    band = min(max(1, (near // width - _reach(problem)) // problem.stride[0] + 1), chunk)
    bands = -(-chunk // band)
    band = -(-chunk // bands)
    if bands > 1 and chunk == lines:
        band += band % lines_at_once(problem)
        bands = -(-chunk // band)
    most = 0
    for line in range(0, lines, band):
        first = _needed(problem, line)[0] * width // rows
        stop = -(-_needed(problem, min(line + band, lines) - 1)[1] * width // rows)
        most = max(most, stop - first)
    lane = CACHE_LINE // ITEMSIZE["float32"]
    slot = -(-(most * rows * columns + lane) // lane) * lane
    return _Cut(panels, columns, rows, band, bands, -(-lines // band), slot)


def _task(arguments: Arguments, lanes: int) -> list[str]:
    """Return the statements of a task: one part of the channels of a chunk.

    ``start`` is the first block of rows in ``near``, ``done`` the last plus one.
    """
    return [
        "chunk = idiv(task, parts)",
        "part = task - chunk * parts",
        "near = offset(scratch, task * slot)",
        "start = 0",
        "done = 0",
        "for index in range(chunk * bands, imin(chunk * bands + bands, all_bands)):",
        *indent([
            *_input_line("index * band", "0", "first"),
            *_input_line("imin(index * band + band, lines) - 1", "reach", "stop"),
            "first = idiv(first * in_w, rows)",
            "stop = imin(idiv(stop * in_w + rows - 1, rows), row_blocks)",
            "if first >= done:",
            "    done = first",
            "elif first > start:",
            f"    for c in range(0, (done - first) * row_block_size, {lanes}):",
            f"        store(near, c, load(near, (first - start) * row_block_size + c, {lanes}))",
            "start = first",
            "between = offset(near, -start * row_block_size - part * part_columns)",
            "if done < stop:",
            *indent([
                arguments.place("product_block", "out", "between"),
                arguments.call(
                    "product", "product_block", "part * row_blocks + done", "part * row_blocks + stop"
                ),
                "done = stop",
            ]),
            "goal = index * band_every + part * part_every",
            arguments.place("depthwise_block", "x", "between"),
            arguments.call("depthwise", "depthwise_block", "goal", "goal + 1"),
        ]),
    ]  # fmt: skip


def _input_line(line: str, more: str, name: str) -> list[str]:
    """Return statements that compute the input line, over all images, ``more`` lines after the first that output line
    ``line`` reads."""
    return [
        f"{name} = {line}",
        f"image = idiv({name}, out_h)",
        f"{name} = image * in_h + imin(imax(({name} - image * out_h) * stride_h - pad_h + {more}, 0), in_h)",
    ]
