"""Reshapes and concatenations; the other views are the same on every target."""

from __future__ import annotations

from ....codegen.gpu.data.copies import MOST_COPIES, copies_launch
from ....graph.instruction import Instruction
from ...lowering.common import lower_concat, pieces_to_copy
from ...lowering.destinations import RESHAPES
from ...lowering.lowering import Lowering
from ...lowering.views import reshape
from .table import lowering


@lowering(*RESHAPES)
def lower_reshape(low: Lowering, ins: Instruction) -> None:
    """See `reshape`; one copy is always faster: a second one is another launch."""
    reshape(low, ins, lambda source, target: True)


@lowering("concat")
def lower_concatenation(low: Lowering, ins: Instruction) -> None:
    """One launch for all copies."""
    if ins.shape.type.hosted:
        lower_concat(low, ins)
        return
    pieces = [(value, part) for value, part in pieces_to_copy(low, ins) if part.shape.elements]
    while pieces:
        now, pieces = pieces[:MOST_COPIES], pieces[MOST_COPIES:]
        if len(now) == 1:
            low.copy(*now[0], ins)
            return
        launch = copies_launch([(value.tensor, part.tensor) for value, part in now], low.origin(ins))
        operands = {f"x{k}": value for k, (value, _) in enumerate(now)}
        low.launch(launch, operands | {f"out{k}": part for k, (_, part) in enumerate(now)}, ins)
