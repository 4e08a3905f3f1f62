"""Images with more channels and other pixels than they have: zeros besides their own, and several pixels as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

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
    zeros. Channels of ``out`` are a power of two or whole vectors of 16 bytes; each thread makes a vector.
    """
    type: Type = data.type
    channels, axes = out.lens[1], range(2, len(out.lens))
    lanes = min(most_lanes(type.size), channels)
    vectors, pixels = channels // lanes, prod(block)
    strides = [[data.strides[0], *(0 for _ in axes), 0], [*(out.strides[a] for a in (0, *axes)), lanes]]
    text = ElementText([("x", data), ("out", out)], [*(out.lens[a] for a in (0, *axes)), vectors], strides, 1)
    arguments, buffer = text.arguments, text.buffer
    apart = arguments.integer("apart", data.strides[1])
    numbers = [
        {n: arguments.integer(f"{n}{d}", v) for n, v in zip(("first", "step", "length", "along"), values)}
        for d, values in enumerate(zip(before, step, data.lens[2:], data.strides[2:]))
    ]
    text.begin()
    vector, base = text.places[-1], text.place(0)
    zero = buffer.emit(f"const_{dtype_name(type)}(0, 1)")
    own = []
    for lane in range(0, lanes, min(lanes, own_channels)):  # of a pixel each, or the whole vector of a part of one
        element = buffer.emit(f"{vector} * {lanes} + {lane}")
        pixel = buffer.emit(f"idiv32({element}, {own_channels})")
        conditions = [f"({pixel} < {pixels})"] * (channels > own_channels * pixels)
        offsets, rest = [], pixel
        for d in reversed(range(len(block))):
            outer = buffer.emit(f"idiv32({rest}, {block[d]})") if d else "0"
            inner = buffer.emit(f"{rest} - {outer} * {block[d]}") if block[d] > 1 else "0"
            n, rest = numbers[d], outer
            at = buffer.emit(f"{text.places[1 + d]} * {n['step']} + {inner} - {n['first']}")
            near = buffer.emit(f"imin(imax({at}, 0), {n['length']} - 1)")
            conditions.append(f"({at} == {near})")
            offsets.append(f"{near} * {n['along']}")
        inside = buffer.emit(" & ".join(conditions))
        start = buffer.emit(" + ".join([base, *offsets]))
        first = buffer.emit(f"{element} - {pixel} * {own_channels}") if own_channels > lanes else "0"
        for c in range(min(lanes, own_channels)):
            if own_channels <= lanes and c >= data.lens[1]:
                own.append(zero)
                continue
            channel, seen = str(c), inside
            if own_channels > lanes:
                channel = buffer.emit(f"{first} + {c}")
                seen = buffer.emit(f"{inside} & ({channel} < {data.lens[1]})")
                channel = buffer.emit(f"imin({channel}, {data.lens[1] - 1})")
            own.append(buffer.emit(f"where({seen}, load(p_x, {start} + {channel} * {apart}, 1), {zero})"))
    while len(own) > 1:  # pairs of pairs, until they are a whole vector
        own = [buffer.emit(f"join2({own[k]}, {own[k + 1]})") for k in range(0, len(own), 2)]
    text.store(own[0])
    return text.launch("filled_channels_kernel", origin, data.footprint + out.footprint)
