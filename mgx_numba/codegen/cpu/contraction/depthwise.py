"""Depthwise convolution: every channel is a group of its own and has one output channel.

A task is a block of channels by a block of output lines. Within it so few channels are done at a time that the lines
of the input which their taps read stay in the L1 cache. A line is computed in runs of pixels, whose sums for one vector
of channels stay in registers while the taps pass, and which the epilogue finishes right after that: all runs of a
vector, or, where these channels are many, a run for all of them. The last run of a line overlaps the one before where
it would be short. Where there are registers for it, two lines are computed at a time, which share what they read.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ....core.dim import (
    Dim,
    Length,
    ceil_div,
    known_less_equal,
    less,
    less_equal,
    maximum,
    minimum,
    permitted,
    select,
)
from ...alternatives import fixed
from ...arguments import Arguments
from ...launch import Launch, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import FLOAT32, ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...statements import for_tasks, indent, kernel_text
from ..kernel import cpu_kernel
from ..machine import machine
from ..microkernels.depthwise_table import DEPTHWISE_SUMS, LINE_BLOCK, RUNS
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for
from ..records import RecordText
from .blocking import Blocking, cut_lines, line_order
from .epilogue_rows import Rows, kernel_name
from .pack import aligned_zeros, pack_panels
from .parts import fills_lines
from .refinement import line_blockings
from .roofline import seconds
from .rows import image_strides, row_offsets, stride_arguments
from .solver import Setting, Solver

__all__ = [
    "DEPTHWISE_OPERATIONS", "LINE", "MOST_ROWS", "WINDOWS", "ConvDepthwise", "ConvDepthwiseAny", "best_run",
    "line_locals", "line_unit", "lines_at_once", "missing", "taps_inside", "volume_arguments",
]  # fmt: skip

DEPTHWISE_OPERATIONS = 2.7
"""Of a multiply-add, instead of 2: loads of inputs take time, too. Fitted to measured choices."""
LINES_SHARE = 2
"""Of so many parts of the L1 cache the taps' input for the lines at once takes one, where it stays for the next."""
WINDOWS = range(2, 8)
"""Numbers of taps along a line that may share the vectors of the input which they read."""
MOST_ROWS = 7
"""Most rows of such taps."""
PAIR_BITS = 512
"""Bits of a vector from which there are registers for the sums of two lines: 32, by AVX-512. On Zen 5 layers of 7 by 7
to 112 by 112 pixels then take 0.74 to 0.91 of the time at stride 1, and 0.98 to 1.02 at stride 2."""
PIXEL_BY_PIXEL = 4.0
"""Times the estimate of kernels for some lengths that the kernel for any is taken to need, so that it is chosen last.
No figures kept."""
OPEN_RUN = 4
"""Pixels to take at a time of lines of symbolic length: of 13 and more, less than a quarter are for nothing."""
BESIDE_BYTES = 256
"""Bytes of a pixel's channels in a slice from which a run is computed for all of them before the next one, so that
memory is read in order. Eight maps of 14 by 14 pixels, which lie beyond the L2 cache, then take 0.6 to 1.0 of the time
on Zen 5, and 0.3 to 0.9 with AVX2; of 144 channels of 56 by 56 pixels, 128 bytes at a time, AVX2 would take twice."""
LINE = RecordText(LINE_BLOCK, "block")
"""The block that describes a line, in kernels."""


MOST_EXACT = {"int8": 2**24 // (255 * 128), "int16": 2**24 // 255**2}
"""Taps of weights in a dtype whose products with 8-bit integers have sums that float32 has exactly. Weights in int16
are differences of 8-bit integers."""


def _tile(types: ElementTypes) -> RegisterTile:
    """The tile of the type that sums are computed in."""
    return tile_for(types if types.uniform else FLOAT32)


class ConvDepthwise(Solver[ConvProblem]):
    """Depthwise convolution, any size, stride, dilation and padding, of floats, of 8-bit integers by int8 or by
    differences of 8-bit integers in int16, and of bfloat16 by bfloat16."""

    name = "conv_depthwise"
    open_batch = open_lens = True
    revision = 1
    serves_any: ClassVar[bool] = False
    """Whether one kernel serves all lengths, pixel by pixel."""

    def refused_types(self, problem: ConvProblem) -> str | None:
        types = problem.types
        sums = DEPTHWISE_SUMS.get(types.a)
        if sums is None or types.uniform is not None:
            return super().refused_types(problem)
        right = ("int8", "int16") if sums == "int32" else ("bfloat16",)
        if types not in [ElementTypes(types.a, b, sums, sums) for b in right]:
            return f"{types.a} is multiplied by {' or '.join(right)} with sums in {sums}: {types}"
        return None

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.prologue:
            return NOT_COMPUTED
        if problem.transposed:
            return "the convolution is transposed"
        if problem.group_in != 1 or problem.group_out != 1:
            return "a group has more than one channel"
        most = MOST_EXACT.get(problem.types.b)
        if problem.types.accumulator == "int32" and most is not None and problem.taps > most:
            return f"sums over more than {most} taps may not be exact in float32"
        return None

    def writes_parts(self, problem: ConvProblem) -> bool:
        return fills_lines(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Panels of one vector of channels, taps, channels of a panel."""
        lanes = _tile(problem.types).lanes
        return (-(-problem.out_channels // lanes), problem.taps, lanes)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        out = aligned_zeros(self.packed_lens(problem), _tile(problem.types).dtype)
        pack_panels(weights.reshape(problem.out_channels, problem.taps).T, out)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        table = image_strides(problem, epilogue, strides)
        launch = _launch(problem.volume(), epilogue, table, threads, blocking, self.serves_any)
        return Solution((launch,))

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return line_blockings(problem, threads)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile, types = _tile(problem.types), problem.types
        rows = problem.batch * problem.out_pixels
        moved = ITEMSIZE[types.a] * problem.batch * problem.in_pixels * problem.out_channels
        moved += ITEMSIZE[types.out] * rows * problem.out_channels
        columns = -(-problem.out_channels // tile.lanes) * tile.lanes
        return seconds(tile, DEPTHWISE_OPERATIONS * rows * columns * problem.taps, moved, threads)


class ConvDepthwiseAny(ConvDepthwise):
    """Depthwise convolution of 8-bit integers by a kernel that lengths do not change: for lengths whose own kernels are
    not there."""

    name = "conv_depthwise_any"
    revision = 0
    serves_any = True

    def declines(self, problem: ConvProblem) -> str | None:
        if problem.types.accumulator != "int32":
            return "other solvers serve floats of any lengths"
        return super().declines(problem)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        return PIXEL_BY_PIXEL * super().estimate(problem, threads)


def volume_arguments(arguments: Arguments, problem: ConvProblem) -> None:
    """Arguments: strides of the input, lengths, stride, dilation and padding along the three axes d, h and w."""
    image, *strides = problem.x_strides
    arguments.integers(x_image=image, **{f"x_{name}": stride for name, stride in zip("dhw", strides)})
    for axis, name in enumerate("dhw"):
        arguments.integers(**{
            f"in_{name}": problem.in_lens[axis], f"out_{name}": problem.out_lens[axis],
            f"kernel_{name}": problem.kernel[axis], f"stride_{name}": problem.stride[axis],
            f"dilation_{name}": problem.dilation[axis], f"pad_{name}": problem.pads_begin[axis],
        })  # fmt: skip


def _launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    given: Blocking | None,
    serves_any: bool = False,
) -> Launch:
    """``problem`` has three spatial dimensions."""
    tile, accumulator = _tile(problem.types), problem.types.accumulator
    channels, out_lens = problem.out_channels, problem.out_lens
    run, height = (1, 1) if serves_any else (best_run(out_lens[2]), lines_at_once(problem))
    lines = problem.batch * out_lens[0] * out_lens[1]
    line_block, channel_block = _blocks(problem, tile, lines, threads, given)
    line_blocks, parts = ceil_div(lines, line_block), ceil_div(channels, channel_block)
    first = line_order(lines * out_lens[2], channels)
    line_every, part_every = (1, line_blocks) if first == "lines" else (parts, 1)
    slice_ = _slice(problem, tile, channel_block)
    arguments = Arguments()
    arguments.pointer("x", "x", problem.types.a)
    arguments.pointer("w", "w", tile.dtype)
    rows = Rows(epilogue, accumulator, tile.lanes)
    rows.pointers(arguments)
    arguments.integers(
        channels=channels, lines=lines, line_block=line_block, channel_block=channel_block,
        line_blocks=line_blocks, line_every=line_every, part_blocks=parts, part_every=part_every, slice=slice_,
        taps=problem.taps, beside=select(less(slice_ * ITEMSIZE[problem.types.a], BESIDE_BYTES), tile.lanes, slice_),
    )  # fmt: skip
    volume_arguments(arguments, problem)
    stride_arguments(arguments, strides)
    whole = channels % tile.lanes == 0
    own = line_locals(accumulator, tile.lanes, height * run * tile.lanes)
    sums = (f"depthwise_taps_{problem.types.a}", "") if serves_any else _sums(problem, height)
    task = _task(rows, epilogue, tile.lanes, sums, run, height, whole)
    text = kernel_text([*arguments.bind(), *own, *rows.invariant(), *for_tasks(task)])
    source = cpu_kernel(kernel_name("depthwise", epilogue), text)
    moved = ITEMSIZE[problem.types.a] * problem.batch * problem.in_pixels * channels
    moved += ITEMSIZE[tile.dtype] * problem.taps * channels
    moved += epilogue.stored_bytes(accumulator) * problem.batch * problem.out_pixels * channels
    return Launch(source, arguments.values, TaskRange(line_blocks * parts, 1), problem.flops, moved)


def _sums(problem: ConvProblem, height: int) -> tuple[str, str]:
    """Intrinsic of the sums of a run of so many lines, and the literals that follow the number of its pixels."""
    if _shares(problem):
        left, right = missing(problem)
        down = problem.stride[1] if height > 1 else 1
        shape = (height, down, problem.kernel[1], problem.kernel[2], problem.stride[2], left, right)
        return f"depthwise_{problem.types.a}", "".join(f"{literal}, " for literal in shape)
    return f"depthwise_taps_{problem.types.a}", ""


def _shares(problem: ConvProblem) -> bool:
    """Whether the pixels of a run share what they read. ``problem`` has three spatial dimensions."""
    near = problem.stride[2] <= 2 and problem.dilation[2] == 1
    return near and problem.kernel[2] in WINDOWS and problem.kernel[1] <= MOST_ROWS


def lines_at_once(problem: ConvProblem) -> int:
    """Output lines whose sums are in registers together: two where rows of the input are read by both."""
    volume = problem.volume()
    down, rows = volume.stride[1], volume.kernel[1]
    wide, several = _tile(problem.types).bits >= PAIR_BITS, not known_less_equal(volume.out_lens[1], 1)
    return 2 if wide and _shares(volume) and volume.dilation[1] == 1 and down < rows and several else 1


def missing(problem: ConvProblem) -> tuple[int, int]:
    """Columns that the first and the last pixel of a line lack, of symbolic length: at most. ``problem`` has three
    spatial dimensions."""
    if isinstance(problem.in_lens[2], Dim):
        return max(0, problem.pads_begin[2]), max(0, fixed(problem.pads_end[2]))
    reach = (problem.out_lens[2] - 1) * problem.stride[2] + problem.kernel[2] - problem.pads_begin[2]
    return max(0, problem.pads_begin[2]), max(0, reach - problem.in_lens[2])


def best_run(pixels: Length) -> int:
    """Pixels to take at a time, so that few sums of the last run of a line are for nothing."""
    if isinstance(pixels, Dim):
        return OPEN_RUN if permitted(less_equal(OPEN_RUN, pixels)) else 1
    return min((run for run in RUNS if run <= pixels), key=lambda run: -(-pixels // run) * (run + 2))


def _blocks(
    problem: ConvProblem, tile: RegisterTile, lines: Length, threads: int, given: Blocking | None
) -> tuple[Any, Any]:
    """Lines and channels of one task."""
    width = line_unit(problem.out_lens[2])
    blocking = cut_lines(tile, lines, width, problem.out_channels, threads, given)
    height = lines_at_once(problem) if given is None else 1
    return ceil_div(blocking.rows // width, height) * height, blocking.panels * tile.columns


def line_unit(width: Length) -> int:
    """Return the rows of a block that make a line: its pixels, or 1 where its length is symbolic and rows are lines."""
    return 1 if isinstance(width, Dim) else width


def _slice(problem: ConvProblem, tile: RegisterTile, channels: int) -> Any:
    """Channels to do at a time."""
    rows = problem.kernel[1] + (lines_at_once(problem) - 1) * problem.stride[1]
    line = problem.kernel[0] * rows * problem.in_lens[2] * ITEMSIZE[problem.types.a]
    near = maximum(machine().l1_bytes // LINES_SHARE // maximum(line, 1), 2 * tile.lanes)
    return minimum(near, ceil_div(channels, tile.lanes) * tile.lanes) // tile.lanes * tile.lanes


def line_locals(dtype: str, tap_size: int, sums: int) -> list[str]:
    """Statements: the block, filled with what all lines have in common, and room for so many ``sums`` of a dtype."""
    return [
        LINE.local(),
        f"sums = local_{dtype}({sums})",
        *LINE.fill(
            x_plane="dilation_d * x_d", w_plane=f"kernel_h * kernel_w * {tap_size}", x_row="dilation_h * x_h",
            x_column="x_w", stride="stride_w", taps="kernel_w", dilation="dilation_w", first="-pad_w", columns="in_w",
        ),
    ]  # fmt: skip


def _task(
    rows: Rows, epilogue: Epilogue, lanes: int, sums: tuple[str, str], run: int, height: int, whole: bool
) -> list[str]:
    """``height``: the lines at once. ``whole``: the channels fill their vectors."""
    pair = height > 1
    return [
        "line0 = imod(idiv(task, line_every), line_blocks) * line_block",
        "line1 = imin(lines, line0 + line_block)",
        "first = imod(idiv(task, part_every), part_blocks) * channel_block",
        "last = imin(channels, first + channel_block)",
        "for n0 in range(first, last, slice):",
        *indent([
            "columns = imin(last - n0, slice)",
            f"rest = columns & {lanes - 1}",
            LINE.put("channels", "rest"),
            "plane = idiv(line0, out_h)",
            "o_h = line0 - plane * out_h",
            "image = idiv(plane, out_d)",
            "o_d = plane - image * out_d",
            "line = line0",
            "while line < line1:",
            *indent([
                f"here = imin(imin(line1 - line, out_h - o_h), {height})" if pair else "here = 1",
                *taps_inside("d"),
                *taps_inside("h", "kernel_h + (here - 1) * stride_h" if pair else ""),
                *LINE.fill(planes="end_d - k_d", row0="k_h", row1="end_h"),
                "x_line = image * x_image + (i_d + k_d * dilation_d) * x_d + i_h * x_h - pad_w * x_w + n0",
                f"w_line = n0 * taps + k_d * kernel_h * kernel_w * {lanes}",
                "pixel = (o_d * out_h + o_h) * out_w",
                *row_offsets(epilogue),
                *_line(rows, lanes, sums, run, height, whole),
                "line += here",
                "o_h += here",
                "if o_h == out_h:",
                "    o_h = 0",
                "    o_d += 1",
                "    if o_d == out_d:",
                "        o_d = 0",
                "        image += 1",
            ]),
        ]),
    ]  # fmt: skip


def taps_inside(axis: str, taps: str = "") -> list[str]:
    """Statements: the first tap along an axis that lies in the input, ``k_<axis>``, and the one after the last,
    ``end_<axis>``, of ``kernel_<axis>`` or of so many ``taps``."""
    return [
        f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}",
        f"k_{axis} = 0",
        f"end_{axis} = {taps or f'kernel_{axis}'}",
        f"if i_{axis} < 0:",
        f"    k_{axis} = idiv(dilation_{axis} - 1 - i_{axis}, dilation_{axis})",
        f"if i_{axis} + (end_{axis} - 1) * dilation_{axis} >= in_{axis}:",
        f"    end_{axis} = idiv(imax(in_{axis} - i_{axis}, 0) + dilation_{axis} - 1, dilation_{axis})",
    ]


def _line(rows: Rows, lanes: int, sums: tuple[str, str], run: int, height: int, whole: bool) -> list[str]:
    """Statements: ``here`` lines of a slice of channels, of which a run is computed for ``beside`` before the next."""
    first = [f"for o in range(0, out_w, {run}):", f"    o_w = imin(o, out_w - {run})"]
    vectors = [f"for c in range(c0, imin(c0 + beside, columns - rest), {lanes}):"]
    vectors += indent(_run(rows, lanes, sums, run, height, part=False))
    lines = ["for c0 in range(0, columns - rest, beside):", *indent([*first, *indent(vectors)])]
    if whole:
        return lines
    last = [*first, *indent(_run(rows, lanes, sums, run, height, part=True))]
    return [*lines, "if rest > 0:", "    c = columns - rest", *indent(last)]


def _run(rows: Rows, lanes: int, sums: tuple[str, str], run: int, height: int, part: bool) -> list[str]:
    """Statements: the run of pixels from ``o_w`` on, in ``here`` lines, of the vector of channels from ``c`` on, of
    which only ``rest`` exist if it is a ``part``."""
    before, _ = rows.vector_text(part)
    name, literals = sums
    lines = [
        *before,
        "w_here = offset(w, w_line + c * taps)",
        "x_here = offset(x, x_line + c + o_w * stride_w * x_w)",
        f"{name}(block, sums, x_here, w_here, o_w, {run}, {literals}{int(part)}, {lanes})",
    ]
    for line in range(height):
        first = f"(o_w + {line} * out_w)" if line else "o_w"
        _, finish = rows.vector_text(part, line * run * lanes)
        finished = [
            *(f"{place}_place = {place}_row + {first} * {place}_pixel{column}" for place, column in rows.moving()),
            f"for i in range({run}):",
            *indent([*finish, *(f"{place}_place += {place}_pixel" for place, _ in rows.moving())]),
        ]
        lines += [f"if here > {line}:", *indent(finished)] if line else finished
    return lines
