"""Lower RoiAlign and non-maximum suppression.

For suppression a kernel picks the boxes of every class, and a second kernel makes the result's rows. If the number of
rows is the result's length, the host reads it.
"""

from __future__ import annotations

from ....codegen.gpu.data.detection import regions_launch, rows_launch, suppression_launch
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import NonMaxSuppression
from ....runtime.gpu.data_dependent import FirstRows
from ...lowering.buffers import View
from ...lowering.launched import regions_rule, suppression_operands
from ...lowering.lowering import Lowering
from ...lowering.steps import PendingStep
from .table import lowering


@lowering("nonmaxsuppression", dynamic=True, accepts=lambda ins, shape: shape.standard)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """Append two kernels; a fallback step if no box can be kept or scores are not floats."""
    op, found = ins.operator(NonMaxSuppression), suppression_operands(low, ins)
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
    dynamic = ins.shape.is_dynamic
    length = rows * room if dynamic else ins.shape.lens[0]
    given = {name: made[name] for name in ("picked", "counts")}
    given["out"] = low.allocate(Shape(Type.int64_type, (length, 3))) if dynamic else low.output(ins)
    given["total"] = low.allocate(Shape(Type.int64_type, (1,)))
    low.launch(rows_launch(images, classes, room, length, low.origin(ins)), given, ins)
    if dynamic:
        _append_count(low, ins, given["out"], given["total"])


lowering("roialign")(regions_rule(regions_launch))


def _append_count(low: Lowering, ins: Instruction, table: View, total: View) -> None:
    """Append the step that returns the first ``total`` rows of a table."""
    out = low.values[ins] = low.on_host(ins.shape)
    step = PendingStep(
        None,
        {},
        f"{low.backend.name}::nonmaxsuppression_rows",
        ins,
        lambda arrays: [arrays[0][: arrays[1][0]]],
        [table, total],
        [out],
        reason="how many rows the result has is known after the kernels",
        on_device=FirstRows(),
    )
    low.draft.steps.append(step)
