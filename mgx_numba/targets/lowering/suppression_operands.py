"""Prepare the operands of non-maximum suppression, for the rules of all targets."""

from __future__ import annotations

from ...core.dim import known_in, maximum, minimum
from ...graph.instruction import Instruction
from .buffers import View
from .lowering import Lowering


def suppression_operands(low: Lowering, ins: Instruction) -> tuple[View, View, list[View], int] | None:
    """Return boxes, scores, limits, and the maximum number of boxes kept per class.

    None if the instruction became a fallback step: no box can be kept, or scores are not floats.
    """
    boxes, scores, *limits = low.inputs(ins)
    if not limits or any(known_in(n, 0) for n in scores.lens):
        low.host(ins, "no box can be kept: there is no limit, or there are no scores")
        return None
    if not (boxes.type.is_floating and scores.type.is_floating):
        low.host(ins, f"kernels compare floats, not {boxes.type.name} and {scores.type.name}")
        return None
    count, keep = scores.lens[2], low.constant_value(ins.inputs[2])
    room = count if keep is None else maximum(1, minimum(count, int(keep.reshape(-1)[0])))
    return boxes, scores, limits, room
