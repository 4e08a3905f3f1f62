"""Non-maximum suppression: its operands, and the rows of its result, whose number is known after its kernel."""

from __future__ import annotations

import numpy as np

from ...graph.instruction import Instruction
from ...ops.detection import NonMaxSuppression
from .buffers import View
from .lowering import Lowering
from .steps import PendingStep

__all__ = ["append_rows", "suppression_operands"]


def suppression_operands(low: Lowering, ins: Instruction) -> tuple[View, View, list[View], int] | None:
    """Boxes, scores and limits, and how many boxes of a class are kept at most; None if it became a host step: nothing
    is to be kept, or scores are no floats."""
    boxes, scores, *limits = low.inputs(ins)
    if not limits or 0 in scores.lens:
        low.host(ins, "no box can be kept: there is no limit, or there are no scores")
        return None
    if not (boxes.type.is_floating and scores.type.is_floating):
        low.host(ins, f"kernels compare floats, not {boxes.type.name} and {scores.type.name}")
        return None
    count, keep = scores.lens[2], low.constant_value(ins.inputs[2])
    room = count if keep is None else max(1, min(count, int(keep.reshape(-1)[0])))
    return boxes, scores, limits, room


def append_rows(low: Lowering, ins: Instruction, picked: View, counts: View) -> None:
    """Append the host step that makes the result's rows (image, class, box) of the boxes that a kernel has picked.

    ``picked`` are the boxes of each class of each image, int64 [images * classes, room], of which the first ``counts``
    count.
    """
    assert isinstance(ins.op, NonMaxSuppression)
    classes = ins.inputs[1].shape.lens[1]
    total = None if ins.op.use_dyn_output else ins.shape.lens[0]

    def collect(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [_rows(arrays[0], arrays[1], classes, total)]

    if ins.shape.is_dynamic:
        out = low.values[ins] = low.on_host(ins.shape)
    else:
        out = low.output(ins)
    label = f"{low.backend.name}::nonmaxsuppression_rows"
    reason = "how many rows the result has is known after the kernel"
    low.steps.append(PendingStep(None, {}, label, ins, collect, [picked, counts], [out], reason=reason))


def _rows(picked: np.ndarray, counts: np.ndarray, classes: int, total: int | None) -> np.ndarray:
    """Rows (image, class, box) of the boxes picked, and zeros up to ``total`` rows."""
    found = int(counts.sum())
    rows = np.zeros((found if total is None else total, 3), np.int64)
    group = np.repeat(np.arange(len(counts)), counts)
    rows[:found, 0], rows[:found, 1] = group // classes, group % classes
    rows[:found, 2] = picked[np.arange(picked.shape[1]) < counts[:, None]]
    return rows
