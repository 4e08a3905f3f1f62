"""Where the rows of a convolution lie: text and arguments that turn output pixels into places of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cpu.tile_table import RegisterTile
from .problem import ConvProblem, Epilogue
from .skeleton import TABLE_ROWS
from .solver import Strides
from .text import Arguments, indent

__all__ = [
    "Lattice",
    "image_strides",
    "lattice_arguments",
    "lattice_rows",
    "pixel_rows",
    "place_locals",
    "place_table",
    "row_offsets",
    "spatial_arguments",
    "stride_arguments",
]

Lattice = Sequence[tuple[int, int, int]]
"""For each of three axes: the first output coordinate, the step to the next, and the length of the whole output."""


def image_strides(problem: ConvProblem, epilogue: Epilogue, strides: Strides) -> dict[str, tuple[int, int]]:
    """Strides of the image and the pixel, of the output and of the epilogue operands that vary over rows, by name."""
    table = {"out": (problem.out_strides[0], problem.out_strides[1])}
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ("full", "per_m"):
            pixel = problem.out_channels if operand.access == "full" else 1
            given = tuple(strides[k]) if k < len(strides) else ()
            table[f"e{k}"] = (given[0], given[1]) if given else (pixel * problem.out_pixels, pixel)
    return table


def pixel_rows(epilogue: Epilogue) -> tuple[list[str], list[str]]:
    """Statements that find ``image`` and ``pixel`` of ``row``, and those that place one row and step to the next."""
    step = ["pixel += 1", "if pixel == pixels:", "    pixel = 0", "    image += 1"]
    return ["image = idiv(row, pixels)", "pixel = row - image * pixels"], [*row_offsets(epilogue), *step]


def lattice_arguments(arguments: Arguments, axes: tuple[str, ...], lattice: Lattice) -> None:
    """Slots of the points of the output that a launch computes."""
    for axis in axes:
        first, step, length = lattice["dhw".index(axis)]
        arguments.integers(**{f"from_{axis}": first, f"by_{axis}": step, f"full_{axis}": length})


def lattice_rows(epilogue: Epilogue, axes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """As `pixel_rows`, for rows that are points of a lattice in the output."""
    place = "0"
    for axis in axes:
        place = f"({place}) * full_{axis} + from_{axis} + o_{axis} * by_{axis}"
    return _output_place(axes), [f"pixel = {place}", *row_offsets(epilogue), *_next_place(axes)]


def row_offsets(epilogue: Epilogue) -> list[str]:
    """Statements that place ``pixel`` of ``image`` in the output and in each operand that varies over rows."""
    lines = []
    for name, access in [("out", "full"), *((f"e{k}", o.access) for k, o in enumerate(epilogue.operands))]:
        if access in ("full", "per_m"):
            column = " + n0" if access == "full" else ""
            lines.append(f"{name}_row = image * {name}_image + pixel * {name}_pixel{column}")
    return lines


def _next_place(axes: tuple[str, ...]) -> list[str]:
    """Statements that move ``image`` and ``o_<axis>`` to the next pixel."""
    lines, pad = [], ""
    for axis in reversed(axes):
        lines += [f"{pad}o_{axis} += 1", f"{pad}if o_{axis} == out_{axis}:", f"{pad}    o_{axis} = 0"]
        pad += "    "
    return [*lines, f"{pad}image += 1"]


def stride_arguments(arguments: Arguments, strides: Mapping[str, tuple[int, int]]) -> None:
    """Slots ``<name>_image`` and ``<name>_pixel`` for each entry of `image_strides`."""
    for name, (image, pixel) in strides.items():
        arguments.integers(**{f"{name}_image": image, f"{name}_pixel": pixel})


def spatial_arguments(arguments: Arguments, problem: ConvProblem, depth: int = 1) -> tuple[str, ...]:
    """Slots of the spatial sizes of a problem in three dimensions; the names of the axes that the text needs.

    ``depth`` is the length of the first axis of the whole output, where the problem computes a lattice of it.
    """
    lens = (problem.in_lens[0], problem.kernel[0], problem.out_lens[0], depth)
    flat = lens == (1, 1, 1, 1) and problem.pads_begin[0] == 0
    arguments.integers(pixels=problem.out_pixels, x_image=problem.x_strides[0])
    axes = ("h", "w") if flat else ("d", "h", "w")
    for name in axes:
        axis = "dhw".index(name)
        arguments.integers(**{
            f"x_{name}": problem.x_strides[axis + 1], f"in_{name}": problem.in_lens[axis],
            f"out_{name}": problem.out_lens[axis], f"kernel_{name}": problem.kernel[axis],
            f"stride_{name}": problem.stride[axis], f"dilation_{name}": problem.dilation[axis],
            f"pad_{name}": problem.pads_begin[axis],
        })  # fmt: skip
    return axes


def place_locals(axes: tuple[str, ...]) -> list[str]:
    """Statements that reserve what `place_table` works in. ``filled`` is 1 + t0 of a table that suits inner tiles."""
    names = ("base", *(f"at_{axis}" for axis in axes))
    return [*(f"{name} = local_int64({TABLE_ROWS})" for name in names), "filled = 0"]


def place_table(axes: tuple[str, ...], tile: RegisterTile, runs: bool = False) -> list[str]:
    """Statements that fill the skeleton's table for the rows from ``row`` on and the taps from ``t0`` on.

    The table holds offsets from ``x[anchor]``. Inner tiles, whose rows lie in one line of the output and read no
    padding, differ in their anchor only, so that their table is made once. With ``runs``, each ``run`` successive taps
    of an inner tile read contiguous elements and are taken as one tap of that many times the depth.
    """
    lanes = 1 << (tile.rows - 1).bit_length()
    lines = _output_place(axes)
    lines += [f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}" for axis in axes]
    conditions = [f"m1 - row >= {tile.rows}", f"o_w + {tile.rows} <= out_w"]
    for axis in axes:
        reach = f" + {tile.rows - 1} * stride_w" if axis == "w" else ""
        conditions += [f"i_{axis} >= 0", f"i_{axis}{reach} + (kernel_{axis} - 1) * dilation_{axis} < in_{axis}"]
    lines += [f"inner = {' and '.join(conditions)}", "if inner:"]
    lines.append("    anchor = image * x_image + " + " + ".join(f"i_{axis} * x_{axis}" for axis in axes))
    step, inner_taps = ("run", "idiv(taps_now, run)") if runs else ("1", "taps_now")
    inner = [f"steps = mul(iota_int64({lanes}), stride_w * x_w)"]
    inner += [*_taps(axes, ["places = add(steps, shift)"], inner_taps, step), "filled = t0 + 1"]
    outer = ["anchor = 0", "filled = 0", *_row_places(axes, tile.rows)]
    outer += [f"bases = load(base, 0, {lanes})", *(f"first_{axis} = load(at_{axis}, 0, {lanes})" for axis in axes)]
    outer += _taps(axes, _guarded_places(axes))
    lines += ["    if filled != t0 + 1:", *indent(inner, 2), "else:", *indent(outer)]
    if runs:
        lines += ["block[5] = idiv(taps_now, run) if inner else taps_now"]
        lines += ["block[6] = depth_now * run if inner else depth_now"]
    return lines


def _output_place(axes: tuple[str, ...]) -> list[str]:
    """Statements: ``image`` and the output coordinates ``o_<axis>`` of ``row``."""
    lines = ["image = idiv(row, pixels)", "pixel = row - image * pixels"]
    for k, axis in enumerate(axes[:-1]):
        inner = " * ".join(f"out_{name}" for name in axes[k + 1 :])
        lines += [f"o_{axis} = idiv(pixel, {inner})", f"pixel -= o_{axis} * ({inner})"]
    return [*lines, "o_w = pixel"]


def _row_places(axes: tuple[str, ...], rows: int) -> list[str]:
    """Statements: for each tile row the input position of its first tap, as coordinates and as an offset.

    Rows beyond the last one repeat it.
    """
    body = []
    for axis in axes:
        body += [f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}", f"at_{axis}[i] = i_{axis}"]
    body.append("base[i] = image * x_image + " + " + ".join(f"i_{axis} * x_{axis}" for axis in axes))
    body += ["if i + 1 < left:", *indent(_next_place(axes))]
    return [f"for i in range({rows}):", *indent(body)]


def _guarded_places(axes: tuple[str, ...]) -> list[str]:
    """Statements: ``places`` of all rows for one tap, -1 where the input ends."""
    lines = []
    for axis in axes:
        lines += [
            f"place_{axis} = add(first_{axis}, k_{axis} * dilation_{axis})",
            f"in_{axis}_range = logical_and(ge(place_{axis}, 0), lt(place_{axis}, in_{axis}))",
        ]
    lines.append(f"inside = in_{axes[0]}_range")
    lines += [f"inside = logical_and(inside, in_{axis}_range)" for axis in axes[1:]]
    return [*lines, "places = where(inside, add(bases, shift), -1)"]


def _taps(axes: tuple[str, ...], places: list[str], taps: str = "taps_now", step: str = "1") -> list[str]:
    """Statements: run ``places`` for each tap of this step, with the tap's ``shift``, and store it in the table.

    Every ``step``-th tap of the last axis is taken, ``taps`` in all.
    """
    lines = ["rest = t0"]
    for axis in reversed(axes[1:]):
        lines += [f"k_{axis} = imod(rest, kernel_{axis})", f"rest = idiv(rest, kernel_{axis})"]
    lines += [f"k_{axes[0]} = rest", f"for t in range({taps}):"]
    body = ["shift = " + " + ".join(f"k_{axis} * dilation_{axis} * x_{axis}" for axis in axes)]
    body += [*places, f"store(table, t * {TABLE_ROWS}, places)"]
    pad = ""
    for axis in reversed(axes):
        body.append(f"{pad}k_{axis} += {step if axis == 'w' else 1}")
        if axis != axes[0]:
            body += [f"{pad}if k_{axis} == kernel_{axis}:", f"{pad}    k_{axis} = 0"]
            pad += "    "
    return [*lines, *indent(body)]
