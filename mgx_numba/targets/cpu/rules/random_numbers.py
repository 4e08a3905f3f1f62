"""Lowering of random numbers on the CPU."""

from __future__ import annotations

from ....codegen.cpu.data.random_numbers import SCRATCH, uniform_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("random_uniform", accepts=lambda ins, shape: shape.standard)
def lower_uniform(low: Lowering, ins: Instruction) -> None:
    """Append a kernel; a fallback step for elements that are neither float32 nor float64."""
    if ins.shape.type not in (Type.float_type, Type.double_type):
        low.host(ins, f"kernels make random numbers of float32 and float64, not of {ins.shape.type.name}")
        return
    seed, out = low.input(ins, 0), low.output(ins)
    words = low.allocate(Shape(Type.uint32_type, (SCRATCH,)))
    solution = low.solve(uniform_launch, seed.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"seed": seed, "out": out, "words": words}, ins)
