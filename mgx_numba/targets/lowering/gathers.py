"""Lower gathers, and views that need a copy, for back ends with kernels for `IndexedCopy`."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.problems.cluster import Tensor
from ...codegen.problems.indexed_copy import gather_copy, gather_elements_copy, gathernd_copy
from ...core.dim import known_in, range_of
from ...core.shape import Shape
from ...graph.instruction import Instruction
from ...graph.ranges import Span
from ...ops.gather import Gather, GatherElements, GatherND
from ...ops.slice import ScanSlice
from .lowering import Lowering
from .view_operators import seen_by


def lower_gather(low: Lowering, ins: Instruction) -> None:
    """Append a gather kernel; it checks indices unless they are known to be in range."""
    op, (data, indices) = ins.op, low.inputs(ins)
    if any(known_in(n, 0) for n in data.lens):
        low.host(ins, "there is no element to gather")
        return
    out = low.output(ins)
    tensors, origin = (data.tensor, indices.tensor, out.tensor), low.origin(ins)
    if isinstance(op, GatherND):
        checked = tuples_may_be_out_of_range(low, ins.inputs[1], data.lens[op.batch_dims :])
        problem = gathernd_copy(op.batch_dims, *tensors, origin, checked)
    else:
        assert isinstance(op, (Gather, GatherElements))
        axis = op.axis % len(data.lens)
        made = gather_copy if isinstance(op, Gather) else gather_elements_copy
        problem = made(axis, *tensors, origin, may_be_out_of_range(low, ins.inputs[1], data.lens[axis]))
    low.launch_all(low.solve(low.backend.plan, problem), {"x": data, "indices": indices, "out": out}, ins)


def lower_scan_slice(low: Lowering, ins: Instruction) -> None:
    """Append a gather of one position, counted from the end for a backward scan."""
    op, (data, index) = ins.operator(ScanSlice), low.inputs(ins)
    axis = op.axis % len(data.lens)
    if any(known_in(n, 0) for n in data.lens):
        low.host(ins, "there is no element to gather")
        return
    out = low.allocate(Shape(data.type, ins.shape.lens))
    low.values[ins] = out
    strides = list(data.strides)
    if op.direction:
        data = data.with_shape(data.shape, (data.lens[axis] - 1) * strides[axis])
        strides[axis] = -strides[axis]
    source = Tensor(data.type, data.lens, tuple(strides), data.tensor.offset)
    place = Tensor(index.type.unsigned, (1,), (1,), index.tensor.offset)
    problem = gather_copy(axis, source, place, out.tensor, low.origin(ins))
    low.launch_all(low.solve(low.backend.plan, problem), {"x": data, "indices": index, "out": out}, ins)


def lower_reverse(low: Lowering, ins: Instruction) -> None:
    """Append a copy of a view with negative strides."""
    view = seen_by(low, ins)
    if view is None:
        low.host(ins, "no view of the input is the result")
    else:
        low.copy(view, low.output(ins), ins)


def may_be_out_of_range(low: Lowering, indices: Instruction, length: int) -> bool:
    """Return whether some index may be out of range for an axis, for any value of its symbolic length."""
    return not _within(low.ranges.span(indices), length)


def tuples_may_be_out_of_range(low: Lowering, indices: Instruction, lens: Sequence[int]) -> list[bool]:
    """Return `may_be_out_of_range` for each component of the index tuples in the last axis of ``indices``."""
    spans = low.ranges.along(indices, indices.shape.ndim - 1)
    return [not _within(span, length) for span, length in zip(spans, lens)]


def _within(span: Span, length: int) -> bool:
    least = range_of(length)[0] or 0
    return span.within(-least, least - 1)
