"""What finishes the sums of tiles that read whole matrices: a kernel of its own, called with a few rows of a panel.

The tile (`amx`) calls it between its products of the next panel, so that the vector units work on sums while the matrix
unit makes others. Sums are therefore in memory twice the size of a register tile, never that of a row of panels. Tiles
are configured meanwhile: the kernel has vectors alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...body import EXPENSIVE
from ...kernel import KernelSource
from ...problems.element_types import ITEMSIZE
from ...problems.epilogue import ALONG_N, MOVING, Epilogue
from ...statements import indent, kernel_text
from .. import host
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import panel_block
from ..records import RecordText
from .epilogue_rows import Rows, kernel_name

__all__ = ["PANEL_ROWS", "finisher_source", "place_words", "placed_rows", "rows_at_once"]

PANEL_ROWS = "row_places"
"""Name of the places of two blocks of rows: those of the panel that waits, and those of the next."""


_AT_ONCE = 8
"""Rows of a call at least. With 16 instead of one UNet's convolutions take 0.88 of the time in parts and 0.98 in
bfloat16, ResNet-50's 0.94 and 0.97, BERT's products in parts 0.96; with 8 these of UNet and ResNet-50 take 0.98 of that
in bfloat16, and as long in parts: fewer instructions keep the next step's products waiting (Emerald Rapids)."""


def rows_at_once(epilogue: Epilogue) -> int:
    """Rows that are finished beside a step of k at least: few of long work, for which the matrix unit would wait.

    The products of ViT in bfloat16 that a GELU follows take 1.1 times as long with 16 rows a call as with one.
    """
    return 1 if epilogue.body is not None and any(c.method in EXPENSIVE for c in epilogue.body.calls) else _AT_ONCE


def _moving(epilogue: Epilogue) -> list[str]:
    """What has a place in each row, as the names of the variables that hold it begin; low parts lie as high ones."""
    names = [f"e{k}" for k, o in enumerate(epilogue.operands) if o.access in MOVING and o.access != "low"]
    return ["out", *names]


def place_words(epilogue: Epilogue) -> int:
    """Words that say where a row is."""
    return 1 + len(_moving(epilogue))


def placed_rows(epilogue: Epilogue, columns: int) -> list[str]:
    """Statements that note at ``at`` of the places where row ``i`` is."""
    words = [f"i * {columns}", *(f"{name}_row" for name in _moving(epilogue))]
    lines = [f"{PANEL_ROWS}[at + {number}] = {word}" for number, word in enumerate(words)]
    return [*lines, f"at += {len(words)}"]


@functools.lru_cache(maxsize=256)
def finisher_source(tile: RegisterTile, epilogue: Epilogue) -> KernelSource:
    """The kernel; its argument block is a `tile_table.panel_block`, its tasks are rows.

    Rows in parts get zeros up to the end of the panel.
    """
    accumulator, operands = tile.types.accumulator, list(enumerate(epilogue.operands))
    block = RecordText(panel_block(len(operands)), "args")
    vectors = Rows(epilogue, accumulator, tile.lanes)
    lines = [
        f"sums = {block.elements('sums', accumulator)}",
        f"places = {block.words('places')}",
        *(f"{name} = {block.get(name)}" for name in ("column", "first", "columns")),
        f"out = {block.elements('out', epilogue.out_dtype(accumulator))}",
        *(f"e{k}_at = {block.elements(f'e{k}', operand.dtype)}" for k, operand in operands),
    ]
    full = {"out", *(f"e{k}" for k, operand in operands if operand.access in ALONG_N)}
    row = [f"at = row * {place_words(epilogue)}", "sums_row = places[at]"]
    for number, name in enumerate(_moving(epilogue)):
        row.append(f"{name}_row = places[at + {number + 1}]{' + first' if name in full else ''}")

    def vector(c: int | str, rows: Rows, part: bool = False) -> tuple[list[str], list[str]]:
        """Statements before the rows, and for each: the vector at column ``c``, of which only ``rest`` may exist."""
        lanes, (end, more) = rows.lanes, ("_tail", "rest, 1, ") if part else ("", "")
        fixed = [(k, f"e{k}_{c}") for k, o in operands if o.access == "per_n"]
        before = [f"{name} = load{end}(e{k}_at, column + {c}, {more}{lanes})" for k, name in fixed]
        return before, [
            f"acc = load(sums, sums_row + {c}, {lanes})",
            *(f"e{k} = {name}" for k, name in fixed),
            *(f"e{k} = load{end}(e{k}_at, e{k}_row + {c}, {more}{lanes})" for k, o in operands if o.access == "full"),
            *(f"e{k} = load_splat(e{k}_at, e{k}_row, {lanes})" for k, o in operands if o.access == "per_m"),
            *rows.body,
            *rows.stores(f"_row + {c}", "rest" if part else ""),
        ]

    def walk(*each: tuple[list[str], list[str]], first: Sequence[str] = ()) -> list[str]:
        before, body = ([line for one in each for line in one[part]] for part in range(2))
        return [*before, "for row in range(begin, end):", *indent([*row, *first, *body])]

    lanes, whole = tile.lanes, Rows(epilogue, accumulator, _whole_lanes(tile, epilogue))
    panel = [vector(c, whole) for c in range(0, tile.columns, whole.lanes)]
    lines += [
        f"if columns >= {tile.columns}:",
        *indent([*whole.invariant(), *walk(*panel, first=_asked(tile, epilogue))]),
        "else:",
        *indent(vectors.invariant()),
        f"    for c in range(0, columns, {lanes}):",
        "        rest = columns - c",
        f"        if rest >= {lanes}:",
        *indent(walk(vector("c", vectors)), 3),
        "        else:",
        *indent(walk(vector("c", vectors, part=True)), 3),
    ]
    if epilogue.in_parts:
        high = len(epilogue.read)
        zeros = [f"store_parts(e{high}_at, e{high + 1}_at, e{high}_row + c, const_float32(0, {lanes}))"]
        empty = f"for c in range({lanes} * idiv(columns + {lanes - 1}, {lanes}), {tile.columns}, {lanes}):"
        lines += indent([empty, *indent(walk(([], zeros)))])
    return cpu_kernel(kernel_name("finish", epilogue), kernel_text(lines))


def _whole_lanes(tile: RegisterTile, epilogue: Epilogue) -> int:
    """Lanes in which the rows of whole panels are finished: what is stored in 16 bits goes into its line at once."""
    size = ITEMSIZE[epilogue.out_dtype(tile.types.accumulator)]
    return tile.columns if size == ITEMSIZE["bfloat16"] or epilogue.in_parts else tile.lanes


def _asked(tile: RegisterTile, epilogue: Epilogue) -> list[str]:
    """Statements that ask for a row's lines of the next panel, if there is one: of the result and of what is read.

    Where no L2 cache holds these (ResNet-50 of 8 images), products of 64 terms take 0.7 to 0.8 of the time that they
    take without this and with half a line a store, of 128 to 256 terms 0.85 to 0.95, others as long (Emerald Rapids).
    """
    found = [] if epilogue.parts_alone else [("out", "out", ITEMSIZE[epilogue.out_dtype(tile.types.accumulator)])]
    place = ""
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ALONG_N:
            place = place if operand.access == "low" else f"e{k}"  # low parts lie as high ones
            found.append((f"e{k}_at", place, ITEMSIZE[operand.dtype]))
    asked = [
        f"prefetch({pointer}, {name}_row + {tile.columns + byte // size})"
        for pointer, name, size in found
        for byte in range(0, tile.columns * size, host.CACHE_LINE)
    ]
    return [f"if columns > {tile.columns}:", *indent(asked)]
