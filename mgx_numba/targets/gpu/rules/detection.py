"""Non-maximum suppression: a kernel finds the boxes of every class, a host step counts the rows of the result."""

from __future__ import annotations

from ....codegen.gpu.data.suppression import suppression_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import NonMaxSuppression
from ...lowering.detection import append_rows, suppression_operands
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("nonmaxsuppression", dynamic=True)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """One kernel and a small host step; nothing to keep, or scores that are no floats, is the host's."""
    op, found = ins.op, suppression_operands(low, ins)
    assert isinstance(op, NonMaxSuppression)
    if found is None:
        return
    boxes, scores, limits, room = found
    images, classes, count = scores.lens
    rows = images * classes
    made = {
        "picked": low.allocate(Shape(Type.int64_type, (rows, room))),
        "counts": low.allocate(Shape(Type.int64_type, (rows,))),
        "dropped": low.allocate(Shape(Type.bool_type, (rows, count))),
    }
    limit_tensors = [v.tensor for v in limits]
    launch = suppression_launch(op.center_point_box, boxes.tensor, scores.tensor, limit_tensors, room, low.origin(ins))
    given = {f"limit{k}": v for k, v in enumerate(limits)}
    low.launch(launch, {"boxes": boxes, "scores": scores, **given, **made}, ins)
    append_rows(low, ins, made["picked"], made["counts"])
