"""Tensors of lengths, and of positions."""

from __future__ import annotations

from ....codegen.cpu.data.lengths import iota_launch, lengths_launch
from ....core.shape import Shape
from ....graph.instruction import Instruction
from ....ops.lengths import Iota, Lengths
from ...lowering.lowering import Lowering
from .table import lowering


def _is_contiguous(ins: Instruction, shape: Shape) -> bool:
    return shape.standard


@lowering("lengths", accepts=_is_contiguous)
def lower_lengths(low: Lowering, ins: Instruction) -> None:
    """Append the kernel that stores the lengths, which are its arguments."""
    assert isinstance(ins.op, Lengths)
    low.launch(lengths_launch(ins.op.values, low.origin(ins)), {"out": low.output(ins)}, ins)


@lowering("iota", accepts=_is_contiguous)
def lower_iota(low: Lowering, ins: Instruction) -> None:
    """Append the kernel that stores the positions."""
    assert isinstance(ins.op, Iota)
    low.launch(iota_launch(ins.op.length, low.origin(ins)), {"out": low.output(ins)}, ins)
