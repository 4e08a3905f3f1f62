"""Lower arg-reductions, top-k selections and prefix sums."""

from __future__ import annotations

from math import prod

from ....codegen.gpu.data.argreduce import argreduce_launch
from ....codegen.gpu.data.scan import scan_launch
from ....codegen.gpu.data.topk import kept_elements, topk_comparisons, topk_launch, topk_share
from ....core.dim import SymbolicLengthError, hint, is_symbolic, known_in
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.reduce import ArgReduction
from ....ops.softmax import PrefixScanSum
from ....ops.topk import TopK
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

MOST_COMPARISONS = 1 << 40
"""Maximum number of comparisons of a selection: several tenths of a second on an H100, in which NumPy sorts as many
elements."""


@lowering("argmax", "argmin")
def lower_arg_reduction(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op = ins.op
    assert isinstance(op, ArgReduction)
    x, out = low.input(ins, 0), low.output(ins)
    axis = op.axis % len(x.lens)
    greatest, last = op.name == "argmax", op.select_last_index
    solution = low.solve(argreduce_launch, greatest, last, axis, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "out": out}, ins)


@lowering("topk")
def lower_topk(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that selects from parts of rows, and kernels that select from the results of the parts."""
    op = ins.op
    assert isinstance(op, TopK)
    x = low.input(ins, 0)
    axis = op.axis % len(x.lens)
    length = x.lens[axis]
    if len(ins.inputs) != 1:
        low.host(ins, "kernels give positions, not elements of a second input")
        return
    if is_symbolic(length):
        raise SymbolicLengthError(f"a selection of {op.k} of {length} elements is planned for numbers")
    rest = [n for a, n in enumerate(x.lens) if a != axis]
    comparisons = topk_comparisons(op.k, hint(prod(rest)), length) if op.k else 0
    if comparisons > MOST_COMPARISONS:
        low.host(ins, f"kernels compare {MOST_COMPARISONS} elements, and {op.k} of {length} take {comparisons}")
        return
    values, positions = low.outputs_of(ins)
    if not op.k or any(known_in(n, 0) for n in x.lens):
        return
    places = None
    while True:
        share, operands = topk_share(op.k, length), {"x": x}
        if places is not None:
            operands["places"] = places
        if share == length:
            made = values, positions
        else:
            length = kept_elements(op.k, length)
            lens = (*x.lens[:axis], length, *x.lens[axis + 1 :])
            made = low.allocate(Shape(x.type, lens)), low.allocate(Shape(Type.int64_type, lens))
        tensors = x.tensor, made[0].tensor, made[1].tensor
        known = None if places is None else places.tensor
        solution = low.solve(topk_launch, op.k, axis, op.largest, *tensors, low.origin(ins), known)
        low.launch_all(solution, {**operands, "values": made[0], "positions": made[1]}, ins)
        if made[0] is values:
            return
        x, places = made


@lowering("prefix_scan_sum", accepts=keeps_inner_axis)
def lower_scan(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op = ins.op
    assert isinstance(op, PrefixScanSum)
    x, out = low.input(ins, 0), low.output(ins)
    axis = op.axis % len(x.lens)
    if any(known_in(n, 0) for n in x.lens):
        return
    how = axis, op.exclusive, op.reverse, x.tensor, out.tensor, low.origin(ins)
    low.launch_all(low.solve(scan_launch, *how), {"x": x, "out": out}, ins)
