"""Lower gathers, scatters and one-hot encoding."""

from __future__ import annotations

from ....codegen.gpu.data.caches import cache_copy_launch
from ....codegen.gpu.data.indexed import positions_launch
from ....codegen.gpu.data.onehot import onehot_launch
from ....codegen.gpu.data.scatter import (
    ScatterLines,
    atomic_launch,
    combines_in_any_order,
    element_lines,
    has_many_updates,
    scatter_launch,
    slice_lines,
)
from ....core.dim import known_in, preferred
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.scatter import REDUCTIONS, ScatterBase, ScatterNDBase
from ...lowering.attention_operands import as_type, convert
from ...lowering.buffers import View
from ...lowering.caches import keep_or_copy
from ...lowering.gathers import lower_gather, lower_scan_slice, may_be_out_of_range, tuples_may_be_out_of_range
from ...lowering.launched import onehot_rule
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

lowering("gather", "gather_elements", "gathernd", accepts=keeps_inner_axis)(lower_gather)
lowering("scan_slice")(lower_scan_slice)


@lowering(*(f"scatter_{r}" for r in REDUCTIONS), *(f"scatternd_{r}" for r in REDUCTIONS))
def lower_scatter(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the data, a kernel that computes positions in it, and a kernel that updates them."""
    op, (data, indices, updates) = ins.op, low.inputs(ins)
    assert isinstance(op, (ScatterBase, ScatterNDBase))
    if any(known_in(n, 0) for n in data.lens):
        low.host(ins, "there is no element to change")
        return
    out = low.output(ins)
    if any(known_in(n, 0) for n in (*updates.lens, *indices.lens[:-1])):
        keep_or_copy(low, data, out, ins, cache_copy_launch)
        return
    tensors, origin = (indices.tensor, updates.tensor, out.tensor), low.origin(ins)
    if isinstance(op, ScatterBase):
        axis = op.axis % len(data.lens)
        checked = not op.skip_out_of_bounds and may_be_out_of_range(low, ins.inputs[1], data.lens[axis])
        lines = element_lines(axis, *tensors, checked)
    else:
        lines = slice_lines(*tensors, tuples_may_be_out_of_range(low, ins.inputs[1], data.lens))
    positions = low.allocate(Shape(Type.int64_type, lines.positions.lens))
    solution = low.solve(positions_launch, lines.terms, lines.positions, origin)
    low.launch_all(solution, {"indices": indices, "out": positions}, ins)
    wide = out.type.compute
    if not combines_in_any_order(op.combine, out.type, low.options.fast_math) or not preferred(has_many_updates(lines)):
        keep_or_copy(low, data, out, ins, cache_copy_launch)
        solution = low.solve(scatter_launch, op.combine, lines, updates.tensor, out.tensor, origin)
        low.launch_all(solution, {"positions": positions, "updates": updates, "out": out}, ins)
    elif wide is out.type:
        keep_or_copy(low, data, out, ins, cache_copy_launch)
        _combine_atomically(low, ins, op.combine, lines, positions, updates, out)
    else:  # rounded once, as by the other kernels
        total = low.allocate(Shape(wide, out.lens, out.strides))
        convert(low, ins, data, total)
        _combine_atomically(low, ins, op.combine, lines, positions, as_type(low, ins, updates, wide), total)
        convert(low, ins, total, out)


def _combine_atomically(
    low: Lowering, ins: Instruction, combine: str, lines: ScatterLines, positions: View, updates: View, out: View
) -> None:
    solution = low.solve(atomic_launch, combine, lines, updates.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"positions": positions, "updates": updates, "out": out}, ins)


lowering("onehot", accepts=keeps_inner_axis)(onehot_rule(onehot_launch))
