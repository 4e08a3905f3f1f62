"""Padding with a constant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.dim import known_equal, known_in, typical
from ...launch import Launch
from ...problems.cluster import Tensor
from ..cluster.flat_index import contiguous_lanes
from ..printer import ThreadPrinter, most_lanes
from .elements import ElementText


def pad_launch(before: Sequence[int], value: np.ndarray | None, data: Tensor, out: Tensor, origin: str) -> Launch:
    """Return the launch that copies ``x`` to index ``before`` of ``out`` (cropping where negative) and fills the rest
    with ``value``, or with the operand ``value`` if it is None."""
    order = sorted(range(len(out.lens)), key=lambda a: -typical(out.strides[a]))
    lens = [out.lens[a] for a in order]
    strides = [[t.strides[a] for a in order] for t in (data, out)]
    given = [] if value is not None else [("value", Tensor(data.type, (1,), (0,)))]
    lanes = 1
    whole = order and known_equal(before[order[-1]], 0) and known_equal(data.lens[order[-1]], lens[-1])
    if whole and known_in(data.strides[order[-1]], 1):
        aligned = [(own, tensor.offset) for own, tensor in zip(strides, (data, out))]
        lanes = contiguous_lanes(most_lanes(data.type.size), lens[-1], aligned)
    text = ElementText([("x", data), *given, ("out", out)], lens, strides, lanes)
    starts = [text.arguments.integer(f"b{d}", before[a]) for d, a in enumerate(order)]
    lengths = [text.arguments.integer(f"l{d}", data.lens[a]) for d, a in enumerate(order)]
    steps = [text.arguments.integer(f"x{d}", data.strides[a]) for d, a in enumerate(order)]
    text.begin()
    buffer = text.buffer
    printer = ThreadPrinter(buffer, lanes)
    places = [*text.places[:-1], *(f"{place} * {lanes}" for place in text.places[-1:])]
    at = [buffer.emit(f"{place} - {start}") for place, start in zip(places, starts)]
    inside = " & ".join(f"({i} >= 0) & ({i} < {n})" for i, n in zip(at, lengths))
    if value is None:
        buffer.line(f"value = load_splat(p_value, 0, {lanes})")
    else:
        buffer.line(f"value = {printer.stored(printer.const(value.item(), data.type))}")
    with buffer.block(f"if {inside}:"):
        load = "load_aligned" if lanes > 1 else "load"
        buffer.line(f"value = {load}(p_x, {' + '.join(f'{i} * {s}' for i, s in zip(at, steps))}, {lanes})")
    text.store("value")
    return text.launch("pad_kernel" if value is not None else "pad_with_kernel", origin, data.footprint + out.footprint)
