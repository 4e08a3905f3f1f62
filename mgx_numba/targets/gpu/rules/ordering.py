"""Lower arg-reductions, top-k selections and prefix sums."""

from __future__ import annotations

from math import prod

from ....codegen.alternatives import only_where
from ....codegen.gpu.data.argreduce import argreduce_launch
from ....codegen.gpu.data.scan import scan_launch
from ....codegen.gpu.data.topk import is_short, kept_elements, topk_comparisons, topk_launch, topk_share
from ....core.dim import Length, hint, is_symbolic, known_equal, known_in, negate
from ....core.shape import Shape
from ....core.types import Type
from ....graph.instruction import Instruction
from ....ops.reduce import ArgReduction
from ....ops.softmax import PrefixScanSum
from ....ops.topk import TopK
from ...lowering.buffers import View
from ...lowering.lowering import Lowering
from ...lowering.output_aliasing import keeps_inner_axis
from .table import lowering

OPEN_LAUNCHES = 2
"""Launches that reduce rows of an open number of elements before the last launch. Of 16 million elements they leave
some thousands if few are selected."""
MOST_COMPARISONS = 1 << 40
"""Maximum number of comparisons of a selection: several tenths of a second on an H100, in which NumPy sorts as many
elements."""


@lowering("argmax", "argmin")
def lower_arg_reduction(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op = ins.operator(ArgReduction)
    x, out = low.input(ins, 0), low.output(ins)
    axis = op.axis % len(x.lens)
    greatest, last = op.name == "argmax", op.select_last_index
    solution = low.solve(argreduce_launch, greatest, last, axis, x.tensor, out.tensor, low.origin(ins))
    low.launch_all(solution, {"x": x, "out": out}, ins)


@lowering("topk")
def lower_topk(low: Lowering, ins: Instruction) -> None:
    """Append a kernel that selects from parts of rows, and kernels that select from the results of the parts."""
    op = ins.operator(TopK)
    x = low.input(ins, 0)
    axis = op.axis % len(x.lens)
    length = x.lens[axis]
    if len(ins.inputs) != 1:
        low.host(ins, "kernels give positions, not elements of a second input")
        return
    rest = [n for a, n in enumerate(x.lens) if a != axis]
    none = known_equal(op.k, 0)
    comparisons = 0 if none else topk_comparisons(hint(op.k), hint(prod(rest)), hint(length))
    if comparisons > MOST_COMPARISONS:
        low.host(ins, f"kernels compare {MOST_COMPARISONS} elements, and {op.k} of {length} take {comparisons}")
        return
    values, positions = low.outputs_of(ins)
    if none or any(known_in(n, 0) for n in x.lens):
        return
    is_open = is_symbolic(length) or is_symbolic(op.k)
    short = is_short(op.k, length)
    if is_open:
        _select(low, ins, (x, None), (values, positions), length, short)
        if known_equal(short, 1):
            return
    source: tuple[View, View | None] = (x, None)
    launches = 0
    while launches < OPEN_LAUNCHES if is_open else not is_short(op.k, length):
        share, length = topk_share(op.k, length), kept_elements(op.k, length)
        lens = (*x.lens[:axis], length, *x.lens[axis + 1 :])
        made = low.allocate(Shape(x.type, lens)), low.allocate(Shape(Type.int64_type, lens))
        _select(low, ins, source, made, share, negate(short) if is_open else 1)
        source, launches = made, launches + 1
    _select(low, ins, source, (values, positions), length, negate(short) if is_open else 1)


def _select(
    low: Lowering, ins: Instruction, source: tuple[View, View | None], made: tuple[View, View], share: Length,
    where: Length,
) -> None:  # fmt: skip
    """Append a kernel that selects from parts of ``share`` elements, with tasks where a condition holds; ``source`` has
    the elements and their places in rows, None for those of whole rows."""
    op, (x, places) = ins.operator(TopK), source
    tensors, known = (x.tensor, made[0].tensor, made[1].tensor), None if places is None else places.tensor
    how = op.k, op.axis % len(x.lens), op.largest, *tensors, share, low.origin(ins), known
    operands = {"x": x, "values": made[0], "positions": made[1], **({} if places is None else {"places": places})}
    low.launch_all(only_where(where, low.solve(topk_launch, *how)), operands, ins)


@lowering("prefix_scan_sum", accepts=keeps_inner_axis)
def lower_scan(low: Lowering, ins: Instruction) -> None:
    """Append one kernel."""
    op = ins.operator(PrefixScanSum)
    x, out = low.input(ins, 0), low.output(ins)
    axis = op.axis % len(x.lens)
    if any(known_in(n, 0) for n in x.lens):
        return
    how = axis, op.exclusive, op.reverse, x.tensor, out.tensor, low.origin(ins)
    low.launch_all(low.solve(scan_launch, *how), {"x": x, "out": out}, ins)
