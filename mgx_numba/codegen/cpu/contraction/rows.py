"""Where the rows of a convolution lie in its output: text and arguments that turn row numbers into offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...arguments import Arguments
from ...problems.convolution import ConvProblem
from ...problems.epilogue import ALONG_N, MOVING, Epilogue
from .solver import Strides

__all__ = [
    "Lattice",
    "image_strides",
    "lattice_arguments",
    "lattice_rows",
    "next_place",
    "output_place",
    "phase_of_group",
    "pixel_rows",
    "row_offsets",
    "stride_arguments",
]

Lattice = Sequence[tuple[int, int, int]]
"""For each of three axes: the first output coordinate, the step to the next, and the length of the whole output."""


def image_strides(problem: ConvProblem, epilogue: Epilogue, strides: Strides) -> dict[str, tuple[int, int]]:
    """Strides of the image and the pixel, of the output and of the epilogue operands that vary over rows, by name."""
    table = {"out": (problem.out_strides[0], problem.out_strides[1])}
    for k, operand in enumerate(epilogue.operands):
        if operand.access in MOVING:
            pixel = problem.out_channels if operand.access in ALONG_N else 1
            given = tuple(strides[k]) if k < len(strides) else ()
            table[f"e{k}"] = (given[0], given[1]) if given else (pixel * problem.out_pixels, pixel)
    return table


def stride_arguments(arguments: Arguments, strides: Mapping[str, tuple[int, int]]) -> None:
    """Arguments ``<name>_image`` and ``<name>_pixel`` for each entry of `image_strides`."""
    for name, (image, pixel) in strides.items():
        arguments.integers(**{f"{name}_image": image, f"{name}_pixel": pixel})


def pixel_rows(epilogue: Epilogue) -> tuple[list[str], list[str]]:
    """Statements that find ``image`` and ``pixel`` of ``row``, and those that place one row and step to the next."""
    step = ["pixel += 1", "if pixel == pixels:", "    pixel = 0", "    image += 1"]
    return ["image = idiv(row, pixels)", "pixel = row - image * pixels"], [*row_offsets(epilogue), *step]


def lattice_arguments(arguments: Arguments, axes: tuple[str, ...], lattice: Lattice) -> None:
    """Arguments: the points of the output that a launch computes."""
    for axis in axes:
        first, step, length = lattice["dhw".index(axis)]
        arguments.integers(**{f"from_{axis}": first, f"by_{axis}": step, f"full_{axis}": length})


def lattice_rows(epilogue: Epilogue, axes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """As `pixel_rows`, for rows that are points of a lattice in the output."""
    place = "0"
    for axis in axes:
        place = f"({place}) * full_{axis} + from_{axis} + o_{axis} * by_{axis}"
    return output_place(axes), [f"pixel = {place}", *row_offsets(epilogue), *next_place(axes)]


def phase_of_group(axes: tuple[str, ...]) -> list[str]:
    """Statements: the first point of the lattice of ``group``, where groups count them in row-major order."""
    lines, rest = [], "group"
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"by_{name}" for name in axes[k + 1 :])
        lines += [f"from_{axis} = idiv({rest}, {inner})", f"phase_{axis} = {rest} - from_{axis} * ({inner})"]
        rest = f"phase_{axis}"
    return [*lines, f"from_{axes[-1]} = {rest}"]


def row_offsets(epilogue: Epilogue) -> list[str]:
    """Statements that place ``pixel`` of ``image`` in the output and in each operand that varies over rows."""
    lines = []
    for name, access in [("out", "full"), *((f"e{k}", o.access) for k, o in enumerate(epilogue.operands))]:
        if access in MOVING:
            column = " + n0" if access in ALONG_N else ""
            lines.append(f"{name}_row = image * {name}_image + pixel * {name}_pixel{column}")
    return lines


def output_place(axes: tuple[str, ...]) -> list[str]:
    """Statements: ``image`` and the output coordinates ``o_<axis>`` of ``row``."""
    lines = ["image = idiv(row, pixels)", "pixel = row - image * pixels"]
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"out_{name}" for name in axes[k + 1 :])
        lines += [f"o_{axis} = idiv(pixel, {inner})", f"pixel -= o_{axis} * ({inner})"]
    return [*lines, "o_w = pixel"]


def next_place(axes: tuple[str, ...]) -> list[str]:
    """Statements that move ``image`` and ``o_<axis>`` to the next pixel."""
    lines, pad = [], ""
    for axis in reversed(axes):
        lines += [f"{pad}o_{axis} += 1", f"{pad}if o_{axis} == out_{axis}:", f"{pad}    o_{axis} = 0"]
        pad += "    "
    return [*lines, f"{pad}image += 1"]
