"""Lower operators that only change the view of memory. They cost nothing, or one copy where strides cannot express the
result."""

from __future__ import annotations

from collections.abc import Callable

from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...runtime.plan import Region
from .buffers import View
from .common import COMMON
from .fallback_values import made_by_fallback
from .lowering import Lowering
from .output_aliasing import seen_before
from .rules import RuleTable

VIEWS = RuleTable(COMMON)
"""Rules of views, with the rules of `common` as fallback."""


@VIEWS.lowering("transpose", "slice", "step", "multibroadcast", "broadcast", "scalar", "broadcast_with_dims")
def lower_view(low: Lowering, ins: Instruction) -> None:
    """Register the result as another window of the input's memory; a fallback step if the window depends on run-time
    values."""
    view = seen_by(low, ins)
    if view is None:
        low.host(ins, "no view of the input is the result")
    else:
        low.values[ins] = view


def seen_by(low: Lowering, ins: Instruction) -> View | None:
    """Return an operator's result as a view of its first input; None if it is no view."""
    shapes = [i.shape for i in ins.inputs]
    return low.input(ins, 0).viewed(lambda source: ins.op.viewed(ins.shape, source, shapes))


def reshape(low: Lowering, ins: Instruction, copies_directly: Callable[[View, View], bool]) -> None:
    """Register a reshape's result: a view where the strides allow it, else a view of a row-major or in-place copy.

    ``copies_directly`` says whether one copy to lent memory of other strides is faster than two steps.
    """
    source = low.input(ins, 0)
    lens = ins.shape.lens
    view = source.viewed(lambda places: places.reshape(*lens))
    if view is None:
        view = _copy_to_donated(low, ins, source, copies_directly)
    if view is None:
        copied = low.allocate(Shape(source.type, source.lens))
        low.copy(source, copied, ins)
        view = copied.with_shape(Shape(source.type, lens))
    low.values[ins] = view


def _copy_to_donated(
    low: Lowering, ins: Instruction, source: View, copies_directly: Callable[[View, View], bool]
) -> View | None:
    """Copy a reshape's input into the memory lent to the reshape and return that view. None if none is lent, or if two
    steps are faster."""
    donated = low.output_aliases.get(ins)
    seen = None if donated is None else seen_before(ins, donated.shape)
    if donated is None or seen is None:
        return None
    target = donated.with_shape(seen)
    if not copies_directly(source, target):
        return None
    low.copy(source, target, ins)
    return donated


@VIEWS.lowering("identity")
def lower_identity(low: Lowering, ins: Instruction) -> None:
    """Register the input as the result."""
    low.values[ins] = low.input(ins, 0)


@VIEWS.lowering("bit_cast", hosted=True)
def lower_bit_cast(low: Lowering, ins: Instruction) -> None:
    """Register the input's memory as another type, which may be a type without kernels.

    A constant becomes another constant over the same memory, since constants are identified by their arrays.
    """
    view = low.input(ins, 0)
    if ins.shape.is_dynamic or made_by_fallback(view):
        low.host(ins, "an input is made by a fallback step")
        return
    buffer, type = view.buffer, ins.shape.type
    if buffer.region is Region.CONSTANT:
        buffer = low.constant(low.constants[buffer.index].view(type.numpy)).buffer
    low.values[ins] = View(buffer, Shape(type, view.lens, view.strides), view.offset)


@VIEWS.lowering("get_tuple_elem", hosted=True)
def lower_get_tuple_elem(low: Lowering, ins: Instruction) -> None:
    """Register a member of a tuple as the result."""
    low.values[ins] = low.values[ins.inputs[0]][ins.op.index]  # type: ignore[attr-defined]
