"""Register the rules of views: reshapes here, other views as on every target."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import RESHAPES
from ...lowering.view_operators import reshape
from .copies import copies_in_runs
from .table import lowering


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """Lower a reshape (see `reshape`); a single copy is faster where it moves vectors."""
    reshape(low, ins, copies_in_runs)
