"""Reshapes; the other views are the same on every target."""

from __future__ import annotations

from ....graph.instruction import Instruction
from ...lowering.destinations import RESHAPES
from ...lowering.lowering import Lowering
from ...lowering.views import reshape
from .table import lowering


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """See `reshape`; one copy is always faster: a second one is another launch."""
    reshape(low, ins, lambda source, target: True)
