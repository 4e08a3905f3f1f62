"""Lower gathers, scatters and one-hot encoding."""

from __future__ import annotations

from ....codegen.cpu.data.cache_copy import cache_copy_launch
from ....codegen.cpu.data.onehot import onehot_launch
from ....codegen.cpu.data.scatter import scatter_launch, scatternd_launch
from ....core.dim import known_in, less_equal, preferred
from ....core.shape import row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.gather import Gather
from ....ops.scatter import REDUCTIONS, ScatterBase, ScatterNDBase
from ...lowering.caches import keep_or_copy
from ...lowering.gathers import lower_gather, lower_scan_slice, may_be_out_of_range, tuples_may_be_out_of_range
from ...lowering.launched import onehot_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

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
        checked = not op.skip_out_of_bounds and may_be_out_of_range(low, ins.inputs[1], data.lens[axis])
        solution = low.solve(scatter_launch, op.combine, axis, *tensors, origin, checked)
    else:
        outside = tuples_may_be_out_of_range(low, ins.inputs[1], data.lens)
        solution = low.solve(scatternd_launch, op.combine, *tensors, origin, outside)
    low.launch_all(solution, {"indices": indices, "updates": updates, "out": out}, ins)


lowering("onehot", accepts=keeps_inner_axis)(onehot_rule(onehot_launch))
