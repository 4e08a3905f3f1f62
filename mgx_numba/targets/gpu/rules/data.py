"""Gathers, padding and pooling."""

from __future__ import annotations

from ....codegen.gpu.data.gather import gather_launch
from ....codegen.gpu.data.pad import pad_launch
from ....codegen.gpu.data.pooling import WindowAxis, pooling_launch
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.gather import Gather
from ....ops.pad import Pad, PadMode
from ....ops.pooling import Pooling, PoolingMode
from ...lowering.destinations import keeps_inner_axis
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("gather", accepts=keeps_inner_axis)
def lower_gather(low: Lowering, ins: Instruction) -> None:
    """One kernel; indices are checked unless they are known to be in range."""
    op, (data, indices) = ins.op, low.inputs(ins)
    assert isinstance(op, Gather)
    if 0 in (*data.lens, *ins.shape.lens):
        low.host(ins, "there are no elements")
        return
    axis, out = op.axis % len(data.lens), low.output(ins)
    length = data.lens[axis]
    checked = not low.ranges.span(ins.inputs[1]).within(-length, length - 1)
    launch = gather_launch(axis, data.tensor, indices.tensor, out.tensor, low.origin(ins), checked)
    low.launch(launch, {"x": data, "indices": indices, "out": out}, ins)


@lowering("pad", accepts=keeps_inner_axis)
def lower_pad(low: Lowering, ins: Instruction) -> None:
    """One kernel for a constant; the other modes go to the host."""
    op, data = ins.op, low.input(ins, 0)
    assert isinstance(op, Pad)
    if op.mode is not PadMode.constant:
        low.host(ins, f"no kernel pads by mode {op.mode.name}")
        return
    if 0 in (*data.lens, *ins.shape.lens) or not data.lens:
        low.host(ins, "there are no elements, or no axes")
        return
    out = low.output(ins)
    launch = pad_launch(op.pads[: len(data.lens)], op.value, data.tensor, out.tensor, low.origin(ins))
    low.launch(launch, {"x": data, "out": out}, ins)


@lowering("pooling", accepts=keeps_inner_axis)
def lower_pooling(low: Lowering, ins: Instruction) -> None:
    """One kernel for maxima and means of floats; norms and integers go to the host."""
    op, data = ins.op, low.input(ins, 0)
    assert isinstance(op, Pooling)
    plain = op.mode is PoolingMode.max or data.type in (Type.float_type, Type.half_type, Type.bf16_type)
    if op.mode is PoolingMode.lpnorm or not plain or data.type is Type.bool_type:
        low.host(ins, f"no kernel pools {data.type.name} by mode {op.mode.name}")
        return
    if 0 in (*data.lens, *ins.shape.lens):
        low.host(ins, "there are no elements")
        return
    spatial = data.lens[2:]
    if op.dyn_global:
        windows = [WindowAxis(n, 1, 1, 0, 0) for n in spatial]
    else:
        geometry = zip(op.lengths, op.stride, op.dilations, op.pads(spatial))
        windows = [WindowAxis(size, stride, dilation, *pads) for size, stride, dilation, pads in geometry]
    out = low.output(ins)
    greatest = op.mode is PoolingMode.max
    counts = op.count_include_pad and not greatest
    launch = pooling_launch(greatest, counts, windows, data.tensor, out.tensor, low.origin(ins))
    low.launch(launch, {"x": data, "out": out}, ins)
