"""Updates of caches: copy a cache to where its update is computed, unless both are the same memory, and write rows at
positions read from memory; of several rows for one position the last stays."""

from __future__ import annotations

from math import prod

from ....core.dim import Length, ceil_div, maximum, minimum
from ....core.types import Type
from ...arguments import Arguments
from ...launch import Launch
from ...problems.cluster import Tensor
from ..cluster.flat_index import contiguous_lanes
from ..kernel import gpu_grid, gpu_kernel
from ..machine import multiprocessors
from ..printer import most_lanes
from .elements import ElementText

THREADS = 256
"""Threads per block."""
BLOCKS = 2
"""Blocks per multiprocessor, few so that a copy that is skipped costs little."""
AT_ONCE = 4
"""Elements of a thread whose loads are in flight together, a grid apart."""
_MOVERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def cache_copy_launch(
    rows: Length, copied: Length, x_row: Length, out_row: Length, type: Type, origin: str = ""
) -> Launch:
    """Return the launch that copies ``copied`` elements of each row, and fills the rest of a row of ``out`` with zeros.

    Nothing is written if ``x`` and ``out`` have the same address and rows of the same length. Arguments are those of
    the CPU's `cache_copy_launch`.
    """
    storage = _MOVERS[type.size]
    arguments = Arguments()
    arguments.pointer("p_x", "x", storage)
    arguments.pointer("p_out", "out", storage)
    total = rows * out_row
    blocks = minimum(ceil_div(total, THREADS), BLOCKS * multiprocessors())
    arguments.integers(kept=copied, given=x_row, length=maximum(out_row, 1), items=total)
    arguments.integers(most=maximum(copied, 1) - 1, step=blocks * THREADS)
    turns = range(AT_ONCE)
    lines = [
        *arguments.bind(),
        f"if not ({arguments.same_address('p_x', 'p_out')} and given == length):",
        f"    item = block_index(0) * {THREADS} + thread_index(0)",
        "    while item < items:",
    ]
    for k in turns:
        lines += [
            f"        item{k} = imin(item + {k} * step, items - 1)",
            f"        row{k} = idiv(item{k}, length)",
            f"        column{k} = item{k} - row{k} * length",
            f"        found{k} = cast_{storage}(0)",
        ]
    lines.append("        if kept > 0:")
    lines += [f"            found{k} = load_scalar(p_x, row{k} * given + imin(column{k}, most))" for k in turns]
    for k in turns:
        lines += [
            f"        if item + {k} * step < items:",
            f"            store_scalar(p_out, item{k}, found{k} if column{k} < kept else cast_{storage}(0))",
        ]
    lines.append(f"        item += {AT_ONCE} * step")
    kernel = gpu_kernel("cache_copy_kernel", lines, THREADS, len(arguments.values), origin)
    return Launch(kernel, arguments.values, gpu_grid(blocks, THREADS), bytes=2 * total * type.size, replaceable=("x",))


def last_rows_launch(positions: Tensor, places: Tensor, length: Length, origin: str = "") -> Launch:
    """Return the launch that writes int64 ``places`` [b, s]: the positions, or -1 where no row is to be written.

    These are rows whose position is outside of ``length``, or the position of a later row.
    """
    text = ElementText(
        [("positions", positions), ("places", places)], places.lens, [positions.strides, places.strides], 1
    )
    text.arguments.integers(length=length, count=positions.lens[1], step=positions.strides[1])
    text.begin()
    at, buffer = text.place(0), text.buffer
    buffer.line(
        f"own = load_scalar(p_positions, {at})",
        "last = (own >= 0) & (own < length)",
        f"for j in range(1, count - {text.places[1]}):",
        f"    last = last & (load_scalar(p_positions, {at} + j * step) != own)",
        "place = -1",
        "if last:",
        "    place = own",
    )
    text.store("splat(place, 1)")
    return text.launch("last_rows_kernel", origin, 2 * places.footprint)


def cache_rows_launch(rows: Tensor, places: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes ``rows`` [b, h, s, d] to the ``places`` [b, s] of ``out`` [b, h, t, d]."""
    within = (*out.strides[:2], 0, out.strides[3])
    row_places = (places.strides[0], 0, places.strides[1], 0)
    vectors = [(rows.strides, rows.offset), (out.strides, out.offset)]
    lanes = contiguous_lanes(most_lanes(out.type.size), rows.lens[3], vectors)
    tensors = [("rows", rows), ("places", places), ("out", out)]
    text = ElementText(tensors, rows.lens, [rows.strides, row_places, within], lanes)
    text.arguments.integer("row", out.strides[2])
    text.begin()
    source, place, base = (text.place(k) for k in range(3))
    load, store = ("load_aligned", "store_aligned") if lanes > 1 else ("load", "store")
    buffer = text.buffer
    buffer.line(f"own = load_scalar(p_places, {place})")
    with buffer.block(f"if ({text.active}) & (own >= 0):"):
        buffer.line(f"{store}(p_out, {base} + own * row, {load}(p_rows, {source}, {lanes}))")
    return text.launch("cache_rows_kernel", origin, 2 * prod(rows.lens) * out.type.size)
