"""Gathers along one axis: embeddings, and selections of rows or columns."""

from __future__ import annotations

from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import Space, collapse
from ..cluster.indexing import contiguous_lanes
from ..printer import most_lanes
from .elements import ElementText

__all__ = ["gather_launch"]


def gather_launch(axis: int, data: Tensor, indices: Tensor, out: Tensor, origin: str, checked: bool) -> Launch:
    """``out[a..., i..., b...] = x[a..., indices[i...], b...]``, ``axis`` being the place of the indices.

    Negative indices count from the end. With ``checked``, one that is out of range is noted as a fault; the operands
    are called ``x``, ``indices`` and ``out``.
    """
    behind = len(data.lens) - axis - 1
    middle = len(out.lens) - axis - behind
    x = (*data.strides[:axis], *(0,) * middle, *data.strides[axis + 1 :])
    own = indices.strides if middle == len(indices.strides) else (0,) * middle
    i = (*(0,) * axis, *own, *(0,) * behind)
    space = collapse(out.lens, [x, i, out.strides], order_by=2)
    if not space.rank:
        space = Space((1,), ((0,), (0,), (0,)))
    moving = [(space.strides[k], t.offset) for k, t in ((0, data), (2, out))]
    lanes = contiguous_lanes(most_lanes(out.type.size), space.lens[-1], moving) if not space.strides[1][-1] else 1
    text = ElementText([("x", data), ("indices", indices), ("out", out)], space.lens, space.strides, lanes)
    text.arguments.integer("length", data.lens[axis])
    text.arguments.integer("step", data.strides[axis])
    if checked:
        text.faults()
    text.begin()
    buffer = text.buffer
    buffer.line(f"index = cast_int64(load_scalar(p_indices, {text.place(1)}))")
    if checked:
        text.fault("(index < -length) | (index >= length)", 0, "index")
        buffer.line("index = imax(imin(index, length - 1), -length)")
    buffer.line("position = index")
    with buffer.block("if index < 0:"):
        buffer.line("position = index + length")
    load = "load_aligned" if lanes > 1 and space.strides[0][-1] else "load_splat" if lanes > 1 else "load"
    value = buffer.emit(f"{load}(p_x, position * step + {text.place(0)}, {lanes})")
    text.store(value)
    moved = 2 * out.footprint + indices.footprint
    return text.launch("gather_kernel", origin, moved, 0, (f"axis {axis} of length {data.lens[axis]}",))
