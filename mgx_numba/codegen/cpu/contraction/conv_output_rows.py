"""Output offsets of a convolution's rows: text and arguments that map row numbers to offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....core.dim import Length, SharedLength, known_equal
from ....dataclass import dataclass
from ...arguments import Arguments
from ...problems.convolution import ConvProblem
from ...problems.epilogue import ALONG_N, MOVING, Epilogue
from .macro_kernel import MacroKernel
from .solver import Strides

Lattice = Sequence[tuple[int, int, int]]
"""For each of three axes: the first output coordinate, the step to the next, and the length of the whole output."""


@dataclass(frozen=True)
class LineGaps:
    """Gaps, in elements, between the rows of a product that are the pixels of a convolution's output.

    Every ``width`` rows form a line, followed by a gap of ``line`` elements. Every ``height`` lines form an image,
    followed by another gap of ``image`` elements.
    """

    width: Length
    height: Length
    line: Length
    image: Length

    @staticmethod
    def of(problem: ConvProblem) -> LineGaps | None:
        """Return the gaps of a convolution's output, or None if it has none."""
        if known_equal(problem.line_gap, 0):
            return None
        (height, width), (image, line, _) = problem.out_lens[-2:], problem.out_strides
        return LineGaps(width, height, problem.line_gap, 0 if known_equal(problem.batch, 1) else image - height * line)

    def declare(self, macro: MacroKernel, row: str) -> None:
        """Make the macro-kernel track ``apart``, the total gap before the next row, which has number ``row`` over all
        images."""
        macro.arguments.integers(
            width=self.width, height_of_image=self.height, out_gap=self.line, image_gap=self.image
        )  # fmt: skip
        macro.before_rows = [
            f"o_h = idiv({row}, width)",
            f"o_w = {row} - o_h * width",
            "image = idiv(o_h, height_of_image)",
            "apart = o_h * out_gap + image * image_gap",
            "o_h -= image * height_of_image",
        ]
        macro.row += [
            "o_w += 1",
            "if o_w == width:",
            "    o_w = 0",
            "    o_h += 1",
            "    apart += out_gap",
            "    if o_h == height_of_image:",
            "        o_h = 0",
            "        apart += image_gap",
        ]


def image_strides(
    problem: ConvProblem, epilogue: Epilogue, strides: Strides
) -> dict[str, tuple[SharedLength, SharedLength]]:
    """Return the image and pixel strides of the output and of the epilogue operands that vary over rows, by name.

    Gaps between the output's lines (`ConvProblem.line_gap`) are not included.
    """
    table: dict[str, tuple[SharedLength, SharedLength]] = {"out": (problem.out_strides[0], problem.out_strides[-1])}
    for k, operand in enumerate(epilogue.operands):
        if operand.access in MOVING:
            pixel = problem.out_channels if operand.access in ALONG_N else 1
            given = tuple(strides[k]) if k < len(strides) else ()
            table[f"e{k}"] = (given[0], given[1]) if given else (pixel * problem.out_pixels, pixel)
    return table


def stride_arguments(arguments: Arguments, strides: Mapping[str, tuple[int, int]]) -> None:
    """Declare arguments ``<name>_image`` and ``<name>_pixel`` for each entry of `image_strides`."""
    for name, (image, pixel) in strides.items():
        arguments.integers(**{f"{name}_image": image, f"{name}_pixel": pixel})


def pixel_rows(epilogue: Epilogue) -> tuple[list[str], list[str]]:
    """Return statements that compute ``image`` and ``pixel`` of ``row``, and statements that place one row and step to
    the next."""
    step = ["pixel += 1", "if pixel == pixels:", "    pixel = 0", "    image += 1"]
    return ["image = idiv(row, pixels)", "pixel = row - image * pixels"], [*row_offsets(epilogue), *step]


def lattice_arguments(arguments: Arguments, axes: tuple[str, ...], lattice: Lattice) -> None:
    """Declare the points of the output that a launch computes."""
    for axis in axes:
        first, step, length = lattice["dhw".index(axis)]
        arguments.integers(**{f"from_{axis}": first, f"by_{axis}": step, f"full_{axis}": length})


def lattice_rows(epilogue: Epilogue, axes: tuple[str, ...], apart: bool = False) -> tuple[list[str], list[str]]:
    """Return the statements of `pixel_rows` for rows that are points of an output lattice.

    Args:
        apart: the output has gaps between lines.
    """
    place = "0"
    for axis in axes:
        place = f"({place}) * full_{axis} + from_{axis} + o_{axis} * by_{axis}"
    line = "(from_h + o_h * by_h)" if apart else ""
    return output_place(axes), [f"pixel = {place}", *row_offsets(epilogue, line), *next_place(axes)]


def phase_of_group(axes: tuple[str, ...]) -> list[str]:
    """Return statements that compute the first lattice point of ``group``; groups count these points in row-major
    order."""
    lines, rest = [], "group"
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"by_{name}" for name in axes[k + 1 :])
        lines += [f"from_{axis} = idiv({rest}, {inner})", f"phase_{axis} = {rest} - from_{axis} * ({inner})"]
        rest = f"phase_{axis}"
    return [*lines, f"from_{axes[-1]} = {rest}"]


def row_offsets(epilogue: Epilogue, line: str = "") -> list[str]:
    """Return statements that compute the offset of ``pixel`` of ``image`` in the output and in each operand that varies
    over rows.

    Args:
        line: expression of the output line number; each line before it ends in a gap of ``out_gap`` elements. "": no
            gaps.
    """
    lines = []
    for name, access in [("out", "full"), *((f"e{k}", o.access) for k, o in enumerate(epilogue.operands))]:
        if access in MOVING:
            column = " + n0" if access in ALONG_N else ""
            gaps = f" + {line} * out_gap" if line and name == "out" else ""
            lines.append(f"{name}_row = image * {name}_image + pixel * {name}_pixel{gaps}{column}")
    return lines


def output_place(axes: tuple[str, ...]) -> list[str]:
    """Return statements that compute ``image`` and the output coordinates ``o_<axis>`` of ``row``."""
    lines = ["image = idiv(row, pixels)", "pixel = row - image * pixels"]
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"out_{name}" for name in axes[k + 1 :])
        lines += [f"o_{axis} = idiv(pixel, {inner})", f"pixel -= o_{axis} * ({inner})"]
    return [*lines, "o_w = pixel"]


def next_place(axes: tuple[str, ...]) -> list[str]:
    """Return statements that advance ``image`` and ``o_<axis>`` to the next pixel."""
    lines, pad = [], ""
    for axis in reversed(axes):
        lines += [f"{pad}o_{axis} += 1", f"{pad}if o_{axis} == out_{axis}:", f"{pad}    o_{axis} = 0"]
        pad += "    "
    return [*lines, f"{pad}image += 1"]
