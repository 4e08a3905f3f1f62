"""Winograd's minimal filtering for convolutions with a stride, as convolutions of stride 1 over rearranged pixels.

The s * s pixels of an input block become the channels of one pixel (space to depth). A k x k convolution of stride s
becomes a convolution of stride 1 over s * s times the channels. It has about k / s taps a side, some of them zero. A
first launch rearranges the input in scratch memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from .....core.dim import ceil_div, known_equal
from .....dataclass import dataclass
from ....arguments import Arguments
from ....launch import Launch, Operand, Solution, TaskRange
from ....problems.convolution import ConvProblem
from ....statements import for_tasks, kernel_text
from ...kernel import cpu_kernel
from ...machine import machine
from ...microkernels.tile_table import tile_for
from ..blocking import Blocking
from ..panels import aligned_zeros
from ..solver import Setting, Solver
from .form import Form
from .solver import ConvWinograd
from .winograd_blocking import winograd_blockings

_ALIGNMENT = 64  # bytes of a cache line


@dataclass(frozen=True)
class _Taps:
    """The taps of one axis; ``first`` is the first block read, relative to the output's own block."""

    first: int
    count: int

    @classmethod
    def of(cls, kernel: int, stride: int, pad: int) -> _Taps:
        first = -pad // stride
        return cls(first, (kernel - 1 - pad) // stride - first + 1)


@dataclass(frozen=True)
class ConvWinogradStrided(Solver[ConvProblem]):
    """Solver by F(m x m, r x r) where the stride leaves r blocks of taps a side."""

    form: Form
    method: ClassVar[str] = "winograd"
    open_batch: ClassVar[bool] = True
    open_lens: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self._ordinary.name + "_strided"

    @property
    def _ordinary(self) -> ConvWinograd:
        return ConvWinograd(self.form, whole_vectors=True)

    def declines(self, problem: ConvProblem) -> str | None:
        if len(problem.kernel) != 2 or problem.groups > 1 or problem.transposed or max(problem.dilation) > 1:
            return "not an ordinary convolution over two dimensions"
        if max(problem.stride) == 1:
            return "the stride is 1"
        if any(taps.count != self.form.taps for taps in _taps(problem)):
            return f"the taps do not lie in {self.form.taps}x{self.form.taps} blocks of the size of the stride"
        return self._ordinary.refusal(_rearranged(problem))

    def rewrites(self, problem: ConvProblem) -> bool:
        return True

    def plain_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the lengths of weights packed by the direct solvers."""
        return self._ordinary.plain_lens(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed length of the convolution of stride 1, plus zeros for another whole vector."""
        (size,) = self._ordinary.packed_lens(_rearranged(problem))
        return (size + tile_for(problem.types).lanes,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        blocks = _rearranged(problem)
        packed = self._ordinary.pack_weights(blocks, _rearranged_weights(problem, weights))
        out = aligned_zeros(self.packed_lens(problem), problem.dtype)
        out[: packed.size] = packed
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        blocks = _rearranged(problem)
        size = problem.batch * blocks.x_strides[0] * problem.itemsize
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        plan = self._ordinary.plan(blocks, epilogue, strides, threads, blocking)
        launches = [_rearranging(problem, blocks)]
        for launch in plan.launches:
            args = tuple(_after(arg, size) if isinstance(arg, Operand) else arg for arg in launch.args)
            launches.append(replace(launch, args=args, flops=problem.flops))
        return Solution(tuple(launches), size + plan.scratch)

    def packing_growth(self, problem: ConvProblem) -> int:
        return (math.prod(self.packed_lens(problem)) - math.prod(self.plain_lens(problem))) * problem.itemsize

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return winograd_blockings()

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        blocks = _rearranged(problem)
        moved = problem.itemsize * problem.batch * (problem.in_pixels * problem.in_channels + blocks.x_strides[0])
        rearranging = 2 * moved / machine().bandwidth(threads) + machine().launch_seconds
        return self._ordinary.estimate(blocks, threads) + rearranging


"""The solvers that transform filters; blockings of theirs count tiles in ``rows``."""


def _after(operand: Operand, size: int) -> Operand:
    """Return where an operand of the convolution of stride 1 is: its input is at the start of scratch memory."""
    if operand.name == "x":
        return Operand("scratch", operand.offset)
    return Operand("scratch", operand.offset + size) if operand.name == "scratch" else operand


def _taps(problem: ConvProblem) -> list[_Taps]:
    return [_Taps.of(*axis) for axis in zip(problem.kernel, problem.stride, problem.pads_begin)]


def _rearranged(problem: ConvProblem) -> ConvProblem:
    """Return the convolution of stride 1. Its pixels are whole vectors apart; the last vector may be partly empty."""
    taps, lanes = _taps(problem), tile_for(problem.types).lanes
    lens = [ceil_div(n, s) for n, s in zip(problem.in_lens, problem.stride)]
    channels = math.prod(problem.stride) * problem.in_channels
    pixel = -(-channels // lanes) * lanes
    return replace(
        problem,
        in_channels=channels,
        in_lens=tuple(lens),
        kernel=tuple(t.count for t in taps),
        stride=(),
        pads_begin=tuple(-t.first for t in taps),
        pads_end=tuple(out + t.count - 1 + t.first - n for out, t, n in zip(problem.out_lens, taps, lens)),
        x_strides=(lens[0] * lens[1] * pixel, lens[1] * pixel, pixel),
    )


def _rearranged_weights(problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
    """Return weights ``[out_channels, in_channels, *kernel]`` as ``[out_channels, (y, x, in_channels), *taps]``."""
    taps, stride = _taps(problem), problem.stride
    whole = np.zeros((*weights.shape[:2], *(t.count * s for t, s in zip(taps, stride))), weights.dtype)
    first = [-pad - t.first * s for pad, t, s in zip(problem.pads_begin, taps, stride)]
    inside = tuple(slice(start, start + k) for start, k in zip(first, problem.kernel))
    whole[(slice(None), slice(None), *inside)] = weights
    split = whole.reshape(*weights.shape[:2], taps[0].count, stride[0], taps[1].count, stride[1])
    blocks = split.transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(blocks.reshape(len(weights), -1, taps[0].count, taps[1].count))


def _rearranging(problem: ConvProblem, blocks: ConvProblem) -> Launch:
    """Return the launch that writes the pixels of ``blocks`` to scratch memory; a line is a task.

    Pixels past the edges of the input are zeros.
    """
    lanes, channels = tile_for(problem.types).lanes, problem.in_channels
    runs, run = (
        (1, problem.stride[1] * channels)
        if known_equal(problem.x_strides[2], channels)
        else (problem.stride[1], channels)
    )
    a = Arguments()
    a.pointer("x", "x", problem.dtype)
    a.pointer("blocks", "scratch", problem.dtype)
    a.integers(
        lines=blocks.in_lens[0], width=blocks.in_lens[1], pixel=blocks.x_strides[2], by_h=problem.stride[0],
        by_w=problem.stride[1], in_h=problem.in_lens[0], in_w=problem.in_lens[1], x_image=problem.x_strides[0],
        x_h=problem.x_strides[1], x_w=problem.x_strides[2], channels=channels, runs=runs, run=run,
    )  # fmt: skip
    task = [
        "image = idiv(task, lines)",
        "top = (task - image * lines) * by_h",
        "for dy in range(by_h):",
        "    row = image * x_image + (top + dy) * x_h",
        "    given = in_w if top + dy < in_h else 0",
        "    inside = idiv(given, by_w)",
        "    for part in range(runs):",
        "        source = offset(x, row + part * x_w)",
        "        target = offset(blocks, task * width * pixel + (dy * runs + part) * run)",
        "        for block in range(inside):",
        f"            for c in range(0, whole, {lanes}):",
        f"                store(target, block * pixel + c, load(source, block * block_w + c, {lanes}))",
        "            if rest > 0:",
        f"                v = load_tail(source, block * block_w + whole, rest, 0, {lanes})",
        "                store_tail(target, block * pixel + whole, v, rest)",
        "        for block in range(inside, width):",
        "            valid = imin(imax(given - block * by_w - part, 0) * channels, run)",
        f"            for c in range(0, run, {lanes}):",
        f"                left = imin(imax(valid - c, 0), {lanes})",
        f"                v = load_tail(source, block * block_w + c, left, 0, {lanes})",
        f"                store_tail(target, block * pixel + c, v, imin(run - c, {lanes}))",
    ]
    setup = [f"rest = imod(run, {lanes})", "whole = run - rest", "block_w = by_w * x_w"]
    source = cpu_kernel("space_to_depth_kernel", kernel_text([*a.bind(), *setup, *for_tasks(task)]))
    moved = problem.itemsize * problem.batch * (problem.in_pixels * channels + blocks.x_strides[0])
    return Launch(source, a.values, TaskRange(problem.batch * blocks.in_lens[0], 1), 0, moved)
