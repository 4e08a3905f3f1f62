"""Integers that follow from lengths alone."""

from __future__ import annotations

from ....codegen.cpu.data.counting import lengths_launch, positions_launch
from ....core.dim import known_equal
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....ops.lengths import Iota, Lengths
from ...lowering.lowering import Lowering
from .table import lowering


def _one_after_the_other(ins: Instruction, shape: Shape) -> bool:
    return all(map(known_equal, shape.strides, ins.shape.strides))


@lowering("lengths", accepts=_one_after_the_other)
def lower_lengths(low: Lowering, ins: Instruction) -> None:
    """One kernel, whose arguments are the numbers."""
    assert isinstance(ins.op, Lengths)
    out = low.output(ins)
    for launch in low.solve(lengths_launch, ins.op.values, low.origin(ins)).launches:
        low.launch(launch, {"out": out}, ins)


@lowering("iota", accepts=_one_after_the_other)
def lower_iota(low: Lowering, ins: Instruction) -> None:
    """One kernel."""
    assert isinstance(ins.op, Iota)
    out = low.output(ins)
    for launch in low.solve(positions_launch, ins.op.length, low.origin(ins)).launches:
        low.launch(launch, {"out": out}, ins)
