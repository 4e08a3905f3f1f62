"""Images with more channels and longer rows than they have: zeros besides their own pixels, before and behind them."""

from __future__ import annotations

from ....core.types import Type
from ...launch import Launch
from ...problems.cluster import Tensor
from ..printer import dtype_name, most_lanes
from .elements import ElementText

__all__ = ["filled_channels_launch"]


def filled_channels_launch(data: Tensor, out: Tensor, before: int, origin: str) -> Launch:
    """``x`` [image, channel, *spatial] of any strides to ``out`` of more channels, side by side, and longer rows:
    ``before`` pixels of zeros, those of ``x``, zeros. Channels of ``out`` are a power of two or whole vectors of 16
    bytes; each thread makes a pixel.
    """
    type: Type = data.type
    lanes = most_lanes(type.size)
    channels, last = out.lens[1], len(out.lens) - 1
    order = [0, *range(2, len(out.lens))]
    strides = [[t.strides[a] for a in order] for t in (data, out)]
    text = ElementText([("x", data), ("out", out)], [out.lens[a] for a in order], strides, 1)
    apart = text.arguments.integer("apart", data.strides[1])
    along = text.arguments.integer("along", data.strides[last])
    first, length = text.arguments.integer("first", before), text.arguments.integer("length", data.lens[last])
    text.begin()
    buffer = text.buffer
    near = buffer.emit(f"imin(imax({text.places[-1]} - {first}, 0), {length} - 1)")
    inside = buffer.emit(f"{near} + {first} == {text.places[-1]}")
    start = buffer.emit(f"{text.place(0)} + ({near} - {text.places[-1]}) * {along}")
    zero = buffer.emit(f"const_{dtype_name(type)}(0, 1)")
    own = [buffer.emit(f"where({inside}, load(p_x, {start} + {c} * {apart}, 1), {zero})") for c in range(data.lens[1])]
    own += [zero] * (channels - len(own))
    while len(own) * min(lanes, channels) > channels:  # pairs of pairs, until each is a whole vector
        own = [buffer.emit(f"join2({own[k]}, {own[k + 1]})") for k in range(0, len(own), 2)]
    with buffer.block(f"if {text.active}:"):
        for v, value in enumerate(own):
            buffer.line(f"store_aligned(p_out, {text.place(1)} + {v * lanes}, {value})")
    return text.launch("filled_channels_kernel", origin, data.footprint + out.footprint)
