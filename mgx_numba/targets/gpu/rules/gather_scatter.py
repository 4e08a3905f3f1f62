"""Lower gathers, scatters and one-hot encoding."""

from __future__ import annotations

from collections.abc import Callable

from ....codegen.gpu.data.atomic_scatter import UpdateScatter, atomic_scatter_launch, element_scatter, slice_scatter
from ....codegen.gpu.data.caches import cache_copy_launch
from ....codegen.gpu.data.indexed import positions_launch
from ....codegen.gpu.data.onehot import onehot_launch
from ....codegen.gpu.data.scatter import (
    combines_in_any_order,
    element_lines,
    has_many_updates,
    scatter_launch,
    slice_lines,
)
from ....codegen.problems.cluster import Tensor
from ....core.dim import known_in, preferred
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.scatter import REDUCTIONS, ScatterBase, ScatterNDBase
from ...lowering.attention_operands import convert
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
    """Append a copy of the data, and a kernel that updates it; unless updates are combined in any order, a kernel
    before it computes positions."""
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
        checked = is_checked(low, op, ins.inputs[1], out)
        lines = element_lines(op.axis % len(data.lens), *tensors, checked)
    else:
        tuples = tuples_may_be_out_of_range(low, ins.inputs[1], data.lens)
        lines = slice_lines(*tensors, tuples)
    atomic = combines_in_any_order(op.combine, out.type, low.options.fast_math)
    if atomic and preferred(has_many_updates(lines)):

        def problem(total: Tensor) -> UpdateScatter:
            given = updates.tensor, indices.tensor, total
            if isinstance(op, ScatterNDBase):
                return slice_scatter(op.combine, *given, tuples)
            return element_scatter(op.combine, op.axis % len(data.lens), (updates.tensor,), None, *given, checked)

        combine_atomically(low, ins, data, out, problem, {"x0": updates, "indices": indices})
        return
    positions = low.allocate(Shape(Type.int64_type, lines.positions.lens))
    solution = low.solve(positions_launch, lines.terms, lines.positions, origin)
    low.launch_all(solution, {"indices": indices, "out": positions}, ins)
    keep_or_copy(low, data, out, ins, cache_copy_launch)
    solution = low.solve(scatter_launch, op.combine, lines, updates.tensor, out.tensor, origin)
    low.launch_all(solution, {"positions": positions, "updates": updates, "out": out}, ins)


def is_checked(low: Lowering, op: ScatterBase, indices: Instruction, out: View) -> bool:
    """Return whether indices of a scatter may be out of range, which is an error."""
    return not op.skip_out_of_bounds and may_be_out_of_range(low, indices, out.lens[op.axis % len(out.lens)])


def combine_atomically(
    low: Lowering,
    ins: Instruction,
    data: View,
    out: View,
    problem: Callable[[Tensor], UpdateScatter],
    operands: dict[str, View],
    *checked_by: Instruction,
) -> None:
    """Append a copy of the data and the kernel of a problem; 16-bit floats are rounded once, as by other kernels.

    Args:
        problem: returns the problem for the tensor in which updates are combined.
        checked_by: as of `Lowering.launch`.
    """
    wide = data.type.compute
    total = out if wide is out.type else low.allocate(Shape(wide, out.lens, out.strides))
    if total is out:
        keep_or_copy(low, data, out, ins, cache_copy_launch)
    else:
        convert(low, ins, data, total)
    solution = low.solve(atomic_scatter_launch, problem(total.tensor), low.options.fast_math, low.origin(ins))
    low.launch_all(solution, {**operands, "out": total}, ins, *checked_by)
    if total is not out:
        convert(low, ins, total, out)


lowering("onehot", accepts=keeps_inner_axis)(onehot_rule(onehot_launch))
