"""1x1 convolutions of 8-bit integers to few output channels, such as a network's last: vectors hold pixels, not
channels.

A product over panels would finish one vector of channels for each pixel, with most lanes empty. Here words of
neighbouring pixels are transposed in registers, so that accumulators and epilogue fill vectors. (Gathering the words
takes four times as long on Zen 5.)
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ....core.dim import known_equal
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...statements import for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..microkernels.int8_table import has_dot4
from ..microkernels.tile_table import tile_for
from .blocking import Blocking
from .conv import uneven_pixels
from .conv_int8 import lies_in_words
from .conv_output_rows import image_strides, stride_arguments
from .epilogue_rows import epilogue_text, kernel_name
from .gemm_int8 import word_rows
from .panels import aligned_zeros
from .roofline import seconds
from .solver import Setting, Solver, integer_types_refused

__all__ = ["ConvNarrowOutput"]

MOST_OUTPUTS = 8
"""Most output channels, whose accumulators stay in registers together."""
STEP = 4
"""Words of a pixel that are transposed at once; 16 bytes is cheapest on x86."""
TASK_PIXELS = 1024
"""Pixels of a task: some microseconds of work. No figures kept."""


class ConvNarrowOutput(Solver[ConvProblem]):
    """Solver for uint8 pixels, whose channels fill whole words, by constant int8 weights, on CPUs with VNNI."""

    name = "conv_few_outputs"
    open_batch = open_lens = True

    def refused_types(self, problem: ConvProblem) -> str | None:
        if problem.types.a != "uint8":
            return f"the pixels are {problem.types.a}"
        return integer_types_refused(problem.types)

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        tile = tile_for(problem.types)
        if not has_dot4(host.host(), tile.bits):
            return "the CPU has no VNNI"
        if problem.transposed or problem.groups > 1 or problem.out_channels > MOST_OUTPUTS:
            return f"the convolution is transposed, grouped or has more than {MOST_OUTPUTS} output channels"
        if problem.taps > 1 or max(problem.stride) > 1 or any(problem.pads_begin) or any(problem.pads_end):
            return "the kernel or a stride is larger than 1, or the input is padded or cropped"
        if not lies_in_words(problem.volume(), tile) or tile.depth(problem.in_channels) % STEP:
            return f"the channels of a pixel are no whole steps of {STEP} words"
        return uneven_pixels(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the lengths of the packed weights: words of an output channel, output channels."""
        return (tile_for(problem.types).depth(problem.in_channels), problem.out_channels)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        """Pack weights into int32 words."""
        tile = tile_for(problem.types)
        out = aligned_zeros(self.packed_lens(problem), tile.right_word)
        out[...] = word_rows(tile, weights.reshape(weights.shape[:2]).T)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, _, _ = setting
        tile, problem = tile_for(problem.types), problem.volume()
        lanes, outputs = tile.lanes, range(problem.out_channels)
        arguments = Arguments()
        arguments.pointer("x", "x", tile.left_word)
        arguments.pointer("w", "w", tile.right_word)
        arguments.pointer("out", "out", epilogue.out_dtype(problem.types.accumulator))
        for k, operand in enumerate(epilogue.operands):
            arguments.pointer(f"e{k}_at", f"e{k}", operand.dtype)
        together = tile.packing.k_interleave
        blocks = -(-problem.out_pixels // TASK_PIXELS)
        arguments.integers(
            pixels=problem.out_pixels, blocks=blocks, depth=tile.depth(problem.in_channels),
            x_image=problem.x_strides[0] // together, x_pixel=problem.x_strides[-1] // together,
        )  # fmt: skip
        table = image_strides(problem, epilogue, strides)
        stride_arguments(arguments, table)
        near = {name for name, (_, pixel) in table.items() if known_equal(pixel, 1)}

        def vector(left: str) -> list[str]:
            lines = [f"s{n} = const_int32(0, {lanes})" for n in outputs]
            place = "offset(x, x_row + c * x_pixel + k)"
            step = [f"transpose_part({place}, x_pixel, {left or lanes}, words, {lanes}, {STEP}, {lanes})"]
            for part in range(STEP):
                step.append(f"word = load(words, {part * lanes}, {lanes})")
                for n in outputs:
                    weights = f"load_splat(w, (k + {part}) * {len(outputs)} + {n}, {lanes})"
                    step.append(f"s{n} = add_dot4(s{n}, word, {weights})")
            lines += [f"for k in range(0, depth, {STEP}):", *indent(step)]
            for n in outputs:
                lines += [f"acc = s{n}", *_finished(epilogue, n, left, lanes, near)]
            return lines

        own = [f"words = local_int32({STEP * lanes})"]
        task = [
            "image = idiv(task, blocks)",
            f"first = (task - image * blocks) * {TASK_PIXELS}",
            f"last = imin(pixels, first + {TASK_PIXELS})",
            "x_row = image * x_image",
            *(f"{name}_row = image * {name}_image" for name in table),
            *vector_loop(lanes, vector),
        ]
        source = cpu_kernel(kernel_name(self.name, epilogue), kernel_text([*arguments.bind(), *own, *for_tasks(task)]))
        stored = ITEMSIZE[epilogue.out_dtype(problem.types.accumulator)] * len(outputs)
        moved = problem.batch * problem.out_pixels * (problem.in_channels + stored)
        tasks = TaskRange(problem.batch * blocks, 1)
        return Solution((Launch(source, arguments.values, tasks, problem.flops, moved, epilogue.moving),))

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        """Return no alternatives: all data is read once."""
        return []

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile = tile_for(problem.types)
        pixels = problem.batch * problem.out_pixels
        words = tile.depth(problem.in_channels)
        # Transposing a vector of words takes as long as about eight products.
        flops = 2.0 * pixels * words * tile.packing.k_interleave * (problem.out_channels + 8)
        moved = pixels * (problem.in_channels + problem.out_channels * ITEMSIZE[problem.types.out])
        return seconds(tile, flops, moved, threads)


def _finished(epilogue: Epilogue, n: int, left: str, lanes: int, near: Collection[str]) -> list[str]:
    """Return statements that run the epilogue on the accumulators ``acc`` of output channel ``n``, for pixels from
    ``c``, and store the result.

    Args:
        left: number of pixels; "": a whole vector.
        near: names of operands whose neighbouring pixels are contiguous.
    """
    tail, part = ("_tail", f", {left}") if left else ("", "")
    lines = []
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ("scalar", "per_n"):
            value = f"load_splat(e{k}_at, {n if operand.access == 'per_n' else 0}, {lanes})"
        else:
            column = f" + {n}" if operand.access == "full" else ""
            fill = f", {left}, 0" if left else ""
            name, step = ("load", "") if f"e{k}" in near else ("load_strided", f", e{k}_pixel")
            value = f"{name}{tail}(e{k}_at, e{k}_row + c * e{k}_pixel{column}{step}{fill}, {lanes})"
        lines.append(f"e{k} = {value}")
    body, result = epilogue_text(epilogue, lanes)
    name, step = ("store", "") if "out" in near else ("store_strided", ", out_pixel")
    return [*lines, *body, f"{name}{tail}(out, out_row + c * out_pixel + {n}{step}, {result}{part})"]
