"""The launch that copies a convolution's input onto a pixel grid (`pixel_grid`), in the format that matrix tiles
read."""

from __future__ import annotations

from collections.abc import Callable

from ....core.dim import known_equal
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.element_types import ITEMSIZE
from ...statements import for_tasks, indent, kernel_text, vector_loop
from .. import host
from ..kernel import cpu_kernel
from ..loops import claim
from .bf16_split_rows import declare_parts, halve_vector, split_row, split_vector
from .padded_input import PaddedInput

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
