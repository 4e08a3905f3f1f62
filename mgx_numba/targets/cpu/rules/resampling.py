"""Padding, resizing and reversing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....codegen.cpu.data.pad import border_launch, has_short_rows, pad_launch, remap_launch
from ....codegen.cpu.data.resize import resize_launch
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....ops.integer import PadWith
from ....ops.pad import FixedPad, Pad, PadMode
from ....ops.resize import Resize
from ...lowering.buffers import View
from ...lowering.destinations import inside_of, keeps_inner_axis
from ...lowering.indexing import lower_reverse
from ...lowering.launched import launch_with_tables, resize_refusal
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("pad", accepts=keeps_inner_axis, surrounds=True)
def lower_pad(low: Lowering, ins: Instruction) -> None:
    """Copies and fills in one kernel, or a copy through tables; fills around what lies inside of the result already."""
    op = ins.op
    assert isinstance(op, Pad)
    x, out = low.input(ins, 0), low.output(ins)
    rank = len(x.lens)
    if op.mode is PadMode.constant:
        value = op.filling(x.type)
        inside = inside_of(ins, out)
        if inside is not None and (x.buffer, x.offset) == (inside.buffer, inside.offset):
            launch = border_launch(op.pads[:rank], value, inside.tensor, out.tensor, low.origin(ins))
            low.launch(launch, {"out": out}, ins)
            return
        if min(op.pads, default=0) >= 0 and has_short_rows(op.pads[:rank], x.tensor, out.tensor):
            _fill_and_copy(low, ins, op.pads[:rank], value, x, out)
            return
        launch = pad_launch(op.pads[:rank], value, x.tensor, out.tensor, low.origin(ins))
        low.launch(launch, {"x": x, "out": out}, ins)
        return
    pairs = list(zip(op.pads[:rank], op.pads[rank:]))
    positions = {a: op.positions(x.lens[a], *pair) for a, pair in enumerate(pairs) if any(pair)}
    launch_with_tables(low, ins, *remap_launch("pad_kernel", positions, x.tensor, out.tensor, low.origin(ins)), x, out)


@lowering("pad_with", accepts=keeps_inner_axis, surrounds=True)
def lower_pad_with(low: Lowering, ins: Instruction) -> None:
    """Copy and fill in one kernel; only fill where the input was written into the result's memory."""
    assert isinstance(ins.op, PadWith)
    x, value, out = low.input(ins, 0), low.input(ins, 1), low.output(ins)
    before, inside = ins.op.pads[: len(x.lens)], inside_of(ins, out)
    if inside is not None and (x.buffer, x.offset) == (inside.buffer, inside.offset):
        launch = border_launch(before, None, inside.tensor, out.tensor, low.origin(ins))
        low.launch(launch, {"value": value, "out": out}, ins)
        return
    launch = pad_launch(before, None, x.tensor, out.tensor, low.origin(ins))
    low.launch(launch, {"x": x, "value": value, "out": out}, ins)


def _fill_and_copy(
    low: Lowering, ins: Instruction, before: Sequence[int], value: np.ndarray, x: View, out: View
) -> None:
    """Fill all of the result, then copy the input over its place."""
    one = low.constant(value.reshape(1))
    low.copy(one.with_shape(Shape(x.type, out.lens, [0] * len(out.lens))), out, ins)
    start = sum(n * s for n, s in zip(before, out.strides))
    low.copy(x, out.with_shape(Shape(x.type, x.lens, out.strides), start), ins)


@lowering("fixed_pad", accepts=keeps_inner_axis)
def lower_fixed_pad(low: Lowering, ins: Instruction) -> None:
    """Copies and fills in one kernel."""
    assert isinstance(ins.op, FixedPad)
    x, out = low.input(ins, 0), low.output(ins)
    launch = pad_launch([0] * len(x.lens), np.zeros((), x.type.numpy), x.tensor, out.tensor, low.origin(ins))
    low.launch(launch, {"x": x, "out": out}, ins)


@lowering("resize", accepts=keeps_inner_axis)
def lower_resize(low: Lowering, ins: Instruction) -> None:
    """One kernel and its tables; integers that are interpolated go to the host."""
    op = ins.op
    assert isinstance(op, Resize)
    refusal = resize_refusal(ins)
    if refusal is not None:
        low.host(ins, refusal)
        return
    x = low.input(ins, 0)
    out = low.output(ins)
    if not op.samples(x.lens):
        low.copy(x, out, ins)
        return
    launch_with_tables(low, ins, *resize_launch(op, x.tensor, out.tensor, low.origin(ins)), x, out)


lowering("reverse", accepts=keeps_inner_axis)(lower_reverse)
