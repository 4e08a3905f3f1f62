"""Scratch memory of kernels that sort rows (`codegen.cpu.data.row_sort`), and their number of tasks."""

from __future__ import annotations

from ....codegen.cpu.data.row_sort import key_dtype, sort_pitch
from ....core.dim import Length, SharedLength, maximum, minimum
from ....core.shape import Shape
from ....core.types import Type, from_numpy
from ...lowering.buffers import View
from ...lowering.lowering import Lowering

TASKS_PER_THREAD = 4
"""Groups of rows for each thread: rows differ in their work, so one group for each would end unevenly."""


def sort_scratch(low: Lowering, x: View, rows: Length, length: Length) -> tuple[SharedLength, dict[str, View]]:
    """Return the number of tasks that sort ``rows`` rows of ``length`` elements of ``x``, and the operands ``keys`` and
    ``places``."""
    groups = maximum(1, minimum(rows, TASKS_PER_THREAD * low.threads))
    lens = (groups, 2, sort_pitch(length))
    types = {"keys": from_numpy(key_dtype(x.tensor)), "places": Type.int32_type}
    return groups, {name: low.allocate(Shape(type_, lens)) for name, type_ in types.items()}
