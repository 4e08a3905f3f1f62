"""Convolutions by Winograd's minimal filtering, for `fast_math`.

A task transforms the input of a block of output tiles (m x m pixels each). Over the register tile it multiplies the
block with the transformed filters at each of the n * n points (n = m + r - 1). It then transforms the products back and
runs the epilogue.

The task also transforms the filters, a cache block at a time, as transformed filters take n * n / (r * r) times the
memory. Where few tiles meet many filters, that takes long, and it may pay to store transformed filters. The transforms
are in :mod:`mgx_numba.codegen.cpu.contraction.winograd.transforms`.

Convolutions of 8-bit integers are computed in 16-bit integers: exact, with fewer products. F(2 x 2, 3 x 3) takes 11
bits for uint8 inputs and 12 for unscaled int8 filters. Products of two pairs and their sums are int32. The output
transform gives four times each result, so that a result must fit 30 bits: problems with too many channels are declined.
With VNNI, which adds four products at once, the direct kernel is as fast.

Convolutions with a stride become convolutions of stride 1 over rearranged pixels. The s * s pixels of an input block
become the channels of one pixel (space to depth). A k x k convolution of stride s becomes a convolution of stride 1
over s * s times the channels. It has about k / s taps a side, some of them zero. A first launch rearranges the input in
scratch memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from .....core.dim import ceil_div, known_equal
from .....dataclass import dataclass
from ....alternatives import has_lengths
from ....arguments import Arguments
from ....launch import Launch, Operand, Solution, TaskRange
from ....problems.convolution import ConvProblem
from ....problems.element_types import ITEMSIZE
from ....problems.epilogue import NOT_COMPUTED
from ....statements import for_tasks, kernel_text
from ...kernel import cpu_kernel
from ...machine import machine
from ...microkernels.register_tile import RegisterTile
from ...microkernels.tile_table import tile_for
from ..bf16_split_rows import fills_lines, groups_end_lines
from ..blocking import Blocking
from ..conv import ConvDirect, panel_lens
from ..conv_int8 import ConvInt8
from ..conv_output_rows import image_strides
from ..panels import aligned_zeros
from ..solver import Setting, Solver, integer_types_refused
from .form import Form
from .kernel import WinogradWriter, filter_plane
from .winograd_blocking import MOST_TILES, Block, best_block, given_block, open_block, winograd_blockings

_ONE_THREAD_TERMS = 1 << 18
"""Most multiplications of a product that OpenBLAS computes with one thread (its ``SMP_THRESHOLD_MIN *
GEMM_MULTITHREAD_THRESHOLD``). Above, its threads spend ten times the product's time spinning (Zen 5, two CPUs)."""


@dataclass(frozen=True)
class ConvWinograd(Solver[ConvProblem]):
    """Solver by F(m x m, r x r) for m = 2 and 4 with r = 3, and for m = 2 with r = 5; the strided solver also uses m =
    3 with r = 4.

    With ``whole_vectors`` the channels of a pixel, and the row of zeros, may be read up to a whole vector.
    """

    form: Form
    whole_vectors: bool = False
    method: ClassVar[str] = "winograd"
    open_batch: ClassVar[bool] = True
    open_lens: ClassVar[bool] = True
    most_tiles: ClassVar[int] = MOST_TILES
    writer: ClassVar[type[WinogradWriter]] = WinogradWriter
    _direct: ClassVar[ConvDirect] = ConvDirect()

    def tile(self, problem: ConvProblem) -> RegisterTile:
        """Return the register tile of the products."""
        return tile_for(problem.types)

    def best_block(self, problem: ConvProblem, threads: int) -> tuple[Block, float]:
        """Return the cheapest tasks, and the estimated cycles of the thread with the most tasks."""
        return best_block(self.form, problem, threads)

    @property
    def name(self) -> str:
        return self.form.name + ("_stored" if self.form.stored else "")

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if not problem.fast_math:
            return "fast_math is off, and Winograd's transforms change rounding"
        return self._declines_form(problem)

    def _declines_form(self, problem: ConvProblem) -> str | None:
        """Return why a problem of any element type is declined; None if it is not."""
        if problem.transposed:
            return "the convolution is transposed"
        if len(problem.kernel) < 2 or problem.kernel[-2:] != (self.form.taps,) * 2:
            return f"the kernel is not {self.form.taps}x{self.form.taps}"
        if max(problem.stride) > 1 or max(problem.dilation) > 1:
            return "a stride or dilation is larger than 1"
        if not all(known_equal(n, 1) for n in (*problem.kernel[:-2], *problem.in_lens[:-2], *problem.out_lens[:-2])):
            return "the convolution is over three dimensions"
        if any((*problem.pads_begin[:-2], *problem.pads_end[:-2])):
            return "the convolution is over three dimensions"
        if problem.group_in % 4:
            return "the input channels of a group are not a multiple of 4"
        return None

    def rewrites(self, problem: ConvProblem) -> bool:
        return True

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return fills_lines(problem) and groups_end_lines(problem)

    def plain_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed lengths of untransformed weights: for each panel, channel and vector all taps."""
        return self._direct.packed_lens(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return `plain_lens`, or for stored filters the length of the transformed panels of each point and a row of
        zeros."""
        if not self.form.stored:
            return self.plain_lens(problem)
        tile = tile_for(problem.types)
        return (self.form.points * filter_plane(problem, tile) + tile.depth(problem.group_in),)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        tile = tile_for(problem.types)
        dtype, scale = tile.packing.b or tile.types.b, self._scale()
        packed = self._direct.pack_weights(problem, weights).view(dtype)
        groups, panels, taps, depth, columns = panel_lens(problem, tile)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        together = tile.packing.k_interleave
        if not self.form.stored:
            lens = (groups * panels, taps, depth, tile.vectors, tile.lanes * together)
            given = packed[: math.prod(lens)].reshape(lens).transpose(0, 2, 3, 1, 4)
            np.multiply(given, scale, out=out.view(dtype)[: math.prod(lens)].reshape(given.shape))
            return out
        matrix = scale * self.form.filter_matrix().T
        size = depth * columns * together
        planes = out[:-depth].view(dtype).reshape(self.form.points, -1)
        piece = _ONE_THREAD_TERMS // matrix.size
        for panel in range(groups * panels):
            filters = packed[panel * taps * size : (panel + 1) * taps * size].reshape(taps, size)
            transformed = planes[:, panel * size : (panel + 1) * size]
            for k in range(0, size, piece):
                transformed[:, k : k + piece] = matrix @ filters[:, k : k + piece]
        return out

    def _scale(self) -> float:
        """Return the factor of filters before they are transformed."""
        return self.form.scale

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = self.tile(problem)
        if has_lengths(problem):
            block = open_block(lambda own: self.best_block(own, threads), self.form, tile, problem, threads)
        elif blocking is None:
            block, _ = self.best_block(problem, threads)
        else:
            block = given_block(self.form, problem, tile, threads, blocking, self.most_tiles)
        table = image_strides(problem, epilogue, strides)
        return self.writer(self.form, problem, tile, epilogue, table, block, self.whole_vectors).plan()

    def packing_growth(self, problem: ConvProblem) -> int:
        word_bytes = ITEMSIZE[tile_for(problem.types).right_word]
        return (math.prod(self.packed_lens(problem)) - math.prod(self.plain_lens(problem))) * word_bytes

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return winograd_blockings()

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        _, cycles = self.best_block(problem, threads)
        types = problem.types
        pixels = ITEMSIZE[types.a] * problem.in_pixels * problem.in_channels
        pixels += ITEMSIZE[types.out] * problem.out_pixels * problem.out_channels
        moved = problem.batch * pixels + ITEMSIZE[self.tile(problem).right_word] * math.prod(self.packed_lens(problem))
        return max(cycles / machine().clock, moved / machine().bandwidth(threads))


_TERMS = (1 << 29) // (255 * 128)
"""Most products of uint8 and int8 whose sum is a quarter of an int32."""


class ConvWinogradInt8(ConvWinograd):
    """Solver for uint8 or int8 pixels by constant int8 weights. Takes a form of n = 4."""

    _direct: ClassVar[ConvDirect] = ConvInt8()

    @property
    def name(self) -> str:
        return self.form.name + "_int8" + ("_stored" if self.form.stored else "")

    def refused_types(self, problem: ConvProblem) -> str | None:
        return integer_types_refused(problem.types)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if tile_for(problem.types).packing.k_interleave != 2:
            return "the CPU adds four products at once"
        if problem.taps * problem.group_in > _TERMS:
            return f"a result is a sum of more than {_TERMS} products"
        return self._declines_form(problem)

    def rewrites(self, problem: ConvProblem) -> bool:
        """Return False: sums of integers are exact."""
        return False

    def _scale(self) -> float:
        return 1


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
