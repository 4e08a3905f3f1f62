"""Lower determinants and inverses."""

from __future__ import annotations

from math import prod

from ....codegen.cpu.data.elimination import elimination_launch, elimination_pitch
from ....core.dim import maximum, minimum
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ...lowering.lowering import Lowering
from .sort_scratch import TASKS_PER_THREAD
from .table import lowering


@lowering("determinant", "inverse", accepts=lambda ins, shape: shape.standard)
def lower_elimination(low: Lowering, ins: Instruction) -> None:
    """Append one kernel, with scratch memory for each of its tasks."""
    x = low.input(ins, 0)
    x = low.materialized(x, Shape(x.type, x.lens).strides, ins)
    inverted = ins.name == "inverse"
    groups = maximum(1, minimum(prod(x.lens[:-2]), TASKS_PER_THREAD * low.threads))
    lens = groups, x.lens[-1], elimination_pitch(x.lens[-1])
    operands = {"x": x, "out": low.output(ins), "work": low.allocate(Shape(Type.double_type, lens))}
    if inverted:
        operands["pivots"] = low.allocate(Shape(Type.int64_type, lens[:2]))
    low.launch_all(low.solve(elimination_launch, x.tensor, inverted, groups, low.origin(ins)), operands, ins)
