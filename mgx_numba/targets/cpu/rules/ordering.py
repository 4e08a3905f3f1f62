"""Lower arg-reductions, top-k selections, positions of nonzero elements, distinct elements, and prefix sums."""

from __future__ import annotations

from math import prod

from ....codegen.cpu.data.argreduce import arg_join_launch, arg_part_launch, arg_parts, argreduce_launch
from ....codegen.cpu.data.nonzero import nonzero_launch
from ....codegen.cpu.data.row_sort import sort_launch
from ....codegen.cpu.data.scan import part_sums_launch, scan_launch, scan_parts
from ....codegen.cpu.data.topk import is_by_columns, is_sorted_faster, topk_columns_launch, topk_launch, topk_share
from ....codegen.cpu.data.unique import unique_launch
from ....core.dim import known_in, known_less, known_less_equal, less, less_equal, preferred
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.reduce import ArgReduction
from ....ops.selection import MOST_COUNTED, NonZero, Unique
from ....ops.softmax import PrefixScanSum
from ....ops.topk import TopK
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .counted import counted_outputs, take_counted
from .sort_scratch import sort_scratch
from .table import lowering

LONGEST_AXIS = 1 << 31  # kernels store positions as int32
SHORTEST_ROW = 16
"""Least length of strided rows that are copied to contiguous memory before sorting."""


@lowering("argmax", "argmin")
def lower_arg_reduction(low: Lowering, ins: Instruction) -> None:
    """Append one kernel, or two for few long rows."""
    op = ins.operator(ArgReduction)
    x = low.input(ins, 0)
    axis = op.axis % len(x.lens)
    if known_less_equal(LONGEST_AXIS, x.lens[axis]):
        low.host(ins, f"kernels count positions up to {LONGEST_AXIS}, the axis has {x.lens[axis]}")
        return
    low.require(less(x.lens[axis], LONGEST_AXIS))
    out = low.output(ins)
    arguments = op.name == "argmax", op.select_last_index, axis, x.tensor, out.tensor, low.origin(ins)
    operands = {"x": x, "out": out}
    parts, type_ = arg_parts(axis, x.tensor, out.tensor)
    if parts > 1:
        operands["values"] = low.allocate(Shape(type_, (parts,)))
        operands["places"] = low.allocate(Shape(Type.int64_type, (parts,)))
        low.launch(arg_part_launch(*arguments), operands, ins)
        low.launch(arg_join_launch(*arguments), operands, ins)
    else:
        low.launch_all(low.solve(argreduce_launch, *arguments), operands, ins)


@lowering("topk")
def lower_topk(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that sorts contiguous rows, or one that selects a moderate k, or two for few long rows, or one
    for a few elements of each column.

    With a second input, from which the elements are taken, a fallback step.
    """
    op = ins.operator(TopK)
    x = low.input(ins, 0)
    axis = op.axis % len(x.lens)
    if len(ins.inputs) != 1:
        low.host(ins, "kernels give positions, not elements of a second input")
        return
    suits = not known_in(op.k, 0) and known_less_equal(0, op.k)
    if not suits or known_less_equal(LONGEST_AXIS, x.lens[axis]):
        low.host(ins, f"kernels sort fewer than {LONGEST_AXIS} elements, not {op.k} of {x.lens[axis]}")
        return
    low.require(less(x.lens[axis], LONGEST_AXIS))
    values, positions = low.outputs_of(ins)
    if is_by_columns(op.k, axis, x.tensor):
        tensors = x.tensor, values.tensor, positions.tensor
        solution = low.solve(topk_columns_launch, op.k, axis, op.largest, *tensors, low.origin(ins))
        low.launch_all(solution, {"x": x, "values": values, "positions": positions}, ins)
        return
    if not known_less_equal(x.strides[axis], 1) and preferred(less_equal(SHORTEST_ROW, x.lens[axis])):
        moved = [*(n for a, n in enumerate(x.lens) if a != axis), x.lens[axis]]
        packed = list(Shape(x.type, moved).strides)
        strides = [*packed[:axis], packed[-1], *packed[axis:-1]]
        x = low.materialized(x, strides, ins)
    if is_sorted_faster(op.k, axis, x.tensor):
        _sort_rows(low, ins, x, values, positions)
        return
    share, origin, places = topk_share(op.k, axis, x.tensor), low.origin(ins), {}
    if known_less(share, x.lens[axis]):
        rows, count = [n for a, n in enumerate(x.lens) if a != axis], -(-x.lens[axis] // share) * op.k
        some = low.allocate(Shape(x.type, (*rows, count))), low.allocate(Shape(Type.int64_type, (*rows, count)))
        tensors = x.tensor, values.tensor, positions.tensor
        launch = topk_launch(op.k, axis, op.largest, *tensors, origin, share)
        low.launch(launch, {"x": x, "values": some[0], "positions": some[1]}, ins)
        last = [*(a for a in range(len(x.lens)) if a != axis), axis]
        values, positions = (_transposed(v, last) for v in (values, positions))
        x, places, axis = some[0], {"places": some[1]}, len(rows)
    tensors = x.tensor, values.tensor, positions.tensor
    solution = low.solve(topk_launch, op.k, axis, op.largest, *tensors, origin, 0, bool(places))
    low.launch_all(solution, {"x": x, "values": values, "positions": positions, **places}, ins)


@lowering("nonzero", dynamic=True)
def lower_nonzero(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that also counts; a fallback step for more elements than memory is allocated for."""
    op, x = ins.operator(NonZero), low.input(ins, 0)
    counts = op.counts or op.use_dyn_output
    if op.use_dyn_output and not op.counts and len(x.lens) * x.shape.elements > MOST_COUNTED:  # may add a guard
        low.host(ins, "memory for the positions of all elements would be too large")
        return
    x = low.materialized(x, Shape(x.type, x.lens).strides, ins)
    operands = {"x": x}
    if counts:
        operands["positions"], operands["count"] = counted_outputs(low, ins, len(x.lens) * x.shape.elements)
    else:
        operands["positions"] = low.output(ins)
    low.launch_all(low.solve(nonzero_launch, x.tensor, counts, low.origin(ins)), operands, ins)
    if counts:
        take_counted(low, ins, (len(x.lens), -1), operands["positions"], operands["count"])


@lowering("unique", dynamic=True)
def lower_unique(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that sorts the elements and one that counts equal neighbours; a fallback step where no count is
    asked for."""
    op, x = ins.operator(Unique), low.input(ins, 0)
    if not op.counts:
        low.host(ins, "the number of distinct values is known at run time only")
        return
    elements = prod(x.lens)
    x = low.materialized(x, Shape(x.type, x.lens).strides, ins).with_shape(Shape(x.type, (elements,)))
    low.require(less_equal(elements, MOST_COUNTED))
    *results, number = low.outputs_of(ins)
    ordered, order = low.allocate(Shape(x.type, (elements,))), low.allocate(Shape(Type.int64_type, (elements,)))
    groups, scratch = sort_scratch(low, x, 1, elements)
    origin, tensors = low.origin(ins), (x.tensor, ordered.tensor, order.tensor)
    solution = low.solve(sort_launch, elements, 0, False, *tensors, groups, origin)
    low.launch_all(solution, {"x": x, "values": ordered, "positions": order, **scratch}, ins)
    operands = dict(zip(("values", "first", "inverse", "counts"), results, strict=True), number=number)
    if not op.sorted:
        operands |= {name: low.allocate(Shape(Type.int64_type, (elements,))) for name in ("firsts", "sizes")}
    solution = low.solve(unique_launch, x.tensor, op.sorted, op.equal_nan, origin)
    low.launch_all(solution, {"x": x, "ordered": ordered, "order": order, **operands}, ins)


def _sort_rows(low: Lowering, ins: Instruction, x: View, values: View, positions: View) -> None:
    """Append the kernel that sorts whole rows, with scratch memory for each of its tasks."""
    op = ins.operator(TopK)
    axis = op.axis % len(x.lens)
    rows = prod(n for a, n in enumerate(x.lens) if a != axis)
    groups, made = sort_scratch(low, x, rows, x.lens[axis])
    tensors = x.tensor, values.tensor, positions.tensor
    solution = low.solve(sort_launch, op.k, axis, op.largest, *tensors, groups, low.origin(ins))
    low.launch_all(solution, {"x": x, "values": values, "positions": positions, **made}, ins)


def _transposed(view: View, order: list[int]) -> View:
    return view.with_shape(Shape(view.type, [view.lens[a] for a in order], [view.strides[a] for a in order]))


@lowering("prefix_scan_sum", accepts=keeps_inner_axis)
def lower_scan(low: Lowering, ins: Instruction) -> None:
    """Append one kernel; for few long rows, first another for the sums of their parts."""
    op = ins.operator(PrefixScanSum)
    x, out = low.input(ins, 0), low.output(ins)
    axis = op.axis % len(x.lens)
    operands = {"x": x, "out": out}
    parts, wide = scan_parts(axis, x.tensor, out.tensor)
    if parts > 1:
        operands["sums"] = low.allocate(Shape(wide, (parts,)))
        low.launch(part_sums_launch(axis, x.tensor, out.tensor, low.origin(ins)), operands, ins)
    how = axis, op.exclusive, op.reverse, x.tensor, out.tensor, low.origin(ins)
    low.launch_all(low.solve(scan_launch, *how), operands, ins)
