"""The epilogue kernel of matrix tiles (AMX), called for a few rows of a panel at a time.

The tile (`amx`) calls it between its products of the next panel, so that the vector units run the epilogue while the
matrix unit accumulates. Accumulators therefore take memory for two register tiles, never for a whole row of panels. The
AMX tile configuration stays active meanwhile: the kernel uses vectors only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ....ops.scalar_functions import COSTLY
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

PANEL_ROWS = "row_places"
"""Name of the array of row offsets of two blocks of rows: the panel that awaits its epilogue, and the next panel."""


_AT_ONCE = 8
"""Least rows of an epilogue call.

Relative to 1 row, 16 rows take 0.88 (parts) and 0.98 (bfloat16) of the time for UNet's convolutions, 0.94 and 0.97 for
ResNet-50, 0.96 for BERT's products in parts. Relative to 16, 8 rows take 0.98 for UNet and ResNet-50 in bfloat16 and as
long in parts: fewer instructions delay the next step's products (Emerald Rapids).
"""


def rows_at_once(epilogue: Epilogue) -> int:
    """Return the least rows that are finished beside a step of k: few for expensive epilogues, which would stall the
    matrix unit.

    ViT's bfloat16 products with a GELU take 1.1 times as long with 16 rows a call as with one.
    """
    return 1 if epilogue.body is not None and any(c.method in COSTLY for c in epilogue.body.calls) else _AT_ONCE


def _moving(epilogue: Epilogue) -> list[str]:
    """Return the name prefixes of the tensors that have an offset in each row; low parts share the offset of the high
    parts."""
    names = [f"e{k}" for k, o in enumerate(epilogue.operands) if o.access in MOVING and o.access != "low"]
    return ["out", *names]


def place_words(epilogue: Epilogue) -> int:
    """Return the number of words that record the offsets of one row."""
    return 1 + len(_moving(epilogue))


def placed_rows(epilogue: Epilogue, columns: int) -> list[str]:
    """Return statements that append the offsets of row ``i`` to `PANEL_ROWS` at ``at``."""
    words = [f"i * {columns}", *(f"{name}_row" for name in _moving(epilogue))]
    lines = [f"{PANEL_ROWS}[at + {number}] = {word}" for number, word in enumerate(words)]
    return [*lines, f"at += {len(words)}"]


@functools.lru_cache(maxsize=256)
def epilogue_kernel_source(tile: RegisterTile, epilogue: Epilogue) -> KernelSource:
    """Return the epilogue kernel. Its argument block is a `tile_table.panel_block`; its tasks are rows.

    Rows stored in parts are padded with zeros up to the end of the panel.
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
        """Return statements before the loop over rows, and statements for each row, for the vector at column ``c``.

        Args:
            part: only ``rest`` columns may exist.
        """
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
    """Return the vector length for rows of whole panels; 16-bit results are stored a whole cache line at once."""
    size = ITEMSIZE[epilogue.out_dtype(tile.types.accumulator)]
    return tile.columns if size == ITEMSIZE["bfloat16"] or epilogue.in_parts else tile.lanes


def _asked(tile: RegisterTile, epilogue: Epilogue) -> list[str]:
    """Return statements that prefetch a row's cache lines of the next panel, if there is one: the result's and the
    operands'.

    Where these exceed the L2 cache (ResNet-50 of 8 images), products of 64 terms take 0.7 to 0.8 of the time, relative
    to no prefetch and half a line a store. Products of 128 to 256 terms take 0.85 to 0.95, others as long (Emerald
    Rapids).
    """
    found = [] if epilogue.parts_alone else [("out", "out", ITEMSIZE[epilogue.out_dtype(tile.types.accumulator)])]
    place = ""
    for k, operand in enumerate(epilogue.operands):
        if operand.access in ALONG_N:
            place = place if operand.access == "low" else f"e{k}"  # low parts share the offsets of the high parts
            found.append((f"e{k}_at", place, ITEMSIZE[operand.dtype]))
    asked = [
        f"prefetch({pointer}, {name}_row + {tile.columns + byte // size})"
        for pointer, name, size in found
        for byte in range(0, tile.columns * size, host.CACHE_LINE)
    ]
    return [f"if columns > {tile.columns}:", *indent(asked)]
