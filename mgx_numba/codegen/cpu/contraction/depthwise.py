"""Convolution of narrow groups: of one channel each (depthwise), or of a few, which divide a vector.

Every lane is an output channel. The lanes of a group read the same input channels, which shuffles of one or two
vectors bring there.

A task is a block of channels by a block of output lines. A slice of channels is processed at a time, small enough that
the input lines which its taps read stay in the L1 cache.

A line is computed in runs of pixels. The accumulators of a run, for one vector of channels, stay in registers for all
taps and go straight to the epilogue. All runs of one vector come first, or, with many channels, one run for all vectors
of the slice. A short last run is shifted back to overlap the run before. With enough registers, two lines that share
input rows are computed at a time.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ....core.dim import Dim, Length, ceil_div, known_less_equal, less, less_equal, maximum, minimum, permitted, select
from ....dataclass import dataclass
from ...alternatives import fixed
from ...arguments import Arguments
from ...launch import Launch, Operand, Solution, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import FLOAT32, ITEMSIZE, ElementTypes
from ...problems.epilogue import NOT_COMPUTED, Epilogue
from ...statements import for_tasks, indent, kernel_text
from ..kernel import cpu_kernel
from ..machine import machine
from ..microkernels.depthwise_table import DEPTHWISE_SUMS, LINE_BLOCK, RUNS
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import WIDE_INTEGERS, tile_for
from ..records import RecordText
from .bf16_split_rows import fills_lines
from .blocking import Blocking, cut_lines, line_blockings, line_order
from .conv import TAP_OPERATIONS
from .conv_output_rows import Lattice, image_strides, lattice_arguments, row_offsets, stride_arguments
from .epilogue_rows import Rows, kernel_name
from .panels import aligned_zeros, pack_panels, panel_count
from .solver import Setting, Solver, seconds

DEPTHWISE_OPERATIONS = 2.7
"""Operations counted for a multiply-add, instead of 2, since input loads take time, too. Fitted to measured choices."""
MOST_VECTORS = 4
"""Vectors of input channels from which one vector of output channels is computed."""
MOST_SHARED = 4
"""Input channels of a group up to which taps share input vectors: the weights of a row then stay in registers.

On Zen 5, 16 groups of 8 channels, 3x3 taps, take 353 us tap by tap, and 418 us with shared vectors.
"""
LINES_SHARE = 2
"""The input lines that the taps read take at most one part in this many of the L1 cache, where they stay for the next
lines."""
WINDOWS = range(2, 8)
"""Horizontal kernel sizes for which taps share input vectors."""
MOST_ROWS = 7
"""Largest vertical kernel size for which taps share input vectors."""
PAIR_BITS = 512
"""Vector width (bits) from which registers suffice for the accumulators of two lines: 32 registers, by AVX-512.

On Zen 5 layers of 7x7 to 112x112 pixels then take 0.74 to 0.91 of the time at stride 1, and 0.98 to 1.02 at stride 2.
"""
PIXEL_BY_PIXEL = 4.0
"""Multiple of the specialised kernels' estimate that is assumed for the kernel for any lengths, so that it is chosen
last. No figures kept."""
OPEN_RUN = 4
"""Pixels of a run where the line length is symbolic: with lines of 13 or more, less than a quarter of the work is
redundant."""
BESIDE_BYTES = 256
"""Bytes of a pixel's channels in a slice from which one run is computed for all channels before the next run, so that
memory is read in order.

Eight maps of 14x14 pixels, beyond the L2 cache, then take 0.6 to 1.0 of the time on Zen 5, and 0.3 to 0.9 with AVX2.
For 144 channels of 56x56 pixels, 128 bytes at a time, AVX2 would take twice the time.
"""
LINE = RecordText(LINE_BLOCK, "block")
"""The record that describes a line to the kernels."""


Sums = tuple[str, tuple[str, str]]
"""Name of an intrinsic, and its literals after the run length and after the lanes."""
MOST_EXACT = {"int8": 2**24 // (255 * 128), "int16": 2**24 // 255**2}
"""Most taps, by weight dtype, for which sums of products with 8-bit integers are exact in float32. int16 weights are
differences of 8-bit integers."""


def is_grouped(problem: ConvProblem) -> bool:
    """Return whether a group has several input or output channels."""
    return problem.group_in > 1 or problem.group_out > 1


def divides_vectors(problem: ConvProblem) -> bool:
    """Return whether each vector of output channels has whole groups, of one dtype and few input channels.

    A single group that fills no vector, or a product of pixels, suits tiles of matrix products better: 16 to 8 channels
    of 56x56 pixels, 3x3 taps, take 88 us by a tile on Zen 5, and 122 us by vectors.
    """
    types = problem.types
    lanes = _tile(types).lanes
    if types.uniform is None or types.uniform in WIDE_INTEGERS or problem.shuffled or lanes % problem.group_out:
        return False
    ragged = problem.out_channels < lanes and problem.group_in > MOST_SHARED
    if problem.groups == 1 and (problem.taps == 1 or ragged):
        return False
    return lanes // problem.group_out * problem.group_in <= MOST_VECTORS * lanes


def fills_vectors(problem: ConvProblem) -> bool:
    """Return whether vectors of output channels take fewer operations than the columns of a matrix tile."""
    if not divides_vectors(problem):
        return False
    tile = _tile(problem.types)
    vectors = DEPTHWISE_OPERATIONS * -(-problem.out_channels // tile.lanes) * tile.lanes * problem.group_in
    columns = panel_count(tile, problem.group_out) * tile.columns
    return vectors < problem.groups * (2 * columns * problem.group_in + TAP_OPERATIONS)


def _tile(types: ElementTypes) -> RegisterTile:
    """Return the register tile of the dtype in which sums are computed."""
    return tile_for(types if types.uniform else FLOAT32)


class ConvDepthwise(Solver[ConvProblem]):
    """Solver for convolutions of narrow groups, of any size, stride, dilation and padding.

    Element types: floats; of depthwise convolutions also 8-bit integers by int8, or by differences of 8-bit integers in
    int16; bfloat16 by bfloat16.
    """

    name = "conv_depthwise"
    open_batch = open_lens = True
    revision = 1
    serves_any: ClassVar[bool] = False
    """Whether one kernel, which works pixel by pixel, serves all lengths."""

    def refused_types(self, problem: ConvProblem) -> str | None:
        types = problem.types
        sums = DEPTHWISE_SUMS.get(types.a)
        if types.uniform in WIDE_INTEGERS:
            return f"no line of taps is declared for {types}"
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
        if is_grouped(problem) and not divides_vectors(problem):
            return "a group's channels do not divide a vector, or are too many, or of several types, or shuffled"
        most = MOST_EXACT.get(problem.types.b)
        if problem.types.accumulator == "int32" and most is not None and problem.taps > most:
            return f"sums over more than {most} taps may not be exact in float32"
        return None

    def writes_bf16_split(self, problem: ConvProblem) -> bool:
        return fills_lines(problem)

    def packed_lens(self, problem: ConvProblem) -> tuple[int, ...]:
        """Return the lengths of the packed weights: panels of one vector of output channels, taps of each input channel
        of a group, channels of a panel."""
        lanes = _tile(problem.types).lanes
        return (-(-problem.out_channels // lanes), problem.taps * problem.group_in, lanes)

    def pack_weights(self, problem: ConvProblem, weights: np.ndarray) -> np.ndarray:
        out = aligned_zeros(self.packed_lens(problem), _tile(problem.types).dtype)
        taps = np.moveaxis(weights, 1, -1).reshape(problem.out_channels, problem.taps * problem.group_in)
        pack_panels(taps.T, out)
        return out

    def solve(self, problem: ConvProblem, setting: Setting) -> Solution:
        epilogue, strides, threads, blocking = setting
        table = image_strides(problem, epilogue, strides)
        launch = depthwise_launch(problem.volume(), epilogue, table, threads, blocking, self.serves_any)
        return Solution((launch,))

    def blockings(self, problem: ConvProblem, threads: int) -> list[Blocking]:
        return line_blockings(problem, threads)

    def estimate(self, problem: ConvProblem, threads: int = 1) -> float:
        tile, types = _tile(problem.types), problem.types
        rows = problem.batch * problem.out_pixels
        moved = ITEMSIZE[types.a] * problem.batch * problem.in_pixels * problem.in_channels
        moved += ITEMSIZE[types.out] * rows * problem.out_channels
        columns = -(-problem.out_channels // tile.lanes) * tile.lanes
        terms = problem.taps * problem.group_in
        return seconds(tile, DEPTHWISE_OPERATIONS * rows * columns * terms, moved, threads)


class ConvDepthwiseAny(ConvDepthwise):
    """Solver for depthwise convolutions of 8-bit integers by a kernel that does not depend on lengths; used where no
    specialised kernel is available."""

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
    """Declare the arguments: input strides, lengths, stride, dilation and padding along the axes d, h and w."""
    image, *strides = problem.x_strides
    arguments.integers(x_image=image, **{f"x_{name}": stride for name, stride in zip("dhw", strides)})
    for axis, name in enumerate("dhw"):
        arguments.integers(**{
            f"in_{name}": problem.in_lens[axis], f"out_{name}": problem.out_lens[axis],
            f"kernel_{name}": problem.kernel[axis], f"stride_{name}": problem.stride[axis],
            f"dilation_{name}": problem.dilation[axis], f"pad_{name}": problem.pads_begin[axis],
        })  # fmt: skip


def depthwise_launch(
    problem: ConvProblem,
    epilogue: Epilogue,
    strides: dict[str, tuple[int, int]],
    threads: int,
    given: Blocking | None,
    serves_any: bool = False,
    start: int = 0,
    lattice: Lattice | None = None,
) -> Launch:
    """Return the launch for ``problem``, which has three spatial dimensions.

    Args:
        start: element of ``w`` at which the weights begin.
        lattice: the output pixels are these points of a larger output.
    """
    tile, accumulator = _tile(problem.types), problem.types.accumulator
    channels, out_lens = problem.out_channels, problem.out_lens
    run = 1 if serves_any else best_run(out_lens[2])
    height = 1 if serves_any or lattice else _lines_at_once(problem)
    lines = problem.batch * out_lens[0] * out_lens[1]
    line_block, channel_block = _blocks(problem, tile, lines, threads, given)
    line_blocks, parts = ceil_div(lines, line_block), ceil_div(channels, channel_block)
    first = line_order(lines * out_lens[2], channels)
    line_every, part_every = (1, line_blocks) if first == "lines" else (parts, 1)
    slice_ = _slice(problem, tile, channel_block)
    arguments = Arguments()
    arguments.pointer("x", "x", problem.types.a)
    arguments.pointer("w", Operand("w", start * ITEMSIZE[tile.dtype]) if start else "w", tile.dtype)
    rows = Rows(epilogue, accumulator, tile.lanes)
    rows.pointers(arguments)
    arguments.integers(
        channels=channels, lines=lines, line_block=line_block, channel_block=channel_block,
        line_blocks=line_blocks, line_every=line_every, part_blocks=parts, part_every=part_every, slice=slice_,
        taps=problem.taps * problem.group_in,
        beside=select(less(slice_ * ITEMSIZE[problem.types.a], BESIDE_BYTES), tile.lanes, slice_),
    )  # fmt: skip
    volume_arguments(arguments, problem)
    stride_arguments(arguments, strides)
    if lattice:
        lattice_arguments(arguments, ("d", "h", "w"), lattice)
    whole = channels % tile.lanes == 0
    own = line_locals(accumulator, tile.lanes * problem.group_in, height * run * tile.lanes)
    sums = (f"depthwise_taps_{problem.types.a}", ("", "")) if serves_any else _sums(problem, height)
    group = problem.group_in, problem.group_out
    task = _task(rows, epilogue, _Form(tile.lanes, sums, run, height, whole, group, lattice is not None))
    text = kernel_text([*arguments.bind(), *own, *rows.invariant(), *for_tasks(task)])
    source = cpu_kernel(kernel_name("depthwise", epilogue), text)
    moved = ITEMSIZE[problem.types.a] * problem.batch * problem.in_pixels * problem.in_channels
    moved += ITEMSIZE[tile.dtype] * problem.taps * problem.group_in * channels
    moved += epilogue.stored_bytes(accumulator) * problem.batch * problem.out_pixels * channels
    return Launch(source, arguments.values, TaskRange(line_blocks * parts, 1), problem.flops, moved)


def _sums(problem: ConvProblem, height: int) -> Sums:
    """Return the intrinsic that accumulates a run of ``height`` lines."""
    groups, more = ("groups_", f", {problem.group_in}, {problem.group_out}") if is_grouped(problem) else ("", "")
    if _shares(problem):
        left, right = missing(problem)
        down = problem.stride[1] if height > 1 else 1
        shape = (height, down, problem.kernel[1], problem.kernel[2], problem.stride[2], left, right)
        return f"depthwise_{groups}{problem.types.a}", ("".join(f"{literal}, " for literal in shape), more)
    return f"depthwise_{groups}taps_{problem.types.a}", ("", more)


def _shares(problem: ConvProblem) -> bool:
    """Return whether the pixels of a run share input vectors. ``problem`` has three spatial dimensions."""
    near = problem.stride[2] <= 2 and problem.dilation[2] == 1 and problem.group_in <= MOST_SHARED
    return near and problem.kernel[2] in WINDOWS and problem.kernel[1] <= MOST_ROWS


def _lines_at_once(problem: ConvProblem) -> int:
    """Return the output lines whose accumulators are in registers together: two if they share input rows, else one."""
    volume = problem.volume()
    down, rows = volume.stride[1], volume.kernel[1]
    wide, several = _tile(problem.types).bits >= PAIR_BITS, not known_less_equal(volume.out_lens[1], 1)
    wide = wide and problem.group_in == 1
    return 2 if wide and _shares(volume) and volume.dilation[1] == 1 and down < rows and several else 1


def missing(problem: ConvProblem) -> tuple[int, int]:
    """Return the tap columns that fall into padding for the first and the last pixel of a line; upper bounds for
    symbolic lengths.

    ``problem`` has three spatial dimensions.
    """
    if isinstance(problem.in_lens[2], Dim):
        return max(0, problem.pads_begin[2]), max(0, fixed(problem.pads_end[2]))
    reach = (problem.out_lens[2] - 1) * problem.stride[2] + problem.kernel[2] - problem.pads_begin[2]
    return max(0, problem.pads_begin[2]), max(0, reach - problem.in_lens[2])


def best_run(pixels: Length) -> int:
    """Return the pixels of a run that leave little redundant work in the last run of a line."""
    if isinstance(pixels, Dim):
        return OPEN_RUN if permitted(less_equal(OPEN_RUN, pixels)) else 1
    return min((run for run in RUNS if run <= pixels), key=lambda run: -(-pixels // run) * (run + 2))


def _blocks(
    problem: ConvProblem, tile: RegisterTile, lines: Length, threads: int, given: Blocking | None
) -> tuple[Length, Length]:
    """Return the number of lines and channels per task."""
    width = line_unit(problem.out_lens[2])
    blocking = cut_lines(tile, lines, width, problem.out_channels, threads, given)
    height = _lines_at_once(problem) if given is None else 1
    return ceil_div(blocking.rows // width, height) * height, blocking.panels * tile.columns


def line_unit(width: Length) -> int:
    """Return the rows of a block that make a line: its pixels, or 1 where its length is symbolic and rows are lines."""
    return 1 if isinstance(width, Dim) else width


def _slice(problem: ConvProblem, tile: RegisterTile, channels: Length) -> Length:
    """Return the channels of a slice."""
    rows = problem.kernel[1] + (_lines_at_once(problem) - 1) * problem.stride[1]
    line = problem.kernel[0] * rows * problem.in_lens[2] * ITEMSIZE[problem.types.a]
    near = maximum(machine().l1_bytes // LINES_SHARE // maximum(line, 1), 2 * tile.lanes)
    return minimum(near, ceil_div(channels, tile.lanes) * tile.lanes) // tile.lanes * tile.lanes


def line_locals(dtype: str, tap_size: int, sums: int) -> list[str]:
    """Return statements that fill the line record with values common to all lines, and allocate ``sums`` accumulators
    of ``dtype``."""
    return [
        LINE.local(),
        f"sums = local_{dtype}({sums})",
        *LINE.fill(
            x_plane="dilation_d * x_d", w_plane=f"kernel_h * kernel_w * {tap_size}", x_row="dilation_h * x_h",
            x_column="x_w", stride="stride_w", taps="kernel_w", dilation="dilation_w", first="-pad_w", columns="in_w",
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Form:
    """What a kernel's text depends on.

    Attributes:
        sums: intrinsic and literals of `_sums`.
        run: pixels of a run.
        height: lines computed at once.
        whole: the channels fill their vectors.
        group: input and output channels of a group.
        apart: the pixels are points of a lattice.
    """

    lanes: int
    sums: Sums
    run: int
    height: int
    whole: bool
    group: tuple[int, int]
    apart: bool

    def inputs_of(self, channels: str) -> str:
        """Return an expression of the input channels that the whole groups of output ``channels`` read."""
        inner, outer = self.group
        groups = f"idiv({channels}, {outer})" if outer > 1 else channels
        return f"{groups} * {inner}" if inner > 1 else groups


def _task(rows: Rows, epilogue: Epilogue, form: _Form) -> list[str]:
    """Return the statements of one task."""
    lanes, height = form.lanes, form.height
    points = "((o_d * by_d + from_d) * full_h + o_h * by_h + from_h) * full_w + from_w"
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
            LINE.put("channels", form.inputs_of("rest")),
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
                "x_line = image * x_image + (i_d + k_d * dilation_d) * x_d + i_h * x_h - pad_w * x_w + "
                + form.inputs_of("n0"),
                f"w_line = n0 * taps + k_d * kernel_h * kernel_w * {lanes * form.group[0]}",
                f"pixel = {points if form.apart else '(o_d * out_h + o_h) * out_w'}",
                *row_offsets(epilogue),
                *_line(rows, form),
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
    """Return statements that compute the range of taps inside the input along ``axis``: ``k_<axis>`` to ``end_<axis>``
    (exclusive).

    Args:
        taps: number of taps; "": ``kernel_<axis>``.
    """
    return [
        f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}",
        f"k_{axis} = 0",
        f"end_{axis} = {taps or f'kernel_{axis}'}",
        f"if i_{axis} < 0:",
        f"    k_{axis} = idiv(dilation_{axis} - 1 - i_{axis}, dilation_{axis})",
        f"if i_{axis} + (end_{axis} - 1) * dilation_{axis} >= in_{axis}:",
        f"    end_{axis} = idiv(imax(in_{axis} - i_{axis}, 0) + dilation_{axis} - 1, dilation_{axis})",
    ]


def _line(rows: Rows, form: _Form) -> list[str]:
    """Return statements that compute ``here`` lines of a slice of channels, each run for ``beside`` channels before the
    next run."""
    first = [f"for o in range(0, out_w, {form.run}):", f"    o_w = imin(o, out_w - {form.run})"]
    vectors = [f"for c in range(c0, imin(c0 + beside, columns - rest), {form.lanes}):"]
    vectors += indent(_run(rows, form, part=False))
    lines = ["for c0 in range(0, columns - rest, beside):", *indent([*first, *indent(vectors)])]
    if form.whole:
        return lines
    last = [*first, *indent(_run(rows, form, part=True))]
    return [*lines, "if rest > 0:", "    c = columns - rest", *indent(last)]


def _run(rows: Rows, form: _Form, part: bool) -> list[str]:
    """Return statements that compute one run of pixels from ``o_w`` in ``here`` lines, for the vector of channels at
    ``c``.

    Args:
        part: only ``rest`` channels of the vector exist.
    """
    before, _ = rows.vector_text(part)
    lanes, run, (name, (literals, more)) = form.lanes, form.run, form.sums
    lines = [
        *before,
        "w_here = offset(w, w_line + c * taps)",
        f"x_here = offset(x, x_line + {form.inputs_of('c')} + o_w * stride_w * x_w)",
        f"{name}(block, sums, x_here, w_here, o_w, {run}, {literals}{int(part)}, {lanes}{more})",
    ]
    for line in range(form.height):
        first, step = f"(o_w + {line} * out_w)" if line else "o_w", "by_w * " * form.apart
        _, finish = rows.vector_text(part, line * run * lanes)
        finished = [
            *(f"{name}_place = {name}_row + {first} * {step}{name}_pixel{column}" for name, column in rows.moving()),
            f"for i in range({run}):",
            *indent([*finish, *(f"{name}_place += {step}{name}_pixel" for name, _ in rows.moving())]),
        ]
        lines += [f"if here > {line}:", *indent(finished)] if line else finished
    return lines
