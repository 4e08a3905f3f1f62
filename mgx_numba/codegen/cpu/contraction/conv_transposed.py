"""Transposed convolution as several ordinary convolutions, without multiplications by zero, or over matrix tiles (AMX)
where each output pixel receives one tap.

Output positions with the same remainder modulo the stride (one phase) receive the same subset of the kernel's taps,
each at consecutive input positions. They form a convolution of stride 1 with that subset in reverse order.

Every phase is one launch of the direct kernel, or for narrow groups of the depthwise kernel. It writes its own lattice
of output pixels. If kernel and stride are equal, all phases multiply the same input. One launch then computes all
phases, part by part of the input, if their weights are few.

Over matrix tiles all input pixels are multiplied by the weights of each tap; the rows of each product are written to a
lattice (`transposed`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.dim import Length, ceil_div, known_equal, known_less_equal, known_same
from ....dataclass import dataclass
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ..machine import machine
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from .bf16_split_rows import SplitRows, split_rows
from .blocking import Blocking, cut, matrix_blockings
from .conv import direct_launch, panel_lens, pixel_product, tap_matrices, uneven_pixels
from .conv_int8 import pixels_in_words
from .conv_output_rows import image_strides, lattice_arguments, lattice_rows, phase_of_group, stride_arguments
from .depthwise import DEPTHWISE_OPERATIONS, ConvDepthwise, depthwise_launch, fills_vectors
from .gemm import read_parts
from .gemm_amx import MOST_BLOCKINGS, form_seconds, in_parts, parked_seconds, part_rows, refused_tiles, tile_of
from .gemm_int8 import left_words, word_rows, words_in_place
from .macro_kernel import MacroKernel
from .panels import aligned_zeros, pack_panels, panel_count
from .solver import NO_PARTS, Setting, Solver, integer_types_refused, seconds

PHASES_SHARE = 4
"""The weights of all phases may take one part in this many of the L2 cache, to stay there together."""
_NOWHERE = 1 << 40  # past the end of any axis


@dataclass(frozen=True)
class _Axis:
    """One phase along one axis: its output positions, and its taps in the order in which it reads the input."""

    first: int
    count: Length
    taps: tuple[int, ...]
    dilation: int
    pad: int


@dataclass(frozen=True)
class _Phase:
    """One phase as an ordinary convolution in three dimensions, its lattice, and its taps of the original kernel."""

    problem: ConvProblem
    lattice: tuple[tuple[int, int, int], ...]
    taps: tuple[tuple[int, ...], ...]


class ConvTransposed(Solver[ConvProblem]):
    """Solver for transposed convolutions of one dtype, or of uint8 or int8 pixels by constant int8 weights."""

    name = "conv_transposed"
    open_batch = open_lens = True

    def refused_types(self, problem: ConvProblem) -> str | None:
        return super().refused_types(problem) if problem.types.uniform else integer_types_refused(problem.types)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if not problem.transposed:
            return "the convolution is not transposed"
        if problem.groups > 1 and problem.group_in % tile_for(problem.types).packing.k_interleave:
            return "the channels of a group are no whole words"
        return None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed length: the panels of each phase, each after its row of column sums if the tile wants it,
        then a padding pixel, which narrow groups do not need."""
        if fills_vectors(problem):
            return (sum(math.prod(_NARROW.packed_lens(phase.problem)) for phase in _phases(problem)),)
        tile = tile_for(problem.types)
        return (sum(_words(phase, tile) for phase in _phases(problem)) + tile.depth(problem.group_in),)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack the panels of each phase, with taps in the order of reading; integer weights are in words."""
        if fills_vectors(problem):
            return _narrow_weights(problem, weights)
        tile = tile_for(problem.types)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        matrices = dict(zip(np.ndindex(*problem.kernel), tap_matrices(problem, weights)))
        rank, depth, first = len(problem.kernel), tile.depth(problem.group_in), int(tile.packing.column_sums)
        start = 0
        for phase in _phases(problem):
            groups, panels, taps, _, columns = panel_lens(phase.problem, tile)
            words = _words(phase, tile)
            target = out[start : start + words].reshape(groups, panels, first + taps * depth, columns)
            own = [matrices[tap[-rank:]] for tap in phase.taps]
            for place, matrix in enumerate(own):
                rows = target[:, :, first + place * depth : first + (place + 1) * depth]
                pack_panels(word_rows(tile, matrix) if tile.packing.k_interleave > 1 else matrix, rows)
            if first and own:
                pack_panels(sum(m.sum(1, keepdims=True, dtype=np.int32) for m in own), target[:, :, :first])
            start += words
        if first:  # padding is read as pixels are, with 128 added
            out[-depth:].view(np.uint8)[...] = 128
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = tile_for(problem.types)
        table = image_strides(problem, epilogue, strides)
        if fills_vectors(problem):
            launches, start = [], 0
            for phase in _phases(problem):
                own, place = phase.problem, phase.lattice
                launches.append(depthwise_launch(own, epilogue, table, threads, blocking, start=start, lattice=place))
                start += math.prod(_NARROW.packed_lens(own))
            return Solution(tuple(launches))
        zeros = self.packed_lens(problem)[0] - tile.depth(problem.group_in)
        words, x, pack, scratch = pixels_in_words(problem.volume(), tile)
        launches, start = list(pack), 0
        phases = list(_phases(replace(problem.volume(), x_strides=words)))
        if taps_apart(problem) and weights_stay_cached(problem):
            first, count = phases[0], len(phases)
            joined = replace(
                first.problem,
                groups=count,
                in_channels=count * problem.in_channels,
                out_channels=count * problem.out_channels,
            )
            launch = direct_launch(joined, epilogue, table, threads, 0, zeros, first.lattice, blocking, True, x)
            return Solution((*pack, launch), scratch)
        for phase in phases:
            launch = direct_launch(phase.problem, epilogue, table, threads, start, zeros, phase.lattice, blocking, x=x)
            launches.append(launch)
            start += _words(phase, tile)
        return Solution(tuple(launches), scratch)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.types)
        columns = ceil_div(problem.group_out, tile.lanes) * tile.lanes
        inner = problem.groups * tile.depth(problem.group_in) * tile.packing.k_interleave
        axes = ([max(len(phase.taps), 1) for phase in _axis_phases(problem.volume(), axis)] for axis in range(3))
        taps = math.prod(map(sum, axes))  # of all phases, which sample lengths of open kernels make many
        flops = 2.0 * problem.batch * problem.in_pixels * taps * inner * columns
        if fills_vectors(problem):
            flops *= DEPTHWISE_OPERATIONS / 2 * problem.out_channels / (problem.groups * columns)
        left, right, out = (ITEMSIZE[dtype] for dtype in (problem.types.a, problem.types.b, problem.types.out))
        pixels = left * problem.in_pixels * problem.in_channels + out * problem.out_pixels * problem.out_channels
        moved = problem.batch * pixels + right * math.prod(problem.weight_lens)
        return seconds(tile, flops, moved, threads)


_NARROW = ConvDepthwise()


def _narrow_weights(problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return the weights of all phases, each packed for the depthwise kernel."""
    rank = len(problem.kernel)
    grouped = weights.reshape(problem.groups, problem.group_in, problem.group_out, *problem.kernel)
    taps = grouped.swapaxes(1, 2).reshape(problem.out_channels, problem.group_in, -1)
    parts = []
    for phase in _phases(problem):
        own = np.zeros(phase.problem.weight_lens, weights.dtype)
        flat = own.reshape(*own.shape[:2], -1)
        for place, tap in enumerate(phase.taps):
            flat[:, :, place] = taps[:, :, np.ravel_multi_index(tap[-rank:], problem.kernel)]
        parts.append(_NARROW.pack_weights(phase.problem, own).reshape(-1))
    return np.concatenate(parts)


def _words(phase: _Phase, tile: RegisterTile) -> int:
    """Return the words of a phase's packed weights."""
    groups, panels, taps, depth, columns = panel_lens(phase.problem, tile)
    return groups * panels * (int(tile.packing.column_sums) + taps * depth) * columns


def weights_stay_cached(problem: ConvProblem) -> bool:
    """Return whether the weights of all phases fit their share of the L2 cache."""
    return ITEMSIZE[problem.types.b] * math.prod(problem.weight_lens) <= machine().l2_bytes // PHASES_SHARE


def taps_apart(problem: ConvProblem) -> bool:
    """Return whether each output pixel receives exactly one tap and all input pixels are used, so that phases are
    alike."""
    return (
        problem.groups == 1
        and problem.kernel == problem.stride
        and max(problem.dilation) == 1
        and all(known_equal(n, 0) for n in (*problem.pads_begin, *problem.pads_end, *problem.output_padding))
    )


def _phases(problem: ConvProblem) -> Iterator[_Phase]:
    volume = problem.volume()
    for axes in itertools.product(*(tuple(_axis_phases(volume, axis)) for axis in range(3))):
        lens = tuple(max(len(axis.taps), 1) for axis in axes)
        dilation = tuple(axis.dilation for axis in axes)
        pads = tuple(axis.pad for axis in axes)
        ends = tuple(
            axis.count - 1 + (taps - 1) * step + 1 - length - pad
            for axis, taps, step, length, pad in zip(axes, lens, dilation, volume.in_lens, pads)
        )
        ordinary = replace(
            volume, kernel=lens, stride=(1, 1, 1), dilation=dilation, pads_begin=pads, pads_end=ends,
            output_padding=(0, 0, 0), transposed=False, out_strides=(),
        )  # fmt: skip
        lattice = tuple((axis.first, volume.stride[k], volume.out_lens[k]) for k, axis in enumerate(axes))
        yield _Phase(ordinary, lattice, tuple(itertools.product(*(axis.taps for axis in axes))))


def _axis_phases(problem: ConvProblem, axis: int) -> Iterator[_Axis]:
    """Yield the phases of one axis. A phase without taps reads far outside the input, so that its sums are zero."""
    stride, dilation, pad = problem.stride[axis], problem.dilation[axis], problem.pads_begin[axis]
    length = problem.out_lens[axis]
    for remainder in range(stride):
        first = (remainder - pad) % stride
        if known_less_equal(length, first):
            continue
        count = (length - first + stride - 1) // stride
        taps = [tap for tap in range(problem.kernel[axis]) if (tap * dilation - remainder) % stride == 0]
        if not taps:
            yield _Axis(first, count, (), 1, _NOWHERE)
            continue
        back = [(tap * dilation - remainder) // stride for tap in taps]
        step = back[1] - back[0] if len(back) > 1 else 1
        nearest = (first + pad - remainder) // stride - back[-1]
        yield _Axis(first, count, tuple(reversed(taps)), step, -nearest)


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
