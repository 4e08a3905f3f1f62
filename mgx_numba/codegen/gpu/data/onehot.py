"""One-hot encoding: comparisons of an index with the position along the new axis."""

from __future__ import annotations

from ...launch import Launch
from ...problems.cluster import Tensor
from ...space import Space, collapse
from .elements import ElementText


def onehot_launch(axis: int, indices: Tensor, values: Tensor, out: Tensor, origin: str = "") -> Launch:
    """Return the launch that writes ``values[1]`` where the position along ``axis`` equals the index, ``values[0]``
    elsewhere.

    Operands: ``indices`` (lengths of ``out`` without ``axis``), ``values`` (two elements), ``out``. Negative indices
    count from the end; an index out of range matches no position.
    """
    own = (*indices.strides[:axis], 0, *indices.strides[axis:])
    # The position along the axis is the element offset in a tensor that has stride 1 there and 0 elsewhere.
    ruler = tuple(int(a == axis) for a in range(len(out.lens)))
    space = collapse(out.lens, [own, ruler, out.strides])
    if not space.rank:
        space = Space((1,), ((0,), (0,), (0,)))
    text = ElementText([("indices", indices), ("values", values), ("out", out)], space.lens, space.strides, 1)
    text.arguments.integer("depth", out.lens[axis])
    text.arguments.integer("on", max(zip(values.lens, values.strides, strict=True), default=(2, 1))[1])
    text.begin()
    buffer = text.buffer
    buffer.line(f"index = cast_int64(load_scalar(p_indices, {text.place(0)}))")
    with buffer.block("if index < 0:"):
        buffer.line("index = index + depth")
    buffer.line("chosen = 0")
    with buffer.block(f"if index == {text.place(1)}:"):
        buffer.line("chosen = on")
    text.store("load(p_values, chosen, 1)")
    return text.launch("onehot_kernel", origin, indices.footprint + out.footprint)
