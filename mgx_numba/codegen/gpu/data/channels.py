"""Images with more channels and other pixels than they have: zeros besides their own, and several pixels as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ....core.types import Type
from ...launch import Launch
from ...problems.cluster import Tensor
from ..printer import dtype_name, most_lanes
from .elements import ElementText

__all__ = ["filled_channels_launch"]


def filled_channels_launch(
    data: Tensor,
    out: Tensor,
    own_channels: int,
    before: Sequence[int],
    step: Sequence[int],
    block: Sequence[int],
    origin: str,
) -> Launch:
    """``x`` [image, channel, *spatial] of any strides to ``out`` of more channels, side by side.

    Pixel p of ``out`` along a spatial dimension has ``block`` of those of ``x``, from ``p * step - before`` on, each
    with zeros behind its channels up to ``own_channels``, and zeros behind all; pixels that ``x`` does not have are
    zeros. Channels of ``out`` are a power of two or whole vectors of 16 bytes; each thread makes a pixel.
    """
    type: Type = data.type
    lanes = most_lanes(type.size)
    channels, axes = out.lens[1], range(2, len(out.lens))
    strides = [[data.strides[0], *(0 for _ in axes)], [out.strides[a] for a in (0, *axes)]]
    text = ElementText([("x", data), ("out", out)], [out.lens[a] for a in (0, *axes)], strides, 1)
    arguments, buffer = text.arguments, text.buffer
    apart = arguments.integer("apart", data.strides[1])
    numbers = [
        {n: arguments.integer(f"{n}{d}", v) for n, v in zip(("first", "step", "length", "along"), values)}
        for d, values in enumerate(zip(before, step, data.lens[2:], data.strides[2:]))
    ]
    text.begin()
    places: list[list[tuple[str, str]]] = []
    for d, n in enumerate(numbers):
        found = [buffer.emit(f"{text.places[1 + d]} * {n['step']} + {b} - {n['first']}") for b in range(block[d])]
        near = [buffer.emit(f"imin(imax({at}, 0), {n['length']} - 1)") for at in found]
        places.append([(f"({at} == {own})", buffer.emit(f"{own} * {n['along']}")) for at, own in zip(found, near)])
    base, zero = text.place(0), buffer.emit(f"const_{dtype_name(type)}(0, 1)")
    own = []
    for pixel in product(*places):
        inside = buffer.emit(" & ".join(condition for condition, _ in pixel))
        start = buffer.emit(" + ".join([base, *(offset for _, offset in pixel)]))
        loads = (f"load(p_x, {start} + {c} * {apart}, 1)" for c in range(data.lens[1]))
        own += [buffer.emit(f"where({inside}, {load}, {zero})") for load in loads]
        own += [zero] * (own_channels - data.lens[1])
    own += [zero] * (channels - len(own))
    while len(own) * min(lanes, channels) > channels:  # pairs of pairs, until each is a whole vector
        own = [buffer.emit(f"join2({own[k]}, {own[k + 1]})") for k in range(0, len(own), 2)]
    with buffer.block(f"if {text.active}:"):
        for v, value in enumerate(own):
            buffer.line(f"store_aligned(p_out, {text.place(1)} + {v * lanes}, {value})")
    return text.launch("filled_channels_kernel", origin, data.footprint + out.footprint)
