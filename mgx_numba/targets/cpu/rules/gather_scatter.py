"""Lower gathers, scatters and one-hot encoding."""

from __future__ import annotations

import numpy as np

from ....codegen.cpu.data.cache_copy import cache_copy_launch
from ....codegen.cpu.data.onehot import onehot_launch
from ....codegen.cpu.data.scatter import scatter_launch, scatter_runs_launch, scatternd_launch
from ....core.dim import known_in, less_equal, preferred
from ....core.shape import row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.gather import Gather
from ....ops.scatter import REDUCTIONS, ScatterBase, ScatterNDBase
from ...lowering.buffers import View
from ...lowering.caches import keep_or_copy
from ...lowering.gathers import lower_gather, lower_scan_slice, may_be_out_of_range, tuples_may_be_out_of_range
from ...lowering.launched import onehot_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

SHORTEST_RUN = 5
"""Least mean length of runs of evenly spaced indices that are scattered without reading indices.

Zen 3, 64 rows of 3000 float32 added: runs of 4 take 382 us, of 6 272 us, of 16 71 us; with indices 320 us. With a
distance of 2 runs of 4 take 353 us, of 16 293 us; with indices 430 us."""

lowering("gather_elements", "gathernd", accepts=keeps_inner_axis)(lower_gather)
lowering("scan_slice")(lower_scan_slice)


@lowering("gather", accepts=keeps_inner_axis)
def lower_row_gather(low: Lowering, ins: Instruction) -> None:
    """Append a gather kernel, after a copy of data whose rows are strided if most rows are read.

    Each element of a strided row is in a cache line of its own. Later instructions read the copy, too: an image that is
    sampled between its pixels is gathered from four times.
    """
    op, source = ins.operator(Gather), ins.inputs[0]
    data = low.input(ins, 0)
    rows_are_strided = op.axis % max(len(data.lens), 1) < len(data.lens) - 1 and not known_in(data.strides[-1], 0, 1)
    shared = ins.module is low.module and source not in low.output_aliases  # a branch that runs in any case
    if shared and rows_are_strided and preferred(less_equal(source.shape.elements, ins.shape.elements)):
        low.values[source] = low.materialized(data, row_major_strides(data.lens), ins)
    lower_gather(low, ins)


@lowering(*(f"scatter_{r}" for r in REDUCTIONS), *(f"scatternd_{r}" for r in REDUCTIONS))
def lower_scatter(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the data, which a run may skip, then a kernel that updates it; a fallback step for narrow
    types."""
    op, (data, indices, updates) = ins.op, low.inputs(ins)
    assert isinstance(op, (ScatterBase, ScatterNDBase))
    plain = data.type.compute is data.type and data.type is not Type.bool_type
    if any(known_in(n, 0) for n in data.lens) or not (plain or op.combine == "none"):
        low.host(ins, f"kernels combine numbers of their own width, and some of them, not {data.shape}")
        return
    out = low.output(ins)
    keep_or_copy(low, data, out, ins, cache_copy_launch)
    tensors, origin = (indices.tensor, updates.tensor, out.tensor), low.origin(ins)
    if isinstance(op, ScatterBase):
        axis = op.axis % len(data.lens)
        runs = _constant_runs(low, ins, axis, updates, out)
        if runs is not None:
            solution = low.solve(scatter_runs_launch, op.combine, axis, len(runs), *tensors[1:], origin)
            low.launch_all(solution, {"runs": low.constant(runs), "updates": updates, "out": out}, ins)
            return
        checked = not op.skip_out_of_bounds and may_be_out_of_range(low, ins.inputs[1], data.lens[axis])
        solution = low.solve(scatter_launch, op.combine, axis, *tensors, origin, checked)
    else:
        outside = tuples_may_be_out_of_range(low, ins.inputs[1], data.lens)
        solution = low.solve(scatternd_launch, op.combine, *tensors, origin, outside)
    low.launch_all(solution, {"indices": indices, "updates": updates, "out": out}, ins)


def _constant_runs(low: Lowering, ins: Instruction, axis: int, updates: View, out: View) -> np.ndarray | None:
    """Return the table of the runs of evenly spaced indices, for `scatter_runs_launch`; None where the kernel does not
    apply, or runs are shorter than `SHORTEST_RUN` on the mean."""
    indices = low.constant_value(ins.inputs[1])
    if indices is None or not all(known_in(v.strides[axis], 1) for v in (updates, out)):
        return None
    if any(s != 0 for a, (n, s) in enumerate(zip(indices.shape, indices.strides)) if a != axis and n != 1):
        return None
    row = np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])[0].astype(np.int64)
    length = ins.shape.lens[axis]
    row = np.where(row < 0, row + length, row)
    inside = (row >= 0) & (row < length)
    if not (inside.all() or ins.operator(ScatterBase).skip_out_of_bounds):
        return None
    places = np.flatnonzero(inside)
    row = row[places]
    return _runs(places, row)


def _runs(places: np.ndarray, row: np.ndarray) -> np.ndarray | None:
    """Return the runs in which ``places`` are consecutive and positions ``row`` evenly spaced: place, position, length
    and distance of each, see `_constant_runs`."""
    steps = np.where(np.diff(places) == 1, np.diff(row), 1 << 62)  # no distance that a run has
    ends = np.append(np.flatnonzero(np.diff(steps)) + 1, row.size - 1)
    found, start = list[tuple[int, int, int, int]](), 0
    while start < row.size:
        last = (
            start
            if start == row.size - 1 or steps[start] == 1 << 62
            else int(ends[np.searchsorted(ends, start, "right")])
        )
        found.append((places[start], row[start], last + 1 - start, steps[start] if last > start else 1))
        start = last + 1
        if len(found) * SHORTEST_RUN > row.size:
            return None
    return np.array(found, np.int64).reshape(-1, 4)


lowering("onehot", accepts=keeps_inner_axis)(onehot_rule(onehot_launch))
