"""Transposed convolution as several ordinary ones, without a multiplication by zero.

Output positions that leave the same remainder when divided by the stride (one phase) receive the same subset of the
kernel's taps, each at consecutive input positions: they form a convolution of stride 1 with that subset in reverse.
Every phase is one launch of the direct kernel that writes its own lattice of output pixels. If kernel and stride are
the same, all phases multiply the same input; one launch does them part by part of it if their weights are few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....dataclass import dataclass
from ...launch import Solution
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED
from ..machine import machine
from ..microkernels.tile_table import tile_for
from .conv import direct_launch, panel_lens, tap_matrices
from .pack import aligned_zeros, pack_panels, panel_count
from .roofline import seconds
from .rows import image_strides
from .solver import Setting, Solver

__all__ = ["ConvTransposed", "taps_apart", "weights_stay_near"]

PHASES_SHARE = 4
"""Of so many parts of the L2 cache the weights of all phases may take one, and stay there together."""
_NOWHERE = 1 << 40  # past the end of any axis


@dataclass(frozen=True)
class _Axis:
    """One phase along one axis: its output positions and, in the order in which it reads the input, its taps."""

    first: int
    count: int
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
    """Any transposed convolution."""

    name = "conv_transposed"

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        return None if problem.transposed else "the convolution is not transposed"

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Panels of each phase, then a row of zeros."""
        tile = tile_for(problem.types)
        return (sum(math.prod(panel_lens(phase.problem, tile)) for phase in _phases(problem)) + problem.group_in,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        tile = tile_for(problem.types)
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        matrices = dict(zip(np.ndindex(*problem.kernel), tap_matrices(problem, weights)))
        rank = len(problem.kernel)
        start = 0
        for phase in _phases(problem):
            lens = panel_lens(phase.problem, tile)
            panels = out[start : start + math.prod(lens)].reshape(lens)
            for place, tap in enumerate(phase.taps):
                pack_panels(matrices[tap[-rank:]], panels[:, :, place])
            start += math.prod(lens)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = tile_for(problem.types)
        table = image_strides(problem, epilogue, strides)
        zeros = self.packed_lens(problem)[0] - problem.group_in
        launches, start = [], 0
        phases = list(_phases(problem))
        if taps_apart(problem) and weights_stay_near(problem):
            first, count = phases[0], len(phases)
            joined = replace(
                first.problem,
                groups=count,
                in_channels=count * problem.in_channels,
                out_channels=count * problem.out_channels,
            )
            return Solution((direct_launch(joined, epilogue, table, threads, 0, zeros, first.lattice, blocking, True),))
        for phase in phases:
            launch = direct_launch(phase.problem, epilogue, table, threads, start, zeros, phase.lattice, blocking)
            launches.append(launch)
            start += math.prod(panel_lens(phase.problem, tile))
        return Solution(tuple(launches))

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.types)
        columns = panel_count(tile, problem.group_out) * tile.columns
        flops = 2.0 * problem.batch * problem.in_pixels * problem.taps * problem.in_channels * columns
        pixels = problem.in_pixels * problem.in_channels + problem.out_pixels * problem.out_channels
        moved = problem.itemsize * (problem.batch * pixels + math.prod(problem.weight_lens))
        return seconds(tile, flops, moved, threads)


def weights_stay_near(problem: ConvProblem) -> bool:
    """Whether the weights of all phases stay in the L2 cache together."""
    return ITEMSIZE[problem.types.b] * math.prod(problem.weight_lens) <= machine().l2_bytes // PHASES_SHARE


def taps_apart(problem: ConvProblem) -> bool:
    """Whether each output pixel receives one tap, and no input pixel is left out or added: phases are alike then."""
    return (
        problem.groups == 1
        and problem.kernel == problem.stride
        and max(problem.dilation) == 1
        and not any((*problem.pads_begin, *problem.pads_end, *problem.output_padding))
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
    """Phases of one axis. One without a tap reads far outside the input, so that its sums are zero."""
    stride, dilation, pad = problem.stride[axis], problem.dilation[axis], problem.pads_begin[axis]
    length = problem.out_lens[axis]
    for remainder in range(stride):
        first = (remainder - pad) % stride
        if first >= length:
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
