"""Lower RoiAlign and non-maximum suppression.

For suppression a kernel picks the boxes of every class; where the rows found are counted, another makes the result's
rows, else a fallback step.
"""

from __future__ import annotations

from ....codegen.cpu.data.collected_rows import collected_rows
from ....codegen.cpu.data.regions import regions_launch
from ....codegen.cpu.data.suppression import PLANES, kept_pitch, suppression_launch, suppression_rows_launch
from ....core.dim import is_symbolic, known_in, less, less_equal, preferred
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import NonMaxSuppression, RoiAlign
from ....ops.selection import MOST_COUNTED
from ...lowering.buffers import View
from ...lowering.function_call import FunctionCall
from ...lowering.launched import regions_rule
from ...lowering.lowering import Lowering
from ...lowering.steps import function_step
from ...lowering.suppression_operands import suppression_operands
from .sort_scratch import sort_scratch
from .table import lowering

COPIED_READS = 1
"""Mean reads of a pixel from which images are copied to channels-last memory before regions are pooled.

The copy reads and writes each element once; without it each read fetches a cache line for one element."""


def _channels_last(low: Lowering, ins: Instruction, x: View) -> View:
    """Return the images with contiguous channels if their pixels are read often enough to pay for a copy."""
    op, (n, channels, height, width) = ins.operator(RoiAlign), x.lens
    regions, _, *bins = ins.shape.lens
    reads = 4 * (op.sampling_ratio or 2) ** 2 * regions * bins[0] * bins[1]  # a sample reads four pixels
    if not preferred(less(COPIED_READS * n * height * width, reads)):
        return x
    return low.materialized(x, (height * width * channels, 1, width * channels, channels), ins)


lowering("roialign")(regions_rule(regions_launch, _channels_last))


@lowering("nonmaxsuppression", dynamic=True)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that picks boxes, and a kernel or a small fallback step that makes the result's rows; a fallback
    step alone if no box can be kept or scores are not floats.

    Strided scores (a transpose's) are first copied to contiguous memory, since nearly all scores are only compared.
    """
    op, found = ins.operator(NonMaxSuppression), suppression_operands(low, ins)
    if found is None:
        return
    boxes, scores, limits, room = found
    images, classes, count = scores.lens
    if not known_in(scores.strides[2], 0, 1):
        scores = low.materialized(scores, (classes * count, count, 1), ins)
    rows = images * classes
    groups, scratch = sort_scratch(low, scores, rows, count)
    made = {
        "picked": low.allocate(Shape(Type.int64_type, (rows, room))),
        "counts": low.allocate(Shape(Type.int64_type, (rows,))),
        **scratch,
        "planes": low.allocate(Shape(Type.double_type, (groups, len(PLANES), kept_pitch(room)))),
    }
    tensors = boxes.tensor, scores.tensor, [v.tensor for v in limits]
    solution = low.solve(suppression_launch, op.center_point_box, *tensors, room, groups, low.origin(ins))
    given = {f"limit{k}": v for k, v in enumerate(limits)}
    low.launch_all(solution, {"boxes": boxes, "scores": scores, **given, **made}, ins)
    if op.counts:
        out, total = low.outputs_of(ins)
        low.require(less_equal(out.lens[0], MOST_COUNTED))
        operands = {"picked": made["picked"], "counts": made["counts"], "out": out, "count": total}
        low.launch(suppression_rows_launch(rows, classes, room, low.origin(ins)), operands, ins)
    else:
        _append_rows(low, ins, made["picked"], made["counts"])


def _append_rows(low: Lowering, ins: Instruction, picked: View, counts: View) -> None:
    """Append the fallback step that makes the result's rows (image, class, box) from the boxes that a kernel picked.

    Args:
        picked: boxes of each class of each image, int64 [images * classes, room].
        counts: number of valid boxes in each row of ``picked``.
    """
    classes = ins.inputs[1].shape.lens[1]
    total = None if ins.operator(NonMaxSuppression).use_dyn_output else ins.shape.lens[0]

    if ins.shape.is_dynamic:
        out = low.values[ins] = low.on_host(ins.shape)
    else:
        out = low.output(ins)
    label = f"{low.backend.name}::nonmaxsuppression_rows"
    reason = "how many rows the result has is known after the kernel"
    call, bound = FunctionCall(collected_rows, classes, total), is_symbolic(classes) or is_symbolic(total)
    low.draft.steps.append(function_step(label, ins, call, [picked, counts], out, reason, bound))
