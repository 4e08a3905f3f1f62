"""Views: operators that only change how memory is seen; they cost nothing, or one copy where strides do not allow."""

from __future__ import annotations

import numpy as np

from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....runtime.plan import Region
from ...lowering.buffers import View
from ...lowering.destinations import RESHAPES, seen_before
from ...lowering.lowering import Lowering
from .copies import copies_in_runs
from .table import lowering


@lowering("transpose", "slice", "step", "multibroadcast", "broadcast", "scalar", "broadcast_with_dims")
def lower_view(low: Lowering, ins: Instruction) -> None:
    """Another window of the input's memory; forms whose parameters are run-time values go to the host."""
    if len(ins.inputs) != 1:
        if ins.name in ("multibroadcast", "broadcast"):
            _broadcast(low, ins)
            return
        low.host(ins, "what it shows is known at run time only")
        return
    view = low.input(ins, 0).aliased(lambda a: ins.op.compute(ins.shape, [a]))
    if view is None:
        low.host(ins, "no view of the input is the result")
    else:
        low.values[ins] = view


def _broadcast(low: Lowering, ins: Instruction) -> None:
    others = [np.broadcast_to(np.empty(1, i.shape.type.numpy), i.shape.lens) for i in ins.inputs[1:]]
    view = low.input(ins, 0).aliased(lambda a: ins.op.compute(ins.shape, [a, *others]))
    if view is None:
        low.host(ins, "no view of the input is the result")
    else:
        low.values[ins] = view


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """A view where the strides allow it, else a copy, to lent memory or row-major, seen with the new lengths."""
    source = low.input(ins, 0)
    lens = ins.shape.lens
    view = source.aliased(lambda a: np.reshape(a, lens, copy=False))
    if view is None:
        view = _copy_to_lent(low, ins, source)
    if view is None:
        copied = low.allocate(Shape(source.type, source.lens))
        low.copy(source, copied, ins)
        view = copied.with_shape(Shape(source.type, lens))
    low.values[ins] = view


def _copy_to_lent(low: Lowering, ins: Instruction, source: View) -> View | None:
    """The memory lent to a reshape, to which its input is copied; ``None`` without, or if two steps are faster."""
    lent = low.destinations.get(ins)
    seen = None if lent is None else seen_before(ins, lent.shape)
    if lent is None or seen is None:
        return None
    target = lent.with_shape(seen)
    if not copies_in_runs(source, target):
        return None
    low.copy(source, target, ins)
    return lent


@lowering("identity")
def lower_identity(low: Lowering, ins: Instruction) -> None:
    """The input itself."""
    low.values[ins] = low.input(ins, 0)


@lowering("bit_cast")
def lower_bit_cast(low: Lowering, ins: Instruction) -> None:
    """The input's memory as another type; a constant, which is known by its array, is left to the host."""
    view = low.input(ins, 0)
    if view.buffer.region is Region.CONSTANT:
        low.host(ins, "constants are known by their arrays, which have one element type")
    else:
        low.values[ins] = view.with_shape(Shape(ins.shape.type, view.lens, view.strides))


@lowering("get_tuple_elem", hosted=True)
def lower_get_tuple_elem(low: Lowering, ins: Instruction) -> None:
    """One member of a tuple."""
    low.values[ins] = low.values[ins.inputs[0]][ins.op.index]  # type: ignore[attr-defined]
