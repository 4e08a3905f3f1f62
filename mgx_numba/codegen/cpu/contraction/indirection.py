"""The kernel that computes the input offsets of a register tile's rows for a convolution.

It is compiled once and called by every convolution kernel, whose argument block it reads. `spatial_arguments` declares
the sizes first, so they are at the same words in all argument blocks.
"""

from __future__ import annotations

import functools

from ....core.dim import Length, known_equal
from ...arguments import Arguments
from ...kernel import KernelSource
from ...problems.convolution import ConvProblem
from ...statements import indent, kernel_text
from ..host import Host, host
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import TILE_TABLE_ROWS
from ..records import Holds, Record, RecordText, Word
from .conv_output_rows import next_place, output_place

PLACES_BLOCK = Record(
    "places",
    (
        Word("arguments", "of the convolution kernel", Holds.WORDS),
        Word("table", "as a tile's ``offsets``", Holds.WORDS),
        Word("filled", "1 + the first tap that the table is made for, if of an inner tile; else 0"),
        Word("first_tap"),
        Word("taps", "of this step"),
        Word("depth", "channels of this step"),
        Word("left", "rows that exist"),
        Word("anchor", "(result) element of the input from which the offsets count"),
        Word("tile_taps", "(result) taps for the tile"),
        Word("tile_depth", "(result) terms of each of them"),
    ),
)
"""The record passed from a convolution kernel to the offsets kernel."""


def spatial_arguments(
    arguments: Arguments, problem: ConvProblem, tile: RegisterTile, run: int = 1, depth: Length = 1
) -> tuple[str, ...]:
    """Declare the spatial sizes of a problem in three dimensions and the offsets kernel, before all other arguments.

    Args:
        run: successive taps of one row that read contiguous elements.
        depth: length of the first axis of the whole output, where the problem computes a lattice of it.

    Returns:
        The names of the axes that the text needs.
    """
    lens = (problem.in_lens[0], problem.kernel[0], problem.out_lens[0], depth)
    flat = all(known_equal(n, 1) for n in lens) and problem.pads_begin[0] == 0
    before = len(arguments.names)
    arguments.integers(pixels=problem.out_pixels, x_image=problem.x_strides[0], run=run)
    axes = ("h", "w") if flat else ("d", "h", "w")
    for name in axes:
        axis = "dhw".index(name)
        arguments.integers(**{
            f"x_{name}": problem.x_strides[axis + 1], f"in_{name}": problem.in_lens[axis],
            f"out_{name}": problem.out_lens[axis], f"kernel_{name}": problem.kernel[axis],
            f"stride_{name}": problem.stride[axis], f"dilation_{name}": problem.dilation[axis],
            f"pad_{name}": problem.pads_begin[axis],
        })  # fmt: skip
    sizes = arguments.bind(arguments.names[before:])
    arguments.callee("places", _places_source(axes, tile, tuple(sizes), host()))
    return axes


def place_locals() -> list[str]:
    """Return statements that prepare the record of `call_places`."""
    places = RecordText(PLACES_BLOCK, "places")
    return [places.local(), *places.fill(arguments="args", table="table", filled=0)]


def call_places(arguments: Arguments, block: RecordText) -> list[str]:
    """Return statements that fill the macro-kernel's table and define ``anchor``, the origin of its offsets.

    Args:
        block: the tile's argument block.
    """
    places = RecordText(PLACES_BLOCK, "places")
    return [
        *places.fill(first_tap="t0", taps="taps_now", depth="depth_now", left="left"),
        arguments.call("places", places.name, "row", "m1"),
        f"anchor = {places.get('anchor')}",
        *block.fill(taps=places.get("tile_taps"), depth=places.get("tile_depth")),
    ]


@functools.lru_cache(maxsize=64)
def _places_source(axes: tuple[str, ...], tile: RegisterTile, sizes: tuple[str, ...], cpu: Host) -> KernelSource:
    """Return the kernel that computes the offsets of the tile rows ``begin`` to ``end`` (exclusive).

    The table holds offsets from ``x[anchor]``. Inner tiles, whose rows are in one output line and read no padding,
    differ only in their anchor, so their table is computed once. A run of contiguous taps of an inner tile becomes one
    tap of that many times the depth.
    """
    most = max(tile.variants())
    lanes = 1 << (most - 1).bit_length()
    call = RecordText(PLACES_BLOCK, "call")
    lines = [
        f"args = {call.words('arguments')}",
        *sizes,
        f"table = {call.words('table')}",
        f"t0 = {call.get('first_tap')}",
        f"taps_now = {call.get('taps')}",
        f"left = {call.get('left')}",
        f"span = imax(left, {tile.rows})",
        "row = begin",
        *output_place(axes),
        *(f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}" for axis in axes),
    ]
    conditions = ["end - begin >= span", "o_w + span <= out_w"]
    for axis in axes:
        reach = " + (span - 1) * stride_w" if axis == "w" else ""
        conditions += [f"i_{axis} >= 0", f"i_{axis}{reach} + (kernel_{axis} - 1) * dilation_{axis} < in_{axis}"]
    inner = [f"steps = mul(iota_int64({lanes}), stride_w * x_w)"]
    inner += [*_taps(axes, ["places = add(steps, shift)"], "idiv(taps_now, run)", "run")]
    lines += [
        f"if {' and '.join(conditions)}:",
        *indent([
            *call.fill(
                anchor="image * x_image + " + " + ".join(f"i_{axis} * x_{axis}" for axis in axes),
                tile_taps="idiv(taps_now, run)",
                tile_depth=f"{call.get('depth')} * run",
            ),
            f"if {call.get('filled')} != t0 + 1:",
            *indent([call.put("filled", "t0 + 1"), *inner]),
        ]),
        "else:",
        *indent([
            *call.fill(anchor=0, tile_taps="taps_now", tile_depth=call.get("depth"), filled=0),
            *(f"{name} = local_int64({TILE_TABLE_ROWS})" for name in ("base", *(f"at_{axis}" for axis in axes))),
            *_row_places(axes, most),
            f"bases = load(base, 0, {lanes})",
            *(f"first_{axis} = load(at_{axis}, 0, {lanes})" for axis in axes),
            *_taps(axes, _guarded_places(axes)),
        ]),
    ]  # fmt: skip
    return cpu_kernel(f"conv_places_{len(axes)}d_kernel", kernel_text(lines, "call"))


def _row_places(axes: tuple[str, ...], rows: int) -> list[str]:
    """Return statements that compute for each tile row the input position of its first tap, as coordinates and as an
    offset.

    Rows beyond the last one repeat it.
    """
    body = []
    for axis in axes:
        body += [f"i_{axis} = o_{axis} * stride_{axis} - pad_{axis}", f"at_{axis}[i] = i_{axis}"]
    body.append("base[i] = image * x_image + " + " + ".join(f"i_{axis} * x_{axis}" for axis in axes))
    body += ["if i + 1 < left:", *indent(next_place(axes))]
    return [f"for i in range({rows}):", *indent(body)]


def _guarded_places(axes: tuple[str, ...]) -> list[str]:
    """Return statements that compute ``places`` of all rows for one tap, -1 outside the input."""
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
    """Return statements that run ``places`` for each tap of this step, with the tap's ``shift``, and store it in the
    table.

    Args:
        taps: number of taps.
        step: distance of the taps along the last axis.
    """
    lines = ["rest = t0"]
    for axis in reversed(axes[1:]):
        lines += [f"k_{axis} = imod(rest, kernel_{axis})", f"rest = idiv(rest, kernel_{axis})"]
    lines += [f"k_{axes[0]} = rest", f"for t in range({taps}):"]
    body = ["shift = " + " + ".join(f"k_{axis} * dilation_{axis} * x_{axis}" for axis in axes)]
    body += [*places, f"store(table, t * {TILE_TABLE_ROWS}, places)"]
    pad = ""
    for axis in reversed(axes):
        body.append(f"{pad}k_{axis} += {step if axis == 'w' else 1}")
        if axis != axes[0]:
            body += [f"{pad}if k_{axis} == kernel_{axis}:", f"{pad}    k_{axis} = 0"]
            pad += "    "
    return [*lines, *indent(body)]
