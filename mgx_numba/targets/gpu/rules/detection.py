"""Non-maximum suppression: a kernel finds the boxes of every class, a host step counts the rows of the result."""

from __future__ import annotations

from ....codegen.gpu.data.suppression import suppression_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import NonMaxSuppression
from ...lowering.detection import append_rows
from ...lowering.lowering import Lowering
from .table import lowering


@lowering("nonmaxsuppression", dynamic=True)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """One kernel and a small host step; nothing to keep, or scores that are no floats, is the host's."""
    boxes, scores, *limits = low.inputs(ins)
    op = ins.op
    assert isinstance(op, NonMaxSuppression)
    images, classes, count = scores.lens
    if not limits or 0 in scores.lens:
        low.host(ins, "no box can be kept: there is no limit, or there are no scores")
        return
    if not (boxes.type.is_floating and scores.type.is_floating):
        low.host(ins, f"kernels compare floats, not {boxes.type.name} and {scores.type.name}")
        return
    keep = low.constant_value(ins.inputs[2])
    room = count if keep is None else max(1, min(count, int(keep.reshape(-1)[0])))
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
