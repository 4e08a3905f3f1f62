"""Lower region pooling and non-maximum suppression.

For suppression a kernel picks the boxes of every class, and another makes the result's rows and counts them.
"""

from __future__ import annotations

import numpy as np

from ....codegen.cpu.data.detection import (
    PLANES,
    kept_pitch,
    max_regions_launch,
    regions_launch,
    suppression_launch,
    suppression_rows_launch,
)
from ....core.dim import known_in, less, preferred
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.detection import MaxRoiPool, NonMaxSuppression, RoiAlign
from ...lowering.buffers import View
from ...lowering.launched import regions_rule, suppression_operands
from ...lowering.lowering import Lowering
from .counted import counted_outputs, take_counted
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


@lowering("max_roi_pool")
def lower_max_roi_pool(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that reads images with contiguous channels; a fallback step for images without a pixel, and for
    those that are not floats."""
    op, (x, rois) = ins.operator(MaxRoiPool), low.inputs(ins)
    if any(known_in(n, 0) for n in x.lens) or not x.type.is_floating:
        low.host(ins, f"no kernel pools {x.type.name} {list(x.lens)} in regions")
        return
    _, channels, height, width = x.lens
    if not known_in(x.strides[1], 1):
        x = low.materialized(x, (height * width * channels, 1, width * channels, channels), ins)
    out = low.output(ins)
    scale = low.constant(np.array([op.spatial_scale], np.float32))
    solution = low.solve(max_regions_launch, x.tensor, rois.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "rois": rois, "scale": scale, "out": out}, ins)


@lowering("nonmaxsuppression", dynamic=True)
def lower_suppression(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that picks boxes, and a kernel that makes the result's rows; a fallback step alone if no box can
    be kept or scores are not floats.

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
    operands = {"picked": made["picked"], "counts": made["counts"]}
    if op.counts or op.use_dyn_output:
        operands["out"], operands["count"] = counted_outputs(low, ins, 3 * rows * room)
        low.launch(suppression_rows_launch(rows, classes, room, None, low.origin(ins)), operands, ins)
        take_counted(low, ins, (-1, 3), operands["out"], operands["count"])
    else:
        operands["out"] = low.output(ins)
        low.launch(suppression_rows_launch(rows, classes, room, ins.shape.lens[0], low.origin(ins)), operands, ins)
