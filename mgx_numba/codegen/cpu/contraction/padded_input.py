"""A grid of a convolution's input pixels from which matrix tiles read every tap at constant distances, and the launch
that copies the input onto it.

The grid is the padded input, with its lines sorted by their number modulo the vertical stride: line ``y`` with
remainder ``r`` is line ``y * stride + r`` of the padded input. The length of a line is a multiple of the horizontal
stride.

So output ``(y, x)`` reads, at each tap, ``(y * width + x) * stride * pixel`` behind what output ``(0, 0)`` reads:
successive outputs, over all lines, are evenly spaced rows. Outputs between the end of a line and the next line are
computed and dropped. The last of them read lines of zeros at the end.

An input without padding may already be a grid; nothing is then computed past its last output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from ....core.dim import Length, known_equal
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.convolution import ConvProblem
from ...problems.element_types import ITEMSIZE
from ...statements import for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from ..microkernels.register_tile import RegisterTile
from .bf16_split_rows import declare_parts, halve_vector, split_row, split_vector


def padded_input_refusal(problem: ConvProblem) -> str | None:
    """Return why a problem's input cannot be copied onto a grid; None if it can."""
    p = problem.volume()
    if problem.transposed:
        return "the convolution is transposed"
    if not known_equal(p.in_lens[0], 1) or p.kernel[0] > 1 or p.pads_begin[0] or p.pads_end[0]:
        return "there are three spatial dimensions"
    return "the input is cropped" if min(*p.pads_begin, *p.pads_end) < 0 else None


def _sampled(p: ConvProblem) -> ConvProblem:
    """Return the problem without strides along dimensions that have one tap and no padding."""
    steps = [s if (k, *pads) == (1, 0, 0) else 1 for s, k, *pads in zip(p.stride, p.kernel, p.pads_begin, p.pads_end)]
    return replace(
        p,
        in_lens=tuple(o if step > 1 else n for n, o, step in zip(p.in_lens, p.out_lens, steps)),
        stride=tuple(s // step for s, step in zip(p.stride, steps)),
        x_strides=(p.x_strides[0], *(s * step for s, step in zip(p.x_strides[1:], steps))),
    )


@dataclass(frozen=True)
class PaddedInput:
    """The grid of a problem for a tile; lengths and strides are in words of the tile unless said otherwise.

    A line of taps is one tap (``merged``) where that takes fewer steps than its taps one by one.
    """

    problem: ConvProblem
    tile: RegisterTile

    @functools.cached_property
    def volume(self) -> ConvProblem:
        """Return the problem in three dimensions, over only the pixels that are read where these are evenly spaced."""
        return _sampled(self.problem.volume())

    @property
    def form(self) -> str:
        """Return the dtype of an element on the grid."""
        return self.tile.packing.a or self.tile.types.a

    @property
    def pixel_elements(self) -> int:
        """Return the elements of a pixel, in whole words."""
        together = self.tile.packing.k_interleave
        return -(-self.problem.in_channels // together) * together

    @property
    def pixel(self) -> int:
        return self.pixel_elements // self.tile.packing.k_interleave

    @property
    def merged(self) -> bool:
        p = self.volume
        if p.groups > 1 or p.dilation[2] > 1:
            return False
        return self.tile.depth(p.kernel[2] * self.pixel_elements) < p.kernel[2] * self.tile.depth(p.in_channels)

    @property
    def terms(self) -> int:
        """Return the left-hand elements of a tap."""
        return self.volume.kernel[2] * self.pixel_elements if self.merged else self.problem.group_in

    @property
    def taps(self) -> int:
        kernel = self.volume.kernel
        return kernel[1] if self.merged else kernel[1] * kernel[2]

    @property
    def width(self) -> Length:
        """Return the outputs of a line, including dropped outputs."""
        p = self.volume
        return -(-(p.in_lens[2] + p.pads_begin[2] + p.pads_end[2]) // p.stride[2])

    @functools.cached_property
    def in_place(self) -> bool:
        """Return whether the input already is such a grid, and reads past a tap's terms are harmless."""
        p, together = self.volume, self.tile.packing.k_interleave
        past = self.terms != together * self.tile.depth(self.terms)  # the last word reads past a tap's terms
        whole = self.pixel_elements == p.in_channels and (not past or (p.line_behind and ITEMSIZE[p.types.a] == 1))
        if self.form != p.types.a or not whole or any((*p.pads_begin, *p.pads_end)) or p.stride[1] > 1:
            return False
        even = known_equal(p.in_lens[2] % p.stride[2], 0) and known_equal(p.x_strides[0] % together, 0)
        close = known_equal(p.in_lens[1], 1) or known_equal(p.x_strides[2], p.in_lens[2] * p.in_channels)
        return even and close and known_equal(p.x_strides[3], p.in_channels)

    @property
    def rows(self) -> Length:
        """Return the outputs of an image."""
        height, width = self.volume.out_lens[1:]
        return (height - 1) * self.width + width if self.in_place else height * self.width

    @property
    def line(self) -> Length:
        return self.width * self.volume.stride[2] * self.pixel

    @property
    def reach(self) -> Length:
        """Return the lines of one remainder from the first to the last that an output reads, and for reads past the
        last pixel."""
        p = self.volume
        last = (p.kernel[1] - 1) * p.dilation[1] // p.stride[1]
        behind = (p.kernel[2] - 1) * p.dilation[2] * self.pixel + self.tile.depth(self.terms)
        return last + 1 + behind // self.line

    @property
    def lines(self) -> Length:
        """Return the lines per remainder class in an image."""
        return self.volume.out_lens[1] + self.reach

    @property
    def phases(self) -> int:
        """Return the number of line remainders."""
        return self.volume.stride[1]

    @property
    def image(self) -> Length:
        """Return the words from one image to the next."""
        if self.in_place:
            return self.volume.x_strides[0] // self.tile.packing.k_interleave
        return self.phases * self.lines * self.line

    @property
    def low(self) -> Length:
        """Return the words from the high to the low parts, a multiple of cache lines; 0 for a grid of one part."""
        if self.tile.packing.parts == 1:
            return 0
        line = host.CACHE_LINE // ITEMSIZE[self.tile.left_word]
        return -(-self.problem.batch * self.image // line) * line

    @property
    def noted(self) -> bool:
        """Return whether each line has a flag: where parts cannot represent some numbers, or where reads past a tap may
        be infinite."""
        past = self.terms != self.tile.packing.k_interleave * self.tile.depth(self.terms)
        return self.form == "bfloat16" and (self.tile.packing.parts > 1 or past) and not self.in_place

    @property
    def flags(self) -> Length:
        """Return the byte at which the line flags begin, if there are any: a multiple of cache lines."""
        line, size = host.CACHE_LINE, ITEMSIZE[self.tile.left_word]
        return 2 * self.low * size if self.low else -(-self.problem.batch * self.image * size // line) * line

    @property
    def scratch(self) -> Length:
        """Return the bytes of the grid and its flags."""
        if self.in_place:
            return 0
        notes = 4 * self.problem.batch * self.phases * self.lines if self.noted else 0
        return self.flags + notes


SMALL_PIXELS = (2, 4, 8)
"""Numbers of elements of a pixel for which one vector holds several pixels."""
INFINITY = 0x7F80
"""The bits of infinity in bfloat16, by definition; NaN has larger bits."""
Write = Callable[[str, str, str], list[str]]
"""Return statements that store a vector, or its first elements, at an element of the grid."""


def pad_launch(grid: PaddedInput) -> Launch:
    """Return the launch that fills the grid; a line is one task."""
    p, given = grid.volume, grid.problem.types.a
    together, split = grid.tile.packing.k_interleave, grid.tile.packing.parts > 1
    arguments = Arguments()
    arguments.pointer("x", "x", given)
    if split:
        declare_parts(arguments, grid.low * together, grid.flags)
    else:
        arguments.pointer("packed", "scratch", grid.form)
        if grid.noted:
            arguments.pointer("flags", Operand("scratch", grid.flags), "int32")
    arguments.integers(
        channels=p.in_channels, pixels=p.in_lens[2], in_h=p.in_lens[1], x_image=p.x_strides[0], x_h=p.x_strides[2],
        x_w=p.x_strides[3], pad_h=p.pads_begin[1], begin_w=p.pads_begin[2] * grid.pixel_elements,
        lines=grid.lines, phases=grid.phases, pixel=grid.pixel_elements, line_size=grid.line * together,
    )  # fmt: skip
    kind, setup, walk = _walk(grid)

    def whole(write: Write) -> list[str]:
        return [
            "start = image * x_image + y * x_h",
            "goal = task * line_size + begin_w",
            "if has_pixels:",
            *indent(walk(write)),
        ]

    task = [
        "outer = idiv(task, lines)",
        "image = idiv(outer, phases)",
        "y = (task - outer * lines) * phases + outer - image * phases - pad_h",
        "has_pixels = y >= 0 and y < in_h",
        *_zeros(grid, kind != "pixels" or grid.pixel_elements == p.in_channels),
        *(split_row(whole(split_vector), whole(halve_vector)) if split else _in_one_part(grid, whole)),
    ]
    name = f"{'split' if split else f'{given}_as_{grid.form}'}_{kind}{'_noted' * (grid.noted and not split)}_kernel"
    source = cpu_kernel(name, kernel_text([*arguments.bind(), *setup, *for_tasks(task)]))
    count = grid.problem.batch * grid.phases * grid.lines
    size = grid.tile.packing.parts * ITEMSIZE[grid.tile.left_word]
    moved = count * grid.line * size + grid.problem.batch * p.in_pixels * p.in_channels * ITEMSIZE[given]
    return Launch(source, arguments.values, TaskRange(count, claim(count, moved)), 0, moved)


def _walk(grid: PaddedInput) -> tuple[str, list[str], Callable[[Write], list[str]]]:
    """Return how a line is copied: a name, statements before all lines, and a function that gives the statements of a
    line.

    A line is copied as one run, as vectors of several small pixels, or as one run for each pixel.
    """
    p, lanes, pixel = grid.volume, host.lanes(grid.form), grid.pixel_elements

    def run(write: Write) -> Callable[[str], list[str]]:
        def body(left: str) -> list[str]:
            end, more = ("_tail", f"{left}, 0, ") if left else ("", "")
            return write(f"load{end}(x, start + c, {more}{lanes})", "goal + c", left)

        return body

    def several(write: Write) -> Callable[[str], list[str]]:
        def body(left: str) -> list[str]:
            place = f"offset(x, start + idiv(c, {pixel}) * x_w)"
            found = f"gather_tail({place}, index, {left}, 0)" if left else f"gather({place}, index)"
            return write(f"where(exist, {found}, const_float32(0, {lanes}))", "goal + c", left)

        return body

    close = known_equal(p.x_strides[3], p.in_channels) and p.in_channels == pixel
    if close or (p.in_channels == pixel == 1 and known_equal(p.in_lens[2], 1)):
        return "lines", [], lambda write: vector_loop(lanes, run(write), "0", "channels * pixels")
    if grid.problem.types.a == "float32" and pixel in SMALL_PIXELS:
        setup = [
            f"channel = bitwise_and(iota_int32({lanes}), {pixel - 1})",
            f"exist = lt(channel, const_int32({p.in_channels}, {lanes}))",
            f"number = shift_right(iota_int32({lanes}), {pixel.bit_length() - 1})",
            f"index = add(mul(number, x_w), where(exist, channel, const_int32(0, {lanes})))",
        ]
        return (
            f"{p.in_channels}_channels",
            setup,
            lambda write: vector_loop(lanes, several(write), "0", f"pixels * {pixel}"),
        )

    def each(write: Write) -> list[str]:
        one = [*vector_loop(lanes, run(write), "0", "channels"), "start += x_w", "goal += pixel"]
        return ["for number in range(pixels):", *indent(one)]

    return "pixels", [], each


def _zeros(grid: PaddedInput, margins: bool) -> list[str]:
    """Return statements that zero a line without pixels, or the ``margins`` (else all) of a line with pixels."""
    lanes = host.lanes(grid.form)
    zero = f"bits_{grid.form}(const_{'int16' if grid.form == 'bfloat16' else 'int8'}(0, {lanes}))"
    places = ["task * line_size + c", *(["task * line_size + low + c"] if grid.low else [])]

    def body(left: str) -> list[str]:
        end, more = ("_tail", f", {left}") if left else ("", "")
        return [f"store{end}(packed, {place}, {zero}{more})" for place in places]

    if not margins:
        return vector_loop(lanes, body, "0", "line_size")
    return [
        "for margin in range(2):",
        "    from_c = (begin_w + pixel * pixels) * margin",
        "    to_c = begin_w if has_pixels and margin == 0 else line_size",
        *indent(vector_loop(lanes, body, "from_c", "to_c")),
    ]


def _in_one_part(grid: PaddedInput, whole: Callable[[Write], list[str]]) -> list[str]:
    """Return statements that copy a line in one part and, if flags are wanted, flag a line with infinity or NaN."""

    def write(value: str, at: str, left: str) -> list[str]:
        end, more = ("_tail", f", {left}") if left else ("", "")
        value = value if grid.problem.types.a == grid.form else f"round_bfloat16({value})"
        if not grid.noted:
            return [f"store{end}(packed, {at}, {value}{more})"]
        return [
            f"value = {value}",
            "largest = max(largest, bitwise_and(bits_int16(value), 0x7FFF))",
            f"store{end}(packed, {at}, value{more})",
        ]

    if not grid.noted:
        return whole(write)
    return [
        f"largest = const_int16(0, {host.lanes(grid.form)})",
        *whole(write),
        f"store_scalar(flags, task, 1 if reduce_max(largest) >= {INFINITY} else 0)",
    ]
