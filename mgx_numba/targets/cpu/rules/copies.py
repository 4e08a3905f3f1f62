"""Copies: contiguous, layout and concat, each a copy only where the data is not already where it should be."""

from __future__ import annotations

from ....codegen.cpu import host
from ....codegen.cpu.data.rows import mover
from ....codegen.cpu.data.transpose import transpose_launch
from ....codegen.space import collapse
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from .table import lowering

__all__ = ["copies_in_runs"]


def copies_in_runs(source: View, target: View) -> bool:
    """Whether a copy moves vectors: both sides are contiguous along one axis, or blocks can be transposed."""
    space = collapse(target.lens, [source.strides, target.strides], order_by=1)
    if not space.rank:
        return True
    length, inner = space.lens[-1], [s[-1] for s in space.strides]
    if inner == [1, 1] or (inner == [0, 1] and length >= host.lanes(mover(source.type))):
        return True
    return transpose_launch(source.tensor, target.tensor) is not None


@lowering("contiguous", "layout")
def lower_contiguous(low: Lowering, ins: Instruction) -> None:
    """The input itself if its strides are already those wanted, else a copy."""
    source = low.input(ins, 0)
    wanted = ins.shape.strides
    if ins not in low.destinations and all(a == b or n == 1 for a, b, n in zip(source.strides, wanted, source.lens)):
        low.values[ins] = source.with_shape(Shape(source.type, source.lens, wanted))
        return
    low.copy(source, low.output(ins), ins)


@lowering("fill")
def lower_fill(low: Lowering, ins: Instruction) -> None:
    """A copy of one element to all places."""
    value, out = low.input(ins, 0), low.output(ins)
    low.copy(value.with_shape(Shape(value.type, out.lens, [0] * len(out.lens))), out, ins)


@lowering("concat")
def lower_concat(low: Lowering, ins: Instruction) -> None:
    """Copies of the inputs that could not be computed in place."""
    whole = low.output(ins)
    axis = ins.op.axis % len(ins.shape.lens)  # type: ignore[attr-defined]
    start = 0
    for source in ins.inputs:
        shape = Shape(source.shape.type, source.shape.lens, whole.strides)
        part = whole.with_shape(shape, start * whole.strides[axis])
        start += source.shape.lens[axis]
        value = low.values[source]
        if value.buffer is not part.buffer or value.offset != part.offset:
            low.copy(value, part, ins)
