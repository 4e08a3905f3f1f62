"""Gathers, scatters and one-hot encoding."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.cpu.data.gather import gather_elements_launch, gather_launch, gathernd_launch
from ....codegen.cpu.data.onehot import onehot_launch
from ....codegen.cpu.data.scatter import scatter_launch, scatternd_launch
from ....codegen.cpu.loops import Tensor
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.gather import Gather, GatherElements, GatherND
from ....ops.scatter import REDUCTIONS, ScatterBase, ScatterNDBase
from ....ops.selection import OneHot
from ....ops.slice import ScanSlice
from ...lowering.destinations import keeps_inner_axis
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("gather", "gather_elements", "gathernd", accepts=keeps_inner_axis)
def lower_gather(low: Lowering, ins: Instruction) -> None:
    """One kernel; indices are checked unless they are known to be in range."""
    op, (data, indices) = ins.op, low.inputs(ins)
    if 0 in data.lens:
        low.host(ins, "there is no element to gather")
        return
    out = low.output(ins)
    tensors, origin = (data.tensor, indices.tensor, out.tensor), low.origin(ins)
    if isinstance(op, GatherND):
        checked = _tuples_doubtful(low, ins.inputs[1], data.lens[op.batch_dims :])
        launch = gathernd_launch(op.batch_dims, *tensors, origin, checked)
    else:
        assert isinstance(op, (Gather, GatherElements))
        axis = op.axis % len(data.lens)
        made = gather_launch if isinstance(op, Gather) else gather_elements_launch
        launch = made(axis, *tensors, origin, _doubtful(low, ins.inputs[1], data.lens[axis]))
    low.launch(launch, {"x": data, "indices": indices, "out": out}, ins)


@lowering("scan_slice")
def lower_scan_slice(low: Lowering, ins: Instruction) -> None:
    """A gather of one position, counted backwards in an axis that is walked from its end."""
    op, (data, index) = ins.op, low.inputs(ins)
    assert isinstance(op, ScanSlice)
    axis = op.axis % len(data.lens)
    if 0 in data.lens:
        low.host(ins, "there is no element to gather")
        return
    out = low.allocate(Shape(data.type, ins.shape.lens))
    low.values[ins] = out
    strides = list(data.strides)
    if op.direction:
        data = data.with_shape(data.shape, (data.lens[axis] - 1) * strides[axis])
        strides[axis] = -strides[axis]
    source, place = Tensor(data.type, data.lens, tuple(strides)), Tensor(index.type.unsigned, (1,), (1,))
    launch = gather_launch(axis, source, place, out.tensor, low.origin(ins))
    low.launch(launch, {"x": data, "indices": index, "out": out}, ins)


@lowering(*(f"scatter_{r}" for r in REDUCTIONS), *(f"scatternd_{r}" for r in REDUCTIONS))
def lower_scatter(low: Lowering, ins: Instruction) -> None:
    """A copy of the data, then a kernel that changes it; bools and narrow floats are combined on the host."""
    op, (data, indices, updates) = ins.op, low.inputs(ins)
    assert isinstance(op, (ScatterBase, ScatterNDBase))
    plain = data.type.compute is data.type and data.type is not Type.bool_type
    if 0 in data.lens or not (plain or op.combine == "none"):
        low.host(ins, f"kernels combine numbers of their own width, and some of them, not {data.shape}")
        return
    out = low.output(ins)
    low.copy(data, out, ins)
    tensors, origin = (indices.tensor, updates.tensor, out.tensor), low.origin(ins)
    if isinstance(op, ScatterBase):
        axis = op.axis % len(data.lens)
        checked = not op.skip_out_of_bounds and _doubtful(low, ins.inputs[1], data.lens[axis])
        launch = scatter_launch(op.combine, axis, *tensors, origin, checked)
    else:
        launch = scatternd_launch(op.combine, *tensors, origin, _tuples_doubtful(low, ins.inputs[1], data.lens))
    low.launch(launch, {"indices": indices, "updates": updates, "out": out}, ins)


def _doubtful(low: Lowering, indices: Instruction, length: int) -> bool:
    """Whether some index may be out of range for an axis."""
    return not low.ranges.span(indices).within(-length, length - 1)


def _tuples_doubtful(low: Lowering, indices: Instruction, lens: Sequence[int]) -> list[bool]:
    """As `_doubtful` for each place of the index tuples in the last axis, along the axes in order."""
    spans = low.ranges.along(indices, indices.shape.ndim - 1)
    return [not span.within(-length, length - 1) for span, length in zip(spans, lens)]


@lowering("onehot", accepts=keeps_inner_axis)
def lower_onehot(low: Lowering, ins: Instruction) -> None:
    """One kernel where the depth is an attribute."""
    op = ins.op
    assert isinstance(op, OneHot)
    if op.depth is None:
        low.host(ins, "the depth is known at run time only")
        return
    indices, values, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
    axis = op.axis % len(out.lens)
    launch = onehot_launch(axis, indices.tensor, values.tensor, out.tensor, low.origin(ins))
    low.launch(launch, {"indices": indices, "values": values, "out": out}, ins)
