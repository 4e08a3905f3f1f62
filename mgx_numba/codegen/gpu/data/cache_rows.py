"""Write rows into a cache at positions read from memory; of several rows for one position the last stays."""

from __future__ import annotations

from math import prod

from ....core.dim import Length
from ...launch import Launch
from ...problems.cluster import Tensor
from ..cluster.flat_index import contiguous_lanes
from ..printer import most_lanes
from .elements import ElementText


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
