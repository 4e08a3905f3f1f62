"""Convolutions of 8-bit integers with exact int32 accumulators: the direct kernel over words of several channels.

Pixels whose groups fill whole words are read in place; other pixels are packed into words by a separate launch, each
group by itself.

Groups of few integer channels are joined, with weights of 0 between them: a vector then has columns of several groups.
32 groups of 4 channels, 3x3 taps over 56x56 pixels, take 0.21 ms so, and 0.50 one by one (Zen 4, two threads).

Taps along a row are joined, too: adjacent pixels of few channels are one pixel of more channels.

For example a 7x7 kernel over three bytes a pixel has 7 taps of 21 channels, in 6 words of four instead of 7. The pixels
of the new convolution, one for each output, overlap.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np

from ....core.dim import SharedLength, known_equal, known_less_equal, known_same
from ...arguments import Arguments
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED
from ...problems.gemm import GemmProblem
from ...statements import for_tasks, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from ..microkernels.register_tile import RegisterTile
from .conv import ConvDirect, direct_launch, panel_lens, tap_matrices
from .conv_output_rows import image_strides
from .gemm_int8 import (
    left_words,
    pack_residuals,
    residual_rows,
    residual_tile_refused,
    split_weights,
    tile_with_residuals,
    word_rows,
)
from .pack_kernel import row_start
from .panels import aligned_zeros, pack_panels
from .solver import Setting, integer_types_refused

MOST_CHANNELS = 3
"""Most channels. With four channels pixels already are words, or two vectors of them are."""


def pixel_words(problem: GemmProblem, tile: RegisterTile) -> Launch | None:
    """Return the launch that writes each left-hand row as one integer of all its words, a vector of rows at once.

    A line of ``m`` rows is one task. Returns None if rows are longer, not contiguous, or of other types.
    """
    channels = problem.k
    if problem.types.a not in ("int8", "uint8"):
        return None
    if not 1 <= channels <= MOST_CHANNELS or not known_same(problem.a_strides[-2:], (channels, 1)):
        return None
    given, form = problem.types.a, tile.packing.a or problem.types.a
    bits = 8 * ITEMSIZE[form]
    word = f"int{bits * tile.packing.k_interleave * tile.depth(channels)}"
    lanes = host.lanes(word)
    arguments = Arguments()
    arguments.pointer("x", "x", given)
    arguments.pointer("packed", "scratch", word)
    arguments.integers(pixels=problem.m)
    task = row_start(arguments, problem.batch, problem.a_strides[:-2])

    def vector(left: str) -> list[str]:
        parts = [_element(given, form, word, channels, k, lanes, left) for k in range(channels)]
        joined = parts[0]
        for k, part in enumerate(parts[1:], 1):
            joined = f"bitwise_or({joined}, shift_left({part}, const_{word}({bits * k}, {lanes})))"
        tail = ("_tail", f", {left}") if left else ("", "")
        return [f"store{tail[0]}(packed, task * pixels + c, {joined}{tail[1]})"]

    task += vector_loop(lanes, vector, "0", "pixels", past=channels > 1)
    text = kernel_text([*arguments.bind(), *for_tasks(task)])
    source = cpu_kernel(f"pixels_{given}_{channels}_as_{word}_kernel", text)
    lines = math.prod(problem.batch)
    moved = lines * problem.m * (channels + ITEMSIZE[word])
    return Launch(source, arguments.values, TaskRange(lines, claim(lines, moved)), 0, moved)


def _element(given: str, form: str, word: str, channels: int, k: int, lanes: int, left: str) -> str:
    """Return the expression of channel ``k`` of a vector of pixels in the low bits of words, with the other bits
    zero."""
    every, count = ("_every", f"{channels}, ") if channels > 1 else ("", "")
    tail, fill = ("_tail", f"{left}, 0, ") if left else ("", "")
    value = f"cast_{word}(load{every}{tail}(x, start + c * {channels} + {k}, {count}{fill}{lanes}))"
    if form != given and ITEMSIZE[form] == 1:  # shifted by 128
        value = f"bitwise_xor({value}, const_{word}(128, {lanes}))"
    if given == "uint8":
        return value
    return f"bitwise_and({value}, const_{word}({(1 << 8 * ITEMSIZE[form]) - 1}, {lanes}))"


def join_taps(problem: ConvProblem, tile: RegisterTile) -> ConvProblem | None:
    """Return the convolution over joined taps of the same pixels, with strides in elements.

    Returns None if it would not take fewer words, if its pixels would not start at words, or if its rows are padded.
    """
    channels, taps, step = problem.in_channels, problem.kernel[-1], problem.stride[-1]
    if (
        problem.groups > 1
        or problem.transposed
        or problem.dilation[-1] > 1
        or not known_equal(problem.x_strides[-1], channels)
    ):
        return None
    if problem.pads_begin[-1] or problem.pads_end[-1] or step * channels % tile.packing.k_interleave:
        return None
    if tile.depth(taps * channels) >= taps * tile.depth(channels):
        return None
    return replace(
        problem,
        in_channels=taps * channels,
        in_lens=(*problem.in_lens[:-1], problem.out_lens[-1]),
        kernel=(*problem.kernel[:-1], 1),
        stride=(*problem.stride[:-1], 1),
        x_strides=(*problem.x_strides[:-1], step * channels),
    )


def joined_weights(weights: np.ndarray) -> np.ndarray:
    """Return weights ``[out_channels, in_channels, *kernel]`` for the convolution over joined taps."""
    outer, channels, *kernel = weights.shape
    return np.moveaxis(weights, -1, 1).reshape(outer, kernel[-1] * channels, *kernel[:-1], 1)


def join_groups(problem: ConvProblem, tile: RegisterTile) -> ConvProblem:
    """Return ``problem`` with as many groups joined as have columns in one vector and fill whole words.

    Groups of floats stay: the weights between joined groups are 0, and an infinity times 0 is NaN.
    """
    if tile.types.accumulator != "int32":
        return problem
    words, most = tile.packing.k_interleave, tile.lanes // problem.group_out
    for together in range(min(most, problem.groups), 1, -1):
        if problem.groups % together == 0 and together * problem.group_in % words == 0:
            return replace(problem, groups=problem.groups // together)
    return problem


def joined_group_weights(weights: np.ndarray, groups: int, joined: int) -> np.ndarray:
    """Return the weights of ``joined`` groups that compute the same convolution as ``weights`` of ``groups`` groups.

    The result has the shape ``[out_channels, in_channels / joined, *kernel]``.
    """
    if groups == joined:
        return weights
    outputs, inputs, *kernel = weights.shape
    together = groups // joined
    result = np.zeros((joined, together, outputs // groups, together, inputs, *kernel), weights.dtype)
    given = weights.reshape(joined, together, outputs // groups, inputs, *kernel)
    for k in range(together):
        result[:, k, :, k] = given[:, k]
    return result.reshape(outputs, together * inputs, *kernel)


class ConvInt8(ConvDirect):
    """Solver for uint8 or int8 pixels by constant int8 weights. Accumulators that overflow int32 wrap around."""

    name = "conv_int8"

    def refused_types(self, problem: ConvProblem) -> str | None:
        return integer_types_refused(problem.types)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        return "the convolution is transposed" if problem.transposed else None

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the packed length: the panels of all groups, each after its row of column sums and before its
        residuals if the tile wants them, then a padding pixel."""
        tile = self.tile(problem.types)
        problem = join_groups(problem, tile)
        groups, panels, taps, depth, columns = panel_lens(join_taps(problem, tile) or problem, tile)
        rows = int(tile.packing.column_sums) + taps * depth + residual_rows(tile, taps, depth)
        return (groups * panels * rows * columns + depth,)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights as `ConvDirect.pack_weights` does, in int32 words."""
        tile = self.tile(problem.types)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        given, problem = problem.groups, join_groups(problem, tile)
        weights = joined_group_weights(weights, given, problem.groups)
        joined = join_taps(problem, tile)
        if joined is not None:
            problem, weights = joined, joined_weights(weights)
        groups, panels, taps, depth, columns = panel_lens(problem, tile)
        first = int(tile.packing.column_sums)
        rows_of_panel = first + taps * depth + residual_rows(tile, taps, depth)
        target = out[:-depth].reshape(groups, panels, rows_of_panel, columns)
        residuals: list[np.ndarray | None] = []
        for tap, matrices in enumerate(tap_matrices(problem, weights)):
            rows = target[:, :, first + tap * depth : first + (tap + 1) * depth]
            if tile.packing.residuals:
                matrices, own = split_weights(matrices)
                residuals.append(None if own is None else word_rows(tile, own))
            pack_panels(word_rows(tile, matrices), rows)
        if any(own is not None for own in residuals):
            for group in range(groups):
                own_taps = [None if own is None else own[group] for own in residuals]
                pack_residuals(tile, own_taps, target[group, :, first + taps * depth :], problem.kernel[-1])
        if first:
            sums = weights.reshape(groups, problem.group_out, -1).sum(-1, dtype=np.int32)
            pack_panels(sums[:, None], target[:, :, :first])
        if first:  # padding is read as pixels are, with 128 added
            out[-depth:].view(np.uint8)[...] = 128
        return out

    def packing_key(self, problem: ConvProblem) -> tuple[object, ...]:
        return (*super().packing_key(problem), join_taps(problem, self.tile(problem.types)) is not None)

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        tile = self.tile(problem.types)
        problem = join_groups(problem, tile)
        table = image_strides(problem, epilogue, strides)
        joined = join_taps(problem, tile)
        words, x, pack, scratch = pixels_in_words(problem.volume(), tile, joined and joined.volume())
        zeros = math.prod(self.packed_lens(problem))
        problem = joined or problem
        launch = direct_launch(
            dataclasses.replace(problem.volume(), x_strides=words), epilogue, table, threads, 0,
            zeros - tile.depth(problem.group_in), given=blocking, x=x, name=self.name, tile=tile,
        )  # fmt: skip
        return Solution((*pack, launch), scratch)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        return super().estimate(join_groups(problem, self.tile(problem.types)), threads)


class ConvInt8Residual(ConvInt8):
    """`ConvInt8` with bytes that are multiplied in pairs of 16 bits, for weights of which few are too large for
    that."""

    name = "conv_int8_residual"
    looks_at_values = True

    def tile(self, types: ElementTypes) -> RegisterTile:
        return tile_with_residuals(types)

    def refused_types(self, problem: ConvProblem) -> str | None:
        return super().refused_types(problem) or residual_tile_refused(problem.types)


def lies_in_words(problem: ConvProblem, tile: RegisterTile) -> bool:
    """Return whether the tile can read the pixels in place."""
    together = tile.packing.k_interleave
    strides = [0 if known_less_equal(n, 1) else s for n, s in zip((problem.batch, *problem.in_lens), problem.x_strides)]
    in_place = tile.packing.a in ("", problem.types.a) and not problem.group_in % together
    return in_place and all(known_equal(s % together, 0) for s in strides)


def pixels_in_words(
    problem: ConvProblem, tile: RegisterTile, joined: ConvProblem | None = None
) -> tuple[tuple[SharedLength, ...], Operand, tuple[Launch, ...], SharedLength]:
    """Return the input as words, with the launch that packs it where necessary.

    Args:
        joined: the convolution over joined taps, if there is one.

    Returns:
        Strides of images, planes, rows and pixels in words; the operand that holds the words; the packing launches; the
        scratch bytes.
    """
    together = tile.packing.k_interleave
    read = joined or problem
    if lies_in_words(read, tile):
        return tuple(s // together for s in read.x_strides), Operand("x"), (), 0
    *outer, width = (problem.batch, *problem.in_lens)
    if joined:  # whole lines are packed; the overlapping pixels are parts of them
        row, outer, width = width * problem.in_channels, outer[:-1], outer[-1]
        lines = GemmProblem(
            width, 1, row, tuple(outer), (*problem.x_strides[:-1], 1), types=problem.types, b_constant=True
        )
        pack, words, scratch = left_words(lines, tile)
        return (*words[:-1], joined.x_strides[-1] // together), Operand("scratch"), pack, scratch
    channels, a_strides = problem.in_channels, (*problem.x_strides, 1)
    apart = problem.groups > 1 and problem.group_in % together > 0
    if apart:  # each group of a pixel is a row
        outer, width, channels = [*outer, width], problem.groups, problem.group_in
        a_strides = (*problem.x_strides, channels, 1)
    rows = GemmProblem(width, 1, channels, tuple(outer), a_strides, types=problem.types, b_constant=True)
    depth = tile.depth(channels)
    pixels = pixel_words(rows, tile)
    if pixels is not None:
        counts = (*outer, width)
        words = tuple(depth * math.prod(counts[d + 1 :]) for d in range(len(counts)))
        pack, scratch = (pixels,), math.prod(counts) * depth * ITEMSIZE[tile.left_word]
    else:
        pack, steps, scratch = left_words(rows, tile, depth * together)
        words = steps[:-1]
    return words[: len(words) - apart], Operand("scratch"), pack, scratch
