"""Images with more channels than they have: zeros besides their own, so that pixels are whole vectors."""

from __future__ import annotations

from ....core.types import Type
from ...launch import Launch
from ...problems.cluster import Tensor
from ..printer import dtype_name, most_lanes
from .elements import THREADS, ElementText

__all__ = ["filled_channels_launch"]


def filled_channels_launch(data: Tensor, out: Tensor, origin: str) -> Launch:
    """``x`` [image, channel, *spatial] of any strides to ``out`` of more channels, side by side and whole vectors of 16
    bytes; each thread makes a pixel."""
    type: Type = data.type
    lanes = most_lanes(type.size)
    axes = [0, *range(2, len(out.lens))]
    order = sorted(axes, key=lambda a: -out.strides[a])
    strides = [[t.strides[a] for a in order] for t in (data, out)]
    text = ElementText([("x", data), ("out", out)], [out.lens[a] for a in order], strides, 1)
    apart = text.arguments.integer("apart", data.strides[1])
    text.begin()
    buffer = text.buffer
    own = [buffer.emit(f"load(p_x, {text.place(0)} + {c} * {apart}, 1)") for c in range(data.lens[1])]
    own += [buffer.emit(f"const_{dtype_name(type)}(0, 1)")] * (out.lens[1] - len(own))
    while len(own) * lanes > out.lens[1]:  # pairs of pairs, until each is a whole vector
        own = [buffer.emit(f"join2({own[k]}, {own[k + 1]})") for k in range(0, len(own), 2)]
    with buffer.block(f"if block_index(0) * {THREADS} + thread_index(0) < items:"):
        for v, value in enumerate(own):
            buffer.line(f"store_aligned(p_out, {text.place(1)} + {v * lanes}, {value})")
    return text.launch("filled_channels_kernel", origin, data.footprint + out.footprint)
