"""Lower gathers, scatters and one-hot encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.alternatives import has_lengths
from ....codegen.gpu.data import scatter
from ....codegen.gpu.data.atomic_scatter import UpdateScatter, atomic_scatter_launch, element_scatter, slice_scatter
from ....codegen.gpu.data.caches import cache_copy_launch
from ....codegen.gpu.data.gathered import gathered_launch
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
from ....codegen.problems.indexed_copy import IndexedCopy, gather_copy
from ....core.dim import known_in, preferred
from ....core.shape import Shape, row_major_strides
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.gather import Gather
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
        checked = _is_checked(low, op, ins.inputs[1], out)
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

        _combine_atomically(low, ins, data, out, problem, {"x0": updates, "indices": indices})
        return
    positions = low.allocate(Shape(Type.int64_type, lines.positions.lens))
    solution = low.solve(positions_launch, lines.terms, lines.positions, origin)
    low.launch_all(solution, {"indices": indices, "out": positions}, ins)
    keep_or_copy(low, data, out, ins, cache_copy_launch)
    solution = low.solve(scatter_launch, op.combine, lines, updates.tensor, out.tensor, origin)
    low.launch_all(solution, {"positions": positions, "updates": updates, "out": out}, ins)


def computes_updates(fast_math: bool, ins: Instruction) -> bool:
    """Return whether a scatter's updates are combined atomically, by a kernel that may compute them."""
    op, updates = ins.op, ins.inputs[2].shape
    if not isinstance(op, ScatterBase) or has_lengths((updates.lens, ins.shape.lens)) or not ins.shape.elements:
        return False
    many = updates.elements * updates.lens[op.axis % updates.ndim] > scatter.MOST_SEARCHED
    return many and combines_in_any_order(op.combine, ins.shape.type, fast_math)


@lowering("fused_gather")
def lower_fused_gather(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that gathers values and computes a module of them."""
    body = ins.module_args[0]
    (last,) = body.results()
    out = low.output(ins)
    sources, operands = _sources(low, ins, last.inputs, out.tensor)
    given = sources, out.tensor, low.options.fast_math, low.origin(ins)
    low.launch_all(low.solve(gathered_launch, last.module_args[0], *given), {**operands, "out": out}, ins)


@lowering("fused_scatter")
def lower_fused_scatter(low: Lowering, ins: Instruction) -> None:
    """Append a copy of the data, and a kernel that computes updates and combines them with it."""
    body = ins.module_args[0]
    (last,) = body.results()
    given = dict(zip(body.parameters(), zip(ins.inputs, low.inputs(ins))))
    op, updates = last.operator(ScatterBase), last.inputs[2]
    (_, data), (outside, indices) = (given[i] for i in last.inputs[:2])
    module, values = (updates.module_args[0], updates.inputs) if updates.module_args else (None, (updates,))
    shape = Tensor(updates.shape.type, indices.lens, row_major_strides(indices.lens))
    sources, operands = _sources(low, ins, values, shape)
    out, axis = low.output(ins), op.axis % len(data.lens)
    checked = _is_checked(low, op, outside, out)

    def problem(total: Tensor) -> UpdateScatter:
        return element_scatter(op.combine, axis, sources, module, shape, indices.tensor, total, checked)

    _combine_atomically(low, ins, data, out, problem, {**operands, "indices": indices})


def _sources(
    low: Lowering, ins: Instruction, values: Sequence[Instruction], out: Tensor
) -> tuple[list[Tensor | IndexedCopy], dict[str, View]]:
    """Return the sources of `GatheredValues` and their views, for values of the submodule with the lengths of ``out``:
    its parameters and gathers of these."""
    given = dict(zip(ins.module_args[0].parameters(), zip(ins.inputs, low.inputs(ins))))
    sources: list[Tensor | IndexedCopy] = []
    operands: dict[str, View] = {}
    for k, value in enumerate(values):
        if value in given:
            operands[f"x{k}"] = given[value][1]
            sources.append(operands[f"x{k}"].tensor)
            continue
        (_, read), (places, at) = (given[i] for i in value.inputs)
        axis = value.operator(Gather).axis % len(read.lens)
        checked = may_be_out_of_range(low, places, read.lens[axis])
        sources.append(gather_copy(axis, read.tensor, at.tensor, out, "", checked))
        operands |= {f"x{k}": read, f"indices{k}": at}
    return sources, operands


def _is_checked(low: Lowering, op: ScatterBase, indices: Instruction, out: View) -> bool:
    """Return whether indices of a scatter may be out of range, which is an error."""
    return not op.skip_out_of_bounds and may_be_out_of_range(low, indices, out.lens[op.axis % len(out.lens)])


def _combine_atomically(
    low: Lowering,
    ins: Instruction,
    data: View,
    out: View,
    problem: Callable[[Tensor], UpdateScatter],
    operands: dict[str, View],
) -> None:
    """Append a copy of the data and the kernel of a problem; 16-bit floats are rounded once, as by other kernels."""
    wide = data.type.compute
    total = out if wide is out.type else low.allocate(Shape(wide, out.lens, out.strides))
    if total is out:
        keep_or_copy(low, data, out, ins, cache_copy_launch)
    else:
        convert(low, ins, data, total)
    solution = low.solve(atomic_scatter_launch, problem(total.tensor), low.options.fast_math, low.origin(ins))
    low.launch_all(solution, {**operands, "out": total}, ins)
    if total is not out:
        convert(low, ins, total, out)


lowering("onehot", accepts=keeps_inner_axis)(onehot_rule(onehot_launch))
