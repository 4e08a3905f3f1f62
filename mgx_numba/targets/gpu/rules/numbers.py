"""Tensors of lengths, and positions that are counted."""

from __future__ import annotations

from ....codegen.gpu.data.numbers import numbers_launch, range_launch
from ....codegen.problems.numbers import NumbersProblem, RangeProblem
from ....graph.instruction import Instruction
from ....ops.lengths import Iota, Lengths
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("lengths")
def lower_lengths(low: Lowering, ins: Instruction) -> None:
    """One kernel that stores its arguments."""
    assert isinstance(ins.op, Lengths)
    out = low.output(ins)
    problem = NumbersProblem(ins.op.values, out.tensor, low.origin(ins))
    for launch in low.solve(numbers_launch, problem).launches:
        low.launch(launch, {"out": out}, ins)


@lowering("iota")
def lower_iota(low: Lowering, ins: Instruction) -> None:
    """One kernel that counts."""
    assert isinstance(ins.op, Iota)
    out = low.output(ins)
    for launch in low.solve(range_launch, RangeProblem(out.tensor, origin=low.origin(ins))).launches:
        low.launch(launch, {"out": out}, ins)
