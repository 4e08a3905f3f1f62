"""Non-maximum suppression: a kernel finds the boxes of every class, a host step counts the rows of the result."""

from __future__ import annotations

from ....codegen.cpu.data.suppression import PLANES, scratch_pitch, suppression_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import NonMaxSuppression
from ...lowering.detection import append_rows, suppression_operands
from ...lowering.lowering import Lowering
from .table import lowering

TASKS_PER_THREAD = 4
"""Groups of rows for each thread: boxes of rows differ in number, so that one each would end unevenly."""


@lowering("nonmaxsuppression", dynamic=True)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """One kernel and a small host step; nothing to keep, or scores that are no floats, is the host's.

    Nearly all scores are only looked at, so scores that lie apart (a transpose's) are brought together first.
    """
    op, found = ins.op, suppression_operands(low, ins)
    assert isinstance(op, NonMaxSuppression)
    if found is None:
        return
    boxes, scores, limits, room = found
    images, classes, count = scores.lens
    if scores.strides[2] not in (0, 1):
        scores = low.materialized(scores, (classes * count, count, 1), ins)
    rows = images * classes
    groups = min(rows, TASKS_PER_THREAD * low.threads)
    pitch = scratch_pitch(count)
    made = {
        "picked": low.allocate(Shape(Type.int64_type, (rows, room))),
        "counts": low.allocate(Shape(Type.int64_type, (rows,))),
        "planes": low.allocate(Shape(Type.double_type, (groups, PLANES, pitch))),
        "order": low.allocate(Shape(Type.int64_type, (groups, pitch))),
    }
    launch = suppression_launch(
        op.center_point_box,
        boxes.tensor,
        scores.tensor,
        [v.tensor for v in limits],
        room,
        groups,
        low.origin(ins),
    )
    given = {f"limit{k}": v for k, v in enumerate(limits)}
    low.launch(launch, {"boxes": boxes, "scores": scores, **given, **made}, ins)
    append_rows(low, ins, made["picked"], made["counts"])
