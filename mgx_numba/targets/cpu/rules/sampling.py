"""Lower random numbers."""

from __future__ import annotations

from ....codegen.cpu.data.mersenne_twister import uniform_launch
from ....graph.instruction import Instruction
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("random_uniform", accepts=lambda ins, shape: shape.standard)
def lower_random_uniform(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    seed, out = low.input(ins, 0), low.output(ins)
    solution = low.solve(uniform_launch, seed.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"seed": seed, "out": out}, ins)
