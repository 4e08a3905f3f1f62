"""The rows of a non-maximum suppression, whose number is known after its kernel."""

from __future__ import annotations

import numpy as np

from ...graph.instruction import Instruction
from ...ops.detection import NonMaxSuppression
from .buffers import View
from .lowering import Lowering
from .steps import PendingStep

__all__ = ["append_rows"]


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
